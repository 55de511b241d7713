"""SVG pictures of memory: proportional bars, and an arena as lifetimes over commands. Strings in, strings
out.

Every text that comes from a plan passes through `escape`. Colours are CSS classes that `page.py` defines for
light and dark screens. The same plan gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ...plans.layout import NONE_INDEX
from ...plans.records import PlanTables, ProgramEntry, TensorEntry
from ...plans.sizing import format_bytes
from .terms import kind_of, program_name

WIDTH = 1000  # of every picture, in user units; the browser scales it
BAR_HEIGHT = 46
SMALL_SHARE = 0.04  # regions below this share of the whole are shown again, magnified
LABEL_UNIT = 7.2  # width of a letter at the label's size: labels that do not fit are left out
ARENA_HEIGHT = 420
ARENA_MARGIN = 76  # left of the arena's axis, for offsets


@dataclass(frozen=True, slots=True)
class Segment:
    """One piece of a bar: its label, CSS class, bytes, and what hovering says."""

    label: str
    style: str
    bytes: int
    detail: str


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _rect(x: float, y: float, width: float, height: float, style: str, title: str) -> str:
    box = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
    return f'<rect {box} class="{escape(style)}"><title>{escape(title)}</title></rect>'


def _text(x: float, y: float, text: str, style: str, anchor: str = "start") -> str:
    place = f'x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}"'
    return f'<text {place} class="{style}">{escape(text)}</text>'


def _svg(height: float, label: str, parts: Sequence[str], width: int = WIDTH) -> str:
    view = f'viewBox="0 0 {width} {_number(height)}" role="img" aria-label="{escape(label)}"'
    return f"<svg {view}>{''.join(parts)}</svg>"


def _bar(segments: Sequence[Segment], y: float, height: float) -> list[str]:
    """A bar over the whole width. Labels stand inside the segments that are wide enough."""
    whole = sum(segment.bytes for segment in segments)
    parts, x = [], 0.0
    for segment in segments:
        width = WIDTH * segment.bytes / whole if whole else 0.0
        parts.append(_rect(x, y, width, height, segment.style, f"{segment.label}: {segment.detail}"))
        size = format_bytes(segment.bytes)
        if width > LABEL_UNIT * max(len(segment.label), len(size)) + 12:
            parts.append(_text(x + 8, y + height / 2 - 4, segment.label, "label"))
            parts.append(_text(x + 8, y + height / 2 + 13, size, "label thin"))
        x += width
    return parts


def bar(segments: Sequence[Segment], label: str, height: int = 22) -> str:
    """One bar; without labels when it is thin."""
    return _svg(
        height, label, [part for part in _bar(segments, 0, height) if height > 30 or "<text" not in part]
    )


def magnified_bar(segments: Sequence[Segment], label: str) -> str:
    """The whole as one bar, largest first, and its small segments again in a second bar over the
    full width.
    """
    ordered = sorted(segments, key=lambda segment: (-segment.bytes, segment.label))
    whole = sum(segment.bytes for segment in ordered)
    small = [segment for segment in ordered if segment.bytes < SMALL_SHARE * whole]
    parts = _bar(ordered, 0, BAR_HEIGHT)
    if not small or len(small) == len(ordered):
        return _svg(BAR_HEIGHT, label, parts)
    begin = WIDTH * (1 - sum(segment.bytes for segment in small) / whole)
    top, bottom = BAR_HEIGHT, BAR_HEIGHT + 34
    parts.append(f'<path class="lens" d="M{_number(begin)} {top}H{WIDTH}V{bottom}H0Z"/>')
    parts += _bar(small, bottom, BAR_HEIGHT)
    return _svg(bottom + BAR_HEIGHT, label, parts)


def arena_tensors(tables: PlanTables, program: ProgramEntry) -> tuple[TensorEntry, ...]:
    return tables.tensors[program.tensor_begin : program.tensor_begin + program.tensor_count]


def arena_kinds(tensors: Sequence[TensorEntry]) -> tuple[str, ...]:
    """Kinds of tensors in the order of their first use: a kind's index is its colour."""
    return tuple(
        dict.fromkeys(kind_of(t.name) for t in sorted(tensors, key=lambda t: (t.first_command, t.offset)))
    )


def _ticks(tables: PlanTables, program: ProgramEntry, column: float) -> list[str]:
    """A line and a number where a layer begins; numbers are left out where they would touch."""
    parts, layer_before, x_before = [], NONE_INDEX, -100.0
    commands = tables.commands[program.command_begin : program.command_begin + program.command_count]
    for index, command in enumerate(commands):
        if command.layer == layer_before:
            continue
        layer_before = command.layer
        x = ARENA_MARGIN + index * column
        parts.append(f'<path class="grid" d="M{_number(x)} 0V{ARENA_HEIGHT + 6}"/>')
        if command.layer != NONE_INDEX and x - x_before >= 26:
            parts.append(_text(x, ARENA_HEIGHT + 20, str(command.layer), "axis"))
            x_before = x
    return parts


def arena(tables: PlanTables, program: ProgramEntry, first_kind: int = 0) -> str:
    """A program's arena: a box per tensor, commands to the right, offsets upwards, the lower bound dashed.

    The boxes' classes are `kind0`, `kind1`, ... in the order of `arena_kinds`, counted from `first_kind`.
    """
    tensors = arena_tensors(tables, program)
    kinds = {kind: first_kind + i for i, kind in enumerate(arena_kinds(tensors))}
    width = max(WIDTH, ARENA_MARGIN + 5 * program.command_count)
    column = (width - ARENA_MARGIN) / max(program.command_count, 1)
    scale = (ARENA_HEIGHT - 10) / max(program.arena_bytes, program.arena_lower_bound, 1)
    parts = _ticks(tables, program, column)
    for tensor in tensors:
        first = tensor.first_command - program.command_begin
        last = tensor.last_command - program.command_begin
        box_height = tensor.bytes * scale
        shape = f"{'x'.join(map(str, tensor.dims))} {tensor.dtype.name.lower()}"
        place = f"offset {tensor.offset:,}\ncommands {first} to {last}"
        title = f"{tensor.name}\n{shape}, {tensor.bytes:,} bytes\n{place}"
        x, y = ARENA_MARGIN + first * column, ARENA_HEIGHT - tensor.offset * scale - box_height
        style = f"box kind{kinds[kind_of(tensor.name)]}"
        parts.append(_rect(x, y, (last - first + 1) * column, box_height, style, title))
    for value, name in ((0, "0"), (program.arena_bytes, format_bytes(program.arena_bytes))):
        y = ARENA_HEIGHT - value * scale
        parts.append(_text(ARENA_MARGIN - 8, y + 4, name, "axis", "end"))
        parts.append(f'<path class="grid" d="M{ARENA_MARGIN - 4} {_number(y)}H{width}"/>')
    bound = ARENA_HEIGHT - program.arena_lower_bound * scale
    parts.append(f'<path class="bound" d="M{ARENA_MARGIN} {_number(bound)}H{width}"/>')
    parts.append(_text(ARENA_MARGIN, ARENA_HEIGHT + 36, "commands, numbered by layer", "axis"))
    return _svg(ARENA_HEIGHT + 42, f"arena of {program_name(program)}", parts, width)
