"""Checks every byte of a plan that the runtime will use, once. `VERIFY.md` states each condition.

`verify` is steps 1 to 17 (file, header, section table, hashes); `verify_tables.py` is 18 to 27 (regions to
arena), `verify_commands.py` 28 to 34. A step is a function that returns the index of the first offence, or
None. The C++ verifier implements the same page and gives the same answer for any bytes. Nothing here raises
because of the plan's bytes.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

from . import layout
from .codec import SectionEntry, struct_format
from .layout import (
    CHUNK_BYTES,
    HASH_BYTES,
    HUGE_PAGE_BYTES,
    NONE_INDEX,
    OPTIONAL_SECTIONS,
    PAGE_BYTES,
    SECTION_RECORDS,
    SECTION_TABLE_OFFSET,
    Dtype,
    Limit,
    Reason,
    Section,
    Target,
    round_up,
)  # fmt: skip
from .verify_commands import COMMAND_STEPS
from .verify_tables import TABLE_STEPS, PlanBytes

OK = (Reason.OK, 0)
BYTES_MAX = 1 << Limit.BYTES_LOG2
_OFFSETS = layout.HEADER.offsets()
_HEADER = struct.Struct(struct_format(layout.HEADER))
_SECTION = struct.Struct(struct_format(layout.SECTION))
_KINDS = {int(kind): kind for kind in Section}
_NOT_NAME = re.compile(rb"[^\x21-\x7e]")
_NOT_ZERO = re.compile(rb"[^\0]")
_WEIGHTS_DTYPES = frozenset({Dtype.I8, Dtype.E4M3, Dtype.BF16})
_KV_DTYPES = frozenset({Dtype.I8, Dtype.E4M3, Dtype.E5M2, Dtype.BF16})
_ACTIVATION_DTYPES = frozenset({Dtype.I8, Dtype.E4M3, Dtype.BF16, Dtype.F32})
_COUNT_MAX = {
    Section.REGIONS: Limit.REGIONS, Section.TENSORS: Limit.TENSORS, Section.PROGRAMS: Limit.PROGRAMS,
    Section.COMMANDS: Limit.COMMANDS, Section.KERNELS: Limit.KERNELS, Section.STRINGS: Limit.STRING_BYTES,
    Section.META: Limit.META_BYTES, Section.DRIFT: Limit.META_BYTES, Section.TEMPLATE: Limit.META_BYTES,
    Section.TOKENIZER: Limit.TOKENIZER_BYTES, Section.SCALES: BYTES_MAX, Section.WEIGHTS: BYTES_MAX,
}  # fmt: skip


def verify(
    data: bytes | bytearray | memoryview | mmap.mmap, release: Callable[[int, int], None] | None = None
) -> tuple[Reason, int]:
    """(Reason.OK, 0), or the first reason to refuse the plan and its index. Never raises, reads `data` about
    once. release(offset, bytes) is called for every hashed chunk: a file's map can give its pages back.

    Needs no memory beyond the tables and one chunk. The order of checks and the meaning of the index are in
    VERIFY.md.
    """
    with memoryview(data) as view:
        return _verify(view, release)


def _verify(view: memoryview, release: Callable[[int, int], None] | None) -> tuple[Reason, int]:
    if (failure := _file(view)) is not None:
        return failure
    header = _header_fields(view)
    if (offset := _header_field(header)) is not None:
        return Reason.BAD_HEADER_FIELD, offset
    if (at := _nonzero(view, _OFFSETS["padding"], SECTION_TABLE_OFFSET)) is not None:
        return Reason.BAD_HEADER_PADDING, at
    table = SECTION_TABLE_OFFSET + _SECTION.size * header["section_count"]
    records = list(_SECTION.iter_unpack(view[SECTION_TABLE_OFFSET:table]))
    if (failure := _section_table(view, records)) is not None:
        return failure
    if (at := _nonzero(view, table, PAGE_BYTES)) is not None:
        return Reason.BAD_SECTION_PADDING, at
    kinds = [_KINDS[record[0]] for record in records]
    for kind in Section:
        if kind not in kinds and kind not in OPTIONAL_SECTIONS:
            return Reason.MISSING_SECTION, int(kind)
    sections = {
        kind: view[record[2] : record[2] + record[3]] for kind, record in zip(kinds, records, strict=True)
    }
    if (failure := _hashes(view, header, records, sections, release)) is not None:
        return failure
    if (bad := _NOT_NAME.search(sections[Section.STRINGS])) is not None:
        return Reason.BAD_STRINGS, bad.start()
    plan = PlanBytes(header, sections)
    for reason, step in (*TABLE_STEPS, *COMMAND_STEPS):
        if (index := step(plan)) is not None:
            return reason, index
    return OK


def section_table(view: memoryview) -> tuple[SectionEntry, ...]:
    """The section table of a plan that `verify` accepted."""
    count = _header_fields(view)["section_count"]
    table = view[SECTION_TABLE_OFFSET : SECTION_TABLE_OFFSET + _SECTION.size * count]
    return tuple(SectionEntry(Section(kind), *rest) for kind, *rest in _SECTION.iter_unpack(table))


def _nonzero(view: memoryview, begin: int, end: int) -> int | None:
    """Offset of the first byte in [begin, end) that is not zero."""
    bad = _NOT_ZERO.search(view[begin:end])
    return None if bad is None else begin + bad.start()


def _header_fields(view: memoryview) -> dict[str, Any]:
    """Header fields by name; eos_tokens is a tuple."""
    values = _HEADER.unpack_from(view)
    names = [field.name for field in layout.HEADER.fields]
    at = names.index("eos_tokens")
    fields = dict(zip(names[:at], values[:at], strict=True))
    return fields | {"eos_tokens": values[at : at + 8], "padding": values[at + 8]}


def _file(view: memoryview) -> tuple[Reason, int] | None:
    """Steps 1 to 5."""
    if len(view) < PAGE_BYTES:
        return Reason.TOO_SHORT, len(view)
    header = _header_fields(view)
    if header["magic"] != layout.MAGIC:
        return Reason.BAD_MAGIC, 0
    if header["format_version"] != layout.FORMAT_VERSION:
        return Reason.BAD_VERSION, header["format_version"]
    page = bytearray(view[:PAGE_BYTES])
    at = _OFFSETS["header_hash"]
    page[at : at + HASH_BYTES] = bytes(HASH_BYTES)
    if hashlib.sha256(page).digest() != header["header_hash"]:
        return Reason.BAD_HEADER_HASH, 0
    if header["file_bytes"] != len(view):
        return Reason.BAD_FILE_SIZE, header["file_bytes"]
    return None


def _header_field(h: Mapping[str, Any]) -> int | None:
    """Step 6: fields in file order."""
    query_heads, kv_heads, head_size = h["query_heads"], h["kv_heads"], h["head_size"]
    vocabulary = h["vocabulary"]
    allowed = (
        ("header_bytes", h["header_bytes"] == PAGE_BYTES),
        ("target", h["target"] in Target._value2member_map_),
        ("section_count", 1 <= h["section_count"] <= Limit.SECTIONS),
        ("vocabulary", 1 <= vocabulary <= Limit.VOCABULARY),
        ("layers", 1 <= h["layers"] <= Limit.LAYERS),
        ("hidden", 1 <= h["hidden"] <= Limit.HIDDEN),
        ("query_heads", 1 <= query_heads <= Limit.HEADS),
        ("kv_heads", 1 <= kv_heads <= Limit.HEADS and query_heads % kv_heads == 0),
        ("head_size", 8 <= head_size <= Limit.HEAD_SIZE and head_size % 8 == 0),
        ("rotary_pairs", 2 * h["rotary_pairs"] <= head_size),
        ("context", 1 <= h["context"] <= Limit.CONTEXT),
        ("rows_max", 1 <= h["rows_max"] <= Limit.ROWS),
        ("head_rows_max", 1 <= h["head_rows_max"] <= Limit.HEAD_ROWS),
        ("requests_max", 1 <= h["requests_max"] <= Limit.REQUESTS),
        ("requests_default", 1 <= h["requests_default"] <= h["requests_max"]),
        ("granules_max", 1 <= h["granules_max"] <= Limit.GRANULES),
        ("granules_default", 1 <= h["granules_default"] <= h["granules_max"]),
        ("default_max_tokens", 1 <= h["default_max_tokens"] <= Limit.CONTEXT),
        ("weights_dtype", h["weights_dtype"] in _WEIGHTS_DTYPES),
        ("kv_dtype", h["kv_dtype"] in _KV_DTYPES),
        ("activation_dtype", h["activation_dtype"] in _ACTIVATION_DTYPES),
        ("bos_token", h["bos_token"] == NONE_INDEX or h["bos_token"] < vocabulary),
        ("eos_count", h["eos_count"] <= Limit.EOS_TOKENS),
    )
    for name, good in allowed:
        if not good:
            return _OFFSETS[name]
    for i, token in enumerate(h["eos_tokens"]):
        if token >= vocabulary if i < h["eos_count"] else token != 0:
            return _OFFSETS["eos_tokens"] + 4 * i
    return None


def _section_table(view: memoryview, records: list[tuple[int, ...]]) -> tuple[Reason, int] | None:
    """Steps 8 to 11."""
    previous = 0
    for i, (kind, *_) in enumerate(records):
        if kind not in _KINDS or kind <= previous:
            return Reason.BAD_SECTION_KIND, i
        previous = kind
    end = PAGE_BYTES
    for i, (kind, _, offset, size, _) in enumerate(records):
        huge = kind == Section.WEIGHTS and size >= HUGE_PAGE_BYTES
        if offset != round_up(end, HUGE_PAGE_BYTES if huge else PAGE_BYTES):
            return Reason.BAD_SECTION_OFFSET, i
        if offset > len(view) or size > len(view) - offset:
            return Reason.BAD_SECTION_BOUNDS, i
        end = offset + size
    if end != len(view):
        return Reason.BAD_SECTION_BOUNDS, len(records) - 1
    for i, (number, record_bytes, offset, size, count) in enumerate(records):
        kind = _KINDS[number]
        expected = SECTION_RECORDS[kind].bytes if kind in SECTION_RECORDS else 1
        if record_bytes != expected or count < 1 or size != record_bytes * count:
            return Reason.BAD_SECTION_RECORDS, i
        if kind in _COUNT_MAX and count > _COUNT_MAX[kind]:
            return Reason.BAD_SECTION_RECORDS, i
        if kind == Section.HASHES and count != HASH_BYTES * (-(-(offset - PAGE_BYTES) // CHUNK_BYTES)):
            return Reason.BAD_SECTION_RECORDS, i
    return None


def _hashes(
    view: memoryview,
    header: Mapping[str, Any],
    records: list[tuple[int, ...]],
    sections: Mapping[Section, memoryview],
    release: Callable[[int, int], None] | None,
) -> tuple[Reason, int] | None:
    """Steps 14 to 16."""
    hashes = sections[Section.HASHES]
    if hashlib.sha256(hashes).digest() != header["root_hash"]:
        return Reason.BAD_ROOT_HASH, 0
    hashes_offset = records[-1][2]
    for chunk, begin in enumerate(range(PAGE_BYTES, hashes_offset, CHUNK_BYTES)):
        size = min(CHUNK_BYTES, hashes_offset - begin)
        digest = hashlib.sha256(view[begin : begin + size]).digest()
        if release is not None:
            release(begin, size)
        if digest != hashes[HASH_BYTES * chunk : HASH_BYTES * (chunk + 1)]:
            return Reason.BAD_CHUNK_HASH, chunk
    end = PAGE_BYTES
    for _, _, offset, size, _ in records:
        if (at := _nonzero(view, end, offset)) is not None:
            return Reason.BAD_FILE_PADDING, at
        end = offset + size
    return None
