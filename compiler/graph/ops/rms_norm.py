"""rms_norm: each row divided by its root mean square, times a weight per channel.

x (R, H), weight (H,) -> out (R, H) = x / sqrt(mean(x^2) + eps) * weight.
"""

from __future__ import annotations

import torch

from .definition import Call, Cost, OpDefinition, Result, Signature, Values, moved_bytes


def normalise(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """rms_norm over the last axis of x (..., n) with weight (n,), float32."""
    scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return x * scale * weight


def _shape(signature: Signature) -> dict[str, Result]:
    width = signature.activation("x")
    signature.vector("weight", width)
    signature.positive("eps")
    return {"out": Result((signature.rows, width))}


def _reference(call: Call) -> Values:
    return {"out": normalise(call.inputs["x"], call.inputs["weight"], float(call.attributes["eps"]))}


def _cost(signature: Signature) -> Cost:
    return Cost(moved_bytes(signature, _shape(signature)), 4 * signature.rows * signature.activation("x"))


DEFINITION = OpDefinition(
    "rms_norm", ("x", "weight"), ("out",), _shape, _reference, _cost, attributes={"eps": float}
)  # fmt: skip
