"""Opening plans: what a path can be, what is shared, what survives the file; the self-test at seal."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from ingot.plans.layout import Dtype
from ingot.plans.records import Selftest
from ingot.runtime import _ingot
from support.engines import generate, prompt, sealed, tokens, write_plan
from support.tiny_plan import TinySpec


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plan(tmp_path_factory.mktemp("plans") / "tiny.plan", TinySpec())


def refused(path: Path) -> _ingot.IngotError:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(_ingot.IngotError) as caught:
        _ingot.Plan(str(path))
    assert len(list(Path("/proc/self/fd").iterdir())) == before, "no descriptor stays open"
    return caught.value


def test_paths_that_are_no_plan_file(tmp_path: Path, plan: Path) -> None:
    """Goal: each kind of path has its own sentence, and none blocks or crashes."""
    (tmp_path / "empty").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    cases = {
        tmp_path: "is a directory",
        tmp_path / "empty": "is empty: a plan has at least 4096 bytes",
        tmp_path / "missing": "there is no such file (error 2)",
        tmp_path / "loop": "too many symbolic links",
        tmp_path / "pipe": "is not a regular file",
        plan / "x": "a part of the path is not a directory",
        Path("/dev/null"): "is not a regular file",
        tmp_path / ("x" * 300): "the path is too long",
        tmp_path / ("\u00fc" * 120): "there is no such file",  # cut within a character
    }
    for path, text in cases.items():
        error = refused(path)
        assert error.name == "FILE"
        assert text in error.text
    if os.geteuid() != 0:
        (tmp_path / "secret").write_bytes(plan.read_bytes())
        (tmp_path / "secret").chmod(0)
        assert "permission is denied" in refused(tmp_path / "secret").text


@pytest.mark.parametrize("size", [1, 100, 4095, 4096, 5000, 70000])
def test_cut_plans_are_refused_with_a_reason(tmp_path: Path, plan: Path, size: int) -> None:
    """Goal: a truncated file gives the reason that `verify` gives for the bytes in memory."""
    raw = plan.read_bytes()[:size]
    (tmp_path / "cut.plan").write_bytes(raw)
    error = refused(tmp_path / "cut.plan")
    assert error.name == "PLAN"
    assert error.reason == _ingot.verify(raw)[0] != 0
    assert _ingot.reason_text(error.reason) in error.text


def test_noise_is_refused(tmp_path: Path) -> None:
    """Goal: seeded noise of several sizes is no plan."""
    for size in (1, 4096, 100_000):
        (tmp_path / "noise").write_bytes(np.random.default_rng(size).bytes(size))
        assert refused(tmp_path / "noise").name == "PLAN"


def test_texts(plan: Path) -> None:
    """Goal: texts come back whole; unknown sections are none."""
    opened = _ingot.Plan(str(plan))
    assert json.loads(opened.text("meta") or "")
    assert "message.content" in (opened.text("template") or "")
    assert json.loads(opened.text("tokenizer") or "")["version"] == "1.0"
    assert [opened.text(name) for name in ("weights", "", "META")] == [None, None, None]


def test_an_engine_outlives_its_plan_and_the_file(tmp_path: Path, plan: Path) -> None:
    """Goal: after create neither the plan object nor the file is needed: not even an emptied file matters."""
    copy = Path(shutil.copy(plan, tmp_path / "copy.plan"))
    with sealed(plan, threads=1) as engine:
        expected = generate(engine, prompt(9), max_tokens=30, ignore_eos=True)
    opened = _ingot.Plan(str(copy))
    engine = _ingot.Engine(opened, threads=1)
    del opened
    copy.write_bytes(b"")
    engine.seal()
    assert generate(engine, prompt(9), max_tokens=30, ignore_eos=True) == expected
    engine.close()


def test_a_file_that_shrinks_between_open_and_create_is_refused(tmp_path: Path, plan: Path) -> None:
    """Goal: weights are read with their own error, not by a fault of a mapped page."""
    copy = Path(shutil.copy(plan, tmp_path / "copy.plan"))
    opened = _ingot.Plan(str(copy))
    os.truncate(copy, 8192)
    with pytest.raises(_ingot.IngotError, match="weights from the plan") as caught:
        _ingot.Engine(opened)
    assert caught.value.name == "FILE"


def test_one_plan_many_engines(plan: Path) -> None:
    """Goal: engines over one plan are independent and agree."""
    opened = _ingot.Plan(str(plan))
    engines = [_ingot.Engine(opened, threads=threads) for threads in (1, 2, 3)]
    for engine in engines:
        engine.seal()
    made = [generate(engine, prompt(5), max_tokens=20, ignore_eos=True) for engine in engines]
    engines[0].close()
    made.append(generate(engines[1], prompt(5), max_tokens=20, ignore_eos=True))
    assert made[1:] == [made[0]] * 3


def self_test(plan: Path, ids: np.ndarray, probes: tuple[int, ...]) -> Selftest:
    """The self-test that a sound build of this plan stores."""
    with sealed(plan, threads=1) as engine:
        logits = engine.score(ids)[-1]
    ranked = np.sort(logits)
    return Selftest(
        tuple(int(i) for i in ids), probes, tuple(float(logits[i]) for i in probes), int(logits.argmax()),
        float(ranked[-1] - ranked[-2]), 1e-4,
    )  # fmt: skip


def test_the_self_test_passes_and_fails(tmp_path: Path, plan: Path) -> None:
    """Goal: seal compares the golden prompt's logits and next token; a difference is an error."""
    probes = (0, 7, 47, 20)
    right = self_test(plan, prompt(200), probes)
    with sealed(write_plan(tmp_path / "right.plan", TinySpec(), right)) as engine:
        assert engine.stats["rows"] == 0, "the self-test is not counted"
        assert engine.stats["granules_free"] == engine.stats["granules"]
    wrong_logit = tuple(value + (0.05 if i == 2 else 0) for i, value in enumerate(right.probe_logits))
    wrong_token = (right.next_token + 1) % 48
    for name, test in {
        "logit": Selftest(right.prompt, probes, wrong_logit, right.next_token, right.margin, right.tolerance),
        "token": Selftest(
            right.prompt, probes, right.probe_logits, wrong_token, right.margin, right.tolerance
        ),
    }.items():
        engine = _ingot.Engine(_ingot.Plan(str(write_plan(tmp_path / f"{name}.plan", TinySpec(), test))))
        with pytest.raises(_ingot.IngotError, match="the self-test computed other logits") as caught:
            engine.seal()
        assert caught.value.name == "SELFTEST"
        with pytest.raises(_ingot.IngotError, match="before seal"):
            engine.step()
        engine.close()


def test_a_self_test_that_does_not_fit_the_pool(tmp_path: Path, plan: Path) -> None:
    """Goal: a pool smaller than the golden prompt is refused with the number it needs."""
    path = write_plan(tmp_path / "long.plan", TinySpec(), self_test(plan, prompt(200), (1,)))
    engine = _ingot.Engine(_ingot.Plan(str(path)), kv_tokens=128)
    with pytest.raises(_ingot.IngotError, match="200 tokens need 2 granules and the pool has 1") as caught:
        engine.seal()
    assert caught.value.name == "POOL"


def test_plans_for_another_target_are_refused(tmp_path: Path) -> None:
    """Goal: a sound plan for a GPU opens, sizes, and is refused by create."""
    path = write_plan(tmp_path / "gpu.plan", TinySpec(weights=Dtype.E4M3, kv=Dtype.E4M3), target=2)
    opened = _ingot.Plan(str(path))
    assert opened.info["target"] == "sm90a"
    assert len(opened.regions()) == 6
    with pytest.raises(_ingot.IngotError, match="build the plan with --target cpu") as caught:
        _ingot.Engine(opened)
    assert caught.value.name == "TARGET"


def test_scoring_one_token(plan: Path) -> None:
    """Goal: the smallest score has one row."""
    with sealed(plan, threads=1) as engine:
        assert engine.score(tokens(5)).shape == (1, 48)
