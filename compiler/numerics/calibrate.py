"""KV scales for e4m3 and e5m2 caches, found once at build and folded into the weights, so that no kernel sees
one.

A scale is a power of two per layer, head and channel: what a cache stores is x / scale. Dividing k and
multiplying q by it leaves every score as it was, and dividing v and multiplying o's columns leaves the
block's output; powers of two make both exact. Rotary embedding mixes the two channels of a pair, so their K
scales are equal; with qk-norm, K's scales fold into the norms' weights, which all heads share, so they are
equal across heads too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...plans.layout import Dtype
from ..checkpoint.spec import CheckpointError, ModelSpec, TensorSource
from ..graph.decoder import rotates
from ..graph.graph import Op
from ..graph.ops.definition import Values
from ..progress import Progress
from ..targets.reference.executor import ROWS_MAX, Reference

F32 = NDArray[np.float32]

# The largest calibrated value of a channel is stored in (TARGET / 2, TARGET]. e4m3 ends at 448 and its normal
# numbers begin at 2^-6: one bit of room above for what calibration did not see, thirteen octaves below. e5m2
# ends at 57344 and begins at 2^-14: the same target leaves eight octaves above and twenty-one below.
TARGET = 224.0
EXPONENT_MAX = 60  # of a scale: bounds what a fold can do to a weight


@dataclass(frozen=True, slots=True)
class KvScales:
    """Scales of keys and values, (L, KV, HS) float32 powers of two: a cache stores k / scale, v / scale."""

    k: F32
    v: F32


def _power_of_two(largest: F32) -> F32:
    """The smallest power of two s with largest / s <= TARGET, 1 where nothing was seen, at most
    2^+-EXPONENT_MAX.
    """
    _, exponent = np.frexp(largest / np.float32(TARGET))  # largest / TARGET = m * 2^exponent, 0.5 <= m < 1
    exact = np.ldexp(np.float32(1), exponent - 1) * np.float32(TARGET) == largest
    exponent = np.clip(exponent - exact, -EXPONENT_MAX, EXPONENT_MAX)
    return np.where(largest > 0, np.ldexp(np.float32(1), exponent), np.float32(1)).astype(np.float32)


def _tie_pairs(largest: F32, pairs: int) -> F32:
    """largest (KV, HS) with channels p and p + pairs given the larger of both."""
    both = np.maximum(largest[:, :pairs], largest[:, pairs : 2 * pairs])
    return np.concatenate([both, both, largest[:, 2 * pairs :]], axis=1)


def scales_of(spec: ModelSpec, k_largest: F32, v_largest: F32) -> KvScales:
    """Scales from the largest magnitudes (L, KV, HS) of keys, after rope, and values."""
    k = k_largest.copy()
    for layer in range(spec.layers):
        if spec.qk_norm:
            k[layer] = k[layer].max(axis=0, keepdims=True)
        if rotates(spec, layer):
            k[layer] = _tie_pairs(k[layer], spec.rope.rotary_dims // 2)
    return KvScales(_power_of_two(k), _power_of_two(v_largest))


def calibrate_kv(
    spec: ModelSpec,
    source: TensorSource,
    tokens: Sequence[int],
    target: Dtype,
    progress: Progress | None = None,
) -> KvScales:
    """Scales for a `target` cache (e4m3 or e5m2) from the keys and values of `tokens` in the float32 model.

    Runs all tokens as one chunk, a layer at a time, and keeps one layer's cache: memory is that of a few
    activations. At most ROWS_MAX tokens are used. Raises ValueError for a format without scales or no tokens,
    CheckpointError when a key or value is not finite.
    """
    if target not in (Dtype.E4M3, Dtype.E5M2):
        raise ValueError(f"{target.name} caches take no calibrated scales; only e4m3 and e5m2 do")
    if not tokens:
        raise ValueError("calibration needs at least one token")
    shape = (spec.layers, spec.kv_heads, spec.head_size)
    k_largest, v_largest = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    if progress is not None:
        progress.stage("calibrate kv", spec.layers, "layers")

    def observe(op: Op, outputs: Values) -> None:
        if op.kind != "kv_write":
            return
        assert op.layer is not None
        for name, role, axes, largest in (
            ("k", "k_cache", (0, 3), k_largest),
            ("v", "v_cache", (0, 2), v_largest),
        ):
            found = torch.amax(outputs[role].abs(), dim=axes).numpy()
            if not np.isfinite(found).all():
                raise CheckpointError(
                    f"layer {op.layer} gives {name} values that are not finite on calibration text"
                )
            largest[op.layer] = found
        if progress is not None:
            progress.advance()

    reference = Reference(spec, source)
    used = list(tokens[:ROWS_MAX])
    reference.hidden(reference.begin(len(used), keep=False), used, observe)
    return scales_of(spec, k_largest, v_largest)


class FoldedSource:
    """A TensorSource whose q, k, v and o (or qk-norms) carry the KV scales: the same model, with scaled
    caches.

    Exact, since scales are powers of two, but for values that fall below 2^-126, where at most 2^-149 is
    lost. A weight that a scale drives beyond float32 is a CheckpointError.
    """

    def __init__(self, spec: ModelSpec, source: TensorSource, scales: KvScales) -> None:
        expected = (spec.layers, spec.kv_heads, spec.head_size)
        if scales.k.shape != expected or scales.v.shape != expected:
            raise ValueError(
                f"scales have shapes {scales.k.shape} and {scales.v.shape}; {expected} is needed"
            )
        self._source = source
        self._rows: dict[str, F32] = {}  # factor of each row of a tensor
        self._columns: dict[str, F32] = {}  # factor of each column
        group = spec.query_heads // spec.kv_heads
        for layer in range(spec.layers):
            k, v = scales.k[layer], scales.v[layer]
            prefix = f"layer.{layer}"
            if spec.qk_norm:
                factors = {"q_norm": k[0], "k_norm": 1 / k[0], "v": 1 / v.reshape(-1)}
            else:
                factors = {
                    "q": np.repeat(k, group, axis=0).reshape(-1),
                    "k": 1 / k.reshape(-1),
                    "v": 1 / v.reshape(-1),
                }
            for part, factor in factors.items():
                self._rows[f"{prefix}.{part}.weight"] = self._rows[f"{prefix}.{part}.bias"] = factor
            self._columns[f"{prefix}.o.weight"] = np.repeat(v, group, axis=0).reshape(-1)

    def names(self) -> list[str]:
        """Canonical names, sorted."""
        return self._source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, without reading it."""
        return self._source.shape(name)

    def read(self, name: str, begin: int = 0, end: int | None = None) -> F32:
        """Rows [begin, end) with their scales folded in, float32. Raises CheckpointError naming an
        overflowing tensor.
        """
        values = self._source.read(name, begin, end)
        if name in self._columns:
            factor = self._columns[name][None]
        elif name in self._rows:
            part = self._rows[name][begin:end]
            factor = part.reshape(-1, *[1] * (values.ndim - 1))
        else:
            return values
        with np.errstate(over="ignore"):
            folded: F32 = (values * factor).astype(np.float32)
        if not np.isfinite(folded).all():
            raise CheckpointError(f"{name} exceeds float32 when KV scales are folded in; use --kv bf16 or i8")
        return folded

    def digest(self) -> str:
        """The digest of the checkpoint underneath: scales follow from it and the calibration text."""
        return self._source.digest()
