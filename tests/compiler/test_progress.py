"""How a build reports: plain lines for logs, bars for terminals, nothing when quiet."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

import pytest
from ingot.compiler.progress import LineProgress, NullProgress, Progress, RichProgress
from rich.console import Console


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_lines_say_what_when_and_how_much_is_left() -> None:
    """Goal: a line at the begin, at most one every 5 seconds with the time left, and one at the end."""
    stream, clock = StringIO(), Clock()
    progress = LineProgress(stream, clock)
    progress.stage("write weights", 4 << 20, "bytes")
    for _ in range(4):
        clock.seconds += 3
        progress.advance(1 << 20)
    progress.note("a note")
    progress.stage("verify")
    clock.seconds += 1.25
    progress.done()
    progress.done()
    assert stream.getvalue().splitlines() == [
        "write weights: 4.0 MiB",
        "write weights: 2.0 MiB of 4.0 MiB, about 6 s left",
        "write weights: 4.0 MiB of 4.0 MiB, about 0 s left",
        "a note",
        "write weights: done in 12.0 s",
        "verify",
        "verify: done in 1.2 s",
    ]


def test_lines_without_a_total_count() -> None:
    """Goal: an unknown total shows the count and promises no time."""
    stream, clock = StringIO(), Clock()
    progress = LineProgress(stream, clock)
    progress.stage("read", 0, "tensors")
    clock.seconds += 6
    progress.advance(1234)
    assert stream.getvalue().splitlines() == ["read", "read: 1,234 tensors"]


def test_bars_show_counts_and_units() -> None:
    """Goal: on a terminal each stage is a bar with its count of its unit, and text is no markup."""
    stream = StringIO()
    progress = RichProgress(Console(file=stream, force_terminal=True, width=120))
    progress.stage("calibrate [b]", 30, "layers")
    progress.advance(30)
    progress.note("note [red]")
    progress.stage("write weights", 2048, "bytes")
    progress.advance(2048)
    progress.done()
    shown = stream.getvalue()
    for text in ("calibrate [b]", "30 of 30 layers", "note [red]", "2.0 KiB of 2.0 KiB"):
        assert text in shown


@pytest.mark.parametrize(
    "make",
    [
        NullProgress,
        lambda: LineProgress(StringIO()),
        lambda: RichProgress(Console(file=StringIO(), force_terminal=True)),
        lambda: RichProgress(Console(file=StringIO())),
    ],
)
def test_any_order_of_calls_is_allowed(make: Callable[[], Progress]) -> None:
    """Goal: progress never breaks a build: advances before a stage, beyond its total, after the end."""
    progress = make()
    progress.advance()
    progress.done()
    progress.stage("one", 1)
    progress.advance(5)
    progress.stage("two")
    progress.advance(0)
    progress.done()
    progress.advance()
    progress.done()
