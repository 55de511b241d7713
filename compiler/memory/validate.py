"""The independent checker of a placement (INV-03): short, quadratic, obvious; no code is shared with
`place.py`.

It looks at every pair of tensors, and counts the bytes alive at every command one by one, so that a mistake
in the solver's sweep or sorting cannot hide here as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...plans.layout import TENSOR_ALIGNMENT
from .place import Interval, Placement


class PlacementError(Exception):
    """A placement that would let two tensors corrupt each other, or that misstates its own size: a compiler
    bug.
    """


def check(intervals: Sequence[Interval], placement: Placement, alignment: int = TENSOR_ALIGNMENT) -> None:
    """Raises PlacementError at the first fault, naming the tensors and the numbers."""
    if len(placement.offsets) != len(intervals):
        raise PlacementError(f"{len(intervals)} tensors have {len(placement.offsets)} offsets")
    blocks = list(zip(intervals, placement.offsets, strict=True))
    for tensor, offset in blocks:
        if tensor.bytes <= 0 or tensor.first < 0 or tensor.last < tensor.first:
            raise PlacementError(
                f"{tensor.name} has {tensor.bytes} bytes, alive from command {tensor.first} to {tensor.last}"
            )
        if offset < 0 or offset % alignment != 0:
            raise PlacementError(f"{tensor.name} lies at {offset}, not at a multiple of {alignment}")
        end = offset + tensor.bytes
        if end > placement.arena_bytes:
            raise PlacementError(
                f"{tensor.name} ends at {end}, beyond the {placement.arena_bytes} byte arena"
            )
    for i, (one, one_offset) in enumerate(blocks):
        for other, other_offset in blocks[:i]:
            both_alive = one.first <= other.last and other.first <= one.last
            share = one_offset < other_offset + other.bytes and other_offset < one_offset + one.bytes
            if both_alive and share:
                raise PlacementError(
                    f"{one.name} (bytes {one_offset} to {one_offset + one.bytes}, commands {one.first} to "
                    f"{one.last}) and {other.name} (bytes {other_offset} to {other_offset + other.bytes}, "
                    f"commands {other.first} to {other.last}) share bytes while both are alive"
                )
    most = most_alive(intervals, alignment)
    if placement.lower_bound != most:
        raise PlacementError(f"the lower bound says {placement.lower_bound}; {most} bytes are alive at once")
    if placement.arena_bytes < most:
        raise PlacementError(
            f"an arena of {placement.arena_bytes} bytes cannot hold {most} bytes alive at once"
        )


def most_alive(intervals: Sequence[Interval], alignment: int) -> int:
    """Most bytes alive at one command, each tensor filling whole units of `alignment`.

    The most is reached where some tensor begins, so those commands are the only ones looked at.
    """
    return max(
        (
            sum(-(-t.bytes // alignment) * alignment for t in intervals if t.first <= command <= t.last)
            for command in {t.first for t in intervals}
        ),
        default=0,
    )
