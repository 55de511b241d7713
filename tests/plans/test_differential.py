"""The C++ verifier gives the Python verifier's reason and index for whatever they are given.

Plans come from three places: every hand-made damage of `test_verify_reasons.py`, a deterministic stream of
mutants with repaired hashes, and plans that are large or hostile. `fuzz_differential.py` runs more mutants.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ingot.plans import layout
from ingot.plans.layout import (
    NONE_INDEX,
    PAGE_BYTES,
    Dtype,
    Limit,
    Reason,
    Region,
    Section,
    Unit,
    region_bytes,
)  # fmt: skip
from ingot.plans.reader import PlanFile
from support.mutate import assemble, mutants, repair, seal_header, take_apart
from support.tiny_plan import write_tiny_plan
from support.verifiers import Answer, DisagreementError, Native, agreed, base_plans, round_robin, script

HERE = Path(__file__).parent
BASE = "i8_i8"


@pytest.fixture(scope="module")
def cpp() -> Native:
    return Native()


def by_hand() -> list[Any]:
    """(test function, its arguments after the plan) for every case of test_verify_reasons.py."""
    module = script(HERE / "test_verify_reasons.py")
    cases = []
    for name, function in vars(module).items():
        if not name.startswith("test_") or "plan" not in function.__code__.co_varnames[:1]:
            continue
        marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
        values: list[Any] = [()]
        if marks:
            single = isinstance(marks[0].args[0], str)
            values = [(value,) if single else tuple(value) for value in marks[0].args[1]]
        cases += [pytest.param(function, value, id=f"{name}-{i}") for i, value in enumerate(values)]
    return cases


@pytest.mark.parametrize(("function", "arguments"), by_hand())
def test_hand_made_damage(
    cpp: Native, reasons_plan: bytes, function: Callable[..., None], arguments: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Goal: C++ names each hand-made damage as Python does. Method: the same tests, asking both."""
    asked: list[Answer] = []

    def both(data: bytes | bytearray) -> Answer:
        asked.append(agreed(cpp, data))
        return asked[-1]

    monkeypatch.setitem(function.__globals__, "verify", both)
    function(reasons_plan, *arguments)
    assert asked, "the test verified nothing"


@pytest.fixture(scope="module")
def reasons_plan(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The plan that test_verify_reasons.py damages."""
    path: Path = tmp_path_factory.mktemp("plans") / "tiny.plan"
    write_tiny_plan(path)
    return path.read_bytes()


def test_base_plans_are_sound(cpp: Native) -> None:
    """Goal: what mutants are made of is sound for both, and holds every kernel."""
    kernels = set()
    for plan in base_plans().values():
        assert agreed(cpp, plan) == (Reason.OK, 0)
        parts = take_apart(plan)
        kernels |= {parts.record(Section.KERNELS, k)["id"] for k in range(parts.count(Section.KERNELS))}
    assert kernels == set(layout.Kernel)


def test_mutants_get_the_same_answer(cpp: Native) -> None:
    """Goal: thousands of damaged plans, the same reason and index from both; every reason comes up."""
    streams = [mutants(plan, 7 + i) for i, plan in enumerate(base_plans().values())]
    seen = {agreed(cpp, mutant)[0] for mutant in round_robin(streams, 5000)}
    assert seen == set(Reason)


def test_bit_flips_get_the_same_answer(cpp: Native) -> None:
    """Goal: single bits of the record sections, hashes repaired: no bit is read by only one of the two."""
    plan = base_plans()[BASE]
    parts = take_apart(plan)
    kinds = (*layout.SECTION_RECORDS, Section.SELFTEST)
    flips = [(kind, byte) for kind in kinds for byte in range(len(parts.sections[kind]))]
    for i, (kind, byte) in enumerate(flips[::7]):
        parts.sections[kind][byte] ^= 1 << i % 8
        agreed(cpp, assemble(parts))
        parts.sections[kind][byte] ^= 1 << i % 8


def test_truncations_get_the_same_answer(cpp: Native) -> None:
    """Goal: prefixes, with hashes repaired as far as the table lets them be."""
    plan = base_plans()[BASE]
    for size in (*range(0, PAGE_BYTES, 511), PAGE_BYTES - 1, *range(PAGE_BYTES, len(plan), 997)):
        cut = bytearray(plan[:size])
        agreed(cpp, cut)
        if size >= PAGE_BYTES:
            repair(cut)
            agreed(cpp, cut)


@pytest.mark.parametrize("kind", [kind for kind in Section if kind != Section.HASHES])
def test_empty_sections_get_the_same_answer(cpp: Native, kind: Section) -> None:
    """Goal: a section that is there but empty is refused by its position."""
    parts = take_apart(base_plans()[BASE])
    parts.sections[kind].clear()
    position = sorted(parts.sections).index(kind)
    assert agreed(cpp, assemble(parts)) == (Reason.BAD_SECTION_RECORDS, position)


def with_count(kind: Section, count: int) -> bytes:
    """A plan whose section of this kind has `count` records, zero like all other content: its header and
    table are right, its hashes are not. The cap on counts comes before them.
    """
    parts = take_apart(base_plans()[BASE])
    page, end = bytearray(PAGE_BYTES), PAGE_BYTES
    table = b""
    for each in (*sorted(parts.sections), Section.HASHES):
        record = layout.SECTION_RECORDS[each].bytes if each in layout.SECTION_RECORDS else 1
        offset = layout.round_up(end, PAGE_BYTES)
        records = len(parts.sections.get(each, b"")) // record
        if each == kind:
            records = count
        elif each == Section.HASHES:
            records = layout.HASH_BYTES * -(-(offset - PAGE_BYTES) // layout.CHUNK_BYTES)
        table += struct.pack("<IIQQQ", each, record, offset, record * records, records)
        end = offset + record * records
    page[: len(parts.header)] = parts.header
    page[layout.SECTION_TABLE_OFFSET : layout.SECTION_TABLE_OFFSET + len(table)] = table
    struct.pack_into("<Q", page, layout.HEADER.offsets()["file_bytes"], end)
    seal_header(page)
    return bytes(page).ljust(end, b"\0")


COUNT_LIMITS = {
    Section.REGIONS: Limit.REGIONS, Section.TENSORS: Limit.TENSORS, Section.PROGRAMS: Limit.PROGRAMS,
    Section.COMMANDS: Limit.COMMANDS, Section.KERNELS: Limit.KERNELS, Section.STRINGS: Limit.STRING_BYTES,
    Section.META: Limit.META_BYTES, Section.DRIFT: Limit.META_BYTES, Section.TEMPLATE: Limit.META_BYTES,
    Section.TOKENIZER: Limit.TOKENIZER_BYTES,
}  # fmt: skip


@pytest.mark.parametrize("kind", COUNT_LIMITS)
def test_count_limits_get_the_same_answer(cpp: Native, kind: Section) -> None:
    """Goal: the largest count of each kind passes its cap, one more does not, before anything is hashed."""
    position = sorted(Section).index(kind)
    assert agreed(cpp, with_count(kind, COUNT_LIMITS[kind]))[0] == Reason.BAD_ROOT_HASH
    assert agreed(cpp, with_count(kind, COUNT_LIMITS[kind] + 1)) == (Reason.BAD_SECTION_RECORDS, position)


def test_most_eos_tokens(cpp: Native) -> None:
    """Goal: all entries of eos_tokens may be used."""
    parts = take_apart(base_plans()[BASE])
    parts.edit_header(eos_count=Limit.EOS_TOKENS, eos_tokens=(2,) * Limit.EOS_TOKENS)
    assert agreed(cpp, assemble(parts)) == (Reason.OK, 0)


@pytest.mark.parametrize("name", ["embed.weight_scale", "layer.0.o.weight_scale", "layer.0.qkv.bias"])
@pytest.mark.parametrize("change", [-16, -1, 1])
def test_scales_of_other_sizes_get_the_same_answer(cpp: Native, name: str, change: int) -> None:
    """Goal: per-output vectors cover whole panels (U), no fewer and no more."""
    plan = base_plans()["e4m3_e5m2"]
    parts = take_apart(plan)
    tensor = cpp.find(plan, name)
    size: Any = parts.record(Section.TENSORS, tensor)["dims"]
    parts.edit(Section.TENSORS, tensor, dims=(max(size[0] + change, 1),), bytes=4 * max(size[0] + change, 1))
    reason, _ = agreed(cpp, assemble(parts))
    assert reason in {Reason.BAD_COMMAND_SHAPE, Reason.BAD_TENSOR_ORDER, Reason.BAD_TENSOR_BOUNDS}
    if change < 0:
        assert reason == Reason.BAD_COMMAND_SHAPE


_PIECES = st.sampled_from([bytes([lead]) for lead in (0xC1, 0xC2, 0xDF, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5)])
_CONTINUATIONS = st.sampled_from([bytes([byte]) for byte in (0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0)])


@settings(max_examples=500, deadline=None)
@given(
    text=st.lists(_PIECES | _CONTINUATIONS | st.binary(min_size=1, max_size=1), min_size=1, max_size=9),
    fill=st.integers(0, 9),
    tail=st.sampled_from([b"", b"yz"]),
)
def test_utf8_gets_the_same_answer(text: list[bytes], fill: int, tail: bytes) -> None:
    """Goal: both agree on what UTF-8 is, wherever a sequence begins within eight bytes."""
    parts = take_apart(base_plans()[BASE])
    parts.sections[Section.TEMPLATE][:] = b"x" * fill + b"".join(text) + tail
    reason, index = agreed(_native(), assemble(parts))
    try:
        b"".join(text).decode()
        assert reason == Reason.OK
    except UnicodeDecodeError:
        assert (reason, index) == (Reason.BAD_TEXT, Section.TEMPLATE)


def _native() -> Native:
    """The verifier for Hypothesis, whose examples take no fixture."""
    if not hasattr(_native, "found"):
        _native.found = Native()  # type: ignore[attr-defined]
    return _native.found  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_huge_dimensions_get_the_same_answer(cpp: Native, rank: int) -> None:
    """Goal: products of dimensions that wrap 64 bits, in rows and in panels, are refused alike."""
    parts = take_apart(base_plans()[BASE])
    for dims in ((1 << 16,) * 4, (0xFFFFFFFF,) * 4, (1 << 31, 2, 1 << 31, 2), (1 << 24,) * 4):
        for size in (0, 1 << 48, (1 << 48) + 64, (1 << 64) - 64):
            for tensor, panels in ((0, True), (parts.count(Section.TENSORS) - 1, False)):
                before = bytes(parts.sections[Section.TENSORS])
                wide = rank if not panels else 2
                parts.edit(Section.TENSORS, tensor, rank=wide, dims=dims[:wide], bytes=size)
                assert agreed(cpp, assemble(parts)) == (Reason.BAD_TENSOR_BYTES, tensor)
                parts.sections[Section.TENSORS][:] = before


def with_more_arena_tensors(plan: bytes, per_program: int, clash: bool) -> tuple[bytes, int]:
    """The plan with its first program's arena widened to `per_program` tensors that live throughout, side by
    side; the last one, whose index is given, lies on the one before it when `clash`.
    """
    parts = take_apart(plan)
    program = parts.record(Section.PROGRAMS, 0)
    begin, count = int(program["tensor_begin"]), int(program["tensor_count"])  # type: ignore[call-overload]
    commands, arena = int(program["command_count"]), int(program["arena_bytes"])  # type: ignore[call-overload]
    added, offset = per_program - count, layout.round_up(arena, 64)
    template = parts.record(Section.TENSORS, begin) | {
        "rank": 1, "dims": (1,), "bytes": 4, "dtype": Dtype.F32, "first_command": 0,
        "last_command": commands - 1,
    }  # fmt: skip
    places = [offset + 64 * i for i in range(added)]
    if clash:
        places[-1] = places[-2]
    packed = b"".join(layout.TENSOR.pack(**template | {"offset": place}) for place in places)
    size, index = layout.TENSOR.bytes, begin + count
    parts.sections[Section.TENSORS][size * index : size * index] = packed
    for c in range(parts.count(Section.COMMANDS)):
        tensors: Any = parts.record(Section.COMMANDS, c)["tensors"]
        moved = [t + added if index <= t != NONE_INDEX else t for t in tensors]
        parts.edit(Section.COMMANDS, c, tensors=moved)
    parts.edit(Section.PROGRAMS, 0, tensor_count=per_program, arena_bytes=offset + 64 * added)
    for p in range(1, parts.count(Section.PROGRAMS)):
        later: Any = parts.record(Section.PROGRAMS, p)["tensor_begin"]
        parts.edit(Section.PROGRAMS, p, tensor_begin=later + added)
    parts.edit(Section.REGIONS, Region.ARENA - 1, bytes_fixed=offset + 64 * added)
    return assemble(parts), index + added - 1


def test_most_arena_tensors(cpp: Native) -> None:
    """Goal: the most arena tensors that a program may have: the same answer, the exact index, in time."""
    plan = base_plans()[BASE]
    most = int(Limit.PROGRAM_TENSORS)
    sound, _ = with_more_arena_tensors(plan, most, clash=False)
    clashing, last = with_more_arena_tensors(plan, most, clash=True)
    beyond, _ = with_more_arena_tensors(plan, most + 1, clash=False)
    assert agreed(cpp, sound) == (Reason.OK, 0)
    assert agreed(cpp, clashing) == (Reason.ARENA_OVERLAP, last)
    assert agreed(cpp, beyond) == (Reason.BAD_PROGRAM, 0)
    begin = time.monotonic()
    cpp.verify(sound)
    assert time.monotonic() - begin < 2, "64 such programs would take too long"


def test_several_chunks(cpp: Native) -> None:
    """Goal: a plan of more than two chunks: sound, and each chunk's damage named by its number."""
    parts = take_apart(base_plans()[BASE])
    parts.sections[Section.TOKENIZER][:] = b"a" * (2 * layout.CHUNK_BYTES + 5)
    plan = assemble(parts)
    assert agreed(cpp, plan) == (Reason.OK, 0)
    for chunk in range(3):
        for at in (0, layout.CHUNK_BYTES - 1):
            damaged = bytearray(plan)
            place = PAGE_BYTES + chunk * layout.CHUNK_BYTES + at
            if place >= len(plan) - 3 * layout.HASH_BYTES:
                continue
            damaged[place] ^= 0x80
            assert agreed(cpp, damaged) == (Reason.BAD_CHUNK_HASH, chunk)


def test_huge_weights_are_aligned(cpp: Native) -> None:
    """Goal: WEIGHTS of 2 MiB begin at a 2 MiB boundary, a byte less at a page."""
    parts = take_apart(base_plans()[BASE])
    for size in (layout.HUGE_PAGE_BYTES - 1, layout.HUGE_PAGE_BYTES):
        weights = parts.sections[Section.WEIGHTS]
        weights[:] = weights.ljust(size, b"\0")
        parts.edit(Section.REGIONS, 0, bytes_fixed=size)
        assert agreed(cpp, assemble(parts)) == (Reason.OK, 0)
    moved = bytearray(assemble(parts))
    at = layout.SECTION_TABLE_OFFSET + 32 * (len(parts.sections) - 1)
    offset = struct.unpack_from("<Q", moved, at + 8)[0]
    struct.pack_into("<Q", moved, at + 8, offset - PAGE_BYTES)
    repair(moved)
    assert agreed(cpp, moved) == (Reason.BAD_SECTION_OFFSET, len(parts.sections) - 1)


def test_disagreement_is_seen(cpp: Native) -> None:
    """Goal: the seeded violation: verifiers that differ are reported, not passed over."""

    class Wrong(Native):
        def __init__(self) -> None:
            self.inner = cpp

        def verify(self, data: bytes | bytearray) -> Answer:
            reason, index = self.inner.verify(data)
            return reason, index + 1

    with pytest.raises(DisagreementError, match="Python says ok at 0"):
        agreed(Wrong(), base_plans()[BASE])


@pytest.mark.parametrize("name", base_plans())
def test_view_of_a_sound_plan(cpp: Native, name: str) -> None:
    """Goal: what a verified plan answers in C++: tensors by name, sections, region sizes."""
    raw = base_plans()[name]
    parts = take_apart(raw)
    tables = PlanFile(Path(name), memoryview(raw)).tables
    assert [cpp.find(raw, tensor.name) for tensor in tables.tensors] == list(range(len(tables.tensors)))
    assert cpp.find(raw, "no such tensor") == NONE_INDEX
    for kind in Section:
        if kind != Section.HASHES:
            assert cpp.section_bytes(raw, kind) == len(parts.sections.get(kind, b""))
    for i, region in enumerate(tables.regions):
        sizes = region.bytes_fixed, region.bytes_per_granule, region.bytes_per_request
        for granules, requests in ((1, 1), (12, 4), (Limit.GRANULES, Limit.REQUESTS)):
            assert cpp.region_bytes(raw, i, granules, requests) == region_bytes(*sizes, granules, requests)


def test_reasons_have_the_same_text(cpp: Native) -> None:
    """Goal: C++ says about a reason what layout.py says; a number that is no reason gets an answer too."""
    assert {reason: cpp.reason_text(reason) for reason in Reason} == layout.REASON_TEXT
    assert "no reason" in cpp.reason_text(len(Reason))
    assert "no reason" in cpp.reason_text(0xFFFFFFFF)


def walk_cases() -> dict[str, tuple[dict[str, object], str, str]]:
    """Edit of a tensor's record -> what the walk must say (the tensor's name comes first)."""
    return {
        "fixed out of its region": ({"offset": 1 << 40}, "logits", "out of its region"),
        "offset that wraps": ({"offset": (1 << 64) - 64}, "logits", "out of its region"),
        "granule out of its stride": ({"offset": 4096}, "layer.0.v", "out of its region"),
        "request out of its stride": ({"offset": 1 << 30}, "token_counts", "out of its region"),
        "unit of another part": ({"unit": Unit.REQUEST}, "layer.0.k", "out of its region"),
        "too few bytes": ({"bytes": 4}, "logits", "out of its operand"),
        "wider weight": ({"dims": (16, 4096)}, "embed.weight", "out of its operand"),
        "weight of more outputs": ({"dims": (512, 24)}, "layer.0.o.weight", "out of its operand"),
        "arena tensors on each other": ({"offset": 0}, "body1.layer0.qkv", "share bytes"),
    }


@pytest.mark.parametrize("case", walk_cases())
def test_walk_sees_damage(cpp: Native, case: str) -> None:
    """Goal: the fuzzer's second opinion works: it accepts a sound plan and sees each kind of damage.

    Method: records are edited after verify, as if verify had let them pass.
    """
    plan = base_plans()[BASE]
    assert cpp.walk(plan, plan) is None
    edit, name, said = walk_cases()[case]
    parts = take_apart(plan)
    parts.edit(Section.TENSORS, cpp.find(plan, name), **edit)
    found = cpp.walk(plan, assemble(parts))
    assert found is not None
    assert said in found
