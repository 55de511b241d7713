"""linear, every weight format: the scalar kernels against the rounding rules in numpy, every ISA against
scalar bits, every split of items and rows, odd widths, and nothing written where nothing lives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from ingot.plans.layout import Dtype, Flag, Kernel, Layout, k_padded, panel_count
from support import rounding
from support.kernels import Array, Isa, Tensor, run, supported
from support.panels import e4m3_values, pack, panel_rows

ISAS = tuple(isa for isa in Isa if supported(isa))
KERNEL = {Dtype.I8: Kernel.LINEAR_I8, Dtype.E4M3: Kernel.LINEAR_E4M3, Dtype.BF16: Kernel.LINEAR_BF16}
EPS = 1e-5
FLAGS = [
    Flag(0),
    Flag.NORM | Flag.BIAS,
    Flag.RESIDUAL,
    Flag.NORM | Flag.BIAS | Flag.SILU_MUL,
    Flag.NORM | Flag.GATHER,
    Flag.BIAS | Flag.SILU_MUL | Flag.RESIDUAL,
]
SHAPES = [(7, 1), (40, 17), (96, 48), (576, 33)]  # (k, outputs)


@dataclass(frozen=True, slots=True)
class Case:
    dtype: Dtype
    k: int
    outputs: int
    flags: Flag
    rows: int
    seed: int = 0

    @property
    def layout(self) -> Layout:
        return Layout.PANELS_PAIRED if self.flags & Flag.SILU_MUL else Layout.PANELS

    def tensors(self, padding: int = 2) -> dict[str, Tensor]:
        """Operands of a bucket of rows + padding rows; scratch and padding rows are poison."""
        random = np.random.default_rng(self.seed + self.k)
        total = self.rows + padding

        def draw(*shape: int) -> Array:
            return random.standard_normal(shape).astype(np.float32)

        weight_rows = self.outputs * (2 if self.flags & Flag.SILU_MUL else 1)
        raw, scale = pack(draw(weight_rows, self.k), self.dtype, self.layout)
        width = k_padded(self.k, self.dtype)
        padded = 16 * panel_count(weight_rows, self.layout)
        x = draw(self.sources(), self.k) * 3
        x[self.rows - 1, :] *= 1e-3
        out = {
            "x": Tensor.of(x),
            "weight": Tensor.of(raw, (weight_rows, self.k)),
            "activation": Tensor.of(
                np.full((total, width), np.nan, np.float32) if self.dtype != Dtype.I8
                else np.full((total, width), -128, np.int8)
            ),
            "out": Tensor.of(np.full((total, self.outputs), np.nan, np.float32)),
        }  # fmt: skip
        if self.dtype == Dtype.I8:
            out["activation_scale"] = Tensor.of(np.full((total, width // 32), np.nan, np.float32))
        if self.dtype == Dtype.E4M3:
            out["weight_scale"] = Tensor.of(scale)
        if self.flags & Flag.NORM:
            out["norm"] = Tensor.of(1 + draw(self.k) / 8)
        if self.flags & Flag.BIAS:
            bias = np.full(padded, np.nan, np.float32)  # entries that fill up a panel say nothing
            real = panel_rows(np.ones((weight_rows, 1), np.float32), self.layout)[:, 0] == 1
            bias[real] = draw(weight_rows)
            out["bias"] = Tensor.of(bias)
        if self.flags & Flag.RESIDUAL:
            out["residual"] = Tensor.of(draw(total, self.outputs))
        if self.flags & Flag.GATHER:
            out["row_index"] = Tensor.of(random.permutation(self.sources())[:total].astype(np.uint32))
        return out

    def sources(self) -> int:
        return self.rows + 5

    def run(self, isa: Isa, tensors: dict[str, Tensor], chunk: int = 0, backwards: bool = False) -> Array:
        """The live rows of `out`."""
        items = run(
            isa, KERNEL[self.dtype], tensors, rows=self.rows, flags=int(self.flags), f=(EPS,), chunk=chunk,
            backwards=backwards,
        )  # fmt: skip
        assert items == -(-self.outputs // 16)
        assert np.isnan(tensors["out"].array[self.rows :]).all(), "padding rows were written"
        return tensors["out"].array[: self.rows].copy()

    def expected(self, tensors: dict[str, Tensor]) -> Array:
        """The rounding rules over what the panels hold."""
        x = tensors["x"].array
        x = x[tensors["row_index"].array[: self.rows]] if self.flags & Flag.GATHER else x[: self.rows]
        if self.flags & Flag.NORM:
            x = rounding.rms_norm(x, tensors["norm"].array, EPS)
        width = k_padded(self.k, self.dtype)
        full = np.zeros((self.rows, width), np.float32)
        full[:, : self.k] = x
        sums = self.sums(full, tensors)
        if self.flags & Flag.BIAS:
            sums = sums + tensors["bias"].array
        panels = sums.reshape(self.rows, -1, 16)
        if self.flags & Flag.SILU_MUL:
            panels = rounding.silu(panels[:, ::2]) * panels[:, 1::2]
        out = panels.reshape(self.rows, -1)[:, : self.outputs]
        return tensors["residual"].array[: self.rows] + out if self.flags & Flag.RESIDUAL else out

    def sums(self, x: Array, tensors: dict[str, Tensor]) -> Array:
        """(rows, panels * 16) before the epilogue, from the packed bytes."""
        raw = tensors["weight"].array.view(np.uint8)
        width = x.shape[1]
        if self.dtype == Dtype.I8:
            blocks = raw.reshape(-1, width // 64, 1088)
            scales = blocks[:, :, :64].copy().view(np.float16).reshape(-1, width // 64, 2, 16)
            codes = blocks[:, :, 64:].copy().view(np.int8).reshape(-1, width // 64, 16, 16, 4)
            return rounding.linear_i8(
                x,
                codes.transpose(0, 3, 1, 2, 4).reshape(-1, width),
                scales.transpose(0, 3, 1, 2).reshape(-1, width // 32),
            )
        if self.dtype == Dtype.E4M3:
            codes = raw.reshape(-1, width // 4, 16, 4).transpose(0, 2, 1, 3).reshape(-1, width)
            values = np.ldexp(e4m3_values()[codes], -120).astype(np.float32)
            scale = tensors["weight_scale"].array * np.float32(2**20)
            return rounding.linear_chains(np.ldexp(x, 100).astype(np.float32), values) * scale
        lines = raw.view(np.uint16).reshape(-1, width // 2, 16, 2).transpose(0, 2, 1, 3).reshape(-1, width)
        return rounding.linear_chains(x, (lines.astype(np.uint32) << 16).view(np.float32))


def bits(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.uint32)


@pytest.mark.parametrize("dtype", KERNEL)
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize(("k", "outputs"), SHAPES)
def test_by_the_rules(dtype: Dtype, k: int, outputs: int, flags: Flag) -> None:
    """Goal: the scalar kernel gives the bits of runtime/README.md, odd sizes, every flag; every ISA too."""
    case = Case(dtype, k, outputs, flags, rows=3)
    tensors = case.tensors()
    expected = case.expected(tensors)
    assert np.isfinite(expected).all()
    for isa in ISAS:
        assert (bits(case.run(isa, case.tensors())) == bits(expected)).all(), isa.name


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", KERNEL)
@pytest.mark.parametrize("flags", FLAGS[3:5], ids=str)
def test_rows_and_splits(isa: Isa, dtype: Dtype, flags: Flag) -> None:
    """Goal: 1 to 14 rows together, rows one at a time, and any split in any order: the same bits."""
    whole = Case(dtype, 136, 53, flags, rows=14)
    tensors = whole.tensors(padding=0)
    reference = whole.run(Isa.SCALAR, tensors)
    for rows in range(1, 15):
        case = Case(dtype, 136, 53, flags, rows)
        some = {name: Tensor.of(t.array, t.dims if name == "weight" else None) for name, t in tensors.items()}
        some["out"].array[...] = np.nan
        assert (bits(case.run(isa, some)) == bits(reference[:rows])).all(), rows
    for chunk, backwards in ((1, True), (1, False), (3, True)):
        some = whole.tensors(padding=0)
        assert (bits(whole.run(isa, some, chunk, backwards)) == bits(reference)).all(), (chunk, backwards)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", KERNEL)
def test_one_row_whatever_its_neighbours(isa: Isa, dtype: Dtype) -> None:
    """Goal: INV-06: a row among NaN and huge rows is the row alone."""
    case = Case(dtype, 96, 33, Flag.NORM, rows=7)
    alone = case.run(isa, case.tensors())
    among = case.tensors()
    for row in (0, 2, 3, 5, 6):
        among["x"].array[row] = np.nan if row % 2 == 0 else 3e38
    got = case.run(isa, among)
    assert (bits(got[[1, 4]]) == bits(alone[[1, 4]])).all()
    assert np.isnan(got[0]).any() or dtype == Dtype.I8


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa is not Isa.SCALAR])
@pytest.mark.parametrize("dtype", KERNEL)
@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-12, 1.0, 1e20])
def test_extreme_inputs_are_the_scalar_ones(isa: Isa, dtype: Dtype, scale: float) -> None:
    """Goal: subnormal, tiny, huge and signed-zero inputs, every weight code: the scalar bits (NaN = NaN)."""
    for rows in (1, 2, 5):
        results = []
        for which in (Isa.SCALAR, isa):
            case = Case(dtype, 72, 32, Flag.RESIDUAL, rows)
            tensors = case.tensors()
            tensors["x"].array *= np.float32(scale)
            tensors["x"].array[:, ::3] = -0.0
            every = np.arange(tensors["weight"].array.size, dtype=np.int64) * 37 % 256
            if dtype == Dtype.E4M3:
                tensors["weight"].array[:] = every
            results.append(case.run(which, tensors))
        same = bits(results[0]) == bits(results[1])
        assert (same | (np.isnan(results[0]) & np.isnan(results[1]))).all()


@pytest.mark.parametrize("isa", ISAS)
def test_largest_integer_products(isa: Isa) -> None:
    """Goal: groups of +-127 codes and activations are exact: no product pair saturates."""
    case = Case(Dtype.I8, 64, 16, Flag(0), rows=2)
    tensors = case.tensors()
    raw = tensors["weight"].array.reshape(-1, 1088)
    raw[:, :64] = np.ones(32, np.float16).view(np.uint8)
    raw[:, 64:] = np.where(np.arange(1024) % 8 < 4, 127, -127).astype(np.int8).view(np.uint8)
    tensors["x"].array[:] = -1
    expected = np.where(np.arange(16) % 2 == 0, -1, 1) * np.float32(64 * 127)
    assert np.allclose(case.run(isa, tensors), expected, rtol=1e-6)


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa is not Isa.SCALAR])
@pytest.mark.parametrize("dtype", KERNEL)
@pytest.mark.parametrize("k", [7, 40, 72, 96])
def test_activation_scratch_is_the_scalar_one(isa: Isa, dtype: Dtype, k: int) -> None:
    """Goal: padding is zero whatever the row holds: a NaN or infinite norm factor never reaches it."""
    scratch = []
    for which in (Isa.SCALAR, isa):
        case = Case(dtype, k, 16, Flag.NORM, rows=4)
        tensors = case.tensors()
        tensors["x"].array[1] = np.nan
        tensors["x"].array[2] = np.inf
        tensors["x"].array[3] = 0
        case.run(which, tensors)
        scratch.append(tensors["activation"].array[:4].copy())
    for activation in scratch:
        assert (activation[:, k:] == 0).all()
    both_nan = np.isnan(scratch[0].astype(np.float32)) & np.isnan(scratch[1].astype(np.float32))
    assert ((scratch[0] == scratch[1]) | both_nan).all()
