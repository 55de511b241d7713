"""Number formats against torch's casts for every code and rounding boundary, and the bounds of both weight
formats.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ingot.compiler.numerics.formats import (
    E4M3_MAX,
    E5M2_MAX,
    bf16_decode,
    bf16_encode,
    e4m3_decode,
    e4m3_encode,
    e5m2_decode,
    e5m2_encode,
    quantise_e4m3,
    quantise_i8,
    round_kv,
    round_weight,
)
from ingot.plans.layout import Dtype
from numpy.typing import NDArray

F32 = NDArray[np.float32]
EIGHT = {
    "e4m3": (e4m3_encode, e4m3_decode, torch.float8_e4m3fn, E4M3_MAX),
    "e5m2": (e5m2_encode, e5m2_decode, torch.float8_e5m2, E5M2_MAX),
}


def _torch_cast(values: F32, dtype: torch.dtype) -> NDArray[np.uint8]:
    return torch.from_numpy(values).to(dtype).view(torch.uint8).numpy()


def _boundaries(values: F32) -> F32:
    """Each value, each midpoint between neighbours, and the float32 on both sides of each; both signs."""
    values = np.unique(values[np.isfinite(values) & (values >= 0)])
    points = np.concatenate([values, values[1:] / 2 + values[:-1] / 2]).astype(np.float32)
    around = [np.nextafter(points, np.float32(to)) for to in (-np.inf, np.inf)]
    points = np.concatenate([points, *around])
    return np.concatenate([points, -points]).astype(np.float32)


@pytest.mark.parametrize("name", EIGHT)
def test_decode_is_torch(name: str) -> None:
    """Goal: all 256 codes have torch's value, NaN and infinity included."""
    _, decode, dtype, _ = EIGHT[name]
    codes = np.arange(256, dtype=np.uint8)
    wanted = torch.from_numpy(codes).view(dtype).to(torch.float32).numpy()
    np.testing.assert_array_equal(decode(codes), wanted)


@pytest.mark.parametrize("name", EIGHT)
def test_encode_is_torch(name: str) -> None:
    """Goal: every value, tie and neighbour of a tie within the range gives torch's code, subnormals and -0
    included.
    """
    encode, decode, dtype, largest = EIGHT[name]
    points = _boundaries(decode(np.arange(256, dtype=np.uint8)))
    points = np.concatenate([points, np.float32([2.0**-149, -(2.0**-149), 1e-40, 0.0, -0.0])])
    points = points[np.abs(points) <= largest]
    np.testing.assert_array_equal(encode(points), _torch_cast(points, dtype))


@pytest.mark.parametrize("name", EIGHT)
def test_encode_saturates(name: str) -> None:
    """Goal: beyond the largest value, infinity too, gives the largest; only a NaN gives a NaN."""
    encode, decode, _, largest = EIGHT[name]
    beyond = np.float32([largest, largest * 1.0625, largest * 2, 3e38, np.inf])
    for sign in (1, -1):
        assert (decode(encode(sign * beyond)) == sign * np.float32(largest)).all()
    assert np.isnan(decode(encode(np.float32([np.nan, -np.nan])))).all()


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=200))
def test_random_bits(bits: list[int]) -> None:
    """Goal: any float32 bits: as torch within the range, finite stays finite."""
    values = np.array(bits, np.uint32).view(np.float32)
    for encode, decode, dtype, largest in EIGHT.values():
        codes = encode(values)
        assert (np.isnan(decode(codes)) == np.isnan(values)).all()
        inside = np.abs(values) <= largest
        np.testing.assert_array_equal(codes[inside], _torch_cast(values[inside], dtype))
    wanted = torch.from_numpy(values).to(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(bf16_decode(bf16_encode(values)), wanted)


def test_bf16_all_codes() -> None:
    """Goal: every bf16 value, tie and neighbour rounds as torch does."""
    codes = np.arange(65536, dtype=np.uint16)
    values = bf16_decode(codes)
    number = ~np.isnan(values)
    assert (bf16_encode(values)[number] == codes[number]).all()
    points = _boundaries(values)
    wanted = torch.from_numpy(points).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(bf16_encode(points), wanted)


def test_quantise_e4m3() -> None:
    """Goal: scale is max / 448, the error half a step of its octave, no NaN code, zero rows scale 1."""
    rows = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    rows *= np.exp2(np.arange(64) - 32, dtype=np.float32)[:, None]
    rows[5] = 0
    codes, scale = quantise_e4m3(rows)
    assert codes.dtype == np.uint8
    assert codes.shape == rows.shape
    assert scale[5] == 1
    assert (codes[5] == 0).all()
    largest = np.abs(rows).max(axis=1)
    live = largest > 0
    np.testing.assert_array_equal(scale[live], largest[live] / np.float32(448))
    assert ((codes & 0x7F) != 0x7F).all()
    assert ((codes & 0x7F).max(axis=1)[live] == 0x7E).all(), "the largest weight takes the largest code"
    found = e4m3_decode(codes).astype(np.float64) * scale[:, None]
    # Half a unit in the last place: 2^-4 of the value when normal, 2^-10 of the scale when subnormal.
    bound = np.maximum(np.abs(rows) * 2.0**-4, scale[:, None] * 2.0**-10) * 1.000001
    assert (np.abs(found - rows) <= bound).all()


def test_quantise_e4m3_tiny() -> None:
    """Goal: rows near float32's smallest number still give finite codes and a normal scale."""
    rows = np.float32([[1e-45, -3e-45], [1e-38, 2e-39], [3.4e38, -3.4e38]])
    codes, scale = quantise_e4m3(rows)
    assert np.isfinite(scale).all()
    assert (scale >= 2.0**-126).all()
    assert np.isfinite(e4m3_decode(codes)).all()


@pytest.mark.parametrize("width", [32, 64, 40, 7])
def test_quantise_i8(width: int) -> None:
    """Goal: float16 scale of a group of 32, codes within +-127, error half a step, short last group."""
    rows = np.random.default_rng(1).standard_normal((48, width)).astype(np.float32)
    rows *= np.exp2(np.arange(48) - 28, dtype=np.float32)[:, None]
    rows[3] = 0
    codes, scale = quantise_i8(rows)
    assert codes.dtype == np.int8
    assert scale.dtype == np.float16
    assert codes.shape == rows.shape
    assert scale.shape == (48, -(-width // 32))
    assert (codes >= -127).all()
    assert (scale[3] == 0).all()
    step = np.repeat(scale.astype(np.float64), 32, axis=1)[:, :width]
    error = np.abs(codes * step - rows)
    # f16(max / 127) may be 2^-11 too small, clipping the largest weight by 127 * 2^-11 steps.
    assert (error <= 0.5001 * np.maximum(step, 2.0**-25)).all()


def test_quantise_i8_extremes() -> None:
    """Goal: groups beyond float16's range saturate, groups below it keep its smallest scale, nothing is
    infinite or NaN.
    """
    rows = np.zeros((4, 32), np.float32)
    rows[:, 0] = [1e30, 65504 * 127, 1e-12, 127 * 2.0**-24]
    codes, scale = quantise_i8(rows)
    assert scale[:, 0].tolist() == [65504, 65504, 2.0**-24, 2.0**-24]
    assert codes[:, 0].tolist() == [127, 127, 0, 127]


def test_quantise_by_slices() -> None:
    """Goal: rows are independent: any slice gives the bytes of the whole."""
    rows = np.random.default_rng(2).standard_normal((33, 70)).astype(np.float32)
    for quantise in (quantise_e4m3, quantise_i8):
        whole = quantise(rows)
        for begin, end in ((0, 1), (5, 20), (32, 33)):
            for part, all_rows in zip(quantise(rows[begin:end]), whole, strict=True):
                np.testing.assert_array_equal(part, all_rows[begin:end])


def test_quantise_known_bytes() -> None:
    """Goal: the exact bytes of a fixed input, computed by hand: a change of rounding shows."""
    row = np.float32([[448, -1, 0.5, 17, 0.0009, -0.001, 30.9, 0]])
    codes, scale = quantise_e4m3(row)
    assert scale.tolist() == [1]
    assert codes.tolist() == [[0x7E, 0xB8, 0x30, 0x58, 0x00, 0x81, 0x5F, 0x00]]
    signed, step = quantise_i8(np.float32([[127, -1.5, 2.5, 0.49, -127, 126.6]]))
    assert step.tolist() == [[1]]
    assert signed.tolist() == [[127, -2, 2, 0, -127, 127]]


@pytest.mark.parametrize("kv", [Dtype.BF16, Dtype.E4M3, Dtype.E5M2, Dtype.I8])
def test_round_kv_settles(kv: Dtype) -> None:
    """Goal: what a cache holds is stored again unchanged, and stays within the format's relative error."""
    x = np.random.default_rng(3).standard_normal((9, 2, 16)).astype(np.float32)
    once = round_kv(x, kv)
    np.testing.assert_allclose(round_kv(once, kv), once, rtol=1e-3 if kv == Dtype.I8 else 0)
    bound = {Dtype.BF16: 2.0**-8, Dtype.E4M3: 2.0**-4, Dtype.E5M2: 2.0**-3, Dtype.I8: 0}[kv] * np.abs(x)
    floor = {Dtype.I8: np.abs(x).max(axis=-1, keepdims=True) / 250}.get(kv, np.float32(2.0**-10))
    assert (np.abs(once - x) <= np.maximum(bound, floor)).all()


def test_round_kv_i8_rules() -> None:
    """Goal: runtime/README.md's kv write for i8: scale f16(a / 127), 0 below f16, saturated above, one per
    head.
    """
    x = np.zeros((4, 4), np.float32)
    x[0] = [127, 1.5, -2.5, 0.4]
    x[1] = [1e-7, 0, 0, 0]
    x[2, :2] = [1e9, -1]
    x[3] = [12.7, -12.7, 0.149, 0.051]
    found = round_kv(x, Dtype.I8)
    scale = np.float32(np.float16(np.float32(12.7) / np.float32(127)))
    assert found[0].tolist() == [127, 2, -2, 0]
    assert (found[1] == 0).all()
    assert found[2].tolist() == [127 * 65504, 0, 0, 0]
    assert found[3].tolist() == [127 * scale, -127 * scale, scale, scale]


@pytest.mark.parametrize(
    ("dtype", "bound"), [(Dtype.BF16, 0.002), (Dtype.E4M3, 0.03), (Dtype.I8, 0.006), (Dtype.F32, 0)]
)
def test_round_weight(dtype: Dtype, bound: float) -> None:
    """Goal: a weight format's relative error on normal weights; what it stores is stored again unchanged."""
    rows = np.random.default_rng(4).standard_normal((40, 72)).astype(np.float32)
    once = round_weight(rows, dtype)
    assert np.linalg.norm(once - rows) <= bound * np.linalg.norm(rows)
    np.testing.assert_allclose(round_weight(once, dtype), once, rtol=2e-3 if dtype == Dtype.I8 else 1e-6)


@pytest.mark.parametrize("function", [round_kv, round_weight])
def test_unknown_format(function: Callable[[F32, Dtype], F32]) -> None:
    """Goal: another dtype is refused by name."""
    with pytest.raises(ValueError, match="U32"):
        function(np.zeros((1, 4), np.float32), Dtype.U32)
