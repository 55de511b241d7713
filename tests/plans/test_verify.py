"""Verify refuses every truncation, every bit flip of header and tables, and never raises on mutated plans.

What each reason tests, one hand-made damage at a time, is in `test_verify_reasons.py`.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ingot.plans import layout
from ingot.plans.layout import (
    CHUNK_BYTES,
    NONE_INDEX,
    PAGE_BYTES,
    SECTION_RECORDS,
    Dtype,
    Reason,
    Section,
    round_up,
)
from ingot.plans.reader import PlanFile
from ingot.plans.verify import verify
from ingot.plans.verify_tables import TensorRow, _any_overlap, _overlaps
from support.mutate import assemble, mutants, repair, sections_of, take_apart
from support.tiny_plan import TinySpec, write_tiny_plan

SMALL = TinySpec(weights=Dtype.BF16, rows=(1,), head_rows=(1,), vocabulary=16, hidden=16, ffn=16)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A valid plan of about 60 KB with few records."""
    path: Path = tmp_path_factory.mktemp("plans") / "small.plan"
    write_tiny_plan(path, SMALL)
    return path.read_bytes()


def test_sound_plan_is_ok(small: bytes) -> None:
    """Goal: the base of all mutants is sound, in every buffer type."""
    for data in (small, bytearray(small), memoryview(small)):
        assert verify(data) == (Reason.OK, 0)


def test_every_truncation_is_refused(small: bytes) -> None:
    """Goal: no prefix of a plan is a plan. Method: all lengths."""
    whole = memoryview(small)
    for size in range(len(small)):
        want = (Reason.TOO_SHORT, size) if size < PAGE_BYTES else (Reason.BAD_FILE_SIZE, len(small))
        assert verify(whole[:size]) == want


def test_tail_is_refused(small: bytes) -> None:
    """Goal: a plan with bytes after it is no plan."""
    assert verify(small + b"\0") == (Reason.BAD_FILE_SIZE, len(small))


def test_every_bit_flip_of_the_header_page_is_refused(small: bytes) -> None:
    """Goal: each of the 32,768 bits of the header page matters. Method: flip one at a time."""
    plan = bytearray(small)
    for bit in range(8 * PAGE_BYTES):
        byte = bit // 8
        plan[byte] ^= 1 << bit % 8
        reason, _ = verify(plan)
        plan[byte] ^= 1 << bit % 8
        want = {0: Reason.BAD_MAGIC, 1: Reason.BAD_VERSION}.get(byte // 8, Reason.BAD_HEADER_HASH)
        want = Reason.BAD_HEADER_HASH if 12 <= byte < 16 else want
        assert reason == want, f"bit {bit}"


def test_every_bit_flip_of_the_tables_is_refused(small: bytes) -> None:
    """Goal: each bit of each record, name and padding up to META matters. Method: flip one at a time."""
    end = next(offset for kind, _, offset, _, _ in sections_of(small) if kind == Section.META)
    used = [range(offset, offset + size) for kind, _, offset, size, _ in sections_of(small) if offset < end]
    plan = bytearray(small)
    for byte in (byte for span in used for byte in span):
        for bit in range(8):
            plan[byte] ^= 1 << bit
            answer = verify(plan)
            plan[byte] ^= 1 << bit
            assert answer == (Reason.BAD_CHUNK_HASH, 0), f"byte {byte} bit {bit}"
    assert len(small) < CHUNK_BYTES, "the reason's index assumes a single chunk"


def test_every_bit_flip_anywhere_else_is_refused(small: bytes) -> None:
    """Goal: the same for weights, texts, padding and HASHES. Method: one bit of every 97th byte."""
    for byte in range(PAGE_BYTES, len(small), 97):
        plan = bytearray(small)
        plan[byte] ^= 1 << byte % 8
        assert verify(plan)[0] in {Reason.BAD_CHUNK_HASH, Reason.BAD_ROOT_HASH}


def test_repaired_flips_of_records_are_judged(small: bytes) -> None:
    """Goal: with hashes repaired, flips in records reach the record checks and nothing raises."""
    seen = set()
    for kind, _, offset, size, _ in sections_of(small):
        if kind not in SECTION_RECORDS:
            continue
        for byte in range(offset, offset + size, 5):
            plan = bytearray(small)
            plan[byte] ^= 1 << (byte // 5) % 8
            repair(plan)
            seen.add(verify(plan)[0])
    assert len(seen) >= 8, f"only {seen}"


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32))
def test_mutants_never_raise(small: bytes, seed: int) -> None:
    """Goal: verify answers for any mutant, twice the same."""
    stream = mutants(small, seed)
    for _ in range(5):
        mutant = next(stream)
        answer = verify(mutant)
        assert answer == verify(bytearray(mutant))
        assert 0 <= answer[1] < 1 << 64


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=5000))
def test_any_bytes_are_refused(data: bytes) -> None:
    """Goal: noise is no plan, whatever its size."""
    assert verify(data)[0] != Reason.OK


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(st.tuples(st.integers(PAGE_BYTES, 60_000), st.binary(min_size=1, max_size=16)), max_size=4)
)
def test_any_overwrite_is_judged(small: bytes, edits: list[tuple[int, bytes]]) -> None:
    """Goal: overwrites after the header, hashes repaired: an answer, and what is accepted decodes."""
    plan = bytearray(small)
    for at, raw in edits:
        begin = min(at, len(plan) - len(raw))
        plan[begin : begin + len(raw)] = raw
    repair(plan)
    reason, _ = verify(plan)
    if reason == Reason.OK and not any(_in_meta(small, at, raw) for at, raw in edits):
        PlanFile(Path("mutant"), memoryview(plan))


def _in_meta(plan: bytes, at: int, raw: bytes) -> bool:
    """Whether an overwrite may touch META or DRIFT, whose JSON verify does not judge."""
    return any(
        kind in {Section.META, Section.DRIFT} and at < offset + size and offset < at + len(raw)
        for kind, _, offset, size, _ in sections_of(plan)
    )


def test_mutator_is_deterministic(small: bytes) -> None:
    """Goal: a seed names the same mutants everywhere (the differential test relies on it)."""
    first, again, other = mutants(small, 3), mutants(small, 3), mutants(small, 4)
    pairs = [(next(first), next(again), next(other)) for _ in range(50)]
    assert all(a == b for a, b, _ in pairs)
    assert any(a != c for a, _, c in pairs)


def test_fuzz_loop_finds_every_reason() -> None:
    """Goal: the mutator reaches every check. Method: a short run of the fuzz loop, fixed seed."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("fuzz_verify", Path(__file__).parent / "fuzz_verify.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert set(module.fuzz(5000, 1)) == set(Reason)


def with_arena_tensors(plan: bytes, added: int, **last: object) -> tuple[bytes, int]:
    """The plan with `added` more tensors in its first program, all alive in all of it, side by side; and the
    last one's index.

    `last` overrides fields of the last one added.
    """
    parts = take_apart(plan)
    program = parts.record(Section.PROGRAMS, 0)
    begin, count, arena = (int(program[k]) for k in ("tensor_begin", "tensor_count", "arena_bytes"))
    index, offset = begin + count, round_up(arena, 64)
    template = parts.record(Section.TENSORS, begin) | {
        "rank": 1,
        "dims": (1,),
        "bytes": 4,
        "dtype": Dtype.F32,
    }
    template |= {"first_command": 0, "last_command": int(program["command_count"]) - 1}
    records = [template | {"offset": offset + 64 * i} for i in range(added)]
    records[-1] |= last
    size = layout.TENSOR.bytes
    packed = b"".join(layout.TENSOR.pack(**record) for record in records)
    parts.sections[Section.TENSORS][size * index : size * index] = packed
    for c in range(parts.count(Section.COMMANDS)):
        tensors = parts.record(Section.COMMANDS, c)["tensors"]
        moved = [t + added if index <= t != NONE_INDEX else t for t in tensors]
        parts.edit(Section.COMMANDS, c, tensors=moved)
    end = offset + 64 * added
    parts.edit(Section.PROGRAMS, 0, tensor_count=count + added, arena_bytes=end)
    for p in range(1, parts.count(Section.PROGRAMS)):
        later = parts.record(Section.PROGRAMS, p)["tensor_begin"]
        parts.edit(Section.PROGRAMS, p, tensor_begin=later + added)
    parts.edit(Section.REGIONS, 3, bytes_fixed=end)
    return assemble(parts), index + added - 1


def test_overlap_of_many_tensors_is_judged_in_seconds(small: bytes) -> None:
    """Goal: near the most arena tensors that a program may have, verify stays fast and its index is exact."""
    begin = time.monotonic()
    sound, _ = with_arena_tensors(small, 8000)
    assert verify(sound) == (Reason.OK, 0)
    clash, last = with_arena_tensors(small, 8000, offset=64 * 4000)
    assert verify(clash) == (Reason.ARENA_OVERLAP, last)
    many, _ = with_arena_tensors(small, 9000)
    assert verify(many) == (Reason.BAD_PROGRAM, 0)
    assert time.monotonic() - begin < 30


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(0, 8), st.integers(1, 3)),
        min_size=1,
        max_size=8,
    )
)
def test_overlap_sweep_agrees_with_pairs(spans: list[tuple[int, int, int, int]]) -> None:
    """Goal: the sweep and the O(n^2) definition of VERIFY.md agree. Method: random lifetimes and ranges."""
    zero = TensorRow(*[0] * 15, b"")
    rows = [
        zero._replace(first_command=first, last_command=first + more, offset=offset, bytes=size)
        for first, more, offset, size in spans
    ]
    pairs = any(_overlaps(a, b) for j, b in enumerate(rows) for a in rows[:j])
    assert _any_overlap(rows) == pairs
