"""KV scales: powers of two with the ties that folding needs, folds that change nothing, and the error they
save.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from ingot.compiler.checkpoint.spec import CheckpointError, ModelSpec
from ingot.compiler.numerics.calibrate import TARGET, FoldedSource, KvScales, calibrate_kv, scales_of
from ingot.compiler.numerics.calibration_input import CALIBRATION_TOKENS, read_calibration
from ingot.compiler.targets.reference.executor import Reference
from ingot.plans.layout import Dtype
from support.models import SMALL, VARIANTS, ArraySource, random_source

TOKENS = [int(token) for token in np.random.default_rng(5).integers(0, SMALL.vocabulary, 160)]
QK_BIASES = replace(SMALL, qk_norm=True, qkv_bias=True, output_bias=True)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _badly_scaled(spec: ModelSpec, seed: int = 3) -> ArraySource:
    """Weights whose keys and values differ by up to 2^14 between channels (equal in a rotary pair), logits as
    before.

    Half of the channels fall below e4m3's smallest step or beyond its largest value when nothing scales them.
    """
    generator = np.random.default_rng(seed)
    shape = (spec.layers, spec.kv_heads, spec.head_size)
    k = 2.0 ** generator.integers(-14, 14, shape)
    half = spec.rope.rotary_dims // 2
    k[:, :, half : 2 * half] = k[:, :, :half]
    if spec.qk_norm:
        k[:] = k[:, :1]
    v = 2.0 ** generator.integers(-14, 14, shape)
    source = random_source(spec)
    folded = FoldedSource(spec, source, KvScales(k.astype(np.float32), v.astype(np.float32)))
    return ArraySource({name: folded.read(name) for name in source.names()})


@pytest.mark.parametrize("name", VARIANTS)
def test_scales_are_tied_powers_of_two(name: str) -> None:
    """Goal: every promise of scales: powers of two, target met, pairs equal, heads equal under qk-norm."""
    spec = VARIANTS[name]
    generator = np.random.default_rng(0)
    shape = (spec.layers, spec.kv_heads, spec.head_size)
    k, v = (np.exp2(generator.uniform(-12, 12, shape)).astype(np.float32) for _ in range(2))
    scales = scales_of(spec, k, v)
    for values in (scales.k, scales.v):
        assert (np.frexp(values)[0] == 0.5).all()
    stored = v / scales.v
    assert ((stored <= TARGET) & (stored > TARGET / 2)).all()
    assert (k / scales.k <= TARGET).all()
    if spec.qk_norm:
        assert (scales.k == scales.k[:, :1]).all()
    pairs = spec.rope.rotary_dims // 2
    for layer in range(spec.layers):
        if pairs and spec.layer_rope[layer]:
            assert (scales.k[layer, :, :pairs] == scales.k[layer, :, pairs : 2 * pairs]).all()


def test_scale_at_the_edges() -> None:
    """Goal: exactly the target stays at scale 1, one step more doubles it, nothing seen gives 1."""
    spec = replace(SMALL, layers=1, kv_heads=1, head_size=16, layer_window=(0,), layer_rope=(False,))
    v = np.full((1, 1, 16), TARGET, np.float32)
    v[0, 0, 1], v[0, 0, 2], v[0, 0, 3] = np.nextafter(v[0, 0, 0], np.float32(np.inf)), 0, TARGET / 2
    assert scales_of(spec, v, v).v[0, 0, :4].tolist() == [1, 2, 1, 0.5]


@pytest.mark.parametrize("spec", [*VARIANTS.values(), QK_BIASES], ids=[*VARIANTS, "qk_norm_biases"])
def test_fold_changes_nothing(spec: ModelSpec) -> None:
    """Goal: folded weights are the same model, for scales far from one."""
    source = _badly_scaled(spec)
    scales = calibrate_kv(spec, source, TOKENS, Dtype.E4M3)
    assert scales.k.max() / scales.k.min() > 2.0**8
    plain = Reference(spec, source).forward(TOKENS)
    folded = Reference(spec, FoldedSource(spec, source, scales)).forward(TOKENS)
    assert ((plain - folded).norm(dim=1) / plain.norm(dim=1)).max() < 2e-6


def test_fold_reads_slices() -> None:
    """Goal: a row range of a folded tensor is that range of the whole."""
    spec = replace(SMALL, qkv_bias=True)
    source = random_source(spec)
    folded = FoldedSource(spec, source, calibrate_kv(spec, source, TOKENS, Dtype.E4M3))
    for name in source.names():
        whole, rows = folded.read(name), source.shape(name)[0]
        for begin, end in ((0, 1), (rows // 3, rows // 2), (rows - 1, rows)):
            assert np.array_equal(folded.read(name, begin, end), whole[begin:end])
    changed = {name for name in source.names() if not np.array_equal(folded.read(name), source.read(name))}
    assert {name.split(".")[-2] for name in changed} == {"q", "k", "v", "o"}


@pytest.mark.parametrize("spec", [SMALL, VARIANTS["qk_norm"]], ids=["plain", "qk_norm"])
@pytest.mark.parametrize("kv", [Dtype.E4M3, Dtype.E5M2])
def test_calibrated_scales_save_the_cache(spec: ModelSpec, kv: Dtype) -> None:
    """Goal: on channels of very different size, calibrated e4m3 is as good as on well-scaled ones; scale 1 is
    not.
    """

    def error(source: ArraySource | FoldedSource) -> float:
        exact, rounded = (Reference(spec, source, kv=form).forward(TOKENS) for form in (Dtype.F32, kv))
        return float((exact - rounded).norm() / exact.norm())

    source = _badly_scaled(spec)
    calibrated = error(FoldedSource(spec, source, calibrate_kv(spec, source, TOKENS, kv)))
    well_scaled = error(random_source(spec))
    assert calibrated < 1.3 * well_scaled
    if kv == Dtype.E4M3:
        assert error(source) > 5 * calibrated


def test_refusals() -> None:
    """Goal: formats without scales, no tokens, an overflow and a mismatch are errors that say so."""
    source = random_source(SMALL)
    for kv in (Dtype.I8, Dtype.BF16):
        with pytest.raises(ValueError, match="take no calibrated scales"):
            calibrate_kv(SMALL, source, TOKENS, kv)
    with pytest.raises(ValueError, match="at least one token"):
        calibrate_kv(SMALL, source, [], Dtype.E4M3)
    ones = np.ones((SMALL.layers, SMALL.kv_heads, SMALL.head_size), np.float32)
    with pytest.raises(ValueError, match="is needed"):
        FoldedSource(SMALL, source, KvScales(ones[:1], ones))
    source.arrays["layer.0.q.weight"][0, 0] = 1e38
    with pytest.raises(CheckpointError, match=r"layer\.0\.q\.weight exceeds float32"):
        FoldedSource(SMALL, source, KvScales(ones * 2.0**20, ones)).read("layer.0.q.weight")


def test_calibration_reports_layers() -> None:
    """Goal: progress counts every layer once."""

    class Counter:
        def __init__(self) -> None:
            self.total, self.count = 0, 0

        def stage(self, name: str, total: int = 0, unit: str = "") -> None:
            self.total = total

        def advance(self, count: int = 1) -> None:
            self.count += count

        def note(self, text: str) -> None: ...

        def done(self) -> None: ...

    counter = Counter()
    calibrate_kv(SMALL, random_source(SMALL), TOKENS, Dtype.E4M3, counter)
    assert counter.count == counter.total == SMALL.layers


def test_built_in_text() -> None:
    """Goal: the built-in text is long enough for CALIBRATION_TOKENS at five bytes a token, and varied."""
    text = read_calibration(None)
    assert len(text.text.encode()) > 5 * CALIBRATION_TOKENS
    assert len(set(text.text)) > 150
    assert len(text.digest) == 64
