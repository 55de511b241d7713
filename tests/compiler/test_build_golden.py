"""Plans of every family against transformers: through the plan walker in torch and through the runtime.

Goal: what is compiled is the model. Weights are bf16-exact, so with float32 KV the plan walker must give
transformers' logits to float32 accuracy, and the runtime with bf16 KV must stay within that format's
rounding. Matrices are drawn with half of unit gain: a network that amplifies every rounding tenfold would
measure itself, not the plan.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ingot.compiler.build import BuildOptions, compile_tables
from ingot.compiler.build import build as build_plan
from ingot.compiler.checkpoint.spec import Checkpoint, TextFiles
from ingot.compiler.targets.cpu.pack import pack_panels, panel_order, panel_rows, unpack_rows
from ingot.compiler.targets.reference.plan import PlanReference
from ingot.plans.layout import Dtype, Layout, Region, Unit
from ingot.plans.reader import open_plan
from ingot.plans.records import TensorEntry
from ingot.runtime import Engine
from numpy.typing import NDArray
from support.checkpoints import CASES
from support.models import source_of, spec_of, transformers_model

PREFILL, DECODE = 150, 16
SMALL_POOL = {"rows_max": 16, "head_rows_max": 4, "requests_max": 4, "requests_default": 2}


def relative(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Largest L2 distance over the vocabulary, relative to the expected logits' norm, of any position."""
    return float(np.max(np.linalg.norm(actual - expected, axis=1) / np.linalg.norm(expected, axis=1)))


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, NDArray[np.float32]]:
    """A case whose checkpoint `build` will open, and its float32 logits by transformers."""
    torch.set_num_threads(1)
    model = transformers_model(request.param)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embed" not in name and "head" not in name:
                parameter.mul_(0.5)
        tokens = torch.tensor([prompt(model.config.vocab_size)])
        expected = model(tokens).logits[0].numpy()
    text = TextFiles(None, None, {}, False, {})
    checkpoint = Checkpoint(spec_of(request.param), text, source_of(model), request.param)
    monkeypatch.setattr("ingot.compiler.build.open_checkpoint", lambda _: checkpoint)
    return request.param, expected


def prompt(vocabulary: int) -> list[int]:
    return [int(x) for x in np.random.default_rng(1).integers(0, vocabulary, PREFILL + DECODE)]


def test_family_against_transformers(case: tuple[str, NDArray[np.float32]], tmp_path: Path) -> None:
    """bf16 weights: the walker with float32 KV within 1e-4, the runtime with bf16 KV within 5e-3; decode =
    prefill."""
    name, expected = case
    path = tmp_path / "m.plan"
    build_plan(name, path, BuildOptions(weights="bf16", kv="bf16", **SMALL_POOL))
    tokens = prompt(expected.shape[1])
    with open_plan(path) as plan:
        exact = PlanReference(plan.tables, plan.data).forward(tokens, Dtype.F32)
    assert relative(exact, expected) < 1e-4
    with Engine(path, max_requests=1, threads=1) as engine:
        whole, single = engine.score(tokens), engine.score(tokens, 1)
    assert relative(whole, expected) < 5e-3
    assert np.array_equal(whole.view(np.uint32), single.view(np.uint32))


@pytest.mark.parametrize(("weights", "kv"), [("i8", "i8"), ("e4m3", "e4m3"), ("e4m3", "e5m2")])
@pytest.mark.parametrize("family", ["llama_biases", "qwen3", "smollm3"])
def test_runtime_follows_walker(
    family: str, weights: str, kv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8-bit plans: the runtime computes what the commands say, within what another order of sums rounds
    apart."""
    torch.set_num_threads(1)
    text = TextFiles(None, None, {}, False, {})
    checkpoint = Checkpoint(spec_of(family), text, source_of(transformers_model(family)), family)
    monkeypatch.setattr("ingot.compiler.build.open_checkpoint", lambda _: checkpoint)
    path = tmp_path / "m.plan"
    build_plan(family, path, BuildOptions(weights=weights, kv=kv, **SMALL_POOL))
    tokens = prompt(checkpoint.spec.vocabulary)[:48]
    with open_plan(path) as plan:
        expected = PlanReference(plan.tables, plan.data).forward(tokens)
    with Engine(path, max_requests=1, threads=1) as engine:
        actual = engine.score(tokens)
    assert relative(actual, expected) < (0.1 if weights == "i8" else 5e-3)


def test_same_inputs_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two builds in two directories give the same bytes."""
    text = TextFiles(None, None, {}, False, {})
    checkpoint = Checkpoint(spec_of("qwen2"), text, source_of(transformers_model("qwen2")), "qwen2")
    monkeypatch.setattr("ingot.compiler.build.open_checkpoint", lambda _: checkpoint)
    plans = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / f"{folder}.plan"
        build_plan("qwen2", path, BuildOptions(weights="e4m3", kv="e4m3", **SMALL_POOL))
        plans.append(path.read_bytes())
    assert plans[0] == plans[1]


@pytest.mark.parametrize("case_name", CASES)
def test_arena_meets_bound(case_name: str) -> None:
    """Every program's arena is as small as any placement can make it."""
    text = TextFiles(None, None, {}, False, {})
    checkpoint = Checkpoint(spec_of(case_name), text, None, case_name)
    tables = compile_tables(checkpoint, BuildOptions(**SMALL_POOL)).tables
    assert all(program.arena_bytes == program.arena_lower_bound for program in tables.programs)


@pytest.mark.parametrize("layout", [Layout.PANELS, Layout.PANELS_PAIRED])
@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.E4M3, Dtype.I8])
@pytest.mark.parametrize("shape", [(6, 7), (32, 64), (50, 100), (96, 33)])
def test_panels_round_trip(layout: Layout, dtype: Dtype, shape: tuple[int, int]) -> None:
    """Unpacking gives each source row its own values back, for sizes that fill no panel and no block."""
    rows = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    order = panel_order(np.arange(1, shape[0] + 1, dtype=np.float32), layout).astype(np.int64)
    packed = np.zeros((len(order), shape[1]), np.float32)
    packed[order > 0] = rows[order[order > 0] - 1]
    data, scales = pack_panels(packed, dtype)
    entry = TensorEntry("w", Region.WEIGHTS, Unit.FIXED, dtype, layout, shape, 0, len(data))
    back = unpack_rows(memoryview(data), entry, scales, 0, shape[0])
    assert np.array_equal(unpack_rows(memoryview(data), entry, scales, 3, 5), back[3:5])
    tolerance = {Dtype.BF16: 2**-8, Dtype.E4M3: 2**-3.9, Dtype.I8: 2**-6}[dtype]
    assert np.abs(back - rows).max() <= tolerance * np.abs(rows).max()
    vector = np.arange(shape[0], dtype=np.float32)
    assert np.array_equal(panel_rows(panel_order(vector, layout), shape[0], layout), vector)
