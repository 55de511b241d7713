"""embed and rope_table: rows of a packed table as the panels hold them; cosines and sines to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from ingot.plans.layout import Dtype, Kernel, Layout
from support.kernels import Isa, Tensor, run, supported
from support.panels import e4m3_values, encode_bf16, encode_e4m3, pack

ISAS = tuple(isa for isa in Isa if supported(isa))
KERNEL = {Dtype.I8: Kernel.EMBED_I8, Dtype.E4M3: Kernel.EMBED_E4M3, Dtype.BF16: Kernel.EMBED_BF16}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", KERNEL)
@pytest.mark.parametrize("hidden", [7, 40, 96])
@pytest.mark.parametrize("chunk", [0, 2])
def test_embed(isa: Isa, dtype: Dtype, hidden: int, chunk: int) -> None:
    """Goal: first, last and middle tokens give exactly the stored value; padding rows stay untouched."""
    table = np.random.default_rng(hidden).standard_normal((51, hidden)).astype(np.float32)
    raw, scale = pack(table, dtype, Layout.PANELS)
    tokens = np.array([50, 0, 15, 16, 33, 7, 7], np.uint32)
    tensors = {
        "tokens": Tensor.of(tokens),
        "weight": Tensor.of(raw, table.shape),
        "out": Tensor.of(np.full((7, hidden), np.nan, np.float32)),
    }
    if dtype == Dtype.E4M3:
        tensors["weight_scale"] = Tensor.of(scale)
    run(isa, KERNEL[dtype], tensors, rows=5, chunk=chunk, backwards=True)
    rows = table[tokens[:5]]
    if dtype == Dtype.BF16:
        expected = (encode_bf16(rows).astype(np.uint32) << 16).view(np.float32)
    elif dtype == Dtype.E4M3:
        own = scale[tokens[:5], None]
        expected = e4m3_values()[encode_e4m3(np.clip(rows / own, -448, 448).astype(np.float32))] * own
    else:
        padded = np.zeros((5, -(-hidden // 32) * 32), np.float32)
        padded[:, :hidden] = rows
        groups = padded.reshape(5, -1, 32)
        half = (np.abs(groups).max(axis=2) / 127).astype(np.float16).astype(np.float32)[..., None]
        expected = (np.clip(np.rint(groups / half), -127, 127) * half).reshape(5, -1)[:, :hidden]
    assert (tensors["out"].array[:5] == expected).all()
    assert np.isnan(tensors["out"].array[5:]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("pairs", [3, 8, 32])
@pytest.mark.parametrize("factor", [1.0, 1.2079441541679836])
def test_rope_table(isa: Isa, pairs: int, factor: float) -> None:
    """Goal: numpy's binary64 cosines and sines times the factor, rounded, up to the last position."""
    random = np.random.default_rng(pairs)
    frequency = (10000.0 ** -(np.arange(pairs) / pairs)).astype(np.float32)
    positions = np.append(random.integers(0, 1 << 24, 60), [0, 1, (1 << 24) - 1]).astype(np.uint32)
    tensors = {
        "positions": Tensor.of(positions),
        "inverse_frequency": Tensor.of(frequency),
        "out": Tensor.of(np.full((64, 2, pairs), np.nan, np.float32)),
    }
    run(isa, Kernel.ROPE_TABLE, tensors, rows=63, f=(factor,), chunk=5, backwards=True)
    angles = (positions[:, None].astype(np.float32) * frequency).astype(np.float64)
    wide = np.stack([np.cos(angles), np.sin(angles)], axis=1) * np.float64(np.float32(factor))
    expected = wide.astype(np.float32)
    assert (tensors["out"].array[:63].view(np.uint32) == expected.view(np.uint32)).all()
    assert np.isnan(tensors["out"].array[63:]).all()
