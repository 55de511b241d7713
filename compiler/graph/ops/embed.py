"""embed: the residual stream's first value, one row of the embedding matrix per token.

tokens (rows_max,) u32, weight (V, H) -> out (R, H).
"""

from __future__ import annotations

from .definition import Call, Cost, OpDefinition, Result, Signature, Values, weight_bytes


def _shape(signature: Signature) -> dict[str, Result]:
    signature.table("tokens")
    _, hidden = signature.matrix()
    return {"out": Result((signature.rows, hidden))}


def _reference(call: Call) -> Values:
    return {"out": call.matrices["weight"].take(call.inputs["tokens"])}


def _cost(signature: Signature) -> Cost:
    vocabulary, hidden = signature.matrix()
    read = signature.rows * (4 + weight_bytes(signature.inputs["weight"]) // vocabulary)
    return Cost(read + 4 * signature.rows * hidden, 0)


DEFINITION = OpDefinition("embed", ("tokens", "weight"), ("out",), _shape, _reference, _cost)
