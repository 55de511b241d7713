"""attention: softmax attention of each row's queries over its own lease's keys and values, causal, maybe
windowed.

q (R, NH * HS), k_cache, v_cache, positions, leases -> out (R, NH * HS). A row at position t sees tokens
[begin, t] with begin = max(0, t - window + 1), or 0 when window is 0: `kv_idx > q_idx - sliding_window` in
transformers' masking_utils. Query head h reads key/value head h // (NH / KV).
"""

from __future__ import annotations

import torch

from ....plans.layout import GRANULE_TOKENS
from .definition import Call, Cost, OpDefinition, Result, ShapeError, Signature, Values, moved_bytes

ROWS_AT_ONCE = 256  # rows whose scores are held at one time: bounds them to 256 * NH * T floats


def _span(call: Call, lease: int, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys (KV, HS, end - begin) and values (KV, end - begin, HS) of a lease's tokens [begin, end)."""
    assert call.granules is not None
    first = begin // GRANULE_TOKENS
    granules = call.granules[lease, first : -(-end // GRANULE_TOKENS)]
    low, high = begin - first * GRANULE_TOKENS, end - first * GRANULE_TOKENS
    keys = call.caches["k_cache"][granules].permute(1, 2, 0, 3).flatten(2)
    values = call.caches["v_cache"][granules].permute(1, 0, 2, 3).flatten(1, 2)
    return keys[:, :, low:high], values[:, low:high]


def _attend_rows(call: Call, q: torch.Tensor, lease: int, positions: torch.Tensor) -> torch.Tensor:
    """Attention of the rows q (n, NH, HS) at `positions` (n,) of one lease: (n, NH, HS)."""
    window, scale = int(call.attributes["window"]), float(call.attributes["softmax_scale"])
    kv_heads = int(call.attributes["kv_heads"])
    rows, heads, head_size = q.shape
    begins = (positions - window + 1).clamp(min=0) if window else torch.zeros_like(positions)
    begin, end = int(begins.min()), int(positions.max()) + 1
    keys, values = _span(call, lease, begin, end)
    tokens = torch.arange(begin, end)
    hidden = (tokens[None, :] > positions[:, None]) | (tokens[None, :] < begins[:, None])

    grouped = q.reshape(rows, kv_heads, -1, head_size).permute(1, 2, 0, 3)
    scores = (grouped.reshape(kv_heads, -1, head_size) @ keys) * scale
    scores = scores.reshape(kv_heads, -1, rows, end - begin).masked_fill(hidden, float("-inf"))
    weights = torch.softmax(scores, dim=-1).reshape(kv_heads, -1, end - begin)
    out = (weights @ values).reshape(kv_heads, -1, rows, head_size)
    return out.permute(2, 0, 1, 3).reshape(rows, heads, head_size)


def attend(call: Call, q: torch.Tensor) -> torch.Tensor:
    """Attention of q (R, NH * HS) over the call's caches: (R, NH * HS)."""
    positions, leases = call.inputs["positions"], call.inputs["leases"]
    heads = q.reshape(call.rows, int(call.attributes["query_heads"]), -1)
    out = torch.empty_like(heads)
    for lease in torch.unique(leases):
        for rows in (leases == lease).nonzero().flatten().split(ROWS_AT_ONCE):
            out[rows] = _attend_rows(call, heads[rows], int(lease), positions[rows])
    return out.reshape(q.shape)


def heads_of(signature: Signature) -> tuple[int, int, int]:
    """query_heads, kv_heads and head_size of an attention op, checked."""
    query_heads, kv_heads = signature.integer("query_heads", 1), signature.integer("kv_heads", 1)
    if query_heads % kv_heads:
        raise ShapeError(
            f"{query_heads} query heads do not share {kv_heads} kv heads evenly; a multiple is needed"
        )
    signature.positive("softmax_scale")
    signature.integer("window", 0)
    return query_heads, kv_heads, signature.integer("head_size", 2)


def _shape(signature: Signature) -> dict[str, Result]:
    query_heads, kv_heads, head_size = heads_of(signature)
    signature.activation("q", query_heads * head_size)
    signature.caches(kv_heads, head_size)
    signature.table("positions")
    signature.table("leases")
    return {"out": Result((signature.rows, query_heads * head_size))}


def _reference(call: Call) -> Values:
    return {"out": attend(call, call.inputs["q"])}


def _cost(signature: Signature) -> Cost:
    return Cost(moved_bytes(signature, _shape(signature)), 0)


DEFINITION = OpDefinition(
    "attention", ("q", "k_cache", "v_cache", "positions", "leases"), ("out",), _shape, _reference, _cost,
    attributes={"softmax_scale": float, "window": int, "query_heads": int, "kv_heads": int, "head_size": int},
    layered=True,
)  # fmt: skip
