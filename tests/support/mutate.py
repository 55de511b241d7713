"""Takes plans apart, damages them and repairs their hashes, so that tests and fuzzers reach past the hash
checks.

`mutants` is a deterministic, endless stream of damaged plans for a seed: bit flips, field-aware edits,
swapped, copied and dropped records, cut and grown files, with hashes mostly repaired. The Python fuzzer and
the differential test share it.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ingot.plans import layout
from ingot.plans.layout import (
    CHUNK_BYTES,
    HASH_BYTES,
    HUGE_PAGE_BYTES,
    PAGE_BYTES,
    SECTION_RECORDS,
    SECTION_TABLE_OFFSET,
    Field,
    Record,
    Section,
    round_up,
)

HASH_OFFSETS = {name: layout.HEADER.offsets()[name] for name in ("header_hash", "root_hash", "file_bytes")}
INTERESTING = (
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    16,
    63,
    64,
    65,
    127,
    128,
    255,
    256,
    4095,
    4096,
    1 << 16,
    1 << 20,
    1 << 31,
    1 << 48,
)
_RECORD_WEIGHTS = {"TensorRecord": 5, "ProgramRecord": 2, "CommandRecord": 5}
_CODES = {"u8": "B", "u16": "H", "u32": "I", "i32": "i", "u64": "Q", "f32": "f"}
_SIZES = {"u8": 1, "u16": 2, "u32": 4, "i32": 4, "u64": 8, "f32": 4}


@dataclass(slots=True)
class Parts:
    """A plan as its header bytes (320) and sections; `assemble` lays them out again with correct hashes."""

    header: bytearray
    sections: dict[Section, bytearray]

    def record(self, kind: Section, index: int) -> dict[str, object]:
        size = SECTION_RECORDS[kind].bytes
        return SECTION_RECORDS[kind].unpack(self.sections[kind][size * index : size * (index + 1)])

    def count(self, kind: Section) -> int:
        return len(self.sections[kind]) // SECTION_RECORDS[kind].bytes

    def edit(self, kind: Section, index: int, /, **values: object) -> None:
        """Sets fields of a record."""
        record = SECTION_RECORDS[kind]
        at = record.bytes * index
        self.sections[kind][at : at + record.bytes] = record.pack(**(self.record(kind, index) | values))

    def edit_header(self, **values: object) -> None:
        self.header[:] = layout.HEADER.pack(**(layout.HEADER.unpack(self.header) | values))


def sections_of(plan: bytes | bytearray) -> list[tuple[int, int, int, int, int]]:
    """(kind, record_bytes, offset, bytes, count) of a section table, whatever it says; at most 32 entries."""
    count = min(
        struct.unpack_from("<I", plan, layout.HEADER.offsets()["section_count"])[0], layout.Limit.SECTIONS
    )
    table = plan[SECTION_TABLE_OFFSET : SECTION_TABLE_OFFSET + 32 * count]
    return list(struct.iter_unpack("<IIQQQ", table))


def take_apart(plan: bytes) -> Parts:
    """The parts of a valid plan, without HASHES."""
    sections = {
        Section(kind): bytearray(plan[offset : offset + size])
        for kind, _, offset, size, _ in sections_of(plan)
        if kind != Section.HASHES
    }
    return Parts(bytearray(plan[: layout.HEADER.bytes]), sections)


def assemble(parts: Parts) -> bytes:
    """A plan file of these parts: sections in kind order, hashes and section table correct, all else as
    given.
    """
    body, table, end = bytearray(), [], PAGE_BYTES
    for kind in sorted(parts.sections):
        raw = parts.sections[kind]
        huge = kind == Section.WEIGHTS and len(raw) >= HUGE_PAGE_BYTES
        offset = round_up(end, HUGE_PAGE_BYTES if huge else PAGE_BYTES)
        body += bytes(offset - end) + raw
        size = SECTION_RECORDS[kind].bytes if kind in SECTION_RECORDS else 1
        table.append(struct.pack("<IIQQQ", kind, size, offset, len(raw), len(raw) // size))
        end = offset + len(raw)
    offset = round_up(end, PAGE_BYTES)
    body += bytes(offset - end)
    hash_bytes = HASH_BYTES * -(-len(body) // CHUNK_BYTES)
    table.append(struct.pack("<IIQQQ", Section.HASHES, 1, offset, hash_bytes, hash_bytes))
    page = bytearray(PAGE_BYTES)
    page[: len(parts.header)] = parts.header
    struct.pack_into("<I", page, layout.HEADER.offsets()["section_count"], len(table))
    raw_table = b"".join(table)
    page[SECTION_TABLE_OFFSET : SECTION_TABLE_OFFSET + len(raw_table)] = raw_table
    plan = page + body + bytes(hash_bytes)
    repair(plan)
    return bytes(plan)


def repair(plan: bytearray) -> None:
    """Makes file_bytes and every hash right, as far as the section table lets it; needs a header page."""
    struct.pack_into("<Q", plan, HASH_OFFSETS["file_bytes"], len(plan))
    for kind, _, offset, size, _ in sections_of(plan):
        if kind != Section.HASHES or not PAGE_BYTES <= offset <= len(plan) or size > len(plan) - offset:
            continue
        for chunk, begin in enumerate(range(PAGE_BYTES, offset, CHUNK_BYTES)):
            at = offset + HASH_BYTES * chunk
            if at + HASH_BYTES <= offset + size:
                digest = hashlib.sha256(plan[begin : min(begin + CHUNK_BYTES, offset)]).digest()
                plan[at : at + HASH_BYTES] = digest
        root = hashlib.sha256(plan[offset : offset + size]).digest()
        plan[HASH_OFFSETS["root_hash"] : HASH_OFFSETS["root_hash"] + HASH_BYTES] = root
    seal_header(plan)


def seal_header(plan: bytearray) -> None:
    """Makes header_hash right."""
    at = HASH_OFFSETS["header_hash"]
    plan[at : at + HASH_BYTES] = bytes(HASH_BYTES)
    plan[at : at + HASH_BYTES] = hashlib.sha256(plan[:PAGE_BYTES]).digest()


def _edit_field(plan: bytearray, base: int, record: Record, dice: random.Random) -> None:
    """Changes one element of one field of the record at `base`."""
    field: Field = dice.choice(record.fields)
    size = _SIZES[field.type]
    at = base + record.offsets()[field.name] + size * dice.randrange(max(field.count, 1))
    if at + size > len(plan):
        return
    if field.type == "f32":
        value = dice.choice((0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, float("inf"), float("-inf"), float("nan")))
        struct.pack_into("<f", plan, at, value)
        return
    code = "<" + _CODES[field.type]
    old = struct.unpack_from(code, plan, at)[0]
    choices = (
        lambda: dice.choice(INTERESTING),
        lambda: old + dice.choice((-64, -16, -1, 1, 16, 64)),
        lambda: old ^ (1 << dice.randrange(8 * size)),
        lambda: old * 2,
        lambda: old // 2,
        lambda: (1 << 8 * size) - 1 - dice.choice((0, 0, 1, 63, 127)),
        lambda: dice.randrange(1 << 8 * size),
        lambda: dice.randrange(1 << 8),
    )
    struct.pack_into(code, plan, at, dice.choice(choices)() % (1 << 8 * size))


def _records(plan: bytearray, dice: random.Random) -> tuple[int, Record, int]:
    """(offset, record, count) of a random section of records; the header's when there is none."""
    found = [
        (offset, SECTION_RECORDS[Section(kind)], min(count, size // SECTION_RECORDS[Section(kind)].bytes))
        for kind, _, offset, size, count in sections_of(plan)
        if kind in SECTION_RECORDS and offset <= len(plan) and size <= len(plan) - offset and count
    ]
    found = [entry for entry in found if entry[2]]
    if not found:
        return 0, layout.HEADER, 1
    return dice.choices(found, [_RECORD_WEIGHTS.get(record.name, 1) for _, record, _ in found])[0]


def _flip(plan: bytearray, dice: random.Random) -> None:
    plan[dice.randrange(len(plan))] ^= 1 << dice.randrange(8)


def _field(plan: bytearray, dice: random.Random) -> None:
    offset, record, count = _records(plan, dice)
    _edit_field(plan, offset + record.bytes * dice.randrange(count), record, dice)


def _header(plan: bytearray, dice: random.Random) -> None:
    _edit_field(plan, 0, layout.HEADER, dice)


def _section(plan: bytearray, dice: random.Random) -> None:
    count = max(len(sections_of(plan)), 1)
    _edit_field(plan, SECTION_TABLE_OFFSET + 32 * dice.randrange(count), layout.SECTION, dice)


def _swap(plan: bytearray, dice: random.Random) -> None:
    """Swaps two records, or copies one over the other."""
    offset, record, count = _records(plan, dice)
    a, b = (offset + record.bytes * dice.randrange(count) for _ in range(2))
    first, second = bytes(plan[a : a + record.bytes]), bytes(plan[b : b + record.bytes])
    plan[a : a + record.bytes] = second
    if dice.random() < 0.5:
        plan[b : b + record.bytes] = first


def _copy_field(plan: bytearray, dice: random.Random) -> None:
    """Copies one field from another record of the same kind: plausible, but in the wrong place."""
    offset, record, count = _records(plan, dice)
    field = dice.choice(record.fields)
    at = record.offsets()[field.name]
    a, b = (offset + record.bytes * dice.randrange(count) + at for _ in range(2))
    plan[a : a + field.bytes] = plan[b : b + field.bytes]


def _text(plan: bytearray, dice: random.Random) -> None:
    """Overwrites a byte of a section that holds no records."""
    spans = [
        (offset, size)
        for kind, _, offset, size, _ in sections_of(plan)
        if kind not in SECTION_RECORDS and size and offset <= len(plan) and size <= len(plan) - offset
    ]
    if spans:
        offset, size = dice.choice(spans)
        plan[offset + dice.randrange(min(size, 64) if dice.random() < 0.5 else size)] = dice.randrange(256)


def _cut(plan: bytearray, dice: random.Random) -> None:
    del plan[dice.randrange(PAGE_BYTES, len(plan) + 1) :]


def _grow(plan: bytearray, dice: random.Random) -> None:
    plan += bytes(dice.choice((1, 31, 32, PAGE_BYTES)))


_OPERATIONS: tuple[tuple[Callable[[bytearray, random.Random], None], int], ...] = (
    (_field, 40), (_copy_field, 15), (_swap, 8), (_header, 8), (_section, 6), (_text, 8), (_flip, 8), (_cut,
        3), (_grow, 1),
)  # fmt: skip


def _reshape(plan: bytes, dice: random.Random) -> bytearray:
    """Drops a section, or drops, repeats or adds a record or byte, and lays the file out again."""
    parts = take_apart(plan)
    kind = dice.choice(sorted(parts.sections))
    raw = parts.sections[kind]
    size = SECTION_RECORDS[kind].bytes if kind in SECTION_RECORDS else 1
    count = max(len(raw) // size, 1)
    at = size * dice.randrange(count)
    choice = dice.randrange(4)
    if choice == 0:
        del parts.sections[kind]
    elif choice == 1:
        del raw[at : at + size]
    elif choice == 2:
        raw[at:at] = raw[at : at + size]
    else:
        raw += bytes(size)
    return bytearray(assemble(parts))


def mutants(plan: bytes, seed: int) -> Iterator[bytes]:
    """Endless damaged copies of a valid plan, the same ones for the same seed."""
    dice = random.Random(seed)
    operations, weights = zip(*_OPERATIONS, strict=True)
    while True:
        mutant = _reshape(plan, dice) if dice.random() < 0.08 else bytearray(plan)
        for _ in range(dice.choice((1, 1, 1, 2, 3))):
            dice.choices(operations, weights)[0](mutant, dice)
        hashes = dice.random()
        if hashes < 0.94:
            repair(mutant)
        elif hashes < 0.97:
            seal_header(mutant)
        if dice.random() < 0.01:
            del mutant[dice.randrange(len(mutant)) :]
        yield bytes(mutant)
