"""The command line that the fuzz scripts share: `--runs`, `--seed`, and how often each reason was given."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable

from ingot.plans.layout import Reason

from .native import ROOT


def keep(plan: bytes, name: str, error: BaseException, run: int, seed: int) -> None:
    """Leaves the plan that a fuzzer stopped at in `build/`, and says so in the error."""
    path = ROOT / "build" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(plan)
    error.add_note(f"run {run} of seed {seed}; the plan is in {path.relative_to(ROOT)}")


def report(description: str | None, fuzz: Callable[[int, int], Counter[Reason]]) -> int:
    """Runs `fuzz(runs, seed)` as the command line says; 1 when a reason was never given, else 0."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    begin = time.monotonic()
    seen = fuzz(arguments.runs, arguments.seed)
    seconds = time.monotonic() - begin
    print(f"{arguments.runs} runs in {seconds:.1f} s: {arguments.runs / seconds:.0f} runs/s, nothing found")
    for reason, count in seen.most_common():
        print(f"{count:9} {reason.name.lower()}")
    missing = [reason.name.lower() for reason in Reason if reason not in seen]
    print(f"never given: {', '.join(missing) or 'none'}")
    return 1 if missing else 0
