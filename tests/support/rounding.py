"""The rounding rules of runtime/README.md in numpy, written from that page alone: float32 with a fused
multiply-add made exact by rounding to odd. Slow, vectorised over rows and outputs, independent of the
runtime.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Array = NDArray[Any]
ONE = np.float32(1)


def fma(a: Array, b: Array, c: Array) -> F32:
    """a * b + c rounded once to float32. The product of two float32 is exact in float64; the sum is rounded
    to odd there, after which rounding to float32 is right (Boldo and Melquiond, 2008).
    """
    with np.errstate(all="ignore"):
        product = np.asarray(a, np.float32).astype(np.float64) * np.asarray(b, np.float32).astype(np.float64)
        wide = np.asarray(c, np.float32).astype(np.float64)
        total = product + wide
        part = total - product
        error = (product - (total - part)) + (wide - part)
        bits = np.atleast_1d(total).view(np.int64).reshape(total.shape)
        away = (error > 0) == (total > 0)
        inexact = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
        odd = np.where(inexact, np.where(away, bits + 1, bits - 1), bits)
        return np.atleast_1d(odd).view(np.float64).reshape(total.shape).astype(np.float32)


def exp(x: Array) -> F32:
    x = np.asarray(x, np.float32)
    y = np.minimum(x, np.float32(88))
    n = np.rint(y * np.float32(1.44269504088896341))
    r = fma(n, np.float32(-0.693359375), y)
    r = fma(n, np.float32(2.12194440e-4), r)
    p = np.full(x.shape, 1.9875691500e-4, np.float32)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(p, r, np.float32(c))
    y = fma(p, r * r, r) + ONE
    with np.errstate(invalid="ignore"):
        bits = np.atleast_1d(y).view(np.int32) + (np.atleast_1d(n).astype(np.int32) << 23)
    result: F32 = np.where(x < -87, np.float32(0), bits.view(np.float32).reshape(x.shape))
    return result


def silu(x: F32) -> F32:
    result: F32 = x / (ONE + exp(-x))
    return result


def halve16(s: F32) -> F32:
    """Sixteen chains on the last axis to their sum."""
    for half in (8, 4, 2, 1):
        s = s[..., :half] + s[..., half : 2 * half]
    return s[..., 0]


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """Over the last axis."""
    n = x.shape[-1]
    blocks = -(-n // 16)
    padded = np.zeros((*x.shape[:-1], blocks * 16), np.float32)
    padded[..., :n] = x
    s = np.zeros((*x.shape[:-1], 16), np.float32)
    for block in range(blocks):
        part = padded[..., 16 * block : 16 * block + 16]
        s = fma(part, part, s)
    r = ONE / np.sqrt(halve16(s) / np.float32(n) + np.float32(eps))
    result: F32 = (x * r[..., None]) * weight
    return result


def quantise(x: F32) -> tuple[NDArray[np.int8], F32]:
    """(rows, width) to codes (rows, width) and scales (rows, width / 32)."""
    groups = x.reshape(x.shape[0], -1, 32)
    a = np.abs(groups).max(axis=2)
    small = a < np.float32(1e-30)
    inverse = np.float32(127) / np.where(small, ONE, a)
    codes = np.where(small[..., None], np.float32(0), np.rint(groups * inverse[..., None]))
    return codes.astype(np.int8).reshape(x.shape), np.where(small, np.float32(0), a / np.float32(127))


def rope(heads: F32, table: F32) -> F32:
    """heads (rows, heads, D) by table (rows, 2, P)."""
    pairs = table.shape[2]
    cosine, sine = table[:, None, 0], table[:, None, 1]
    a, b = heads[..., :pairs], heads[..., pairs : 2 * pairs]
    out = heads.copy()
    out[..., :pairs] = fma(a, cosine, -(b * sine))
    out[..., pairs : 2 * pairs] = fma(b, cosine, a * sine)
    return out


def linear_i8(x: F32, codes: NDArray[np.int8], scales: NDArray[np.float16]) -> F32:
    """x (rows, K padded); codes (outputs, K padded), scales (outputs, K padded / 32)."""
    xq, xs = quantise(x)
    acc = np.zeros((x.shape[0], codes.shape[0]), np.float32)
    for g in range(scales.shape[1]):
        part = slice(32 * g, 32 * g + 32)
        dot = xq[:, part].astype(np.int32) @ codes[:, part].astype(np.int32).T
        acc = fma(dot.astype(np.float32), scales[None, :, g].astype(np.float32) * xs[:, g, None], acc)
    return acc


def linear_chains(x: F32, weight: F32) -> F32:
    """Four chains by k % 4 over x (rows, K padded) and weight (outputs, K padded)."""
    chains = np.zeros((4, x.shape[0], weight.shape[0]), np.float32)
    for k in range(x.shape[1]):
        chains[k % 4] = fma(weight[None, :, k], x[:, k, None], chains[k % 4])
    result: F32 = (chains[0] + chains[1]) + (chains[2] + chains[3])
    return result


def attention(
    q: F32, k: F32, v: F32, positions: Array, softmax_scale: float, window: int,
    k_scale: F32 | None = None, v_scale: F32 | None = None,
) -> F32:  # fmt: skip
    """One query head: q (rows, D) at `positions`, over k and v (tokens, D) as they are stored, with the
    scales (tokens,) of i8; out (rows, D).
    """
    out = np.empty_like(q)
    for row, t in enumerate(int(p) for p in positions):
        begin = max(0, t - window + 1) if window else 0
        m, length, acc = np.float32(-np.inf), np.float32(0), np.zeros(q.shape[1], np.float32)
        for granule in range(begin // 128, t // 128 + 1):
            tokens = np.arange(max(begin, 128 * granule), min(t, 128 * granule + 127) + 1)
            score = np.zeros(tokens.size, np.float32)
            for d in range(q.shape[1]):
                score = fma(q[row, d], k[tokens, d], score)
            if k_scale is not None:
                score = score * k_scale[tokens]
            score = score * np.float32(softmax_scale)
            previous, m = m, np.maximum(m, score.max())
            c = np.float32(0) if granule == begin // 128 else exp(previous - m)
            p = exp(score - m)
            s = np.zeros(16, np.float32)
            for token, value in zip(tokens, p, strict=True):
                s[token % 16] += value
            length = fma(length, c, halve16(s))
            acc = acc * c
            weights = p if v_scale is None else p * v_scale[tokens]
            for token, value in zip(tokens, weights, strict=True):
                acc = fma(value, v[token], acc)
        out[row] = acc / length
    return out
