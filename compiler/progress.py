"""How a build says where it is: one stage at a time, each with a total in a unit. It knows only the protocol.

`NullProgress` says nothing, `RichProgress` draws a bar on a terminal, `LineProgress` prints plain lines that
read well in a log. All of them write to stderr, so that stdout carries results only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from ..plans.sizing import format_bytes

LINE_INTERVAL_SECONDS = 5.0  # a log gets at most one line per this long within a stage


class Progress(Protocol):
    """Where a build reports. Calls are cheap; none of them raises."""

    def stage(self, name: str, total: int = 0, unit: str = "") -> None:
        """Begin a stage and end the one before: `total` counts of `unit` ("layers", "bytes"); 0: unknown."""
        ...

    def advance(self, count: int = 1) -> None:
        """`count` more of the stage's unit are done."""
        ...

    def note(self, text: str) -> None:
        """One line worth reading that is not an error."""
        ...

    def done(self) -> None:
        """No more stages follow. Calling it twice is allowed."""
        ...


def count_text(count: int, unit: str) -> str:
    """A count with its unit: bytes in binary units, everything else with thousands separated."""
    return format_bytes(count) if unit == "bytes" else f"{count:,} {unit}".rstrip()


class NullProgress:
    """Says nothing."""

    def stage(self, name: str, total: int = 0, unit: str = "") -> None:
        pass

    def advance(self, count: int = 1) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def done(self) -> None:
        pass


class LineProgress:
    """Plain lines: one when a stage begins, one every few seconds with the time left, one when it ends."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._name = ""
        self._unit = ""
        self._total = 0
        self._count = 0
        self._begin = 0.0
        self._printed = 0.0

    def stage(self, name: str, total: int = 0, unit: str = "") -> None:
        self._end_stage()
        self._name, self._total, self._unit, self._count = name, total, unit, 0
        self._begin = self._printed = self._clock()
        self._print(f"{name}: {count_text(total, unit)}" if total else name)

    def advance(self, count: int = 1) -> None:
        self._count += count
        now = self._clock()
        if now - self._printed < LINE_INTERVAL_SECONDS or not self._name:
            return
        self._printed = now
        text = f"{self._name}: {count_text(self._count, self._unit)}"
        if self._total and self._count:
            seconds_left = (now - self._begin) * max(self._total - self._count, 0) / self._count
            text += f" of {count_text(self._total, self._unit)}, about {seconds_left:.0f} s left"
        self._print(text)

    def note(self, text: str) -> None:
        self._print(text)

    def done(self) -> None:
        self._end_stage()

    def _end_stage(self) -> None:
        if self._name:
            self._print(f"{self._name}: done in {self._clock() - self._begin:.1f} s")
        self._name = ""

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class RichProgress:
    """A bar per stage on a terminal: name, bar, count of total, time spent and time left."""

    def __init__(self, console: Console | None = None) -> None:
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[count]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console if console is not None else Console(stderr=True),
        )
        self._task: TaskID | None = None
        self._unit = ""
        self._total = 0
        self._count = 0
        self._width = 0

    def stage(self, name: str, total: int = 0, unit: str = "") -> None:
        self._end_stage()
        self._bars.start()
        self._unit, self._total, self._count = unit, total, 0
        self._width = max(self._width, len(name))
        self._task = self._bars.add_task(name.ljust(self._width), total=total or None, count=self._text())

    def advance(self, count: int = 1) -> None:
        if self._task is None:
            return
        self._count += count
        self._bars.update(self._task, advance=count, count=self._text())

    def note(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False)

    def done(self) -> None:
        self._end_stage()
        self._bars.stop()

    def _end_stage(self) -> None:
        """A stage that ends is full, whatever it counted: the total may have been an estimate."""
        if self._task is not None:
            total = self._total or max(self._count, 1)
            self._bars.update(self._task, total=total, completed=total)
        self._task = None

    def _text(self) -> str:
        if self._total and self._unit == "bytes":
            return f"{format_bytes(self._count)} of {format_bytes(self._total)}"
        if self._total:
            return f"{self._count:,} of {self._total:,} {self._unit}".rstrip()
        return count_text(self._count, self._unit) if self._count else ""
