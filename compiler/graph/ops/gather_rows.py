"""gather_rows: the hidden states of the rows that need logits.

x (rows_max, H), row_index (head_rows_max,) u32 -> out (R, H), out[r] = x[row_index[r]].
"""

from __future__ import annotations

from .definition import Call, Cost, OpDefinition, Result, Signature, Values


def _shape(signature: Signature) -> dict[str, Result]:
    width = signature.activation("x", any_rows=True)
    signature.table("row_index")
    return {"out": Result((signature.rows, width))}


def _reference(call: Call) -> Values:
    return {"out": call.inputs["x"][call.inputs["row_index"]]}


def _cost(signature: Signature) -> Cost:
    return Cost(signature.rows * (4 + 2 * 4 * signature.activation("x", any_rows=True)), 0)


DEFINITION = OpDefinition("gather_rows", ("x", "row_index"), ("out",), _shape, _reference, _cost)
