"""rope_table: cosines and sines of every row's rotary angles, shared by all layers.

positions (rows_max,) u32, inverse_frequency (P,) -> out (R, 2, P): P cosines, then P sines, times
attention_factor. The angle is float32(position) * inverse_frequency in float32, as transformers computes it;
cosine and sine are those of that angle in float64, rounded once (runtime/README.md).
"""

from __future__ import annotations

import torch

from .definition import Call, Cost, OpDefinition, Result, Signature, Values, moved_bytes


def _shape(signature: Signature) -> dict[str, Result]:
    signature.table("positions")
    pairs = signature.vector("inverse_frequency")
    signature.positive("attention_factor")
    return {"out": Result((signature.rows, 2, pairs))}


def _reference(call: Call) -> Values:
    positions = call.inputs["positions"].to(torch.float32)
    angle = (positions[:, None] * call.inputs["inverse_frequency"][None, :]).to(torch.float64)
    factor = float(call.attributes["attention_factor"])
    return {"out": torch.stack([angle.cos() * factor, angle.sin() * factor], dim=1).to(torch.float32)}


def _cost(signature: Signature) -> Cost:
    return Cost(moved_bytes(signature, _shape(signature)), 0)


DEFINITION = OpDefinition(
    "rope_table", ("positions", "inverse_frequency"), ("out",), _shape, _reference, _cost,
    attributes={"attention_factor": float},
)  # fmt: skip
