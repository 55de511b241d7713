"""The pieces of the kernels' arithmetic: number formats against torch, functions against the rounding rules
in numpy and against the truth, every ISA against the scalar definition, bit for bit.
"""

from __future__ import annotations

import ctypes

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ingot.plans.layout import Kernel
from support import rounding
from support.kernels import Array, Isa, library, piece, supported

ISAS = tuple(isa for isa in Isa if supported(isa))
VECTOR_ISAS = tuple(isa for isa in ISAS if isa is not Isa.SCALAR)


def floats(count: int, seed: int = 0) -> Array:
    """`count` float32 of every kind: any bits (NaN, infinities, subnormals), and moderate magnitudes."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 1 << 32, count, dtype=np.uint32)
    moderate = (random.standard_normal(count) * 10.0 ** random.integers(-8, 6, count)).astype(np.float32)
    edges = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 448, 464, 57344, 61440, 65504, 65520, 1e-45])
    out = np.where(random.random(count) < 0.3, bits.view(np.float32), moderate)
    out[: 2 * edges.size] = np.concatenate([edges, -edges]).astype(np.float32)
    return out.astype(np.float32)


def same_bits(a: Array, b: Array) -> bool:
    """Equal as bits; two NaN are equal."""
    view = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[a.itemsize]
    both = np.isnan(a) & np.isnan(b) if a.dtype.kind == "f" else np.zeros(a.shape, bool)
    return bool(((a.view(view) == b.view(view)) | both).all())


def test_the_comparison_sees_a_sign_of_zero() -> None:
    """Goal: the seeded violation: +0 and -0 are different bits."""
    assert not same_bits(np.zeros(1, np.float32), -np.zeros(1, np.float32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("name", "codes", "dtype"),
    [
        ("bf16", np.uint16, torch.bfloat16),
        ("f16", np.uint16, torch.float16),
        ("e4m3", np.uint8, torch.float8_e4m3fn),
        ("e5m2", np.uint8, torch.float8_e5m2),
    ],
)
def test_decode_every_code(isa: Isa, name: str, codes: type, dtype: torch.dtype) -> None:
    """Goal: every code of every format is decoded to torch's value."""
    every = np.arange(np.iinfo(codes).max + 1).astype(codes)
    expected = torch.from_numpy(every.copy()).view(dtype).to(torch.float32).numpy()
    assert same_bits(piece(isa, f"{name}_decode", every, np.empty(every.size, np.float32)), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("name", "codes", "dtype", "largest"),
    [
        ("bf16", np.uint16, torch.bfloat16, None),
        ("e4m3", np.uint8, torch.float8_e4m3fn, 448),
        ("e5m2", np.uint8, torch.float8_e5m2, 57344),
    ],
)
def test_encode(isa: Isa, name: str, codes: type, dtype: torch.dtype, largest: float | None) -> None:
    """Goal: nearest even as torch, saturated, NaN kept; every midpoint of two codes and its neighbours."""
    every = np.arange(np.iinfo(codes).max + 1).astype(codes)
    values = torch.from_numpy(every.copy()).view(dtype).to(torch.float32).numpy()
    finite = np.sort(values[np.isfinite(values)]).astype(np.float64)
    middles = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    x = np.concatenate(
        [values, middles, np.nextafter(middles, 1e38), np.nextafter(middles, -1e38), floats(1 << 18)]
    )
    x = np.pad(x, (0, -x.size % 8)).astype(np.float32)
    wanted = x if largest is None else np.clip(x, -largest, largest).astype(np.float32)
    expected = (
        torch.from_numpy(wanted).to(dtype).view(torch.uint16 if codes is np.uint16 else torch.uint8).numpy()
    )
    got = piece(isa, f"{name}_encode", x, np.empty(x.size, codes))
    nan = np.isnan(x)
    assert (got[~nan] == expected[~nan]).all()
    back = piece(isa, f"{name}_decode", got, np.empty(x.size, np.float32))
    assert np.isnan(back[nan]).all()
    assert (np.signbit(back[nan]) == np.signbit(x[nan])).all()


def test_scale_encode() -> None:
    """Goal: the float16 of a KV scale: nearest even as numpy, saturated to 65504, never infinite."""
    x = np.abs(floats(1 << 18))
    x = x[~np.isnan(x)]
    expected = np.minimum(x, np.float32(65504)).astype(np.float16).view(np.uint16)
    assert (piece(Isa.SCALAR, "f16_encode_scale", x, np.empty(x.size, np.uint16)) == expected).all()


@given(st.lists(st.floats(width=32), min_size=8, max_size=8))
@settings(max_examples=300, deadline=None)
def test_pieces_agree_on_anything(values: list[float]) -> None:
    """Goal: whatever eight floats hold, every ISA gives the scalar bits."""
    x = np.array(values, np.float32)
    for name, dtype in (
        ("exp", np.float32),
        ("silu", np.float32),
        ("bf16_encode", np.uint16),
        ("e4m3_encode", np.uint8),
    ):
        expected = piece(Isa.SCALAR, name, x, np.empty(8, dtype))
        for isa in VECTOR_ISAS:
            assert same_bits(piece(isa, name, x, np.empty(8, dtype)), expected), name


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("name", ["exp", "silu"])
def test_functions_are_the_scalar_ones(isa: Isa, name: str) -> None:
    """Goal: four million values of every kind, among them a dense sweep of exp's range."""
    x = np.concatenate([floats(1 << 21), np.linspace(-90, 90, 1 << 21, dtype=np.float32)])
    assert same_bits(piece(isa, name, x, np.empty_like(x)), piece(Isa.SCALAR, name, x, np.empty_like(x)))


def test_exp_by_the_rules_and_by_the_truth() -> None:
    """Goal: the bits of the rules; within 2 ulp of exp between the limits; 0 below, clamped above."""
    x = np.concatenate([np.linspace(-87, 88, 400_000), [-87, 88, 0, -0.0, 1e-40]]).astype(np.float32)
    got = piece(Isa.SCALAR, "exp", x, np.empty_like(x))
    assert same_bits(got, rounding.exp(x))
    truth = np.exp(x.astype(np.float64))
    assert (np.abs(got - truth) / np.spacing(truth.astype(np.float32))).max() <= 2
    edges = np.array([-87.00001, -200, -np.inf, 88.5, 1e30, np.inf, np.nan, 0], np.float32)
    got = piece(Isa.SCALAR, "exp", edges, np.empty_like(edges))
    top = piece(Isa.SCALAR, "exp", np.full(8, 88, np.float32), np.empty(8, np.float32))[0]
    assert got[:3].tolist() == [0, 0, 0]
    assert got[3:6].tolist() == [top] * 3
    assert np.isnan(got[6])
    assert got[7] == 1


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", [1, 7, 8, 9, 15, 16, 17, 40, 96, 576, 1000])
def test_rms_factor(isa: Isa, n: int) -> None:
    """Goal: sum16's order for every tail."""
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    got = piece(isa, "rms_factor", x, np.empty(1, np.float32))[0]
    expected = rounding.rms_norm(np.append(x[:-1], x[-1:]), np.ones(n, np.float32), 1e-5)
    assert same_bits((x * got).astype(np.float32), expected)


@pytest.mark.parametrize("isa", ISAS)
def test_quantise(isa: Isa) -> None:
    """Goal: scales and codes of groups from 1e-35 to 1e35, ties among them; NaN and infinities as scalar."""
    random = np.random.default_rng(3)
    x = random.standard_normal((400, 32)) * 10.0 ** random.integers(-35, 35, (400, 1))
    x[:50] = random.integers(-254, 255, (50, 32)) / 2  # ties
    x[:50, 0] = 127
    x[50] = 0
    x = x.astype(np.float32)

    def run(which: Isa, values: Array) -> tuple[Array, Array]:
        out = np.empty(values.size + 4 * len(values), np.uint8)
        piece(which, "quantise", values, out, n=len(values))
        return out[: values.size].view(np.int8).reshape(values.shape), out[values.size :].view(np.float32)

    codes, scales = run(isa, x)
    expected_codes, expected_scales = rounding.quantise(x.reshape(1, -1))
    assert (codes == expected_codes.reshape(x.shape)).all()
    assert same_bits(scales, expected_scales[0])
    strange = floats(1 << 14, seed=5).reshape(-1, 32)
    for got, wanted in zip(run(isa, strange), run(Isa.SCALAR, strange), strict=True):
        assert same_bits(got, wanted)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [8, 40, 64, 80, 128])
def test_rope(isa: Isa, size: int) -> None:
    """Goal: both elements of a pair by the rules, for pairs that fill no vector."""
    random = np.random.default_rng(size)
    heads = random.standard_normal((5, size)).astype(np.float32)
    angles = random.standard_normal(size // 2)
    table = np.stack([np.cos(angles), np.sin(angles)]).astype(np.float32)
    expected = rounding.rope(heads[None], table[None])[0]
    assert same_bits(piece(isa, "rope", table, heads.copy(), size=size, n=5), expected)


def test_sincos_against_many_digits() -> None:
    """Goal: absolute error below 2e-16 up to 2^24, beside multiples of pi/2 too; every ISA the same bits."""
    random = np.random.default_rng(1)
    near = np.rint(random.random(300) * 1e7) * (np.pi / 2)
    angles = np.concatenate([random.random(700) * 2.0**24, near, [0, 1e-30, 2.0**24]])
    angles = angles.astype(np.float32).astype(np.float64)
    got = piece(Isa.SCALAR, "sincos", angles, np.empty(2 * angles.size))
    with mpmath.workdps(40):
        exact = [mpmath.sin(a) for a in angles.tolist()] + [mpmath.cos(a) for a in angles.tolist()]
        worst = max(abs(mpmath.mpf(g) - e) for g, e in zip(got.tolist(), exact, strict=True))
    assert worst < 2e-16
    for isa in VECTOR_ISAS:
        assert same_bits(piece(isa, "sincos", angles, np.empty(2 * angles.size)), got)


def test_every_isa_has_every_kernel() -> None:
    """Goal: the same kernels in the same order for each ISA, all of the layout but SAMPLE."""
    for isa in ISAS:
        ids = np.zeros(64, np.uint32)
        count = library().kernel_ids(int(isa), ids.ctypes.data_as(ctypes.c_void_p), 64)
        assert ids[:count].tolist() == [kernel for kernel in Kernel if kernel is not Kernel.SAMPLE]
