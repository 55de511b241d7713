"""silu_mul: the gated activation of the MLP.

gate, up (R, F) -> out (R, F) = gate / (1 + exp(-gate)) * up.
"""

from __future__ import annotations

import torch

from .definition import Call, Cost, OpDefinition, Result, Signature, Values, moved_bytes


def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, element by element."""
    return torch.nn.functional.silu(gate) * up


def _shape(signature: Signature) -> dict[str, Result]:
    width = signature.activation("gate")
    signature.activation("up", width)
    return {"out": Result((signature.rows, width))}


def _reference(call: Call) -> Values:
    return {"out": gated(call.inputs["gate"], call.inputs["up"])}


def _cost(signature: Signature) -> Cost:
    return Cost(moved_bytes(signature, _shape(signature)), 5 * signature.rows * signature.activation("gate"))


DEFINITION = OpDefinition("silu_mul", ("gate", "up"), ("out",), _shape, _reference, _cost)
