"""The memory report as tables for a terminal: the map of all regions, and context x concurrency.

`page.py` shows the same facts as a picture. Both take what they say from `terms.py` and `plans/sizing.py`.
"""

from __future__ import annotations

from rich.console import Group, JustifyMethod, OverflowMethod, RenderableType
from rich.table import Table
from rich.text import Text

from ...plans.records import PlanTables
from ...plans.sizing import Concurrency, format_bytes
from .terms import BASE_PROCESS_BYTES, MemoryMap, memory_map

BASE_TEXT = (
    f"besides the regions, a process takes its own base: at most {format_bytes(BASE_PROCESS_BYTES)} for the "
    "native runtime, and its interpreter and tokenizer when it is Python"
)


def _table(title: str, *columns: str, left: int = 1) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):  # where a line is too long, the words in the second column wrap
        words = left == 2 and i == 1
        overflow: OverflowMethod = "fold" if words else "ellipsis"
        justify: JustifyMethod = "left" if i < left else "right"
        table.add_column(column, justify=justify, no_wrap=not words, overflow=overflow)
    return table


def share_text(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def render_map(found: MemoryMap) -> RenderableType:
    """The memory map: each region in bold, its terms below it, exact bytes that add up, and the
    base process.
    """
    title = f"memory at {found.kv_tokens:,} kv tokens and {found.requests} requests"
    table = _table(title, "region", "= sum of", "bytes", "", "share", left=2)
    for region in found.regions:
        cells = (region.kind.name.lower(), "", f"{region.bytes:,}", format_bytes(region.bytes))
        table.add_row(*cells, share_text(region.bytes, found.total_bytes), style="bold")
        for term in region.terms:
            name = Text(f"  {term.name}", style="dim")
            table.add_row(name, Text(term.sum, style="dim"), Text(f"{term.bytes:,}", style="dim"), "", "")
    total = (f"{found.total_bytes:,}", format_bytes(found.total_bytes), "100.0 %")
    table.add_row("total", "what opening the plan reserves", *total, style="bold", end_section=True)
    return Group(table, Text(BASE_TEXT, style="dim"))


def memory_table(
    tables: PlanTables, kv_tokens: int | None = None, requests: int | None = None
) -> RenderableType:
    """`render_map` of the plan; None takes the plan's defaults. Raises ValueError over the plan's
    ceilings.
    """
    return render_map(memory_map(tables, kv_tokens, requests))


def summary_table(found: MemoryMap) -> RenderableType:
    """The memory map with one line a region: its bytes, its share, and its largest term."""
    title = f"memory at {found.kv_tokens:,} kv tokens and {found.requests} requests"
    table = _table(title, "region", "mostly", "bytes", "", "share", left=2)
    for region in found.regions:
        largest = max(region.terms, key=lambda term: term.bytes, default=None)
        mostly = f"{largest.name}: {largest.sum}" if largest else ""
        numbers = (f"{region.bytes:,}", format_bytes(region.bytes))
        table.add_row(
            region.kind.name.lower(), Text(mostly), *numbers, share_text(region.bytes, found.total_bytes)
        )
    table.add_row("total", "", f"{found.total_bytes:,}", format_bytes(found.total_bytes), "", style="bold")
    return table


def concurrency_text(entries: tuple[Concurrency, ...], memory_bytes: int) -> RenderableType:
    """Context x concurrency for a budget: how many requests of each length run at once, what bounds them, and
    the sum behind it.
    """
    title = f"requests at once in {format_bytes(memory_bytes)} ({memory_bytes:,} bytes)"
    columns = ("context", "requests", "bound by", "kv tokens", "total", "one request takes")
    table = _table(title, *columns, left=0)
    for entry in entries:
        if entry.sizing is None:
            cells = ["-", "-"]
        else:
            cells = [f"{entry.sizing.kv_tokens:,}", format_bytes(entry.sizing.total_bytes)]
        one = format_bytes(entry.one_bytes)
        table.add_row(f"{entry.context:,}", f"{entry.requests:,}", entry.bound, *cells, one)
    return table
