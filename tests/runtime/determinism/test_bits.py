"""P3 on all twelve numerics: chunks, buckets, ISA, threads, neighbours, reopening change no bit (INV-06)."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from ingot.plans.layout import Dtype
from ingot.runtime import _ingot
from support.engines import drain, prompt, sealed, write_plan
from support.native import native, run
from support.tiny_plan import TinySpec

WEIGHTS = (Dtype.I8, Dtype.E4M3, Dtype.BF16)
KV = (Dtype.I8, Dtype.E4M3, Dtype.E5M2, Dtype.BF16)
COUNT = 280  # three granules, the window of the second layer (150) is left behind


def has_avx2() -> bool:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    return {"avx2", "fma", "f16c"} <= set(flags)


ISAS = ("scalar", "avx2") if has_avx2() else ("scalar",)


@pytest.fixture(
    scope="module", params=list(itertools.product(WEIGHTS, KV)), ids=lambda p: f"{p[0].name}-{p[1].name}"
)
def plan(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of two layers (the second with a window), with biases, qk-norm on every other combination."""
    weights, kv = request.param
    spec = TinySpec(
        weights=weights, kv=kv, layers=2, bias=True, qk_norm=kv in (Dtype.I8, Dtype.E5M2),
        rows=(1, 2, 4, 16, 64), query_heads=3, kv_heads=1, hidden=48,
    )  # fmt: skip
    return write_plan(tmp_path_factory.mktemp("bits") / "tiny.plan", spec)


@pytest.fixture(scope="module")
def baseline(plan: Path) -> np.ndarray:
    """Logits of every position by scalar kernels, one thread, one row a step: the definition."""
    with sealed(plan, threads=1, isa="scalar") as engine:
        logits = engine.score(prompt(COUNT), 1)
    assert np.isfinite(logits).all()
    assert np.unique(logits).size > COUNT, "the logits say something"
    return logits


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_chunking_isa_and_thread_count(
    plan: Path, baseline: np.ndarray, isa: _ingot.Isa, threads: int
) -> None:
    """Goal: chunks of 1, 2, 3, 5, 17 and all, every ISA, 1 to 3 threads: the bits of the baseline."""
    chunks = (1, 2, 3, 5, 17, 0) if threads == 1 else (1, 3, 0)
    with sealed(plan, threads=threads, isa=isa) as engine:
        for chunk in chunks:
            logits = engine.score(prompt(COUNT), chunk)
            wrong = np.nonzero((logits.view(np.uint32) != baseline.view(np.uint32)).any(axis=1))[0]
            assert wrong.size == 0, f"chunk {chunk}: positions {wrong[:5]} differ"


def test_a_reopened_copy(plan: Path, baseline: np.ndarray, tmp_path: Path) -> None:
    """Goal: another engine over a copy of the file gives the same bits, twice."""
    copy = Path(shutil.copy(plan, tmp_path / "copy.plan"))
    for _ in range(2):
        with sealed(copy, requests=8, kv_tokens=4096) as engine:
            assert engine.score(prompt(COUNT)).tobytes() == baseline.tobytes()


def test_generation_is_scoring(plan: Path, baseline: np.ndarray) -> None:
    """Goal: logprobs of a request, prefilled in any chunks and decoded, are those of its text scored."""
    ids = prompt(COUNT)
    for step_rows in (1, 7, 64):
        with sealed(plan, step_rows=step_rows) as engine:
            handle = engine.submit(ids[:140], max_tokens=20, ignore_eos=True, logprobs=True, top_logprobs=20)
            events = drain(engine, handle)
            text = np.concatenate([ids[:140], [event.token for event in events]]).astype(np.uint32)
            scored = engine.score(text, 1)
        assert scored[:140].tobytes() == baseline[:140].tobytes()
        for event in events:
            row = scored[event.position - 1].astype(np.float64)
            exact = row - row.max() - np.log(np.exp(row - row.max()).sum())
            assert event.logprob == pytest.approx(exact[event.token], abs=2e-6)
            assert event.token == int(row.argmax())


def test_among_seven_others_over_poisoned_granules(plan: Path) -> None:
    """Goal: alone = among others over memory of NaN; scalar on 1 thread = the best ISA on 2."""
    said = {run(native("neighbours_test"), plan, threads, isa) for threads, isa in (("1", "1"), ("2", "0"))}
    assert len(said) == 1
    assert len(said.pop().splitlines()) == 120
