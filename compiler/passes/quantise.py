"""Quantise: give every matrix its weight format and every KV cache its format. Norms, biases and tables stay
float32.

Only dtypes change here; the bytes are made when the plan is written (`targets/cpu/pack.py`), from the same
checkpoint tensors, so that a plan can be sized before a weight was read.
"""

from __future__ import annotations

from dataclasses import replace

from ...plans.layout import Dtype
from ..graph.graph import Graph, Kind, Tensor

WEIGHT_FORMATS = (Dtype.E4M3, Dtype.I8, Dtype.BF16)
KV_FORMATS = (Dtype.E4M3, Dtype.E5M2, Dtype.I8, Dtype.BF16)


def quantise(graph: Graph, weights: Dtype, kv: Dtype) -> Graph:
    """The graph with (N, K) weights in `weights` and KV caches in `kv`. Raises ValueError for another
    format."""
    if weights not in WEIGHT_FORMATS:
        raise ValueError(f"weight format {weights.name} is not one of {[f.name for f in WEIGHT_FORMATS]}")
    if kv not in KV_FORMATS:
        raise ValueError(f"kv format {kv.name} is not one of {[f.name for f in KV_FORMATS]}")

    def convert(tensor: Tensor) -> Tensor:
        if tensor.kind == Kind.WEIGHT and len(tensor.shape) == 2:
            return replace(tensor, dtype=weights)
        if tensor.kind == Kind.KV:
            return replace(tensor, dtype=kv)
        return tensor

    return replace(graph, tensors={name: convert(tensor) for name, tensor in graph.tensors.items()})
