"""What `inspect` says is what the plan holds, as JSON and as tables."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from ingot.plans import PlanFile, open_plan, sizing
from ingot.plans.inspect import render, summary
from rich.console import Console
from support.tiny_plan import write_tiny_plan


@pytest.fixture
def plan(tmp_path: Path) -> PlanFile:
    write_tiny_plan(tmp_path / "tiny.plan")
    return open_plan(tmp_path / "tiny.plan")


def test_summary_is_json_with_every_part(plan: PlanFile) -> None:
    """Goal: the JSON has all parts, and its numbers are the plan's."""
    facts = json.loads(json.dumps(summary(plan, memory_bytes=1 << 20)))
    assert list(facts) == [
        "identity", "model", "numerics", "tokens", "sections", "memory", "pool", "programs", "calibration",
        "drift",
        "concurrency",
    ]  # fmt: skip
    assert facts["identity"]["hash"] == plan.hash
    assert facts["numerics"] == {"weights": "i8", "kv": "i8", "activations": "i8"}
    assert facts["tokens"] == {"bos_token": 1, "eos_tokens": [2], "default_max_tokens": 64}
    assert facts["memory"]["total_bytes"] == sizing(plan.tables).total_bytes
    assert sum(region["bytes"] for region in facts["memory"]["regions"]) == facts["memory"]["total_bytes"]
    assert [(p["family"], p["rows"]) for p in facts["programs"]] == [
        ("body", 1), ("body", 2), ("body", 4), ("head", 1), ("head", 2),
    ]  # fmt: skip
    assert sum(p["commands"] for p in facts["programs"]) == len(plan.tables.commands)
    assert facts["concurrency"][0]["context"] == 300
    assert "concurrency" not in summary(plan)


def test_render_shows_the_facts(plan: PlanFile) -> None:
    """Goal: people see identity, memory, programs, drift and the concurrency of a budget."""
    out = io.StringIO()
    render(plan, Console(file=out, width=160), memory_bytes=1 << 20)
    text = out.getvalue()
    for expected in (
        plan.hash, "WEIGHTS", "memory at 1536 kv tokens and 4 requests", "body[4]", "mean_kl", "lower bound",
        "requests at once in 1.0 MiB", "216.0 KiB",
    ):  # fmt: skip
        assert expected in text


def test_render_takes_names_literally(tmp_path: Path, plan: PlanFile) -> None:
    """Goal: a plan's strings are shown, not run as console markup."""
    from dataclasses import replace

    from ingot.plans import PlanWriter
    from support.tiny_plan import tiny_plan

    tiny = tiny_plan()
    path = tmp_path / "odd.plan"
    with PlanWriter(path, replace(tiny.tables, meta={**tiny.tables.meta, "name": "[red]x[/oops]"})) as writer:
        for name, raw in tiny.weights.items():
            writer.write(name, 0, raw)
        writer.selftest(tiny.selftest)
        writer.finish()
    out = io.StringIO()
    render(open_plan(path), Console(file=out, width=160))
    assert "[red]x[/oops]" in out.getvalue()
