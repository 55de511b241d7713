"""Runs the native tests: memory, leases, lists, the thread pool (TSan too), faults, allocations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.engines import write_plan
from support.native import native, run
from support.tiny_plan import TinySpec


def test_memory_leases_and_lists() -> None:
    """Goal: reservations, granules and request lists keep their invariants; INV-01 and INV-04 abort."""
    assert run(native("core_test")) == "ok\n"


@pytest.mark.parametrize("name", ["pool_test", "pool_tsan"])
def test_thread_pool(name: str) -> None:
    """Goal: every item once, barriers order writes, no lost wake-up, an idle pool uses no processor time."""
    assert run(native(name)) == "ok\n"


@pytest.mark.parametrize("threads", ["1", "2"])
def test_nothing_is_allocated_between_seal_and_close(tmp_path: Path, threads: str) -> None:
    """Goal: INV-01 over 2,000 generated tokens; malloc, free, mmap, munmap, brk and sbrk are all counted."""
    plan = write_plan(tmp_path / "tiny.plan", TinySpec(layers=2))
    said = re.fullmatch(r"(\d+) tokens, (\d+) calls\n", run(native("allocation_test"), plan, "2000", threads))
    assert said is not None
    assert int(said[1]) >= 2000
    assert int(said[2]) == 0


def test_every_fault_of_create_leaves_nothing_behind(tmp_path: Path) -> None:
    """Goal: whichever mmap, pread, mprotect, pthread_create or mlock fails, create fails cleanly."""
    plan = write_plan(tmp_path / "tiny.plan", TinySpec())
    said = re.fullmatch(r"(\d+) faults\n", run(native("fault_test"), plan))
    assert said is not None
    assert int(said[1]) >= 6 + 5 + 4  # at least each region, each read, three threads and the locks


def test_c_program_with_its_own_memory(tmp_path: Path) -> None:
    """Goal: ingot.h is C11; the caller's block is enough, whatever it held before (INV-06)."""
    plan = write_plan(tmp_path / "tiny.plan", TinySpec(layers=2))
    clean = run(native("c_api_test"), plan, "0")
    assert len(clean.splitlines()) == 40
    assert run(native("c_api_test"), plan, "255") == clean
