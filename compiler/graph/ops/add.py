"""add: the residual stream takes a block's output.

a, b (R, H) -> out (R, H) = a + b.
"""

from __future__ import annotations

from .definition import Call, Cost, OpDefinition, Result, Signature, Values, moved_bytes


def _shape(signature: Signature) -> dict[str, Result]:
    width = signature.activation("a")
    signature.activation("b", width)
    return {"out": Result((signature.rows, width))}


def _reference(call: Call) -> Values:
    return {"out": call.inputs["a"] + call.inputs["b"]}


def _cost(signature: Signature) -> Cost:
    return Cost(moved_bytes(signature, _shape(signature)), signature.rows * signature.activation("a"))


DEFINITION = OpDefinition("add", ("a", "b"), ("out",), _shape, _reference, _cost)
