"""fused_attention: split qkv, [qk_norm], [rope], kv_write and attention in one op.

qkv (R, (NH + 2 KV) * HS): all queries, then keys, then values; [rope (R, 2, P)], [q_norm (HS,), k_norm
(HS,)], positions, leases -> out (R, NH * HS), k_cache (KV, HS, 128), v_cache (KV, 128, HS).
"""

from __future__ import annotations

import torch

from .attention import attend, heads_of
from .definition import (
    Call,
    Cost,
    OpDefinition,
    Result,
    ShapeError,
    Signature,
    Values,
    cache_results,
)
from .kv_write import store
from .qk_norm import normalise_heads
from .rope import rotate


def _shape(signature: Signature) -> dict[str, Result]:
    query_heads, kv_heads, head_size = heads_of(signature)
    signature.activation("qkv", (query_heads + 2 * kv_heads) * head_size)
    signature.table("positions")
    signature.table("leases")
    if signature.has("rope"):
        signature.rope_table("rope", head_size)
    together = {signature.has("q_norm"), signature.has("k_norm"), "eps" in signature.attributes}
    if len(together) != 1:
        raise ShapeError("q_norm, k_norm and eps do not go together; give all or none")
    if signature.has("q_norm"):
        signature.vector("q_norm", head_size)
        signature.vector("k_norm", head_size)
        signature.positive("eps")
    return {"out": Result((signature.rows, query_heads * head_size)), **cache_results(kv_heads, head_size)}


def _reference(call: Call) -> Values:
    attributes, inputs = call.attributes, call.inputs
    head_size = int(attributes["head_size"])
    q_width, kv_width = (int(attributes[heads]) * head_size for heads in ("query_heads", "kv_heads"))
    q, k, v = torch.split(inputs["qkv"], [q_width, kv_width, kv_width], dim=1)
    if "q_norm" in inputs:
        q = normalise_heads(q, inputs["q_norm"], float(attributes["eps"]))
        k = normalise_heads(k, inputs["k_norm"], float(attributes["eps"]))
    if "rope" in inputs:
        q, k = rotate(q, inputs["rope"], head_size), rotate(k, inputs["rope"], head_size)
    caches = store(call, k, v)
    return {"out": attend(call, q), **caches}


def _cost(signature: Signature) -> Cost:
    query_heads, kv_heads, head_size = heads_of(signature)
    read = 4 * signature.rows * (query_heads + 2 * kv_heads) * head_size
    written = 4 * signature.rows * query_heads * head_size
    return Cost(read + written, 0)


DEFINITION = OpDefinition(
    "fused_attention", ("qkv", "positions", "leases"), ("out", "k_cache", "v_cache"), _shape, _reference,
    _cost, layered=True,
    attributes={"softmax_scale": float, "window": int, "query_heads": int, "kv_heads": int, "head_size": int},
    optional_inputs=("rope", "q_norm", "k_norm"), optional_attributes={"eps": float},
)  # fmt: skip
