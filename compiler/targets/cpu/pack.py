"""Pack: checkpoint rows become the bytes of panels and scales, a slice of panels at a time.

A slice holds at most SLICE_BYTES of float32, so that the build's memory does not depend on the model. Every
formula of the layout is in `plans.layout.panel_bytes`; `unpack_rows` is its inverse, used by the reference
executor and the tests.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ....plans.layout import I8_BLOCK, PANEL_OUTPUTS, Dtype, Layout, k_padded, panel_bytes, panel_count
from ....plans.records import TensorEntry
from ...checkpoint.spec import TensorSource, row_spans
from ...numerics.formats import bf16_decode, bf16_encode, e4m3_decode, quantise_e4m3, quantise_i8
from ...passes.layout import Constant, ConstantTable, scale_name

SLICE_BYTES = 32 << 20
Piece = tuple[str, int, bytes]  # tensor name, offset within it, data


def _rows(source: TensorSource, names: tuple[str, ...], begin: int, end: int) -> NDArray[np.float32]:
    """Rows [begin, end) of the tensors' concatenation along the first axis, float32."""
    parts = [source.read(*span) for span in row_spans(source, names, begin, end)]
    return np.concatenate(parts) if len(parts) != 1 else parts[0]


def _panel_rows(source: TensorSource, constant: Constant, begin: int, end: int) -> NDArray[np.float32]:
    """Output channels of panels [begin, end), zero rows where a panel is not full: (16 * panels, K)
    float32."""
    dims, layout = constant.entry.dims, constant.entry.layout
    out = np.zeros((PANEL_OUTPUTS * (end - begin), *dims[1:]), np.float32)
    if layout == Layout.PANELS:
        low, high = begin * PANEL_OUTPUTS, min(end * PANEL_OUTPUTS, dims[0])
        out[: high - low] = _rows(source, constant.sources, low, high)
        return out
    half = dims[0] // 2  # gate rows, then as many up rows; panels alternate
    view = out.reshape(-1, 2, PANEL_OUTPUTS, *dims[1:])
    low, high = begin // 2 * PANEL_OUTPUTS, min(end // 2 * PANEL_OUTPUTS, half)
    for part in range(2):
        rows = _rows(source, constant.sources, part * half + low, part * half + high)
        padded = np.zeros((view.shape[0] * PANEL_OUTPUTS, *dims[1:]), np.float32)
        padded[: rows.shape[0]] = rows
        view[:, part] = padded.reshape(-1, PANEL_OUTPUTS, *dims[1:])
    return out


def pack_panels(rows: NDArray[np.float32], dtype: Dtype) -> tuple[bytes, NDArray[np.float32] | None]:
    """Panels of (16 * P, K) float32 rows, and their (16 * P,) float32 scales when the format keeps them apart
    (e4m3)."""
    panels, width = rows.shape[0] // PANEL_OUTPUTS, k_padded(rows.shape[1], dtype)
    padded = np.zeros((rows.shape[0], width), np.float32)
    padded[:, : rows.shape[1]] = rows
    if dtype == Dtype.BF16:
        pairs = bf16_encode(padded).reshape(panels, PANEL_OUTPUTS, width // 2, 2)
        return pairs.transpose(0, 2, 1, 3).tobytes(), None
    if dtype == Dtype.E4M3:
        fp8, scales = quantise_e4m3(padded)
        return fp8.reshape(panels, PANEL_OUTPUTS, width // 4, 4).transpose(0, 2, 1, 3).tobytes(), scales
    assert dtype == Dtype.I8, dtype
    codes, halves = quantise_i8(padded)
    blocks = width // I8_BLOCK
    block = np.empty((panels, blocks, panel_bytes(I8_BLOCK, dtype)), np.uint8)
    groups = halves.reshape(panels, PANEL_OUTPUTS, blocks, 2).transpose(0, 2, 3, 1)
    block[:, :, :64] = np.ascontiguousarray(groups).view(np.uint8).reshape(panels, blocks, 64)
    lines = codes.reshape(panels, PANEL_OUTPUTS, blocks, 16, 4).transpose(0, 2, 3, 1, 4)
    block[:, :, 64:] = np.ascontiguousarray(lines).view(np.uint8).reshape(panels, blocks, 1024)
    return block.tobytes(), None


def row_order(rows: int, layout: Layout) -> NDArray[np.int64]:
    """Where each of `rows` output channels stands in panel order: 16 * panel + lane, (rows,)."""
    index: NDArray[np.int64] = np.arange(rows, dtype=np.int64)
    if layout == Layout.PANELS:
        return index
    up, channel = np.divmod(index, rows // 2)
    index[:] = (2 * (channel // PANEL_OUTPUTS) + up) * PANEL_OUTPUTS + channel % PANEL_OUTPUTS
    return index


def panel_order(values: NDArray[np.float32], layout: Layout) -> NDArray[np.float32]:
    """A (W,) vector over output channels in panel order, padded with zeros to whole panels."""
    out = np.zeros(panel_count(values.shape[0], layout) * PANEL_OUTPUTS, np.float32)
    out[row_order(values.shape[0], layout)] = values
    return out


def panel_rows(values: NDArray[np.float32], rows: int, layout: Layout) -> NDArray[np.float32]:
    """The inverse of `panel_order`: (rows,) in the order of the sources."""
    return values[row_order(rows, layout)]


def unpack_panels(
    panels: NDArray[np.uint8], width: int, dtype: Dtype, scales: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """The inverse of `pack_panels`: (16 * P, width) float32 of (P, bytes) panels; `width` is padded."""
    count = panels.shape[0]
    if dtype == Dtype.BF16:
        codes = panels.view(np.uint16).reshape(count, width // 2, PANEL_OUTPUTS, 2).transpose(0, 2, 1, 3)
        values = bf16_decode(np.ascontiguousarray(codes))
    elif dtype == Dtype.E4M3:
        lines = panels.reshape(count, width // 4, PANEL_OUTPUTS, 4).transpose(0, 2, 1, 3)
        assert scales is not None
        values = e4m3_decode(np.ascontiguousarray(lines)) * scales.reshape(count, PANEL_OUTPUTS, 1, 1)
    else:
        block = panels.reshape(count, width // I8_BLOCK, -1)
        group = np.ascontiguousarray(block[:, :, :64]).view(np.float16).reshape(count, -1, 2, PANEL_OUTPUTS)
        codes = np.ascontiguousarray(block[:, :, 64:]).view(np.int8)
        signed = codes.reshape(count, -1, 2, 8, PANEL_OUTPUTS, 4).astype(np.float32)
        signed *= group.astype(np.float32)[:, :, :, None, :, None]
        values = signed.transpose(0, 4, 1, 2, 3, 5)
    return np.ascontiguousarray(values).reshape(count * PANEL_OUTPUTS, width)


def unpack_rows(
    data: memoryview, entry: TensorEntry, scales: NDArray[np.float32] | None, begin: int, end: int
) -> NDArray[np.float32]:
    """Rows [begin, end) of a packed weight, (end - begin, K) float32, in the order of its sources (gate rows
    first when paired). Only the panels that hold them are decoded. scales: E4M3's, in panel order.
    """
    places = row_order(entry.dims[0], entry.layout)[begin:end]
    needed, panel = np.unique(places // PANEL_OUTPUTS, return_inverse=True)
    panels = np.frombuffer(data, np.uint8).reshape(panel_count(entry.dims[0], entry.layout), -1)[needed]
    if scales is not None:
        scales = scales.reshape(-1, PANEL_OUTPUTS)[needed]
    values = unpack_panels(panels, k_padded(entry.dims[1], entry.dtype), entry.dtype, scales)
    return values[panel * PANEL_OUTPUTS + places % PANEL_OUTPUTS, : entry.dims[1]]


def _pack_weight(constant: Constant, source: TensorSource) -> Iterator[Piece]:
    entry = constant.entry
    panels, step = (
        panel_count(entry.dims[0], entry.layout),
        max(SLICE_BYTES // (64 * entry.dims[1]), 2) // 2 * 2,
    )
    size = panel_bytes(entry.dims[1], entry.dtype)
    for begin in range(0, panels, step):
        end = min(begin + step, panels)
        data, scales = pack_panels(_panel_rows(source, constant, begin, end), entry.dtype)
        yield entry.name, begin * size, data
        if scales is not None:
            yield scale_name(entry.name), begin * PANEL_OUTPUTS * 4, scales.astype("<f4").tobytes()


def pack(
    table: ConstantTable, source: TensorSource, tables: dict[str, NDArray[np.float32]]
) -> Iterator[Piece]:
    """All bytes of WEIGHTS and SCALES but the padding. `tables`: values of constants that no checkpoint
    tensor holds."""
    layouts = {  # a bias follows the panel order of the weight beside it
        name.removesuffix(".weight"): constant.entry.layout
        for name, constant in table.constants.items()
        if constant.role == "weight"
    }
    for name, constant in table.constants.items():
        if constant.role == "weight":
            yield from _pack_weight(constant, source)
        elif constant.role == "bias":
            values = np.concatenate([source.read(part) for part in constant.sources])
            yield name, 0, panel_order(values, layouts[name.removesuffix(".bias")]).astype("<f4").tobytes()
        elif constant.role == "norm":
            yield name, 0, source.read(constant.sources[0]).astype("<f4").tobytes()
        elif constant.role != "weight_scale":
            yield name, 0, np.ascontiguousarray(tables[name], "<f4").tobytes()
