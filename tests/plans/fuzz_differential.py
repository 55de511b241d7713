"""Gives mutated tiny plans to both verifiers: they must agree on reason and index; every reason must come up.

`python tests/plans/fuzz_differential.py --runs 100000 --seed 1` prints runs per second and how often each
reason was given. A plan that they disagree on is left in `build/disagreement.plan`.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from ingot.plans.layout import Reason

sys.path.insert(0, str(Path(__file__).parent.parent))
from support.fuzz_report import keep, report
from support.mutate import mutants
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
            keep(error.plan, "disagreement.plan", error, run, seed)
            raise
    return seen


if __name__ == "__main__":
    sys.exit(report(__doc__, fuzz))
