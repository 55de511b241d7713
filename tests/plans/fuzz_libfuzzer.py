"""Builds the libFuzzer target `fuzz_verify` with clang, ASan and UBSan; runs it on the seeds of `corpus/`.

`python tests/plans/fuzz_libfuzzer.py --runs 100000 --seed 1`. A crash leaves its input in `build/fuzz/`.
`--write-seeds` makes the seeds anew, as after a change of the format: small sound plans of `base_plans`.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from support.native import ROOT, run, tool
from support.verifiers import base_plans

CORPUS = Path(__file__).parent / "corpus"
BUILD = ROOT / "build" / "fuzz"
INPUT_BYTES_MAX = 1 << 17  # seeds have half of it
NO_CLANG = "clang++ is not installed, which the fuzzer is built with: run tools/system.sh fuzz to install it"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run printed about itself: reasons given of all, sound plans walked, and its last lines."""

    reasons: int
    reasons_all: int
    sound: int
    tail: str


def build() -> Path:
    """The fuzzer, built when it is stale."""
    if shutil.which("clang++") is None:
        raise AssertionError(NO_CLANG)
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(
            tool("cmake"), "-S", ROOT / "runtime", "-B", BUILD, "-G", "Ninja", "-DINGOT_FUZZ=ON",
            "-DCMAKE_CXX_COMPILER=clang++", "-DCMAKE_C_COMPILER=clang",
            f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        )  # fmt: skip
        run(tool("ninja"), "-C", BUILD, "-j2", "fuzz_verify", timeout=1200)
    return BUILD / "tests" / "plans" / "fuzz_verify"


def fuzz(runs: int, seed: int) -> Outcome:
    """Runs the fuzzer on a copy of the seeds. Raises AssertionError with what it printed when it fails."""
    program = build()
    with tempfile.TemporaryDirectory() as folder:
        for path in CORPUS.glob("*.seed"):
            shutil.copy(path, folder)
        # Inputs are large and live for one run: the default quarantine of 256 MB would be full of them.
        done = subprocess.run(
            [
                str(program), f"-runs={runs}", f"-seed={seed}", f"-max_len={INPUT_BYTES_MAX}", "-timeout=20",
                "-rss_limit_mb=4096", "-print_final_stats=1", f"-artifact_prefix={BUILD}/", folder,
            ],
            capture_output=True, text=True, errors="replace", timeout=3600, check=False,
            env=os.environ | {"ASAN_OPTIONS": "quarantine_size_mb=8"},
        )  # fmt: skip
    assert done.returncode == 0, f"the fuzzer ended with {done.returncode}:\n{done.stderr[-8000:]}"
    found = re.search(r"reasons: (\d+) of (\d+) given; (\d+) plans were sound", done.stderr)
    assert found is not None, f"the fuzzer did not count its reasons:\n{done.stderr[-4000:]}"
    reasons, reasons_all, sound = (int(number) for number in found.groups())
    return Outcome(reasons, reasons_all, sound, done.stderr[found.start() :])


def write_seeds() -> None:
    for path in CORPUS.glob("*.seed"):
        path.unlink()
    CORPUS.mkdir(exist_ok=True)
    for name, plan in base_plans().items():
        (CORPUS / f"{name}.seed").write_bytes(plan)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write-seeds", action="store_true")
    arguments = parser.parse_args()
    if arguments.write_seeds:
        write_seeds()
        return 0
    outcome = fuzz(arguments.runs, arguments.seed)
    print(outcome.tail.strip())
    return 0 if outcome.reasons == outcome.reasons_all else 1


if __name__ == "__main__":
    sys.exit(main())
