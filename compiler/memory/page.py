"""The memory report as one HTML page: the map of all regions, an arena as a picture, context x concurrency.

The page is a single file without scripts, fonts or links, reads well on light and dark screens, and is the
same for the same plan. What it says comes from `terms.py` and `plans/sizing.py`, as in the terminal's tables.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ...plans.layout import Family
from ...plans.records import PlanTables, ProgramEntry
from ...plans.sizing import Concurrency, concurrency_table, default_contexts, format_bytes
from .picture import Segment, arena, arena_kinds, arena_tensors, bar, magnified_bar
from .report import BASE_TEXT, share_text
from .terms import MemoryMap, RegionTerms, largest_program, memory_map, plan_title, program_name

# Colours that stay apart for colour-blind readers (Okabe and Ito, 2002), one per region.
_REGION_COLOURS = {
    "weights": "#0072b2", "scales": "#56b4e9", "state": "#009e73", "arena": "#e69f00", "kv": "#d55e00",
    "io": "#cc79a7",
}  # fmt: skip
# Nothing may be loaded, from anywhere: the page is complete.
_POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)
_STYLE = """
:root { color-scheme: light dark; --ground: #faf9f7; --card: #ffffff; --ink: #1b2230; --soft: #5c6675;
  --line: #dfe1e6; --lens: #eceef2; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171c; --card: #1c2027; --ink: #e6e9ee;
  --soft: #98a2b1; --line: #323945; --lens: #262c35; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 68rem; background: var(--ground);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .25rem; letter-spacing: -.01em; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; }
p { margin: .25rem 0 .75rem; max-width: 46rem; } .soft { color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1.1rem;
  overflow-x: auto; }
.figures { display: flex; flex-wrap: wrap; gap: 2.25rem; margin: 1.25rem 0; }
.figures b { display: block; font-size: 1.55rem; font-weight: 600; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: auto; } svg.wide { width: auto; }
rect { stroke: var(--card); stroke-width: 1; } rect:hover { filter: brightness(1.15); stroke: var(--ink); }
rect.box { stroke-width: .5; }
.label { fill: #fff; font-size: 13px; font-weight: 600; pointer-events: none; }
.label.thin { font-weight: 400; font-size: 12px; } .axis { fill: var(--soft); font-size: 12px; }
.grid { stroke: var(--line); fill: none; } .lens { fill: var(--lens); }
.bound { stroke: var(--ink); stroke-dasharray: 6 5; fill: none; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
tr:last-child td { border-bottom: 0; } .number { text-align: right; }
.none { color: var(--soft); } .region { margin: 1.1rem 0 0; } .region summary { cursor: pointer; }
.region summary span { color: var(--soft); } .swatch { display: inline-block; width: .8em; height: .8em;
  border-radius: 3px; margin-right: .45em; vertical-align: -.05em; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; font-size: .85rem; color: var(--soft);
  margin-top: .75rem; }
"""


def _styles(kinds: int) -> str:
    """The page's CSS, with a class per region, per shade of a region's terms, and per kind of arena
    tensor.
    """
    rules = [_STYLE.strip()]
    for name, colour in _REGION_COLOURS.items():
        rules.append(f".{name} {{ fill: {colour}; background: {colour}; }}")
    for shade in range(4):
        rules.append(f".shade{shade} {{ fill-opacity: {1 - 0.17 * shade:.2f}; }}")
    for kind in range(kinds):
        hue = round(210 + 137.508 * kind) % 360  # the golden angle: neighbours in the order differ most
        rules.append(f".kind{kind} {{ fill: hsl({hue} 52% 55%); background: hsl({hue} 52% 55%); }}")
    return "\n".join(rules)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """An HTML table of escaped cells; all but the first `left` columns are numbers."""

    def cells(tag: str, values: Sequence[str]) -> str:
        styles = ["" if i < left else ' class="number"' for i in range(len(values))]
        return "".join(
            f"<{tag}{style}>{escape(value)}</{tag}>" for style, value in zip(styles, values, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', columns)}</tr></thead><tbody>{body}</tbody></table>"


def _section(title: str, text: str, body: str) -> str:
    """A heading, a sentence (both escaped here) and a card that holds `body`, which is HTML."""
    return f'<h2>{escape(title)}</h2><p class="soft">{escape(text)}</p><div class="card">{body}</div>'


def _figures(found: MemoryMap) -> str:
    figures = {
        "reserved when opened": format_bytes(found.total_bytes),
        "kv tokens": f"{found.kv_tokens:,}",
        "requests at once": f"{found.requests:,}",
    }
    parts = (f"<div><b>{escape(value)}</b>{escape(name)}</div>" for name, value in figures.items())
    return f'<div class="figures">{"".join(parts)}</div>'


def _region(region: RegionTerms, total_bytes: int) -> str:
    """A region's bar of terms, and the exact sum behind it."""
    name = region.kind.name.lower()
    segments = [
        Segment(term.name, f"{name} shade{i % 4}", term.bytes, f"{term.sum} = {term.bytes:,} bytes")
        for i, term in enumerate(region.terms)
    ]
    rows = [(term.name, term.sum, f"{term.bytes:,}") for term in region.terms]
    rows.append(("sum", "", f"{region.bytes:,}"))
    share = share_text(region.bytes, total_bytes)
    return (
        f'<details class="region"><summary><i class="swatch {name}"></i><b>{name}</b> '
        f"{format_bytes(region.bytes)} <span>{share} of the whole</span>{bar(segments, name)}</summary>"
        f"{_table(('term', 'sum of', 'bytes'), rows, left=2)}</details>"
    )


def _map(found: MemoryMap) -> str:
    segments = [
        Segment(region.kind.name.lower(), region.kind.name.lower(), region.bytes, f"{region.bytes:,} bytes")
        for region in found.regions
    ]
    regions = "".join(_region(region, found.total_bytes) for region in found.regions)
    return _section(
        "The map",
        "Six regions, each reserved once when the plan is opened. The lower bar magnifies what is small. "
        f"Open a region for its sum. {BASE_TEXT[0].upper()}{BASE_TEXT[1:]}.",
        magnified_bar(segments, "all regions") + regions,
    )


def _arena(tables: PlanTables, program: ProgramEntry, offset: int) -> str:
    """One program's picture and legend. Its kinds use the colours from `offset` on."""
    kinds = arena_kinds(arena_tensors(tables, program))
    picture = arena(tables, program, offset)
    legend = "".join(
        f'<span><i class="swatch kind{i + offset}"></i>{escape(kind)}</span>' for i, kind in enumerate(kinds)
    )
    over = program.arena_bytes - program.arena_lower_bound
    verdict = "which is its lower bound" if over <= 0 else f"{over:,} bytes over its lower bound"
    return _section(
        f"The arena of {program_name(program)}",
        f"{program.tensor_count:,} tensors of {program.command_count:,} commands in {program.arena_bytes:,} "
        f"bytes, {verdict} (dashed): the most bytes alive at one command.",
        f'{picture}<div class="legend">{legend}</div>',
    )


def _programs(tables: PlanTables) -> str:
    rows = [
        (
            program_name(p),
            f"{p.command_count:,}",
            f"{p.tensor_count:,}",
            f"{p.arena_bytes:,}",
            f"{p.arena_lower_bound:,}",
        )
        for p in tables.programs
    ]
    columns = ("program", "commands", "arena tensors", "arena bytes", "lower bound")
    text = "One for each fixed number of rows. They share the arena: the largest decides."
    return _section("Programs", text, _table(columns, rows))


def default_budgets(total_bytes: int) -> tuple[int, ...]:
    """Budgets worth showing: the total itself, and the four next powers of two GiB (at least 1 GiB)."""
    power = 1 << 30
    while power < total_bytes:
        power *= 2
    return (total_bytes, *(power << i for i in range(4)))


def _cell(entry: Concurrency) -> str:
    if entry.sizing is None:
        need = f"one request takes {entry.one_bytes:,} bytes"
        return f'<td class="number none" title="{escape(need)}">none</td>'
    title = (
        f"{entry.sizing.kv_tokens:,} kv tokens, {entry.sizing.total_bytes:,} bytes, bound by {entry.bound}"
    )
    return f'<td class="number" title="{escape(title)}">{entry.requests:,}</td>'


def _concurrency(tables: PlanTables, budgets: Sequence[int]) -> str:
    header: Any = tables.header
    contexts = default_contexts(int(header["context"]))
    columns = [concurrency_table(tables, budget, contexts) for budget in budgets]
    heads = "".join(
        f'<th class="number" title="{budget:,} bytes">{format_bytes(budget)}</th>' for budget in budgets
    )
    rows = []
    for i, context in enumerate(contexts):
        cells = "".join(_cell(column[i]) for column in columns)
        rows.append(f'<tr><td class="number">{context:,}</td>{cells}</tr>')
    return _section(
        "Context and concurrency",
        "How many requests of a length (prompt and answer) run at once in a memory budget, at most "
        f"{header['requests_max']:,}. The pool and the number of requests are chosen when the plan is "
        "opened, without a rebuild. Hover for the sum.",
        f'<table><thead><tr><th class="number">tokens</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>",
    )


def page_text(
    tables: PlanTables,
    kv_tokens: int | None = None,
    requests: int | None = None,
    programs: Sequence[ProgramEntry] | None = None,
    budgets: Sequence[int] | None = None,
) -> str:
    """The page. None: the plan's pool, its largest body and head program, and `default_budgets`.

    Raises ValueError for a pool or a number of requests over the plan's ceilings.
    """
    found = memory_map(tables, kv_tokens, requests)
    chosen = (
        tuple(largest_program(tables, family) for family in (Family.BODY, Family.HEAD))
        if programs is None
        else tuple(programs)
    )
    pictures, kinds = [], 0
    for program in chosen:
        pictures.append(_arena(tables, program, kinds))
        kinds += len(arena_kinds(arena_tensors(tables, program)))
    title = escape(plan_title(tables))
    sections = (
        _figures(found),
        _map(found),
        _concurrency(tables, default_budgets(found.total_bytes) if budgets is None else budgets),
        *pictures,
        _programs(tables),
    )
    return "\n".join((
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">', _POLICY,
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Memory of {title}</title>\n<style>\n{_styles(kinds)}\n</style>\n</head>\n<body>",
        f'<h1>Memory map</h1><p class="soft">{title}</p>', *sections, "</body>\n</html>\n",
    ))  # fmt: skip


def write_text(path: Path, text: str) -> None:
    """Puts `text` (UTF-8) at `path` by one rename: the path holds what was there before, or all of it.

    Raises OSError, and then leaves nothing behind.
    """
    target = Path(os.path.realpath(path))
    fd, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def memory_page(
    tables: PlanTables,
    path: Path,
    kv_tokens: int | None = None,
    requests: int | None = None,
    programs: Sequence[ProgramEntry] | None = None,
    budgets: Sequence[int] | None = None,
) -> None:
    """Writes `page_text` to `path`, whole or not at all. Raises OSError and ValueError."""
    write_text(path, page_text(tables, kv_tokens, requests, programs, budgets))
