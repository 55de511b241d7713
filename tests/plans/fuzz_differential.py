"""Gives mutated tiny plans to both verifiers: they must agree on reason and index; every reason must come up.

`python tests/plans/fuzz_differential.py --runs 100000 --seed 1` prints runs per second and how often each
reason was given. A plan that they disagree on is left in `build/disagreement.plan`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from ingot.plans.layout import Reason

sys.path.insert(0, str(Path(__file__).parent.parent))
from support.mutate import mutants
from support.native import ROOT
from support.verifiers import DisagreementError, Native, agreed, base_plans, round_robin


def fuzz(runs: int, seed: int) -> Counter[Reason]:
    """How often both gave each reason. Raises DisagreementError."""
    cpp = Native()
    streams = [mutants(plan, seed + i) for i, plan in enumerate(base_plans().values())]
    seen: Counter[Reason] = Counter()
    for run, mutant in enumerate(round_robin(streams, runs)):
        try:
            seen[agreed(cpp, mutant)[0]] += 1
        except DisagreementError as error:
            kept = ROOT / "build" / "disagreement.plan"
            kept.write_bytes(error.plan)
            error.add_note(f"run {run} of seed {seed}; the plan is in {kept.relative_to(ROOT)}")
            raise
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    begin = time.monotonic()
    seen = fuzz(arguments.runs, arguments.seed)
    seconds = time.monotonic() - begin
    print(f"{arguments.runs} runs in {seconds:.1f} s: {arguments.runs / seconds:.0f} runs/s, no disagreement")
    for reason, count in seen.most_common():
        print(f"{count:9} {reason.name.lower()}")
    missing = [reason.name.lower() for reason in Reason if reason not in seen]
    print(f"never given: {', '.join(missing) or 'none'}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
