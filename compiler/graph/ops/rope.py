"""rope: rotary embedding in the half-split form of transformers.

x (R, heads * HS), table (R, 2, P) -> out (R, heads * HS). Pair p of a head is elements (p, p + P): a' = a cos
- b sin, b' = b cos + a sin. Elements from 2 P on do not rotate.
"""

from __future__ import annotations

import torch

from .definition import Call, Cost, OpDefinition, Result, Signature, Values, moved_bytes


def rotate(x: torch.Tensor, table: torch.Tensor, head_size: int) -> torch.Tensor:
    """Every head of x (R, heads * HS) rotated by its row's angles, table (R, 2, P)."""
    pairs = table.shape[2]
    cosine, sine = table[:, 0, None, :], table[:, 1, None, :]
    heads = x.reshape(x.shape[0], -1, head_size)
    a, b, rest = heads[..., :pairs], heads[..., pairs : 2 * pairs], heads[..., 2 * pairs :]
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine, rest], dim=-1).reshape(x.shape)


def _shape(signature: Signature) -> dict[str, Result]:
    heads, head_size = signature.integer("heads", 1), signature.integer("head_size", 2)
    signature.activation("x", heads * head_size)
    signature.rope_table("table", head_size)
    return {"out": Result((signature.rows, heads * head_size))}


def _reference(call: Call) -> Values:
    return {"out": rotate(call.inputs["x"], call.inputs["table"], int(call.attributes["head_size"]))}


def _cost(signature: Signature) -> Cost:
    return Cost(moved_bytes(signature, _shape(signature)), 3 * signature.rows * signature.activation("x"))


DEFINITION = OpDefinition(
    "rope", ("x", "table"), ("out",), _shape, _reference, _cost,
    attributes={"heads": int, "head_size": int}, layered=True,
)  # fmt: skip
