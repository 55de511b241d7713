"""Number formats: exact codes of float32 arrays in bf16, e4m3 and e5m2, and the two ways weights are
quantised.

Every function is element by element or row by row in numpy float32 with explicit bits, so that the same
weights give the same bytes on every machine. Rounding is to the nearest, ties to even. e4m3 (finite values
only, largest 448) and e5m2 (largest 57344) saturate; a NaN stays a NaN and nothing else becomes one. Formats:
OCP 8-bit floating point, revision 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...plans.layout import I8_GROUP, Dtype

F32 = NDArray[np.float32]
E4M3_MAX = 448.0
E5M2_MAX = 57344.0
F16_MAX = 65504.0
I8_MAX = 127.0


@dataclass(frozen=True, slots=True)
class _Float8:
    """An 8-bit float: mantissa bits, exponent bias, largest finite value, and the code of its NaN."""

    mantissa_bits: int
    bias: int
    largest: float
    nan: int


_E4M3 = _Float8(3, 7, E4M3_MAX, 0x7F)
_E5M2 = _Float8(2, 15, E5M2_MAX, 0x7F)


def _encode8(values: F32, form: _Float8) -> NDArray[np.uint8]:
    """Codes of `values`, saturated, ties to even."""
    values = np.ascontiguousarray(values, np.float32)
    sign = (values.view(np.uint32) >> np.uint32(24)).astype(np.uint8) & np.uint8(0x80)
    size = np.minimum(np.abs(values), np.float32(form.largest))  # NaN stays NaN
    bits = size.view(np.uint32)
    dropped = 23 - form.mantissa_bits
    even = (bits >> np.uint32(dropped)) & np.uint32(1)
    half = np.uint32((1 << (dropped - 1)) - 1)
    rebias = np.uint32((127 - form.bias) << form.mantissa_bits)
    normal = ((bits + half + even) >> np.uint32(dropped)) - rebias  # wraps for subnormals: not taken there
    smallest = np.float32(2.0 ** (1 - form.bias))
    unit = np.float32(2.0 ** (form.bias - 1 + form.mantissa_bits))  # one over the subnormal step
    nan = np.isnan(values)
    small = np.where(size < smallest, size, np.float32(0))
    codes = np.where(size < smallest, np.rint(small * unit).astype(np.uint32), normal)
    return np.where(nan, np.uint32(form.nan), codes).astype(np.uint8) | sign


def _table8(form: _Float8, infinity: bool) -> F32:
    """The 256 values of a format."""
    codes = np.arange(256, dtype=np.int64)
    mantissa = codes & ((1 << form.mantissa_bits) - 1)
    exponent = (codes & 0x7F) >> form.mantissa_bits
    fraction = mantissa / (1 << form.mantissa_bits)
    value = np.where(
        exponent == 0,
        fraction * 2.0 ** (1 - form.bias),
        (1 + fraction) * 2.0 ** (exponent - form.bias).astype(np.float64),
    )
    value = np.where(value > form.largest, np.nan, value)
    if infinity:
        value = np.where((exponent == 31) & (mantissa == 0), np.inf, value)
    return np.where(codes & 0x80, -value, value).astype(np.float32)


def e4m3_encode(values: F32) -> NDArray[np.uint8]:
    """E4M3 codes, same shape; beyond 448 saturates, infinity too; NaN gives 0x7F or 0xFF."""
    return _encode8(values, _E4M3)


def e4m3_decode(codes: NDArray[np.uint8]) -> F32:
    """Values of E4M3 codes, same shape; 0x7F and 0xFF are NaN."""
    return _table8(_E4M3, infinity=False)[codes]


def e5m2_encode(values: F32) -> NDArray[np.uint8]:
    """E5M2 codes, same shape; beyond 57344 saturates, infinity too; NaN gives 0x7F or 0xFF."""
    return _encode8(values, _E5M2)


def e5m2_decode(codes: NDArray[np.uint8]) -> F32:
    """Values of E5M2 codes, same shape; 0x7C and 0xFC are infinite, 0x7D..0x7F and 0xFD..0xFF NaN."""
    return _table8(_E5M2, infinity=True)[codes]


def bf16_encode(values: F32) -> NDArray[np.uint16]:
    """bf16 codes, same shape: the upper half of the bits, rounded; a NaN keeps its sign and becomes quiet."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + even) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def bf16_decode(codes: NDArray[np.uint16]) -> F32:
    """Values of bf16 codes, same shape."""
    return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)


def quantise_e4m3(rows: F32) -> tuple[NDArray[np.uint8], F32]:
    """Codes (N, K) u8 and scales (N,) float32 of rows (N, K), one scale per output channel: value ~ code *
    scale.

    scale = max |row| / 448, so the largest weight takes the largest code; a row of zeros takes scale 1. A
    scale never falls below the smallest normal float32, where dividing by it would overflow.
    """
    largest = np.max(np.abs(rows), axis=1, initial=np.float32(0))
    scale = np.maximum(largest / np.float32(E4M3_MAX), np.float32(2.0**-126))
    scale = np.where(largest == 0, np.float32(1), scale).astype(np.float32)
    return e4m3_encode(rows / scale[:, None]), scale


def quantise_i8(rows: F32) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Codes (N, K) i8 and scales (N, ceil(K / 32)) float16 of rows (N, K) in groups of 32 along K: value ~
    code * scale.

    scale = float16(max |group| / 127), one float16 higher where that rounding, coarse among float16's
    subnormals, would clip the largest weight by more than half a step; at most 65504. A group of zeros, and
    only that, has scale 0. The last group of a row may be short.
    """
    count, width = rows.shape
    groups = -(-width // I8_GROUP)
    padded = np.zeros((count, groups * I8_GROUP), np.float32)
    padded[:, :width] = rows
    grouped = padded.reshape(count, groups, I8_GROUP)
    largest = np.max(np.abs(grouped), axis=2)
    scale = np.minimum(largest / np.float32(I8_MAX), np.float32(F16_MAX)).astype(np.float16)
    clipped = (largest > scale.astype(np.float32) * np.float32(I8_MAX + 0.5)) & (scale < F16_MAX)
    scale = (scale.view(np.uint16) + clipped).astype(np.uint16).view(np.float16)  # the next one up
    step = scale.astype(np.float32)[:, :, None]
    ratio = np.divide(grouped, step, out=np.zeros_like(grouped), where=step > 0)
    codes = np.clip(np.rint(ratio), -I8_MAX, I8_MAX).astype(np.int8)
    return np.ascontiguousarray(codes.reshape(count, -1)[:, :width]), scale


def round_i8_heads(x: F32) -> F32:
    """x (..., HS) rounded as KV i8 stores it: one float16 scale per token and head, codes in -127..127.

    Where the float16 scale is 0 (all of a head below about 3.8e-6) the codes are 0 (runtime/README.md, kv
    write).
    """
    largest = np.max(np.abs(x), axis=-1, keepdims=True)
    scale = np.minimum(largest / np.float32(I8_MAX), np.float32(F16_MAX)).astype(np.float16)
    step = scale.astype(np.float32)
    ratio = np.divide(x, step, out=np.zeros_like(x), where=step != 0)
    rounded: F32 = np.clip(np.rint(ratio), -I8_MAX, I8_MAX) * step
    return rounded


def round_kv(x: F32, kv: Dtype) -> F32:
    """x (..., HS), one head's key or value in the last axis, as the KV format `kv` stores it, in float32.

    Raises ValueError for a dtype that is no KV format. F32 is unrounded: for the reference only.
    """
    if kv == Dtype.F32:
        return x
    if kv == Dtype.BF16:
        return bf16_decode(bf16_encode(x))
    if kv == Dtype.E4M3:
        return e4m3_decode(e4m3_encode(x))
    if kv == Dtype.E5M2:
        return e5m2_decode(e5m2_encode(x))
    if kv == Dtype.I8:
        return round_i8_heads(x)
    raise ValueError(f"{kv.name} is no KV format; use e4m3, e5m2, i8 or bf16")


def round_weight(rows: F32, dtype: Dtype) -> F32:
    """Rows (N, K) as the weight format `dtype` stores them, in float32: what its kernels multiply with."""
    if dtype == Dtype.F32:
        return rows
    if dtype == Dtype.BF16:
        return bf16_decode(bf16_encode(rows))
    if dtype == Dtype.E4M3:
        codes, scale = quantise_e4m3(rows)
        return e4m3_decode(codes) * scale[:, None]
    if dtype == Dtype.I8:
        signed, steps = quantise_i8(rows)
        return (
            signed.astype(np.float32)
            * np.repeat(steps.astype(np.float32), I8_GROUP, axis=1)[:, : rows.shape[1]]
        )
    raise ValueError(f"{dtype.name} is no weight format; use e4m3, i8 or bf16")
