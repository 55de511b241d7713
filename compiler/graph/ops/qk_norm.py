"""qk_norm: rms_norm of every head by itself, before rope, with one weight for all heads.

x (R, heads * HS), weight (HS,) -> out (R, heads * HS).
"""

from __future__ import annotations

import torch

from .definition import Call, Cost, OpDefinition, Result, ShapeError, Signature, Values, moved_bytes
from .rms_norm import normalise


def normalise_heads(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """rms_norm of x (R, heads * HS) over each head with weight (HS,)."""
    return normalise(x.reshape(x.shape[0], -1, weight.shape[0]), weight, eps).reshape(x.shape)


def _shape(signature: Signature) -> dict[str, Result]:
    head_size, heads = signature.vector("weight"), signature.integer("heads", 1)
    signature.positive("eps")
    width = signature.activation("x")
    if width != heads * head_size:
        raise ShapeError(f"x has width {width}; {heads} heads of {head_size} are needed")
    return {"out": Result((signature.rows, width))}


def _reference(call: Call) -> Values:
    return {"out": normalise_heads(call.inputs["x"], call.inputs["weight"], float(call.attributes["eps"]))}


def _cost(signature: Signature) -> Cost:
    return Cost(moved_bytes(signature, _shape(signature)), 4 * signature.rows * signature.activation("x"))


DEFINITION = OpDefinition(
    "qk_norm", ("x", "weight"), ("out",), _shape, _reference, _cost,
    attributes={"heads": int, "eps": float}, layered=True,
)  # fmt: skip
