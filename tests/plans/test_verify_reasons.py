"""Every reason of VERIFY.md, by hand-made damage: what is changed, which reason and which index must come.

The damaged plans have right hashes unless the case is about hashes, so each reaches the check it names. The
C++ verifier runs the same cases through the differential test.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from ingot.plans import layout
from ingot.plans.layout import (
    NONE_INDEX,
    PAGE_BYTES,
    SECTION_TABLE_OFFSET,
    STATE_TENSORS,
    Dtype,
    Flag,
    Kernel,
    Layout,
    Limit,
    Reason,
    Region,
    Section,
    Unit,
)  # fmt: skip
from ingot.plans.verify import verify
from support.mutate import Parts, assemble, repair, seal_header, take_apart
from support.tiny_plan import TinySpec, tiny_plan, write_tiny_plan

HEADER = layout.HEADER.offsets()
TABLES = tiny_plan().tables
TENSOR = {tensor.name: t for t, tensor in enumerate(TABLES.tensors)}
ARENA = TENSOR["body1.embed"]  # first arena tensor
ROPE = next(c for c, command in enumerate(TABLES.commands) if command.kernel == Kernel.ROPE_TABLE)
LINEAR = next(c for c, command in enumerate(TABLES.commands) if command.kernel == Kernel.LINEAR_I8)
ATTENTION = next(c for c, command in enumerate(TABLES.commands) if command.kernel == Kernel.ATTENTION_I8)
GATED = next(c for c, command in enumerate(TABLES.commands) if command.flags & Flag.SILU_MUL)
HEAD = TABLES.programs[3].command_begin  # the gathering linear of the first head program
SAMPLE = HEAD + 1
LAST = len(TABLES.programs) - 1


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path: Path = tmp_path_factory.mktemp("plans") / "tiny.plan"
    write_tiny_plan(path)
    return path.read_bytes()


def field(kind: Section, index: int, /, **values: object) -> Callable[[Parts], None]:
    return lambda parts: parts.edit(kind, index, **values)


def operand(command: int, position: int, tensor: int) -> Callable[[Parts], None]:
    """Puts another tensor at an operand's position."""

    def edit(parts: Parts) -> None:
        tensors = list(parts.record(Section.COMMANDS, command)["tensors"])
        tensors[position] = tensor
        parts.edit(Section.COMMANDS, command, tensors=tensors)

    return edit


def both(*edits: Callable[[Parts], None]) -> Callable[[Parts], None]:
    def edit(parts: Parts) -> None:
        for one in edits:
            one(parts)

    return edit


def raw(kind: Section, at: int, data: bytes) -> Callable[[Parts], None]:
    """Overwrites bytes of a section."""

    def edit(parts: Parts) -> None:
        parts.sections[kind][at : at + len(data)] = data

    return edit


def cut(kind: Section, keep: int) -> Callable[[Parts], None]:
    def edit(parts: Parts) -> None:
        del parts.sections[kind][keep:]

    return edit


def rename(name: str, new: str) -> Callable[[Parts], None]:
    """Overwrites a name in STRINGS by one as long."""

    def edit(parts: Parts) -> None:
        assert len(name) == len(new), "the names differ in length"
        record = parts.record(Section.TENSORS, TENSOR[name])
        raw(Section.STRINGS, int(record["name_offset"]), new.encode())(parts)

    return edit


def name_of(tensor: str, other: str) -> Callable[[Parts], None]:
    """Gives a tensor the name of another."""

    def edit(parts: Parts) -> None:
        source = parts.record(Section.TENSORS, TENSOR[other])
        at = {key: source[key] for key in ("name_offset", "name_bytes")}
        parts.edit(Section.TENSORS, TENSOR[tensor], **at)

    return edit


HEADER_CASES = [
    ("header_bytes", 4095), ("target", 0), ("target", 4), ("vocabulary", 0), ("vocabulary",
        Limit.VOCABULARY + 1),
    ("layers", 0), ("layers", Limit.LAYERS + 1), ("hidden", 0), ("hidden", Limit.HIDDEN + 1), ("query_heads",
        0),
    ("query_heads", Limit.HEADS + 1), ("kv_heads", 0), ("kv_heads", 3), ("kv_heads", Limit.HEADS + 1),
    ("head_size", 0), ("head_size", 12), ("head_size", Limit.HEAD_SIZE + 8), ("rotary_pairs", 9),
    ("rotary_pairs", 1 << 31), ("context", 0), ("context", Limit.CONTEXT + 1), ("rows_max", 0),
    ("rows_max", Limit.ROWS + 1), ("head_rows_max", 0), ("head_rows_max", Limit.HEAD_ROWS + 1),
    ("requests_max", 0),
    ("requests_max", Limit.REQUESTS + 1), ("requests_default", 0), ("requests_default", 9), ("granules_max",
        0),
    ("granules_max", Limit.GRANULES + 1), ("granules_default", 0), ("granules_default", 65),
    ("default_max_tokens", 0),
    ("default_max_tokens", Limit.CONTEXT + 1), ("weights_dtype", Dtype.F32), ("weights_dtype", Dtype.E5M2),
    ("kv_dtype", Dtype.F16), ("kv_dtype", 0), ("activation_dtype", Dtype.U8), ("bos_token", 48),
    ("bos_token", NONE_INDEX - 1), ("eos_count", 9),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), HEADER_CASES)
def test_header_fields(plan: bytes, name: str, value: int) -> None:
    """Goal: each header field is held to its limits; the index is its offset."""
    parts = take_apart(plan)
    parts.edit_header(**{name: value})
    assert verify(assemble(parts)) == (Reason.BAD_HEADER_FIELD, HEADER[name])


@pytest.mark.parametrize(("tokens", "entry"), [((48,), 0), ((2, 5), 1), ((2, 0, 0, 0, 0, 0, 0, 1), 7)])
def test_eos_tokens(plan: bytes, tokens: tuple[int, ...], entry: int) -> None:
    """Goal: used eos tokens are below the vocabulary, unused entries are zero."""
    parts = take_apart(plan)
    parts.edit_header(eos_tokens=tokens)
    assert verify(assemble(parts)) == (Reason.BAD_HEADER_FIELD, HEADER["eos_tokens"] + 4 * entry)


@pytest.mark.parametrize("value", [0, 33, 1 << 31])
def test_section_count(plan: bytes, value: int) -> None:
    """Goal: the section count is capped before the table is walked."""
    damaged = bytearray(plan)
    struct.pack_into("<I", damaged, HEADER["section_count"], value)
    seal_header(damaged)
    assert verify(damaged) == (Reason.BAD_HEADER_FIELD, HEADER["section_count"])


def test_limits_themselves_are_allowed(plan: bytes) -> None:
    """Goal: the largest allowed values of fields that nothing else depends on pass; no bos is allowed."""
    parts = take_apart(plan)
    parts.edit_header(
        granules_max=Limit.GRANULES, default_max_tokens=Limit.CONTEXT, bos_token=NONE_INDEX, eos_count=0,
        eos_tokens=(), requests_max=Limit.REQUESTS, requests_default=Limit.REQUESTS, layers=Limit.LAYERS,
    )  # fmt: skip
    assert verify(assemble(parts)) == (Reason.OK, 0)


def test_padding_of_the_header_page(plan: bytes) -> None:
    """Goal: every byte of the header page that means nothing is zero; the index is its file offset."""
    table_end = SECTION_TABLE_OFFSET + 32 * 14
    for at, reason in (
        (208, Reason.BAD_HEADER_PADDING), (319, Reason.BAD_HEADER_PADDING), (320, Reason.BAD_HEADER_PADDING),
        (1023, Reason.BAD_HEADER_PADDING), (table_end, Reason.BAD_SECTION_PADDING),
        (PAGE_BYTES - 1, Reason.BAD_SECTION_PADDING),
    ):  # fmt: skip
        damaged = bytearray(plan)
        damaged[at] = 1
        seal_header(damaged)
        assert verify(damaged) == (reason, at)


def test_file_level_reasons(plan: bytes) -> None:
    """Goal: size, magic, version and header hash are told apart."""
    assert verify(b"") == (Reason.TOO_SHORT, 0)
    assert verify(plan[:4095]) == (Reason.TOO_SHORT, 4095)
    assert verify(b"x" + plan[1:]) == (Reason.BAD_MAGIC, 0)
    damaged = bytearray(plan)
    struct.pack_into("<I", damaged, 8, 7)
    assert verify(damaged) == (Reason.BAD_VERSION, 7)
    damaged = bytearray(plan)
    damaged[100] ^= 1
    assert verify(damaged) == (Reason.BAD_HEADER_HASH, 0)
    assert verify(plan + b"x") == (Reason.BAD_FILE_SIZE, len(plan))


SECTION_CASES = [
    # record (REGIONS 0, TENSORS 1, ..., WEIGHTS 12, HASHES 13), field, value, reason, index
    (0, "kind", 0, Reason.BAD_SECTION_KIND, 0),
    (13, "kind", 14, Reason.BAD_SECTION_KIND, 13),
    (3, "kind", Section.PROGRAMS, Reason.BAD_SECTION_KIND, 3),
    (5, "kind", Section.REGIONS, Reason.BAD_SECTION_KIND, 5),
    (0, "offset", 8192, Reason.BAD_SECTION_OFFSET, 0),
    (0, "offset", 0, Reason.BAD_SECTION_OFFSET, 0),
    (4, "offset", 4097, Reason.BAD_SECTION_OFFSET, 4),
    (12, "offset", 1 << 63, Reason.BAD_SECTION_OFFSET, 12),
    (0, "bytes", PAGE_BYTES + 1, Reason.BAD_SECTION_OFFSET, 1),
    (0, "bytes", (1 << 64) - 1, Reason.BAD_SECTION_BOUNDS, 0),
    (12, "bytes", 1 << 40, Reason.BAD_SECTION_OFFSET, 12),
    (13, "bytes", 64, Reason.BAD_SECTION_BOUNDS, 13),
    (13, "bytes", 31, Reason.BAD_SECTION_BOUNDS, 13),
    (13, "bytes", (1 << 64) - 32, Reason.BAD_SECTION_BOUNDS, 13),
    (1, "record_bytes", 32, Reason.BAD_SECTION_RECORDS, 1),
    (5, "record_bytes", 0, Reason.BAD_SECTION_RECORDS, 5),
    (1, "count", 0, Reason.BAD_SECTION_RECORDS, 1),
    (1, "count", 1, Reason.BAD_SECTION_RECORDS, 1),
    (1, "count", (1 << 58) + 83, Reason.BAD_SECTION_RECORDS, 1),  # 64 * count wraps to the right bytes
    (13, "count", 1, Reason.BAD_SECTION_RECORDS, 13),
]


@pytest.mark.parametrize(("record", "name", "value", "reason", "index"), SECTION_CASES)
def test_section_table(plan: bytes, record: int, name: str, value: int, reason: Reason, index: int) -> None:
    """Goal: kinds, offsets, bounds and counts of the section table, overflow included."""
    damaged = bytearray(plan)
    at = SECTION_TABLE_OFFSET + 32 * record
    values = layout.SECTION.unpack(damaged[at : at + 32]) | {name: value}
    damaged[at : at + 32] = layout.SECTION.pack(**values)
    seal_header(damaged)
    assert verify(damaged) == (reason, index)


@pytest.mark.parametrize("kind", [kind for kind in Section if kind != Section.HASHES])
def test_missing_sections(plan: bytes, kind: Section) -> None:
    """Goal: each required section is missed by its kind; each optional one is not."""
    parts = take_apart(plan)
    del parts.sections[kind]
    required = kind not in layout.OPTIONAL_SECTIONS
    assert verify(assemble(parts)) == ((Reason.MISSING_SECTION, kind) if required else (Reason.OK, 0))


def test_missing_hashes(plan: bytes) -> None:
    """Goal: a plan without HASHES is refused."""
    damaged = bytearray(plan[:-32])
    struct.pack_into("<I", damaged, HEADER["section_count"], 13)
    damaged[SECTION_TABLE_OFFSET + 32 * 13 : SECTION_TABLE_OFFSET + 32 * 14] = bytes(32)
    weights = layout.SECTION.unpack(damaged[SECTION_TABLE_OFFSET + 32 * 12 :][:32])
    del damaged[int(weights["offset"]) + int(weights["bytes"]) :]
    struct.pack_into("<Q", damaged, HEADER["file_bytes"], len(damaged))
    seal_header(damaged)
    assert verify(damaged) == (Reason.MISSING_SECTION, Section.HASHES)


def test_hashes_and_file_padding(plan: bytes) -> None:
    """Goal: a wrong root, a wrong chunk, and padding that is hashed but not zero."""
    damaged = bytearray(plan)
    damaged[-1] ^= 1
    assert verify(damaged) == (Reason.BAD_ROOT_HASH, 0)
    damaged = bytearray(plan)
    damaged[PAGE_BYTES] ^= 1
    assert verify(damaged) == (Reason.BAD_CHUNK_HASH, 0)
    for at in (PAGE_BYTES + 384, 2 * PAGE_BYTES - 1, len(plan) - 33):
        damaged = bytearray(plan)
        damaged[at] = 1
        repair(damaged)
        assert verify(damaged) == (Reason.BAD_FILE_PADDING, at)


S, T, P, C, K = Section.STRINGS, Section.TENSORS, Section.PROGRAMS, Section.COMMANDS, Section.KERNELS
R, SELF = Section.REGIONS, Section.SELFTEST
WEIGHT, TOKENS = TENSOR["embed.weight"], TENSOR["row_tokens"]
PAIRED = TENSOR["layer.0.gate_up.weight"]
SCALE = TENSOR["final_norm.weight"]
CASES: dict[str, tuple[Callable[[Parts], None], Reason, int]] = {
    "strings: space": (raw(S, 9, b" "), Reason.BAD_STRINGS, 9),
    "strings: not ascii": (raw(S, 1, b"\xc3\xa9"), Reason.BAD_STRINGS, 1),
    "strings: nul at the start": (raw(S, 0, b"\0"), Reason.BAD_STRINGS, 0),
    "region: one too few": (cut(R, 5 * 64), Reason.BAD_REGION, 5),
    "region: kind": (field(R, 2, kind=Region.ARENA), Reason.BAD_REGION, 2),
    "region: section": (field(R, 2, section=Section.SCALES), Reason.BAD_REGION, 2),
    "region: no section": (field(R, 1, section=0), Reason.BAD_REGION, 1),
    "region: bytes are not the section's": (field(R, 0, bytes_fixed=64), Reason.BAD_REGION, 0),
    "region: fixed bytes huge": (field(R, 5, bytes_fixed=(1 << 48) + 1), Reason.BAD_REGION, 5),
    "region: granule stride unaligned": (field(R, 4, bytes_per_granule=4609), Reason.BAD_REGION, 4),
    "region: granule stride overflows": (field(R, 4, bytes_per_granule=(1 << 42) + 64), Reason.BAD_REGION, 4),
    "region: request stride overflows": (field(R, 2, bytes_per_request=1 << 63), Reason.BAD_REGION, 2),
    "region: arena per granule": (field(R, 3, bytes_per_granule=64), Reason.BAD_REGION, 3),
    "region: io per request": (field(R, 5, bytes_per_request=64), Reason.BAD_REGION, 5),
    "region: alignment": (field(R, 5, alignment=64), Reason.BAD_REGION, 5),
    "region: padding": (field(R, 0, padding=b"\0\1"), Reason.BAD_REGION, 0),
    "name: empty": (field(T, 3, name_bytes=0), Reason.BAD_TENSOR_NAME, 3),
    "name: too long": (field(T, 3, name_bytes=256), Reason.BAD_TENSOR_NAME, 3),
    "name: outside": (field(T, 4, name_offset=0xFFFFFFFF), Reason.BAD_TENSOR_NAME, 4),
    "field: region 0": (field(T, 0, region=0), Reason.BAD_TENSOR_FIELD, 0),
    "field: region 7": (field(T, 0, region=7), Reason.BAD_TENSOR_FIELD, 0),
    "field: unit 3": (field(T, 0, unit=3), Reason.BAD_TENSOR_FIELD, 0),
    "field: weight per request": (field(T, 0, unit=Unit.REQUEST), Reason.BAD_TENSOR_FIELD, 0),
    "field: dtype 0": (field(T, 0, dtype=0), Reason.BAD_TENSOR_FIELD, 0),
    "field: dtype 10": (field(T, 0, dtype=10), Reason.BAD_TENSOR_FIELD, 0),
    "field: layout 3": (field(T, 0, layout=3), Reason.BAD_TENSOR_FIELD, 0),
    "field: rank 0": (field(T, SCALE, rank=0), Reason.BAD_TENSOR_FIELD, SCALE),
    "field: rank 5": (field(T, SCALE, rank=5), Reason.BAD_TENSOR_FIELD, SCALE),
    "field: dimension 0": (field(T, WEIGHT, dims=(48, 0)), Reason.BAD_TENSOR_FIELD, WEIGHT),
    "field: dimension beyond rank": (field(T, SCALE, dims=(32, 1)), Reason.BAD_TENSOR_FIELD, SCALE),
    "field: panels in scales": (field(T, SCALE, layout=Layout.PANELS), Reason.BAD_TENSOR_FIELD, SCALE),
    "field: panels of rank 1": (field(T, WEIGHT, rank=1, dims=(48,)), Reason.BAD_TENSOR_FIELD, WEIGHT),
    "field: panels of f32": (field(T, WEIGHT, dtype=Dtype.F32), Reason.BAD_TENSOR_FIELD, WEIGHT),
    "field: odd pair": (field(T, PAIRED, dims=(79, 32)), Reason.BAD_TENSOR_FIELD, PAIRED),
    "field: weight with a lifetime": (field(T, WEIGHT, first_command=0), Reason.BAD_TENSOR_FIELD, WEIGHT),
    "field: io with a last command": (field(T, TOKENS, last_command=0), Reason.BAD_TENSOR_FIELD, TOKENS),
    "field: padding": (field(T, TOKENS, padding=b"\1"), Reason.BAD_TENSOR_FIELD, TOKENS),
    "bytes: too few": (field(T, WEIGHT, bytes=3200), Reason.BAD_TENSOR_BYTES, WEIGHT),
    "bytes: other dims": (field(T, WEIGHT, dims=(49, 32)), Reason.BAD_TENSOR_BYTES, WEIGHT),
    "bytes: product wraps to 0": (
        field(T, TOKENS, rank=4, dims=(1 << 31, 1 << 31, 4, 1), bytes=0), Reason.BAD_TENSOR_BYTES, TOKENS),
    "bytes: panel count wraps": (
        field(T, WEIGHT, dims=(0xFFFFFFFF, 32), bytes=0), Reason.BAD_TENSOR_BYTES, WEIGHT),
    "bytes: over the most": (
        field(T, TOKENS, rank=2, dims=(1 << 31, 1 << 31), bytes=1 << 64 - 1), Reason.BAD_TENSOR_BYTES,
        TOKENS),
    "bounds: unaligned": (field(T, TENSOR["logits"], offset=8), Reason.BAD_TENSOR_BOUNDS, TENSOR["logits"]),
    "bounds: outside": (field(T, WEIGHT, offset=18496), Reason.BAD_TENSOR_BOUNDS, WEIGHT),
    "bounds: wraps": (field(T, WEIGHT, offset=(1 << 64) - 64), Reason.BAD_TENSOR_BOUNDS, WEIGHT),
    "bounds: region shrunk": (field(R, 5, bytes_fixed=64), Reason.BAD_TENSOR_BOUNDS,
        TENSOR["row_tokens"] + 1),
    "bounds: kv stride shrunk": (field(R, 4, bytes_per_granule=2048), Reason.BAD_TENSOR_BOUNDS,
        TENSOR["layer.0.k_scale"]),
    "order: overlap": (field(T, TENSOR["row_positions"], offset=0), Reason.BAD_TENSOR_ORDER,
        TENSOR["row_positions"]),
    "order: not by offset": (field(T, TOKENS, offset=128), Reason.BAD_TENSOR_ORDER, TOKENS + 1),
    "kernel: unknown": (field(K, 4, id=13), Reason.BAD_KERNEL, 4),
    "kernel: zero": (field(K, 0, id=0), Reason.BAD_KERNEL, 0),
    "kernel: twice": (field(K, 1, id=Kernel.EMBED_I8), Reason.BAD_KERNEL, 1),
    "kernel: version": (field(K, 2, version=2), Reason.BAD_KERNEL, 2),
    "kernel: name of another": (field(K, 2, name_offset=0), Reason.BAD_KERNEL, 2),
    "kernel: name outside": (field(K, 2, name_offset=1 << 31), Reason.BAD_KERNEL, 2),
    "kernel: padding": (field(K, 3, padding=b"\1"), Reason.BAD_KERNEL, 3),
    "program: family 0": (field(P, 0, family=0), Reason.BAD_PROGRAM, 0),
    "program: family 3": (field(P, 4, family=3), Reason.BAD_PROGRAM, 4),
    "program: body after head": (field(P, 4, family=1, rows=4), Reason.BAD_PROGRAM, 4),
    "program: rows 0": (field(P, 0, rows=0), Reason.BAD_PROGRAM, 0),
    "program: rows over the most": (field(P, 2, rows=5), Reason.BAD_PROGRAM, 2),
    "program: head rows over the most": (field(P, 4, rows=3), Reason.BAD_PROGRAM, 4),
    "program: rows do not ascend": (field(P, 1, rows=1), Reason.BAD_PROGRAM, 1),
    "program: largest bucket missing": (field(P, 2, rows=3), Reason.BAD_PROGRAM, 5),
    "program: gap of commands": (field(P, 1, command_begin=8), Reason.BAD_PROGRAM, 1),
    "program: no commands": (field(P, 0, command_count=0), Reason.BAD_PROGRAM, 0),
    "program: commands run over": (field(P, 4, command_count=0xFFFFFFFF), Reason.BAD_PROGRAM, 4),
    "program: commands left over": (field(P, 4, command_count=1), Reason.BAD_PROGRAM, 5),
    "program: gap of tensors": (field(P, 0, tensor_begin=0), Reason.BAD_PROGRAM, 0),
    "program: tensors run over": (field(P, 4, tensor_count=0xFFFFFFFF), Reason.BAD_PROGRAM, 4),
    "program: tensors left over": (field(P, 4, tensor_count=2), Reason.BAD_PROGRAM, 5),
    "program: arena over the region": (field(P, 2, arena_bytes=1 << 20), Reason.BAD_PROGRAM, 2),
    "program: bound over the arena": (field(P, 2, arena_lower_bound=1 << 20), Reason.BAD_PROGRAM, 2),
    "program: padding": (field(P, 2, padding=b"\1"), Reason.BAD_PROGRAM, 2),
    "program: one missing": (cut(P, 4 * 64), Reason.BAD_PROGRAM, 4),
    "program: no head": (cut(P, 3 * 64), Reason.BAD_PROGRAM, 3),
    "arena: before its program": (
        field(T, TABLES.programs[1].tensor_begin, first_command=0), Reason.BAD_ARENA_TENSOR,
        TABLES.programs[1].tensor_begin),
    "arena: after its program": (field(T, ARENA, last_command=7), Reason.BAD_ARENA_TENSOR, ARENA),
    "arena: ends before it begins": (
        field(T, ARENA, first_command=3, last_command=2), Reason.BAD_ARENA_TENSOR, ARENA),
    "arena: no lifetime": (
        field(T, ARENA, first_command=NONE_INDEX, last_command=NONE_INDEX), Reason.BAD_ARENA_TENSOR, ARENA),
    "arena: over its program's bytes": (field(T, ARENA, offset=1 << 10), Reason.BAD_ARENA_TENSOR, ARENA),
    "arena: overlap": (field(T, ARENA + 1, offset=0), Reason.ARENA_OVERLAP, ARENA + 1),
    "arena: overlap by lifetime": (field(T, ARENA + 1, last_command=6), Reason.ARENA_OVERLAP, ARENA + 7),
    "command: kernel unknown": (field(C, 0, kernel=99), Reason.BAD_COMMAND_FIELD, 0),
    "command: kernel not listed": (field(C, 0, kernel=Kernel.EMBED_BF16), Reason.BAD_COMMAND_FIELD, 0),
    "command: flags": (field(C, ROPE, flags=Flag.NORM), Reason.BAD_COMMAND_FIELD, ROPE),
    "command: unknown flag": (field(C, LINEAR, flags=Flag.NORM | 1 << 31), Reason.BAD_COMMAND_FIELD, LINEAR),
    "command: gather in a body": (
        field(C, LINEAR, flags=Flag.NORM | Flag.GATHER), Reason.BAD_COMMAND_FIELD, LINEAR),
    "command: sample in a body": (field(C, 0, kernel=Kernel.SAMPLE), Reason.BAD_COMMAND_FIELD, 0),
    "command: embed in a head": (field(C, SAMPLE, kernel=Kernel.EMBED_I8), Reason.BAD_COMMAND_FIELD, SAMPLE),
    "command: attention in a head": (
        field(C, SAMPLE, kernel=Kernel.ATTENTION_I8), Reason.BAD_COMMAND_FIELD, SAMPLE),
    "command: layer": (field(C, LINEAR, layer=1), Reason.BAD_COMMAND_FIELD, LINEAR),
    "command: eps infinite": (field(C, LINEAR, f=(math.inf,)), Reason.BAD_COMMAND_FIELD, LINEAR),
    "command: eps nan": (field(C, LINEAR, f=(math.nan,)), Reason.BAD_COMMAND_FIELD, LINEAR),
    "command: unused float": (field(C, LINEAR, f=(1e-5, 0, 0, 1)), Reason.BAD_COMMAND_FIELD, LINEAR),
    "command: unused negative zero": (field(C, LINEAR, f=(1e-5, -0.0)), Reason.BAD_COMMAND_FIELD, LINEAR),
    "command: unused integer": (field(C, LINEAR, u=(1,)), Reason.BAD_COMMAND_FIELD, LINEAR),
    "command: padding": (field(C, SAMPLE, padding=b"\1"), Reason.BAD_COMMAND_FIELD, SAMPLE),
    "operand: missing": (operand(LINEAR, 0, NONE_INDEX), Reason.BAD_COMMAND_TENSOR, LINEAR),
    "operand: past the tensors": (operand(LINEAR, 0, len(TENSOR)), Reason.BAD_COMMAND_TENSOR, LINEAR),
    "operand: past the kernel's": (operand(ROPE, 3, 0), Reason.BAD_COMMAND_TENSOR, ROPE),
    "operand: last position": (operand(ATTENTION, 13, 0), Reason.BAD_COMMAND_TENSOR, ATTENTION),
    "operand: without its flag": (operand(LINEAR, 3, SCALE), Reason.BAD_COMMAND_TENSOR, LINEAR),
    "operand: flag without it": (field(C, LINEAR, flags=Flag.NORM | Flag.BIAS), Reason.BAD_COMMAND_TENSOR,
        LINEAR),
    "operand: norm without flag": (field(C, LINEAR, flags=0), Reason.BAD_COMMAND_TENSOR, LINEAR),
    "operand: region": (operand(LINEAR, 2, ARENA), Reason.BAD_COMMAND_TENSOR, LINEAR),
    "operand: dtype": (operand(LINEAR, 6, ARENA), Reason.BAD_COMMAND_TENSOR, LINEAR),
    "operand: unit": (operand(SAMPLE, 3, TENSOR["engine"]), Reason.BAD_COMMAND_TENSOR, SAMPLE),
    "operand: paired without silu": (operand(LINEAR, 1, PAIRED), Reason.BAD_COMMAND_TENSOR, LINEAR),
    "operand: silu without paired": (operand(GATED, 1, WEIGHT), Reason.BAD_COMMAND_TENSOR, GATED),
    "operand: embed from paired": (operand(0, 1, PAIRED), Reason.BAD_COMMAND_TENSOR, 0),
    "operand: positions as tokens": (operand(0, 0, TENSOR["row_positions"]), Reason.BAD_COMMAND_TENSOR, 0),
    "operand: body positions in a head": (
        operand(SAMPLE, 2, TENSOR["row_positions"]), Reason.BAD_COMMAND_TENSOR, SAMPLE),
    "operand: requests as rows": (operand(HEAD, 5, TENSOR["head_requests"]), Reason.BAD_COMMAND_TENSOR, HEAD),
    "operand: tokens over head rows": (operand(SAMPLE, 6, TENSOR["head_rows"]), Reason.BAD_COMMAND_TENSOR,
        SAMPLE),
    "lifetime: not yet": (operand(LINEAR, 0, TENSOR["body1.layer0.attended"]), Reason.BAD_COMMAND_LIFETIME,
        LINEAR),
    "lifetime: no more": (field(T, TENSOR["body1.embed"], last_command=3), Reason.BAD_COMMAND_LIFETIME, 4),
    "lifetime: another program": (operand(LINEAR, 0, TENSOR["body2.embed"]), Reason.BAD_COMMAND_LIFETIME,
        LINEAR),
    "shape: norm of another width": (operand(LINEAR, 2, TENSOR["inverse_frequency"]),
        Reason.BAD_COMMAND_SHAPE, LINEAR),
    "shape: weight of another width": (
        operand(LINEAR, 1, TENSOR["layer.0.down.weight"]), Reason.BAD_COMMAND_SHAPE, LINEAR),
    "shape: weight of other outputs": (operand(LINEAR, 1, WEIGHT), Reason.BAD_COMMAND_SHAPE, LINEAR),
    "shape: rank": (
        field(T, TENSOR["body1.layer0.qkv"], rank=1, dims=(64,)), Reason.BAD_COMMAND_SHAPE, LINEAR),
    "shape: rows": (
        field(T, TENSOR["body1.layer0.qkv"], dims=(2, 32)), Reason.BAD_COMMAND_SHAPE, LINEAR),
    "shape: k and v swapped": (
        both(operand(ATTENTION, 7, TENSOR["layer.0.v"]), operand(ATTENTION, 8, TENSOR["layer.0.k"])),
        Reason.BAD_COMMAND_SHAPE, ATTENTION),
    "shape: scratch padding": (
        field(T, TENSOR["body1.2.activation"], dims=(1, 32), bytes=32), Reason.BAD_COMMAND_SHAPE, LINEAR),
    "shape: scales of scratch": (
        field(T, TENSOR["body1.2.activation_scale"], dims=(1, 1), bytes=4), Reason.BAD_COMMAND_SHAPE, LINEAR),
    "shape: hidden of a body's rows": (
        field(T, TENSOR["hidden"], dims=(1, 32), bytes=128), Reason.BAD_COMMAND_SHAPE, 6),
    "state: missing": (rename("engine", "motors"), Reason.BAD_STATE_TENSOR, 0),
    "state: twice": (name_of("body1.embed", "hidden"), Reason.BAD_STATE_TENSOR,
        list(STATE_TENSORS).index("hidden")),
    "state: dtype": (
        field(T, TENSOR["engine"], dtype=Dtype.I8), Reason.BAD_STATE_TENSOR, 0),
    "state: shape": (
        field(T, TENSOR["request_tokens"], dims=(299,), bytes=1196), Reason.BAD_STATE_TENSOR,
        list(STATE_TENSORS).index("request_tokens")),
    "state: rank": (
        field(T, TENSOR["events"], rank=2, dims=(64, 192)), Reason.BAD_STATE_TENSOR,
        list(STATE_TENSORS).index("events")),
    "selftest: short": (cut(SELF, 31), Reason.BAD_SELFTEST, 0),
    "selftest: no prompt": (raw(SELF, 0, struct.pack("<I", 0)), Reason.BAD_SELFTEST, 0),
    "selftest: prompt over the context": (raw(SELF, 0, struct.pack("<I", 301)), Reason.BAD_SELFTEST, 0),
    "selftest: no probes": (raw(SELF, 4, struct.pack("<I", 0)), Reason.BAD_SELFTEST, 4),
    "selftest: many probes": (raw(SELF, 4, struct.pack("<I", 4097)), Reason.BAD_SELFTEST, 4),
    "selftest: next token": (raw(SELF, 8, struct.pack("<I", 48)), Reason.BAD_SELFTEST, 8),
    "selftest: margin": (raw(SELF, 12, struct.pack("<f", -1)), Reason.BAD_SELFTEST, 12),
    "selftest: tolerance": (raw(SELF, 16, struct.pack("<f", math.nan)), Reason.BAD_SELFTEST, 16),
    "selftest: padding": (raw(SELF, 31, b"\1"), Reason.BAD_SELFTEST, 20),
    "selftest: size": (cut(SELF, 64), Reason.BAD_SELFTEST, 32),
    "selftest: prompt token": (raw(SELF, 36, struct.pack("<I", 48)), Reason.BAD_SELFTEST, 36),
    "selftest: probe id": (raw(SELF, 44, struct.pack("<I", 48)), Reason.BAD_SELFTEST, 44),
    "selftest: probe logit": (raw(SELF, 64, struct.pack("<f", math.inf)), Reason.BAD_SELFTEST, 64),
    "text: meta": (raw(Section.META, 3, b"\xff"), Reason.BAD_TEXT, Section.META),
    "text: surrogate": (raw(Section.DRIFT, 3, b"\xed\xa0\x80"), Reason.BAD_TEXT, Section.DRIFT),
    "text: overlong": (raw(Section.TOKENIZER, 3, b"\xc0\x80"), Reason.BAD_TEXT, Section.TOKENIZER),
    "text: cut at the end": (raw(Section.TEMPLATE, 62, b"\xc3"), Reason.BAD_TEXT, Section.TEMPLATE),
    "text: above the last code point": (
        raw(Section.TEMPLATE, 3, b"\xf4\x90\x80\x80"), Reason.BAD_TEXT, Section.TEMPLATE),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_damage_is_named(plan: bytes, case: str) -> None:
    """Goal: each record check gives its reason and index. Method: one edit, hashes repaired."""
    edit, reason, index = CASES[case]
    parts = take_apart(plan)
    edit(parts)
    assert verify(assemble(parts)) == (reason, index)


def test_every_reason_is_tested() -> None:
    """Goal: no reason without a case in this file."""
    tested = {reason for _, reason, _ in CASES.values()} | {case[3] for case in SECTION_CASES}
    tested |= {
        Reason.OK, Reason.TOO_SHORT, Reason.BAD_MAGIC, Reason.BAD_VERSION, Reason.BAD_HEADER_HASH,
        Reason.BAD_FILE_SIZE, Reason.BAD_HEADER_FIELD, Reason.BAD_HEADER_PADDING, Reason.BAD_SECTION_PADDING,
        Reason.MISSING_SECTION, Reason.BAD_ROOT_HASH, Reason.BAD_CHUNK_HASH, Reason.BAD_FILE_PADDING,
    }  # fmt: skip
    assert tested == set(Reason)


@pytest.mark.parametrize(
    ("weights", "name", "dims"),
    [(Dtype.E4M3, "embed.weight_scale", 64), (Dtype.E4M3, "layer.0.o.weight_scale", 16)],
)
def test_scales_cover_whole_panels(tmp_path: Path, weights: Dtype, name: str, dims: int) -> None:
    """Goal: an e4m3 weight has one scale per output of its padded panels (U): fewer would be read past their
    end.
    """
    spec = TinySpec(weights=weights, rows=(1,), head_rows=(1,))
    path = tmp_path / "e4m3.plan"
    write_tiny_plan(path, spec)
    parts = take_apart(path.read_bytes())
    index = [tensor.name for tensor in tiny_plan(spec).tables.tensors].index(name)
    parts.edit(
        Section.TENSORS, index, dims=(dims - 32,) if dims > 32 else (dims // 2,), bytes=4 * max(dims - 32, 8)
    )
    assert verify(assemble(parts))[0] == Reason.BAD_COMMAND_SHAPE
