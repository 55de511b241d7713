"""kv_write: round this step's keys and values to the KV format and store them at their rows' places in the
granules.

k, v (R, KV * HS), positions, leases (rows_max,) u32 -> k_cache (KV, HS, 128), v_cache (KV, 128, HS) of one
granule. A row at position t goes to granule t // 128 of its lease, column t % 128.
"""

from __future__ import annotations

import torch

from ....plans.layout import GRANULE_TOKENS, Dtype
from ...numerics.formats import round_kv
from .definition import (
    Call,
    Cost,
    OpDefinition,
    Result,
    Signature,
    Values,
    cache_results,
)


def store(call: Call, k: torch.Tensor, v: torch.Tensor) -> Values:
    """Writes k and v (R, KV * HS) into the call's caches, rounded to its KV format; returns the caches."""
    assert call.granules is not None
    keys, values = call.caches["k_cache"], call.caches["v_cache"]
    positions = call.inputs["positions"]
    granules = call.granules[call.inputs["leases"], positions // GRANULE_TOKENS]
    columns = positions % GRANULE_TOKENS
    heads = (call.rows, keys.shape[1], keys.shape[2])
    keys[granules, :, :, columns] = _rounded(k.reshape(heads), call.kv)
    values[granules, :, columns, :] = _rounded(v.reshape(heads), call.kv)
    return {"k_cache": keys, "v_cache": values}


def _rounded(x: torch.Tensor, kv: Dtype) -> torch.Tensor:
    return torch.from_numpy(round_kv(x.numpy(), kv))


def _heads(signature: Signature) -> tuple[int, int]:
    return signature.integer("kv_heads", 1), signature.integer("head_size", 2)


def _shape(signature: Signature) -> dict[str, Result]:
    kv_heads, head_size = _heads(signature)
    signature.activation("k", kv_heads * head_size)
    signature.activation("v", kv_heads * head_size)
    signature.table("positions")
    signature.table("leases")
    return dict(cache_results(kv_heads, head_size))


def _reference(call: Call) -> Values:
    return store(call, call.inputs["k"], call.inputs["v"])


def _cost(signature: Signature) -> Cost:
    kv_heads, head_size = _heads(signature)
    return Cost(2 * 4 * signature.rows * kv_heads * head_size, 0)  # writes are KV: left out


DEFINITION = OpDefinition(
    "kv_write", ("k", "v", "positions", "leases"), ("k_cache", "v_cache"), _shape, _reference, _cost,
    attributes={"kv_heads": int, "head_size": int}, layered=True,
)  # fmt: skip
