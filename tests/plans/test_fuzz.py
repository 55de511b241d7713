"""The libFuzzer target builds, its seeds are sound, a short run finds nothing and reaches every reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from ingot.plans.layout import Reason
from support.verifiers import Native, agreed, script

FUZZER = script(Path(__file__).parent / "fuzz_libfuzzer.py")
SEEDS = sorted(FUZZER.CORPUS.glob("*.seed"))


def test_there_are_seeds() -> None:
    """Goal: a fuzzer without seeds would only see files that are too short."""
    assert len(SEEDS) >= 3


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: path.stem)
def test_seeds_are_sound(seed: Path) -> None:
    """Goal: the seeds follow the format; after a change of it `fuzz_libfuzzer.py --write-seeds` is due."""
    assert agreed(Native(), seed.read_bytes()) == (Reason.OK, 0)
    assert seed.stat().st_size <= FUZZER.INPUT_BYTES_MAX


def test_a_short_run_finds_nothing() -> None:
    """Goal: 20,000 mutants under ASan and UBSan: no crash, every reason, thousands of sound plans walked."""
    outcome = FUZZER.fuzz(20_000, 1)
    assert outcome.reasons == outcome.reasons_all == len(Reason), outcome.tail
    assert outcome.sound >= 1000
