"""linear: x times the transpose of a weight matrix, plus a bias.

x (R, K), weight (N, K), [bias (N,)] -> out (R, N).
"""

from __future__ import annotations

import torch

from .definition import Call, Cost, Matrix, OpDefinition, Result, Signature, Values, moved_bytes


def multiply(x: torch.Tensor, weight: Matrix, bias: torch.Tensor | None) -> torch.Tensor:
    """x (R, K) float32 times the transpose of weight (N, K), plus bias (N,): (R, N), a slice of outputs at a
    time.
    """
    parts = [x @ weight.read(begin, end).T for begin, end in weight.slices()]
    out = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
    return out if bias is None else out + bias


def _shape(signature: Signature) -> dict[str, Result]:
    outputs, width = signature.matrix()
    signature.activation("x", width)
    if signature.has("bias"):
        signature.vector("bias", outputs)
    return {"out": Result((signature.rows, outputs))}


def _reference(call: Call) -> Values:
    return {"out": multiply(call.inputs["x"], call.matrices["weight"], call.inputs.get("bias"))}


def _cost(signature: Signature) -> Cost:
    outputs, width = signature.matrix()
    return Cost(moved_bytes(signature, _shape(signature)), 2 * signature.rows * outputs * width)


DEFINITION = OpDefinition(
    "linear", ("x", "weight"), ("out",), _shape, _reference, _cost, optional_inputs=("bias",)
)  # fmt: skip
