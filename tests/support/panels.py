"""Quantises and packs small weights into the panels of `layout.panel_bytes`, in plain numpy, independent of
the compiler.
"""

from __future__ import annotations

import numpy as np
from ingot.plans.layout import I8_GROUP, PANEL_OUTPUTS, Dtype, Layout, k_padded, panel_count
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def e4m3_values() -> Floats:
    """The 256 codes of OCP E4M3 as float32; the two NaN codes are NaN."""
    codes = np.arange(256)
    sign, exponent, mantissa = np.where(codes & 128, -1.0, 1.0), codes >> 3 & 15, codes & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    values = sign * np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    values[(codes & 127) == 127] = np.nan
    return values.astype(np.float32)


def encode_e4m3(x: Floats) -> Bytes:
    """Nearest code of each |x| <= 448, ties to the even code."""
    magnitudes = e4m3_values()[:127]
    at = np.clip(np.searchsorted(magnitudes, np.abs(x)), 1, 126)
    below, above = magnitudes[at - 1], magnitudes[at]
    middle = (below + above) / 2
    up = (np.abs(x) > middle) | ((np.abs(x) == middle) & (at % 2 == 0))
    return (np.where(up, at, at - 1) | np.where(np.signbit(x), 128, 0)).astype(np.uint8)


def encode_bf16(x: Floats) -> NDArray[np.uint16]:
    """Round to nearest even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def panel_rows(weight: Floats, layout: Layout) -> Floats:
    """(rows, k) in panel order, zero rows filling up panels: (16 * panels, k)."""
    rows, k = weight.shape
    panels = panel_count(rows, layout)
    out = np.zeros((panels, PANEL_OUTPUTS, k), np.float32)
    if layout == Layout.PANELS:
        out.reshape(-1, k)[:rows] = weight
        return out.reshape(-1, k)
    half = rows // 2
    for part, source in enumerate((weight[:half], weight[half:])):  # gate panels are even, up panels odd
        padded = np.zeros((panels // 2 * PANEL_OUTPUTS, k), np.float32)
        padded[:half] = source
        out[part::2] = padded.reshape(-1, PANEL_OUTPUTS, k)
    return out.reshape(-1, k)


def pack(weight: Floats, dtype: Dtype, layout: Layout) -> tuple[bytes, Floats]:
    """(panel bytes, one float32 scale per padded output) of a float32 weight (rows, k); scales are 1 but for
    e4m3.
    """
    rows = panel_rows(weight, layout)
    outputs, k = rows.shape
    width = k_padded(k, dtype)
    full = np.zeros((outputs, width), np.float32)
    full[:, :k] = rows
    panels = full.reshape(-1, PANEL_OUTPUTS, width)
    scale = np.ones(outputs, np.float32)
    if dtype == Dtype.BF16:
        lines = encode_bf16(panels).reshape(-1, PANEL_OUTPUTS, width // 2, 2).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(lines).tobytes(), scale
    if dtype == Dtype.E4M3:
        scale = np.maximum(np.abs(full).max(axis=1) / np.float32(448), np.float32(1e-12)).astype(np.float32)
        codes = encode_e4m3(
            np.clip(panels / scale.reshape(-1, PANEL_OUTPUTS, 1), -448, 448).astype(np.float32)
        )
        lines = codes.reshape(-1, PANEL_OUTPUTS, width // 4, 4).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(lines).tobytes(), scale
    assert dtype == Dtype.I8, f"{dtype.name} weights have no panels"
    return _pack_i8(panels), scale


def _pack_i8(panels: Floats) -> bytes:
    """Blocks of 64 k: float16 scales of group 0, of group 1, then 16 lines of 16 outputs x 4 k."""
    count, _, width = panels.shape
    groups = panels.reshape(count, PANEL_OUTPUTS, width // I8_GROUP, I8_GROUP)
    scales = (np.abs(groups).max(axis=3) / 127).astype(np.float16)
    divisor = np.where(scales == 0, np.float16(1), scales).astype(np.float32)[..., None]
    codes = np.clip(np.rint(groups / divisor), -127, 127).astype(np.int8).reshape(panels.shape)
    blocks = []
    for panel in range(count):
        for block in range(width // 64):
            blocks.append(scales[panel, :, 2 * block : 2 * block + 2].T.tobytes())
            lines = (
                codes[panel, :, 64 * block : 64 * block + 64].reshape(PANEL_OUTPUTS, 16, 4).transpose(1, 0, 2)
            )
            blocks.append(np.ascontiguousarray(lines).tobytes())
    return b"".join(blocks)
