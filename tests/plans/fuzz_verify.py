"""Runs the Python verifier on mutated tiny plans: it must never raise, and what it accepts must be readable.

`python tests/plans/fuzz_verify.py --runs 100000 --seed 1` prints runs per second and how often each reason
was given.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from ingot.plans.layout import Dtype, Reason
from ingot.plans.reader import PlanFile
from ingot.plans.verify import verify

sys.path.insert(0, str(Path(__file__).parent.parent))
from support.fuzz_report import keep, report
from support.mutate import mutants
from support.tiny_plan import TinySpec, write_tiny_plan

SPECS = (
    TinySpec(rows=(1, 2), head_rows=(1,)),
    TinySpec(weights=Dtype.E4M3, kv=Dtype.E5M2, rows=(2,), head_rows=(1, 2), bias=True),
    TinySpec(weights=Dtype.BF16, kv=Dtype.E4M3, rows=(1,), head_rows=(1,), qk_norm=True),
)


def base_plans() -> list[bytes]:
    """Small valid plans of every kernel family."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.plan"
        plans = []
        for spec in SPECS:
            write_tiny_plan(path, spec)
            plans.append(path.read_bytes())
        return plans


def _run(mutant: bytes) -> Reason:
    """Verifies one mutant; what verify accepts must decode (META that is no JSON is the reader's own
    refusal).
    """
    reason, index = verify(mutant)
    assert isinstance(reason, Reason), f"odd reason {reason}"
    assert 0 <= index < 1 << 64, f"odd index {index}"
    if reason == Reason.OK:
        with contextlib.suppress(json.JSONDecodeError):
            PlanFile(Path("mutant"), memoryview(mutant))
    return reason


def fuzz(runs: int, seed: int, most_seconds: float = float("inf")) -> Counter[Reason]:
    """Verifies `runs` mutants, round robin over the base plans; returns how often each reason came."""
    streams = [mutants(plan, seed + i) for i, plan in enumerate(base_plans())]
    seen: Counter[Reason] = Counter()
    begin = time.monotonic()
    for run in range(runs):
        mutant = next(streams[run % len(streams)])
        try:
            seen[_run(mutant)] += 1
        except BaseException as error:
            keep(mutant, "crash.plan", error, run, seed)
            raise
        if time.monotonic() - begin > most_seconds:
            break
    return seen


if __name__ == "__main__":
    sys.exit(report(__doc__, fuzz))
