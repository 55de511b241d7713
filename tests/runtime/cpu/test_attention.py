"""attention, every KV format: outputs and stored bytes by the rounding rules in numpy, every ISA and split
the scalar bits, over poisoned granules: what lies outside a row's window never matters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from ingot.plans.layout import Dtype, Flag, Kernel
from support import rounding
from support.kernels import Array, Isa, Tensor, run, supported

ISAS = tuple(isa for isa in Isa if supported(isa))
KERNEL = {
    Dtype.I8: Kernel.ATTENTION_I8, Dtype.E4M3: Kernel.ATTENTION_E4M3, Dtype.E5M2: Kernel.ATTENTION_E5M2,
    Dtype.BF16: Kernel.ATTENTION_BF16,
}  # fmt: skip
TORCH = {Dtype.E4M3: torch.float8_e4m3fn, Dtype.E5M2: torch.float8_e5m2, Dtype.BF16: torch.bfloat16}
LARGEST = {Dtype.E4M3: 448.0, Dtype.E5M2: 57344.0, Dtype.BF16: np.inf}
CODES = {Dtype.I8: np.int8, Dtype.E4M3: np.uint8, Dtype.E5M2: np.uint8, Dtype.BF16: np.uint16}
EPS = 1e-5
GRANULES = 8
LEASES = 3
TABLE = np.array([[5, 2, 7], [1, 0, 4], [6, 3, 6]], np.uint32)  # scrambled; the third lease has one granule


@dataclass(frozen=True, slots=True)
class Case:
    """`lease` and `position` of every token that is ever fed, in order."""

    dtype: Dtype
    head: int
    kv_heads: int
    group: int
    pairs: int = 0
    qk_norm: bool = False
    window: int = 0
    seed: int = 0
    magnitude: float = 1.0  # of qkv

    @property
    def flags(self) -> int:
        return (Flag.ROPE if self.pairs else 0) | (Flag.QK_NORM if self.qk_norm else 0)

    @property
    def scale(self) -> float:
        return float(self.head**-0.5)

    @property
    def width(self) -> int:
        return self.group * self.kv_heads * self.head

    def vectors(self, count: int) -> tuple[Array, Array, Array, Array]:
        """qkv (count, A), rope table (count, 2, P), q_norm and k_norm (D)."""
        random = np.random.default_rng(self.seed)
        qkv = random.standard_normal((count, self.width + 2 * self.kv_heads * self.head)) * 3
        qkv[3::7] *= 1e-3
        qkv = qkv.astype(np.float32) * np.float32(self.magnitude)
        angle = random.random((count, 1, self.pairs)) * 6
        norms = 1 + random.standard_normal((2, self.head)) / 8
        table = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
        return tuple(v.astype(np.float32) for v in (qkv, table, norms[0], norms[1]))  # type: ignore[return-value]


@dataclass(slots=True)
class Memory:
    """KV of all granules, filled with one byte."""

    k: Tensor
    v: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None

    @classmethod
    def of(cls, case: Case, poison: int) -> Memory:
        size = np.dtype(CODES[case.dtype]).itemsize

        def fill(*shape: int, dtype: type, width: int) -> Tensor:
            raw = np.full((GRANULES, *shape[:-1], shape[-1] * width), poison, np.uint8)
            return Tensor.of(raw.view(dtype), units=True)

        g, d = case.kv_heads, case.head
        scales = [
            fill(g, 128, dtype=np.uint16, width=2) if case.dtype == Dtype.I8 else None for _ in range(2)
        ]
        return cls(
            fill(g, d, 128, dtype=CODES[case.dtype], width=size),
            fill(g, 128, d, dtype=CODES[case.dtype], width=size),
            *scales,
        )

    def arrays(self) -> list[Array]:
        return [t.array for t in (self.k, self.v, self.k_scale, self.v_scale) if t is not None]


@dataclass(slots=True)
class Fed:
    """Rows in the order they are fed."""

    lease: Array
    position: Array

    @classmethod
    def of(cls, *runs: tuple[int, range]) -> Fed:
        pairs = [(lease, p) for lease, positions in runs for p in positions]
        return cls(*(np.array(column, np.uint32) for column in zip(*pairs, strict=True)))

    @property
    def count(self) -> int:
        return int(self.lease.size)


def feed(
    case: Case,
    fed: Fed,
    memory: Memory,
    isa: Isa,
    begin: int,
    end: int,
    *,
    chunk: int = 0,
    backwards: bool = False,
) -> Array:
    """One step of the rows [begin, end) and two rows of padding; their outputs."""
    qkv, table, q_norm, k_norm = case.vectors(fed.count)
    rows = end - begin

    def bucket(x: Array, fill: float) -> Tensor:
        padded = np.full((rows + 2, *x.shape[1:]), fill, x.dtype)
        padded[:rows] = x[begin:end]
        return Tensor.of(padded)

    blank = np.full((rows + 2, case.width), np.nan, np.float32)
    tensors = {
        "qkv": bucket(qkv, np.nan), "positions": bucket(fed.position, 0xFFFFFFFF),
        "k": memory.k, "v": memory.v, "leases": bucket(fed.lease, 0xFFFFFFFF),
        "granules": Tensor.of(TABLE, units=True), "q": Tensor.of(blank), "out": Tensor.of(blank),
    }  # fmt: skip
    if case.pairs:
        tensors["rope"] = bucket(table, np.nan)
    if case.qk_norm:
        tensors |= {"q_norm": Tensor.of(q_norm), "k_norm": Tensor.of(k_norm)}
    if memory.k_scale is not None and memory.v_scale is not None:
        tensors |= {"k_scale": memory.k_scale, "v_scale": memory.v_scale}
    items = run(
        isa, KERNEL[case.dtype], tensors, rows=rows, flags=int(case.flags), f=(case.scale, EPS),
        u=(case.window,), requests=LEASES, chunk=chunk, backwards=backwards,
    )  # fmt: skip
    assert items == rows * case.group * case.kv_heads
    assert np.isnan(tensors["out"].array[rows:]).all(), "padding rows were written"
    return tensors["out"].array[:rows].copy()


def prepared(case: Case, count: int) -> tuple[Array, Array, Array]:
    """q (rows, heads, D), k and v (rows, kv heads, D) by the rules, before rounding to the KV format."""
    qkv, table, q_norm, k_norm = case.vectors(count)
    split = np.split(qkv, [case.width, case.width + case.kv_heads * case.head], axis=1)
    q, k, v = (part.reshape(count, -1, case.head) for part in split)
    if case.qk_norm:
        q, k = rounding.rms_norm(q, q_norm, EPS), rounding.rms_norm(k, k_norm, EPS)
    if case.pairs:
        q, k = rounding.rope(q, table), rounding.rope(k, table)
    return q, k, v


def stored(case: Case, x: Array) -> tuple[Array, Array, Array | None]:
    """(codes, their values, float16 scales (rows, heads) of i8) of k or v (rows, heads, D)."""
    if case.dtype != Dtype.I8:
        clipped = np.clip(x, -LARGEST[case.dtype], LARGEST[case.dtype])
        rounded = torch.from_numpy(np.ascontiguousarray(clipped)).to(TORCH[case.dtype])
        kind = torch.uint16 if case.dtype == Dtype.BF16 else torch.uint8
        return rounded.view(kind).numpy(), rounded.to(torch.float32).numpy(), None
    scale = np.minimum(np.abs(x).max(axis=2) / np.float32(127), 65504).astype(np.float16)
    wide = scale.astype(np.float32)[..., None]
    codes = np.clip(np.rint(x / np.where(wide == 0, 1, wide)), -127, 127)
    codes[(wide == 0)[..., 0]] = 0
    return codes.astype(np.int8), codes.astype(np.float32), scale


def expected_rows(case: Case, fed: Fed, rows: list[int]) -> Array:
    """Outputs of chosen rows by the rules."""
    q, k, v = prepared(case, fed.count)
    (_, k_value, k_scale), (_, v_value, v_scale) = stored(case, k), stored(case, v)
    out = np.empty((len(rows), case.group * case.kv_heads, case.head), np.float32)
    for i, row in enumerate(rows):
        own = np.nonzero(fed.lease == fed.lease[row])[0]
        own = own[np.argsort(fed.position[own])]
        assert (fed.position[own] == np.arange(own.size)).all(), "a lease is fed without gaps"
        for head in range(out.shape[1]):
            kv = head // case.group
            scales = [None if s is None else s[own, kv].astype(np.float32) for s in (k_scale, v_scale)]
            out[i, head] = rounding.attention(
                q[row : row + 1, head], k_value[own, kv], v_value[own, kv], fed.position[row : row + 1],
                case.scale, case.window, *scales,
            )[0]  # fmt: skip
    return out.reshape(len(rows), -1)


def expected_memory(case: Case, fed: Fed, poison: int) -> list[Array]:
    """Every byte of KV: what was fed where it belongs, poison elsewhere."""
    memory = Memory.of(case, poison)
    _, k, v = prepared(case, fed.count)
    (k_code, _, k_scale), (v_code, _, v_scale) = stored(case, k), stored(case, v)
    granule = TABLE[fed.lease, fed.position // 128]
    token = fed.position % 128
    memory.k.array[granule, :, :, token] = k_code
    memory.v.array[granule, :, token, :] = v_code
    for tensor, scale in ((memory.k_scale, k_scale), (memory.v_scale, v_scale)):
        if tensor is not None and scale is not None:
            tensor.array[granule, :, token] = scale.view(np.uint16)
    return memory.arrays()


def same(a: Array, b: Array) -> bool:
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


SHAPES = [  # head, kv heads, group, pairs, qk_norm, window
    (8, 1, 1, 4, False, 0),
    (40, 2, 3, 20, True, 0),
    (64, 1, 7, 16, False, 130),
    (80, 1, 2, 0, True, 3),
    (128, 2, 1, 64, False, 128),
]


@pytest.mark.parametrize("dtype", KERNEL)
@pytest.mark.parametrize(("head", "kv_heads", "group", "pairs", "qk_norm", "window"), SHAPES)
def test_by_the_rules(
    dtype: Dtype, head: int, kv_heads: int, group: int, pairs: int, qk_norm: bool, window: int
) -> None:
    """Goal: outputs over one to three granules and every stored byte, for every ISA, over 0xFF and 0x7F."""
    case = Case(dtype, head, kv_heads, group, pairs, qk_norm, window)
    fed = Fed.of((0, range(290)), (1, range(129)), (0, range(290, 293)), (2, range(2)))
    rows = [0, 127, 128, 258, 291, 290 + 128, fed.count - 4, fed.count - 1]
    wanted = expected_rows(case, fed, rows)
    assert np.isfinite(wanted).all()
    for isa in ISAS:
        for poison in (0xFF, 0x7F):
            memory = Memory.of(case, poison)
            first = feed(case, fed, memory, isa, 0, 290 + 129)
            out = np.concatenate([first, feed(case, fed, memory, isa, 290 + 129, fed.count)])
            assert same(out[rows], wanted), (isa.name, poison)
            for got, expected in zip(memory.arrays(), expected_memory(case, fed, poison), strict=True):
                assert same(got, expected), (isa.name, poison)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", KERNEL)
@pytest.mark.parametrize("window", [0, 20])
def test_rows_and_splits(isa: Isa, dtype: Dtype, window: int) -> None:
    """Goal: one row at a time, uneven chunks, interleaved leases and any split: the bits of one call."""
    case = Case(dtype, 24, 2, 3, 12, True, window)
    fed = Fed.of(*((lease, range(p, p + 1)) for p in range(140) for lease in (0, 1) if lease == 0 or p < 60))
    memory = Memory.of(case, 0xFF)
    whole = feed(case, fed, memory, Isa.SCALAR, 0, fed.count)
    assert np.isfinite(whole).all()
    for steps, chunk, backwards in (([1] * fed.count, 0, False), ([3, 50, 1, 7], 0, False), ([200], 1, True),
                                    ([200], 7, True), ([200], 5, False)):  # fmt: skip
        own = Memory.of(case, 0x7F)
        parts, begin = [], 0
        while begin < fed.count:
            end = min(fed.count, begin + steps[len(parts) % len(steps)])
            parts.append(feed(case, fed, own, isa, begin, end, chunk=chunk, backwards=backwards))
            begin = end
        assert same(np.concatenate(parts), whole), (steps[:4], chunk)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", KERNEL)
def test_a_neighbour_of_nan_changes_nothing(isa: Isa, dtype: Dtype) -> None:
    """Goal: INV-06: NaN and infinite keys and values of other leases and later tokens."""
    case = Case(dtype, 16, 1, 2, 8)
    fed = Fed.of((0, range(130)))
    clean = Memory.of(case, 0)
    out = feed(case, fed, clean, isa, 0, fed.count)
    dirty = Memory.of(case, 0)
    for array in dirty.arrays():
        array.view(np.uint8)[...] = np.random.default_rng(0).integers(0, 256, array.view(np.uint8).shape)
    assert same(feed(case, fed, dirty, isa, 0, fed.count), out)


@pytest.mark.parametrize("dtype", KERNEL)
@pytest.mark.parametrize("scale", [0.0, 1e-41, 1e-6, 1e4, 1e9, 1e37])
def test_extreme_values_are_the_scalar_ones(dtype: Dtype, scale: float) -> None:
    """Goal: zeros, subnormals, saturation and scores that overflow: every ISA the scalar bits (NaN = NaN)."""
    case = Case(dtype, 32, 1, 4, seed=4, magnitude=scale)
    fed = Fed.of((0, range(40)))
    outs, bytes_ = [], []
    for isa in ISAS:
        memory = Memory.of(case, 0xFF)
        outs.append(feed(case, fed, memory, isa, 0, fed.count))
        bytes_.append([array.tobytes() for array in memory.arrays()])
    for out, kv in zip(outs, bytes_, strict=True):
        assert kv == bytes_[0]
        assert ((out.view(np.uint32) == outs[0].view(np.uint32)) | (np.isnan(out) & np.isnan(outs[0]))).all()
