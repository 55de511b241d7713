"""Memory as promised: resident is what was said, what does not fit is refused by name, idling is free."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from ingot.runtime import _ingot
from support.engines import available_bytes, generate, prompt, sealed, write_plan
from support.tiny_plan import TinySpec

BASE_BYTES = 4 << 20  # beside the regions: the plan's tables and texts, worker stacks, the test's own objects

RESIDENT = """
import sys
sys.path.insert(0, sys.argv[2])
from ingot.runtime import _ingot
from support.engines import generate, prompt, resident_bytes

plan = _ingot.Plan(sys.argv[1])
before = resident_bytes()
engine = _ingot.Engine(plan, threads=2)
created = resident_bytes()
engine.seal()
generate(engine, prompt(100), max_tokens=100, ignore_eos=True)
said = engine.stats["bytes_reserved"]
used = resident_bytes()
engine.close()
print(said, created - before, used - before, resident_bytes() - before)
"""


def test_resident_memory_is_what_the_plan_says(tmp_path: Path) -> None:
    """Goal: after create all pages are there, use adds none, close returns them: 2 % and a base of 4 MiB."""
    plan = write_plan(tmp_path / "big.plan", TinySpec(), granules_max=50000, granules_default=50000)
    tests = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", RESIDENT, str(plan), str(tests)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    said, created, used, closed = (int(word) for word in done.stdout.split())
    assert said > 200 << 20
    assert abs(created - said) <= said * 0.02 + BASE_BYTES
    assert abs(used - said) <= said * 0.02 + BASE_BYTES
    assert closed <= BASE_BYTES


def test_a_region_that_does_not_fit_is_named(tmp_path: Path) -> None:
    """Goal: twice the machine's free memory is refused before it is touched, with region and numbers."""
    free = available_bytes()
    granules = 2 * free // 4608
    plan = write_plan(tmp_path / "huge.plan", TinySpec(), granules_max=granules, granules_default=1)
    opened = _ingot.Plan(str(plan))
    regions = {region["name"]: region["bytes"] for region in opened.regions(kv_tokens=granules * 128)}
    started = time.monotonic()
    with pytest.raises(_ingot.IngotError, match="region kv needs") as caught:
        _ingot.Engine(opened, kv_tokens=granules * 128)
    assert time.monotonic() - started < 5
    assert caught.value.name == "MEMORY"
    assert caught.value.actual == regions["kv"] > caught.value.limit > 0


def test_an_idle_engine_uses_no_processor_time(tmp_path: Path) -> None:
    """Goal: workers park: half a second of idling costs less than 5 % of one processor."""
    plan = write_plan(tmp_path / "tiny.plan", TinySpec())
    with sealed(plan, threads=4) as engine:
        generate(engine, prompt(5), max_tokens=10)
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.025
