"""Steps 18 to 27 of `VERIFY.md`: regions, tensors, kernels, programs, and the arena's lifetimes and overlaps.

Records are unpacked once into `PlanBytes`; each step then walks them in file order and returns the index of
the first offence, or None. A step relies on all earlier ones having passed.
"""

from __future__ import annotations

import builtins
import struct
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from . import layout
from .codec import struct_format
from .layout import (
    KERNELS,
    NONE_INDEX,
    PAGE_BYTES,
    TENSOR_ALIGNMENT,
    Dtype,
    Family,
    Kernel,
    Layout,
    Limit,
    Reason,
    Region,
    Section,
    Unit,
    round_up,
    tensor_bytes,
)  # fmt: skip

BYTES_MAX = 1 << Limit.BYTES_LOG2
_REGION = struct.Struct(struct_format(layout.REGION))
_TENSOR = struct.Struct(struct_format(layout.TENSOR))
_PROGRAM = struct.Struct(struct_format(layout.PROGRAM))
_COMMAND = struct.Struct(struct_format(layout.COMMAND))
_KERNEL = struct.Struct(struct_format(layout.KERNEL))
_SECTION_OF_REGION = {Region.WEIGHTS: Section.WEIGHTS, Region.SCALES: Section.SCALES}
_SPLIT = frozenset({Region.STATE, Region.KV})  # regions that may have granule and request parts
_PANEL_DTYPES = frozenset({Dtype.I8, Dtype.E4M3, Dtype.BF16})
_DTYPES = frozenset(Dtype)
_ZERO8, _ZERO24, _ZERO48 = bytes(8), bytes(24), bytes(48)


class RegionRow(NamedTuple):
    kind: int
    section: int
    bytes_fixed: int
    bytes_per_granule: int
    bytes_per_request: int
    alignment: int
    padding: bytes


class TensorRow(NamedTuple):
    name_offset: int
    name_bytes: int
    region: int
    unit: int
    dtype: int
    layout: int
    rank: int
    dim0: int
    dim1: int
    dim2: int
    dim3: int
    offset: int
    bytes: int
    first_command: int
    last_command: int
    padding: builtins.bytes

    @property
    def dims(self) -> tuple[int, ...]:
        return (self.dim0, self.dim1, self.dim2, self.dim3)[: self.rank]


class ProgramRow(NamedTuple):
    family: int
    rows: int
    command_begin: int
    command_count: int
    tensor_begin: int
    tensor_count: int
    arena_bytes: int
    arena_lower_bound: int
    padding: bytes


class PlanBytes:
    """A plan's sections and unpacked records, after steps 1 to 17 have passed."""

    __slots__ = ("commands", "header", "kernels", "programs", "regions", "sections", "strings", "tensors")

    def __init__(self, header: Mapping[str, Any], sections: Mapping[Section, memoryview]) -> None:
        self.header = header
        self.sections = sections
        self.strings = bytes(sections[Section.STRINGS])
        self.regions = [RegionRow(*row) for row in _REGION.iter_unpack(sections[Section.REGIONS])]
        self.tensors = [TensorRow(*row) for row in _TENSOR.iter_unpack(sections[Section.TENSORS])]
        self.programs = [ProgramRow(*row) for row in _PROGRAM.iter_unpack(sections[Section.PROGRAMS])]
        self.commands = list(_COMMAND.iter_unpack(sections[Section.COMMANDS]))
        self.kernels = list(_KERNEL.iter_unpack(sections[Section.KERNELS]))

    def name(self, tensor: TensorRow) -> bytes:
        return self.strings[tensor.name_offset : tensor.name_offset + tensor.name_bytes]


Step = Callable[[PlanBytes], int | None]


def _regions(plan: PlanBytes) -> int | None:
    if len(plan.regions) != len(Region):
        return len(plan.regions)
    granule_max = BYTES_MAX // int(plan.header["granules_max"])
    request_max = BYTES_MAX // int(plan.header["requests_max"])
    for i, (row, region) in enumerate(zip(plan.regions, Region, strict=True)):
        section = _SECTION_OF_REGION.get(region)
        if row.kind != region or row.section != (section or 0):
            return i
        if row.bytes_fixed != len(plan.sections[section]) if section else row.bytes_fixed > BYTES_MAX:
            return i
        for stride, most in ((row.bytes_per_granule, granule_max), (row.bytes_per_request, request_max)):
            if stride % TENSOR_ALIGNMENT or stride > (most if region in _SPLIT else 0):
                return i
        if row.alignment not in {PAGE_BYTES, layout.HUGE_PAGE_BYTES} or row.padding != _ZERO24:
            return i
    return None


def _inside(offset: int, size: int, whole: int) -> bool:
    return offset <= whole and size <= whole - offset


def _tensor_names(plan: PlanBytes) -> int | None:
    string_bytes = len(plan.strings)
    for t, row in enumerate(plan.tensors):
        if not 1 <= row.name_bytes <= Limit.NAME_BYTES or not _inside(
            row.name_offset, row.name_bytes, string_bytes
        ):
            return t
    return None


def _tensor_field_good(row: TensorRow) -> bool:
    region, rank, dims = row.region, row.rank, row[7:11]
    if not 1 <= region <= Region.IO or row.unit > Unit.REQUEST:
        return False
    if (row.unit != Unit.FIXED and region not in _SPLIT) or row.dtype not in _DTYPES:
        return False
    if row.layout > Layout.PANELS_PAIRED or not 1 <= rank <= 4:
        return False
    if 0 in dims[:rank] or any(dims[rank:]):
        return False
    if row.layout != Layout.ROWS and (
        region != Region.WEIGHTS or rank != 2 or row.dtype not in _PANEL_DTYPES
    ):
        return False
    if row.layout == Layout.PANELS_PAIRED and row.dim0 % 2:
        return False
    if region != Region.ARENA and (row.first_command != NONE_INDEX or row.last_command != NONE_INDEX):
        return False
    return row.padding == _ZERO8


def _tensor_fields(plan: PlanBytes) -> int | None:
    for t, row in enumerate(plan.tensors):
        if not _tensor_field_good(row):
            return t
    return None


def _tensor_sizes(plan: PlanBytes) -> int | None:
    for t, row in enumerate(plan.tensors):
        if row.bytes > BYTES_MAX or row.bytes != tensor_bytes(row.dims, Dtype(row.dtype), Layout(row.layout)):
            return t
    return None


def _tensor_bounds(plan: PlanBytes) -> int | None:
    for t, row in enumerate(plan.tensors):
        region = plan.regions[row.region - 1]
        part = (region.bytes_fixed, region.bytes_per_granule, region.bytes_per_request)[row.unit]
        if row.offset % TENSOR_ALIGNMENT or not _inside(row.offset, row.bytes, part):
            return t
    return None


def _tensor_order(plan: PlanBytes) -> int | None:
    key, end = (0, 0), 0
    for t, row in enumerate(plan.tensors):
        new = (row.region, row.unit)
        if new < key or (new == key and row.region != Region.ARENA and row.offset < end):
            return t
        key, end = new, row.offset + row.bytes
    return None


def _kernels(plan: PlanBytes) -> int | None:
    previous = 0
    for k, (number, version, name_offset, name_bytes, padding) in enumerate(plan.kernels):
        if number not in KERNELS or number <= previous:
            return k
        spec = KERNELS[Kernel(number)]
        if version != spec.version or not _inside(name_offset, name_bytes, len(plan.strings)):
            return k
        if plan.strings[name_offset : name_offset + name_bytes] != spec.name.encode() or padding != _ZERO48:
            return k
        previous = number
    return None


def _programs(plan: PlanBytes) -> int | None:
    tensor_end = sum(row.region < Region.ARENA for row in plan.tensors)
    arena_end = sum(row.region <= Region.ARENA for row in plan.tensors)
    rows_max = {Family.BODY: plan.header["rows_max"], Family.HEAD: plan.header["head_rows_max"]}
    arena = plan.regions[Region.ARENA - 1].bytes_fixed
    largest = {Family.BODY: 0, Family.HEAD: 0}
    command_end, previous = 0, 0
    for p, row in enumerate(plan.programs):
        if row.family not in {1, 2} or row.family < previous:
            return p
        family = Family(row.family)
        if not largest[family] < row.rows <= rows_max[family]:
            return p
        if row.command_begin != command_end or not 1 <= row.command_count <= len(plan.commands) - command_end:
            return p
        if row.tensor_begin != tensor_end or row.tensor_count > min(
            Limit.PROGRAM_TENSORS, arena_end - tensor_end
        ):
            return p
        if row.arena_bytes > arena or row.arena_lower_bound > round_up(row.arena_bytes, TENSOR_ALIGNMENT):
            return p
        if row.padding != _ZERO24:
            return p
        command_end += row.command_count
        tensor_end += row.tensor_count
        largest[family], previous = row.rows, row.family
    if command_end != len(plan.commands) or tensor_end != arena_end or largest != rows_max:
        return len(plan.programs)
    return None


def _arena_tensors(plan: PlanBytes) -> int | None:
    for program in plan.programs:
        begin, end = program.command_begin, program.command_begin + program.command_count
        for t in range(program.tensor_begin, program.tensor_begin + program.tensor_count):
            row = plan.tensors[t]
            if not begin <= row.first_command <= row.last_command < end:
                return t
            if not _inside(row.offset, row.bytes, program.arena_bytes):
                return t
    return None


def _overlaps(a: TensorRow, b: TensorRow) -> bool:
    """Both lifetimes and both byte ranges intersect."""
    return (
        a.first_command <= b.last_command
        and b.first_command <= a.last_command
        and a.offset < b.offset + b.bytes
        and b.offset < a.offset + a.bytes
    )


def _any_overlap(rows: list[TensorRow]) -> bool:
    """Whether any two rows overlap: a sweep over commands, live byte ranges sorted and disjoint."""
    starts = sorted(rows, key=lambda row: row.first_command)
    ends = sorted(rows, key=lambda row: row.last_command)
    live: list[tuple[int, int]] = []  # (offset, end)
    ended = 0
    for row in starts:
        while ends[ended].last_command < row.first_command:
            dead = ends[ended]
            del live[bisect_left(live, (dead.offset, dead.offset + dead.bytes))]
            ended += 1
        span = (row.offset, row.offset + row.bytes)
        at = bisect_left(live, span)
        if (at and live[at - 1][1] > span[0]) or (at < len(live) and live[at][0] < span[1]):
            return True
        live.insert(at, span)
    return False


def _arena_overlap(plan: PlanBytes) -> int | None:
    for program in plan.programs:
        begin = program.tensor_begin
        rows = plan.tensors[begin : begin + program.tensor_count]
        if not _any_overlap(rows):
            continue
        for j, later in enumerate(rows):  # at most PROGRAM_TENSORS squared, once
            if any(_overlaps(earlier, later) for earlier in rows[:j]):
                return begin + j
        raise AssertionError("the sweep found an overlap that the pairs do not have")
    return None


TABLE_STEPS: tuple[tuple[Reason, Step], ...] = (
    (Reason.BAD_REGION, _regions),
    (Reason.BAD_TENSOR_NAME, _tensor_names),
    (Reason.BAD_TENSOR_FIELD, _tensor_fields),
    (Reason.BAD_TENSOR_BYTES, _tensor_sizes),
    (Reason.BAD_TENSOR_BOUNDS, _tensor_bounds),
    (Reason.BAD_TENSOR_ORDER, _tensor_order),
    (Reason.BAD_KERNEL, _kernels),
    (Reason.BAD_PROGRAM, _programs),
    (Reason.BAD_ARENA_TENSOR, _arena_tensors),
    (Reason.ARENA_OVERLAP, _arena_overlap),
)
