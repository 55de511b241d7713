"""What differs between two plans: header, meta, sections, tensors and their bytes, programs, commands.

The result is data; `lines` makes it readable. Two plans are identical exactly when their hashes are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .codec import FILE_FIELDS
from .layout import KERNELS, NONE_INDEX, Flag, Region, Section
from .reader import PlanFile
from .records import CommandEntry, ProgramEntry, TensorEntry

_PIECE = 16 << 20  # bytes compared at once


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: where ("header", "meta", "drift", "region", "section", "tensor", "bytes", "program",
    "command"), what, and both sides.

    A side is None when the thing is not there. For "bytes" `before` is the number of bytes that differ and
    `after` the size.
    """

    where: str
    what: str
    before: object
    after: object


@dataclass(frozen=True, slots=True)
class Difference:
    """All changes from plan a to plan b, in a fixed order."""

    identical: bool
    changes: tuple[Change, ...]

    def as_dict(self) -> dict[str, object]:
        return {"identical": self.identical, "changes": [asdict(change) for change in self.changes]}

    def lines(self) -> list[str]:
        """One line per change; a single line `identical` when there is none."""
        return ["identical"] if self.identical else [_line(change) for change in self.changes]


def _line(change: Change) -> str:
    head = f"{change.where} {change.what}"
    if change.where == "bytes":
        return f"{head}: {change.before} of {change.after} bytes differ"
    if change.before is None:
        return f"{head}: added ({change.after})"
    if change.after is None:
        return f"{head}: removed ({change.before})"
    return f"{head}: {change.before} -> {change.after}"


def _mapping(where: str, a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = "") -> list[Change]:
    """Changed keys, nested mappings by dotted path. A value that is null counts as absent."""
    changes = []
    for key in sorted({*a, *b}):
        before, after = a.get(key), b.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changes += _mapping(where, before, after, f"{prefix}{key}.")
        elif before != after:
            changes.append(Change(where, f"{prefix}{key}", before, after))
    return changes


def _regions(a: PlanFile, b: PlanFile) -> list[Change]:
    changes = []
    for left, right in zip(a.tables.regions, b.tables.regions, strict=True):
        for field in ("bytes_fixed", "bytes_per_granule", "bytes_per_request", "alignment"):
            if getattr(left, field) != getattr(right, field):
                before, after = getattr(left, field), getattr(right, field)
                changes.append(Change("region", f"{left.kind.name}.{field}", before, after))
    return changes


def _sections(a: PlanFile, b: PlanFile) -> list[Change]:
    """Sections by size, and by their bytes where the size is the same; HASHES differ in any case."""
    sides = [{entry.kind: entry.bytes for entry in plan.sections} for plan in (a, b)]
    changes = []
    for kind in sorted({*sides[0], *sides[1]} - {Section.HASHES}):
        before, after = (side.get(kind) for side in sides)
        if before != after:
            changes.append(Change("section", kind.name, before, after))
        elif count := differing_bytes(a.section(kind), b.section(kind)):
            changes.append(Change("bytes", f"section {kind.name}", count, before))
    return changes


def _describe(tensor: TensorEntry) -> str:
    dims = "x".join(map(str, tensor.dims))
    place = f"{tensor.region.name}+{tensor.offset}"
    if tensor.first_command != NONE_INDEX:
        place += f" alive {tensor.first_command}..{tensor.last_command}"
    return f"{dims} {tensor.dtype.name.lower()} {tensor.layout.name.lower()} at {place}"


def _named(plan: PlanFile) -> dict[tuple[str, int], TensorEntry]:
    """Tensors by (name, how many before it have that name)."""
    seen: dict[str, int] = {}
    named = {}
    for tensor in plan.tables.tensors:
        repeat = seen.get(tensor.name, 0)
        seen[tensor.name] = repeat + 1
        named[tensor.name, repeat] = tensor
    return named


def differing_bytes(a: memoryview, b: memoryview) -> int:
    """How many positions of two equally long byte ranges differ."""
    count = 0
    for begin in range(0, len(a), _PIECE):
        left, right = a[begin : begin + _PIECE], b[begin : begin + _PIECE]
        if left != right:
            count += int(np.count_nonzero(np.frombuffer(left, np.uint8) != np.frombuffer(right, np.uint8)))
    return count


def _tensors(a: PlanFile, b: PlanFile) -> list[Change]:
    before, after = _named(a), _named(b)
    changes = []
    for name, tensor in before.items():
        other = after.get((name[0], name[1]))
        if other is None:
            changes.append(Change("tensor", name[0], _describe(tensor), None))
            continue
        if tensor != other:
            changes.append(Change("tensor", name[0], _describe(tensor), _describe(other)))
        in_file = {tensor.region, other.region} <= {Region.WEIGHTS, Region.SCALES}
        if in_file and tensor.bytes == other.bytes and name[1] == 0:
            count = differing_bytes(a.data(name[0]), b.data(name[0]))
            if count:
                changes.append(Change("bytes", name[0], count, tensor.bytes))
    changes += [
        Change("tensor", name[0], None, _describe(t)) for name, t in after.items() if name not in before
    ]
    return changes


def _command(plan: PlanFile, command: CommandEntry) -> str:
    """A command by names, so that moved tensor indices alone are no change."""
    spec = KERNELS[command.kernel]
    operands = [
        f"{operand.name}={plan.tables.tensors[t].name}"
        for operand, t in zip(spec.operands, command.tensors, strict=False)
        if t != NONE_INDEX
    ]
    flags = "|".join(str(flag.name) for flag in Flag if command.flags & flag) or "none"
    layer = "" if command.layer == NONE_INDEX else f" layer {command.layer}"
    numbers = [f"{name}={value:g}" for name, value in zip(spec.f, command.f, strict=False)]
    numbers += [f"{name}={value}" for name, value in zip(spec.u, command.u, strict=False)]
    return f"{spec.name}{layer} flags {flags} ({', '.join(operands + numbers)})"


def _programs(a: PlanFile, b: PlanFile) -> list[Change]:
    def by_bucket(plan: PlanFile) -> dict[tuple[int, int], ProgramEntry]:
        return {(program.family, program.rows): program for program in plan.tables.programs}

    before, after = by_bucket(a), by_bucket(b)
    changes: list[Change] = []
    for key in sorted({*before, *after}):
        left, right = before.get(key), after.get(key)
        present = left or right
        assert present is not None, "a bucket comes from one of the two plans"
        name = f"{present.family.name.lower()}[{present.rows}]"
        if left is None or right is None:
            sides = [None if side is None else f"{side.command_count} commands" for side in (left, right)]
            changes.append(Change("program", name, *sides))
            continue
        for field in ("command_count", "arena_bytes", "arena_lower_bound"):
            if getattr(left, field) != getattr(right, field):
                changes.append(
                    Change("program", f"{name}.{field}", getattr(left, field), getattr(right, field))
                )
        lists = [
            [
                _command(plan, command)
                for command in plan.tables.commands[p.command_begin :][: p.command_count]
            ]
            for plan, p in ((a, left), (b, right))
        ]
        for i in range(max(map(len, lists))):
            sides = [side[i] if i < len(side) else None for side in lists]
            if sides[0] != sides[1]:
                changes.append(Change("command", f"{name}.{i}", *sides))
    return changes


def diff(a: PlanFile, b: PlanFile) -> Difference:
    """Everything that differs from `a` to `b`. Reads the weights of both only where their hashes differ."""
    if a.hash == b.hash:
        return Difference(True, ())
    headers = [{k: v for k, v in plan.header.items() if k not in FILE_FIELDS} for plan in (a, b)]
    changes = _mapping("header", headers[0], headers[1])
    changes += _mapping("meta", a.meta, b.meta) + _mapping("drift", a.drift or {}, b.drift or {})
    changes += _regions(a, b) + _sections(a, b) + _tensors(a, b) + _programs(a, b)
    return Difference(False, tuple(changes))
