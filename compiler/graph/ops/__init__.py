"""All ops by kind. Adding one: its file here, its line below, its row in each target's lowering, its test."""

from __future__ import annotations

from collections.abc import Mapping

from . import (
    add,
    attention,
    embed,
    fused_attention,
    fused_linear,
    gather_rows,
    kv_write,
    linear,
    qk_norm,
    rms_norm,
    rope,
    rope_table,
    sample,
    silu_mul,
)
from .definition import OpDefinition, registry

REGISTRY: Mapping[str, OpDefinition] = registry([
    embed.DEFINITION,
    rope_table.DEFINITION,
    rms_norm.DEFINITION,
    linear.DEFINITION,
    qk_norm.DEFINITION,
    rope.DEFINITION,
    kv_write.DEFINITION,
    attention.DEFINITION,
    add.DEFINITION,
    silu_mul.DEFINITION,
    gather_rows.DEFINITION,
    sample.DEFINITION,
    fused_linear.DEFINITION,
    fused_attention.DEFINITION,
])  # fmt: skip
