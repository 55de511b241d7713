"""The reference executor itself: state across chunks, hooks, streaming, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from ingot.compiler.graph.graph import Op
from ingot.compiler.graph.ops import definition
from ingot.compiler.graph.ops.definition import Values
from ingot.compiler.numerics.formats import round_weight
from ingot.compiler.targets.reference.executor import Reference
from ingot.plans.layout import Dtype
from numpy.typing import NDArray
from support.models import SMALL, ArraySource, random_source

SPEC = replace(SMALL, layer_window=(0, 24))
TOKENS = [int(token) for token in np.random.default_rng(1).integers(0, SMALL.vocabulary, 150)]
FORMATS = (Dtype.BF16, Dtype.E4M3, Dtype.E5M2, Dtype.I8)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("kv", [Dtype.F32, *FORMATS])
@pytest.mark.parametrize("fused", [False, True])
def test_chunks(kv: Dtype, fused: bool) -> None:
    """Goal: any chunking gives the whole, across granules, with and without rounding of the cache."""
    reference = Reference(SPEC, random_source(SPEC), kv, fused, cache=True)
    whole = reference.forward(TOKENS)
    for chunk in (1, 64, 149):
        found = reference.forward(TOKENS, chunk)
        distance = float((found - whole).norm() / whole.norm())
        # A last bit of difference in a key may round it to the cache format's neighbour.
        assert distance <= (1e-5 if kv == Dtype.F32 else 2e-2)


@pytest.mark.parametrize(("kv", "low", "high"), [
    (Dtype.BF16, 1e-4, 1e-2), (Dtype.E4M3, 1e-3, 0.1), (Dtype.E5M2, 1e-2, 0.2), (Dtype.I8, 1e-4, 0.02),
])  # fmt: skip
def test_cache_rounding_shows(kv: Dtype, low: float, high: float) -> None:
    """Goal: each format moves the logits by about what its mantissa says: not nothing, not more."""
    exact, rounded = (Reference(SPEC, random_source(SPEC), form).forward(TOKENS) for form in (Dtype.F32, kv))
    assert low < float((exact - rounded).norm() / exact.norm()) < high


def test_stop_after_and_observe() -> None:
    """Goal: intermediates of every op, the same from both doors; caches hold this sequence's tokens."""
    reference = Reference(SPEC, random_source(SPEC), cache=True)
    seen: list[tuple[Op, Values]] = []
    list(reference.stream(TOKENS, observe=lambda op, outputs: seen.append((op, dict(outputs)))))
    kinds = [op.kind for op, _ in seen]
    assert kinds[: len(reference.body.ops)] == [op.kind for op in reference.body.ops]
    assert kinds[len(reference.body.ops) :] == ["gather_rows", "rms_norm", "linear"]
    for index, op in enumerate(reference.body.ops):
        found = reference.stop_after(TOKENS, index)
        assert set(found) == set(op.outputs)
        if op.kind != "kv_write":
            assert torch.equal(found["out"], seen[index][1]["out"])
    with pytest.raises(IndexError, match="not in the body"):
        reference.stop_after(TOKENS, len(reference.body.ops))


def test_weight_hook() -> None:
    """Goal: the hook sees every matrix and nothing else; what it returns is what is multiplied with."""
    source, names = random_source(SPEC), set()

    def hook(name: str, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        names.add(name)
        return round_weight(rows, Dtype.E4M3)

    hooked = Reference(SPEC, source, weights=hook).forward(TOKENS)
    assert names == {name for name in source.names() if len(source.shape(name)) == 2}
    rounded = {
        name: round_weight(array, Dtype.E4M3) if array.ndim == 2 else array
        for name, array in source.arrays.items()
    }
    assert torch.equal(hooked, Reference(SPEC, ArraySource(rounded)).forward(TOKENS))
    plain = Reference(SPEC, source).forward(TOKENS)
    assert 1e-3 < float((hooked - plain).norm() / plain.norm()) < 0.2


class CountingSource(ArraySource):
    """Counts reads and remembers the most rows that one asked for."""

    def __init__(self, arrays: dict[str, NDArray[np.float32]]) -> None:
        super().__init__(arrays)
        self.reads, self.elements_max = 0, 0

    def read(self, name: str, begin: int = 0, end: int | None = None) -> NDArray[np.float32]:
        values = super().read(name, begin, end)
        self.reads += 1
        self.elements_max = max(self.elements_max, values.size)
        return values


def test_weights_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no read exceeds a slice, slices change nothing, and a cache reads everything once."""
    whole = Reference(SPEC, random_source(SPEC)).forward(TOKENS)
    monkeypatch.setattr(definition, "SLICE_BYTES", 1024)
    source = CountingSource(random_source(SPEC).arrays)
    for fused in (False, True):
        found = Reference(SPEC, source, fused=fused).forward(TOKENS)
        assert float((found - whole).norm() / whole.norm()) < 1e-6
    assert source.elements_max <= 1024 // 4
    cached = Reference(SPEC, source, cache=True)
    cached.forward(TOKENS[:8])
    source.reads = 0
    cached.forward(TOKENS[:8], 1)
    assert source.reads <= 8 * 5 * SPEC.layers, "only vectors are read again"


def test_one_chunk_keeps_no_cache() -> None:
    """Goal: a sequence that runs as one chunk frees each layer's cache when it was read; others keep all."""
    reference = Reference(SPEC, random_source(SPEC))
    for keep in (False, True):
        state = reference.begin(len(TOKENS), keep)
        reference.hidden(state, TOKENS)
        assert len(state.caches) == (2 * SPEC.layers if keep else 0)
        assert state.length == len(TOKENS)


def test_refusals() -> None:
    """Goal: too many tokens, none, and an id beyond the vocabulary are errors with the number."""
    reference = Reference(SPEC, random_source(SPEC))
    state = reference.begin(128)
    reference.hidden(state, TOKENS[:100])
    with pytest.raises(ValueError, match="129 tokens exceed the sequence's capacity of 128"):
        reference.hidden(state, TOKENS[:29])
    with pytest.raises(ValueError, match="a step of 0 tokens"):
        reference.hidden(state, [])
    for token in (-1, SPEC.vocabulary):
        with pytest.raises(ValueError, match="vocabulary of 211"):
            reference.hidden(state, [token])
