"""A plan's tables between their Python form and the bytes of their sections, both ways, and where sections
lie in the file.

`encode` and `decode` are inverse on every plan that `verify` accepts, up to META's and DRIFT's whitespace
(they are written canonically). Nothing here touches a file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from . import layout
from .layout import (
    CHUNK_BYTES,
    HASH_BYTES,
    HUGE_PAGE_BYTES,
    PAGE_BYTES,
    SECTION_RECORDS,
    Family,
    Kernel,
    Record,
    Region,
    Section,
    Unit,
    round_up,
)  # fmt: skip
from .records import CommandEntry, PlanTables, ProgramEntry, RegionEntry, Selftest, TensorEntry

# Header fields that belong to the file, not to the tables.
FILE_FIELDS = frozenset({
    "magic", "format_version", "header_bytes", "file_bytes", "section_count", "header_hash", "root_hash",
    "padding",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class SectionEntry:
    """Where a section lies: offset and bytes in the file, `count` records of `record_bytes`."""

    kind: Section
    record_bytes: int
    offset: int
    bytes: int
    count: int


def canonical_json(value: object) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces. Raises ValueError for NaN and infinity, TypeError for odd
    types.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def struct_format(record: Record) -> str:
    """The `struct` format of a record; u8 arrays become one `bytes`."""
    parts = []
    for field in record.fields:
        code = layout._CODES[field.type]
        parts.append(
            f"{field.count}s" if field.count and field.type == "u8" else f"{field.count or ''}{code}"
        )
    return "<" + "".join(parts)


def string_table(tables: PlanTables) -> tuple[bytes, dict[str, int]]:
    """All names once each, tensors first, then kernels in id order; and the offset of each."""
    kernels = sorted({command.kernel for command in tables.commands})
    names = [tensor.name for tensor in tables.tensors] + [layout.KERNELS[kernel].name for kernel in kernels]
    offsets: dict[str, int] = {}
    parts, at = [], 0
    for name in names:
        if name in offsets:
            continue
        raw = name.encode()
        offsets[name] = at
        parts.append(raw)
        at += len(raw)
    return b"".join(parts), offsets


def _tensor(tensor: TensorEntry, offsets: Mapping[str, int]) -> bytes:
    return layout.TENSOR.pack(
        name_offset=offsets[tensor.name], name_bytes=len(tensor.name.encode()), region=tensor.region,
        unit=tensor.unit, dtype=tensor.dtype, layout=tensor.layout, rank=len(tensor.dims), dims=tensor.dims,
        offset=tensor.offset, bytes=tensor.bytes, first_command=tensor.first_command,
        last_command=tensor.last_command,
    )  # fmt: skip


def _pack(record: Record, entry: object, names: Iterable[str]) -> bytes:
    return record.pack(**{name: getattr(entry, name) for name in names})


def encode(tables: PlanTables) -> dict[Section, bytes]:
    """Bytes of every section but SELFTEST, SCALES, WEIGHTS and HASHES, in file order."""
    strings, offsets = string_table(tables)
    region_fields = [field.name for field in layout.REGION.fields if field.name != "padding"]
    program_fields = [field.name for field in layout.PROGRAM.fields if field.name != "padding"]
    command_fields = [field.name for field in layout.COMMAND.fields if field.name != "padding"]
    kernels = [layout.KERNELS[kernel] for kernel in sorted({command.kernel for command in tables.commands})]
    sections = {
        Section.REGIONS: b"".join(_pack(layout.REGION, entry, region_fields) for entry in tables.regions),
        Section.TENSORS: b"".join(_tensor(tensor, offsets) for tensor in tables.tensors),
        Section.PROGRAMS: b"".join(_pack(layout.PROGRAM, entry, program_fields) for entry in tables.programs),
        Section.COMMANDS: b"".join(_pack(layout.COMMAND, entry, command_fields) for entry in tables.commands),
        Section.KERNELS: b"".join(
            layout.KERNEL.pack(
                id=spec.id, version=spec.version, name_offset=offsets[spec.name], name_bytes=len(spec.name)
            )
            for spec in kernels
        ),
        Section.STRINGS: strings,
        Section.META: canonical_json(tables.meta),
    }
    if tables.drift is not None:
        sections[Section.DRIFT] = canonical_json(tables.drift)
    if tables.tokenizer is not None:
        sections[Section.TOKENIZER] = tables.tokenizer
    if tables.template is not None:
        sections[Section.TEMPLATE] = tables.template
    return sections


def file_layout(tables: PlanTables, encoded: Mapping[Section, bytes]) -> tuple[SectionEntry, ...]:
    """The section table of a plan: every section at the next aligned offset, HASHES last."""
    sizes = {kind: len(raw) for kind, raw in encoded.items()}
    if tables.selftest_bytes:
        sizes[Section.SELFTEST] = tables.selftest_bytes
    for region in tables.regions:
        if region.section:
            sizes[Section(region.section)] = region.bytes_fixed
    entries, end = [], PAGE_BYTES
    for kind in sorted(sizes):
        huge = kind == Section.WEIGHTS and sizes[kind] >= HUGE_PAGE_BYTES
        offset = round_up(end, HUGE_PAGE_BYTES if huge else PAGE_BYTES)
        record_bytes = SECTION_RECORDS[kind].bytes if kind in SECTION_RECORDS else 1
        entries.append(SectionEntry(kind, record_bytes, offset, sizes[kind], sizes[kind] // record_bytes))
        end = offset + sizes[kind]
    offset = round_up(end, PAGE_BYTES)
    hash_bytes = HASH_BYTES * (-(-(offset - PAGE_BYTES) // CHUNK_BYTES))
    entries.append(SectionEntry(Section.HASHES, 1, offset, hash_bytes, hash_bytes))
    return tuple(entries)


def encode_selftest(selftest: Selftest) -> bytes:
    """SELFTEST: the record, prompt tokens, probe ids (u32), probe logits (f32)."""
    if len(selftest.probe_ids) != len(selftest.probe_logits):
        raise ValueError(f"{len(selftest.probe_ids)} probe ids but {len(selftest.probe_logits)} probe logits")
    prompts, probes = len(selftest.prompt), len(selftest.probe_ids)
    record = layout.SELFTEST.pack(
        prompt_count=prompts, probe_count=probes, next_token=selftest.next_token, margin=selftest.margin,
        tolerance=selftest.tolerance,
    )  # fmt: skip
    arrays = struct.pack(
        f"<{prompts}I{probes}I{probes}f", *selftest.prompt, *selftest.probe_ids, *selftest.probe_logits
    )
    return record + arrays


def decode_selftest(raw: bytes | memoryview) -> Selftest:
    """The inverse of `encode_selftest`, for a section that `verify` accepted."""
    prompts, probes, next_token, margin, tolerance = struct.unpack_from("<IIIff", raw)
    at = layout.SELFTEST.bytes
    values = struct.unpack_from(f"<{prompts}I{probes}I{probes}f", raw, at)
    return Selftest(
        prompt=values[:prompts], probe_ids=values[prompts : prompts + probes],
        probe_logits=values[prompts + probes :],
        next_token=next_token, margin=margin, tolerance=tolerance,
    )  # fmt: skip


def _command(values: tuple[Any, ...]) -> CommandEntry:
    return CommandEntry(
        kernel=Kernel(values[0]), flags=values[1], layer=values[2], tensors=values[3:17], f=values[17:21],
        u=values[21:27], cost_bytes=values[28], cost_flops=values[29],
    )  # fmt: skip


def decode(sections: Mapping[Section, memoryview], header: Mapping[str, object]) -> PlanTables:
    """The tables of a plan that `verify` accepted, from its sections' bytes and header fields."""
    strings = bytes(sections[Section.STRINGS]).decode()
    regions = tuple(
        RegionEntry(Region(kind), *rest)
        for kind, *rest, _ in struct.iter_unpack(struct_format(layout.REGION), sections[Section.REGIONS])
    )
    tensors = []
    for values in struct.iter_unpack(struct_format(layout.TENSOR), sections[Section.TENSORS]):
        name_offset, name_bytes, region, unit, dtype, order, rank = values[:7]
        tensors.append(TensorEntry(
            strings[name_offset : name_offset + name_bytes], Region(region), Unit(unit), layout.Dtype(dtype),
            layout.Layout(order), values[7 : 7 + rank], *values[11:15],
        ))  # fmt: skip
    programs = tuple(
        ProgramEntry(Family(family), *rest)
        for family, *rest, _ in struct.iter_unpack(struct_format(layout.PROGRAM), sections[Section.PROGRAMS])
    )
    commands = struct.iter_unpack(struct_format(layout.COMMAND), sections[Section.COMMANDS])
    texts = {
        kind: bytes(sections[kind]) for kind in (Section.TOKENIZER, Section.TEMPLATE) if kind in sections
    }
    selftest = sections.get(Section.SELFTEST)
    drift = sections.get(Section.DRIFT)
    return PlanTables(
        header={name: value for name, value in header.items() if name not in FILE_FIELDS},
        regions=regions,
        tensors=tuple(tensors),
        programs=programs,
        commands=tuple(_command(values) for values in commands),
        meta=json.loads(bytes(sections[Section.META])),
        tokenizer=texts.get(Section.TOKENIZER),
        template=texts.get(Section.TEMPLATE),
        selftest_bytes=0 if selftest is None else len(selftest),
        drift=None if drift is None else json.loads(bytes(drift)),
    )
