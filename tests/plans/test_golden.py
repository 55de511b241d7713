"""The committed golden plans: rebuilt byte for byte, accepted, answered alike, and refused when damaged.

A refactor leaves plans and answers unchanged (`support/golden_plans.py` makes them, and says when anew). The
self-test's logits come from torch and may differ in their last bits between machines: they are compared as
numbers, and with them the hashes over them are left out.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ingot.plans import open_plan
from ingot.plans.layout import PAGE_BYTES, Reason, Section
from ingot.plans.verify import verify
from support.golden_plans import ANSWERS, FOLDER, GOLDEN, answer, build_golden
from support.mutate import sections_of, take_apart
from support.verifiers import Native, agreed

NAMES = sorted(GOLDEN)
SMALLEST = "i8"
MEASURED = {Section.SELFTEST, Section.HASHES}  # sections that hold, or hash, torch's logits


@pytest.fixture(scope="module")
def smallest() -> bytes:
    return (FOLDER / f"{SMALLEST}.plan").read_bytes()


@pytest.fixture(scope="module")
def native() -> Native:
    return Native()


def test_folder_holds_what_is_made() -> None:
    """Goal: no golden file without its recipe, and none missing."""
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.plan" for name in NAMES} | {"answers.json"}
    assert sorted(json.loads(ANSWERS.read_text())) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_compiler_still_makes_these_bytes(name: str, tmp_path: Path) -> None:
    """Goal: P7 over time. Method: build again; every section but the measured ones is equal byte for byte."""
    path = tmp_path / "again.plan"
    build_golden(name, path)
    made, kept = take_apart(path.read_bytes()), take_apart((FOLDER / f"{name}.plan").read_bytes())
    assert list(made.sections) == list(kept.sections)
    for section in made.sections:
        if section not in MEASURED:
            assert made.sections[section] == kept.sections[section], section.name
    with open_plan(path) as new, open_plan(FOLDER / f"{name}.plan") as old:
        assert new.tables == old.tables
        a, b = new.selftest(), old.selftest()
    assert a is not None
    assert b is not None
    assert (a.prompt, a.probe_ids, a.next_token) == (b.prompt, b.probe_ids, b.next_token)
    assert a.probe_logits == pytest.approx(b.probe_logits, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_runtime_still_gives_these_answers(name: str) -> None:
    """Goal: P3 over time: tokens, and the bits of every logit, as committed."""
    assert answer(FOLDER / f"{name}.plan") == json.loads(ANSWERS.read_text())[name]


@pytest.mark.parametrize("name", NAMES)
def test_both_verifiers_accept(name: str, native: Native) -> None:
    assert agreed(native, (FOLDER / f"{name}.plan").read_bytes()) == (Reason.OK, 0)


def test_every_truncation_is_refused(smallest: bytes, native: Native) -> None:
    """Goal: no prefix of a compiled plan is a plan. Method: all lengths in Python, every 61st in both."""
    whole = memoryview(smallest)
    for size in range(len(whole)):
        reason, _ = verify(whole[:size]) if size % 61 else agreed(native, whole[:size])
        assert reason == (Reason.TOO_SHORT if size < PAGE_BYTES else Reason.BAD_FILE_SIZE), size


def test_every_bit_flip_of_header_and_tables_is_refused(smallest: bytes, native: Native) -> None:
    """Goal: each bit from the header to the last table matters. Method: flip one at a time; C++ judges all,
    Python the header page and the lowest bit of each byte of the tables.
    """
    meta = next(offset for kind, _, offset, _, _ in sections_of(smallest) if kind == Section.META)
    plan = bytearray(smallest)
    for bit in range(8 * meta):
        byte = bit // 8
        plan[byte] ^= 1 << bit % 8
        answer_cpp = native.verify(plan)
        assert answer_cpp[0] != Reason.OK, bit
        if byte < PAGE_BYTES or bit % 8 == 0:
            assert verify(plan) == answer_cpp, bit
        plan[byte] ^= 1 << bit % 8
