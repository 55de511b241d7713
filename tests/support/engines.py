"""Plans and engines for the runtime's tests: tiny plans, sealed engines, requests run to their end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from ingot.plans.records import Selftest
from ingot.plans.writer import PlanWriter
from ingot.runtime import _ingot
from support.tiny_plan import TinySpec, tiny_plan


def write_plan(path: Path, spec: TinySpec, selftest: Selftest | None = None, **header: Any) -> Path:
    """A tiny plan with this self-test, or none; `header` replaces header fields. Returns `path`."""
    plan = tiny_plan(spec)
    size = 0 if selftest is None else 32 + 4 * len(selftest.prompt) + 8 * len(selftest.probe_ids)
    tables = replace(plan.tables, selftest_bytes=size, header={**plan.tables.header, **header})
    with PlanWriter(path, tables) as writer:
        for name, raw in plan.weights.items():
            writer.write(name, 0, raw)
        if selftest is not None:
            writer.selftest(selftest)
        writer.finish()
    return path


@contextmanager
def sealed(path: Path, **options: Any) -> Iterator[_ingot.Engine]:
    """A sealed engine over the plan at `path`, closed at the end."""
    engine = _ingot.Engine(_ingot.Plan(str(path)), **options)
    try:
        engine.seal()
        yield engine
    finally:
        engine.close()


def tokens(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


def prompt(count: int, vocabulary: int = 48, seed: int = 0) -> np.ndarray:
    """`count` seeded token ids that are no eos token of a tiny plan (2)."""
    drawn = np.random.default_rng(seed).integers(3, vocabulary, count)
    return drawn.astype(np.uint32)


def drain(engine: _ingot.Engine, handle: int) -> list[_ingot.Event]:
    """Steps until the request has ended; all its events."""
    events: list[_ingot.Event] = []
    while not events or events[-1].finish is None:
        engine.step()
        events += engine.poll(handle)
    return events


def generate(engine: _ingot.Engine, ids: np.ndarray, **sampling: Any) -> list[int]:
    """The token ids that one request generates."""
    return [event.token for event in drain(engine, engine.submit(ids, **sampling)) if event.token is not None]


def resident_bytes() -> int:
    """Resident memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


def available_bytes() -> int:
    """Memory that the machine can still give."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
