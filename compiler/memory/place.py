"""Placement: every tensor of a program gets a fixed offset in the arena, so that no two alive at once
overlap.

Greedy on lifetimes (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020;
TFLite's planner): tensor after tensor goes into the smallest gap that fits among those already placed and
alive with it, else above them. Largest first is the usual order; on some decoders it wastes up to 13 %, where
the two other orders of `ORDERS` reach the bound, so all are tried until one does. The result comes with a
certificate: the most bytes alive at one command, below which no placement can go. The same intervals give the
same offsets.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...plans.layout import TENSOR_ALIGNMENT, round_up


@dataclass(frozen=True, slots=True)
class Interval:
    """A tensor's size in bytes and its lifetime: commands `first` to `last`, both inclusive."""

    name: str
    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Placement:
    """offsets[i] belongs to intervals[i]; all in bytes. lower_bound <= arena_bytes; equal means optimal."""

    offsets: tuple[int, ...]
    arena_bytes: int
    lower_bound: int


def lower_bound(intervals: Sequence[Interval], alignment: int = TENSOR_ALIGNMENT) -> int:
    """Most bytes alive at one command, each tensor rounded up to the alignment: a sweep over begins
    and ends.
    """
    changes: dict[int, int] = {}
    for interval in intervals:
        size = round_up(interval.bytes, alignment)
        changes[interval.first] = changes.get(interval.first, 0) + size
        changes[interval.last + 1] = changes.get(interval.last + 1, 0) - size
    alive = most = 0
    for command in sorted(changes):
        alive += changes[command]
        most = max(most, alive)
    return most


def _best_gap(size: int, interval: Interval, placed: Sequence[tuple[int, int, Interval]]) -> int:
    """Offset of the smallest gap of at least `size` between tensors alive with `interval`, else above them.

    `placed` holds (offset, end, interval) by offset. Among equal gaps the lowest wins.
    """
    end = 0  # highest end of the neighbours so far: a gap begins here
    best_offset, best_gap = -1, 0
    for offset, neighbour_end, neighbour in placed:
        if neighbour.last < interval.first or interval.last < neighbour.first:
            continue
        gap = offset - end
        if gap >= size and (best_offset < 0 or gap < best_gap):
            best_offset, best_gap = end, gap
        end = max(end, neighbour_end)
    return end if best_offset < 0 else best_offset


def _largest(interval: Interval) -> tuple[int, ...]:
    return (-interval.bytes, interval.first, interval.last)


def _longest(interval: Interval) -> tuple[int, ...]:
    return (interval.first - interval.last, -interval.bytes, interval.first)


def _earliest(interval: Interval) -> tuple[int, ...]:
    return (interval.first, -interval.last, -interval.bytes)


# In which order tensors are placed, best first; the remaining ties go by name, then by index.
ORDERS: tuple[Callable[[Interval], tuple[int, ...]], ...] = (_largest, _longest, _earliest)


def _sorted(intervals: Sequence[Interval], key: Callable[[Interval], tuple[int, ...]]) -> list[int]:
    return sorted(range(len(intervals)), key=lambda i: (*key(intervals[i]), intervals[i].name, i))


def _greedy(intervals: Sequence[Interval], order: Sequence[int], alignment: int) -> Placement:
    """Places the intervals in this order. The bound is left 0: it does not depend on the order."""
    offsets = [0] * len(intervals)
    placed: list[tuple[int, int, Interval]] = []
    for index in order:
        size = round_up(intervals[index].bytes, alignment)
        offset = _best_gap(size, intervals[index], placed)
        offsets[index] = offset
        insort(placed, (offset, offset + size, intervals[index]), key=lambda entry: entry[:2])
    return Placement(tuple(offsets), max((end for _, end, _ in placed), default=0), 0)


def place(intervals: Sequence[Interval], alignment: int = TENSOR_ALIGNMENT) -> Placement:
    """Offsets for all intervals, multiples of `alignment`; O(n^2). The smallest arena of all orders wins.

    An interval without bytes or with an end before its begin is a bug of the caller.
    """
    for interval in intervals:
        assert interval.bytes > 0, f"{interval.name} has {interval.bytes} bytes"
        assert 0 <= interval.first <= interval.last, f"{interval.name}: {interval.first} to {interval.last}"
    bound = lower_bound(intervals, alignment)
    best: Placement | None = None
    for key in ORDERS:
        found = _greedy(intervals, _sorted(intervals, key), alignment)
        if best is None or found.arena_bytes < best.arena_bytes:
            best = found
        if best.arena_bytes == bound:
            break
    assert best is not None
    assert best.arena_bytes >= bound, f"an arena of {best.arena_bytes} bytes is below its bound of {bound}"
    return Placement(best.offsets, best.arena_bytes, bound)
