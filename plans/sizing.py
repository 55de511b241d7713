"""How many bytes a plan takes, for any pool and number of requests: pure arithmetic on its tables.

The compiler's dry run and `inspect` share it, so what a dry run promises is what a plan shows and what
opening it reserves. Every size is a sum whose terms are listed, one per consumer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .layout import GRANULE_TOKENS, Region, region_bytes
from .records import PlanTables, RegionEntry


@dataclass(frozen=True, slots=True)
class RegionSize:
    """What one region reserves, in bytes; `bytes` includes the rounding of each part to a page."""

    kind: Region
    bytes: int
    fixed: int
    granules: int  # bytes_per_granule * granules
    requests: int  # bytes_per_request * requests


@dataclass(frozen=True, slots=True)
class Sizing:
    """A plan's memory for `granules` of pool and `requests` slots. total_bytes is the sum over `regions`."""

    granules: int
    requests: int
    regions: tuple[RegionSize, ...]
    total_bytes: int

    @property
    def kv_tokens(self) -> int:
        return self.granules * GRANULE_TOKENS


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many requests of `context` tokens run at once within a memory budget, and what bounds their number.

    `sizing` is the memory of exactly that many; None when not even one fits. `bound` is "memory", "requests"
    (the plan's ceiling on slots) or "granules" (its ceiling on the pool). `one_bytes` is what a plan with one
    such request takes.
    """

    context: int
    granules_each: int
    requests: int
    bound: str
    one_bytes: int
    sizing: Sizing | None


def granules_for(tokens: int) -> int:
    """Granules of a lease of that many tokens (prompt + generated)."""
    return -(-tokens // GRANULE_TOKENS)


def region_size(region: RegionEntry, granules: int, requests: int) -> RegionSize:
    total = region_bytes(
        region.bytes_fixed, region.bytes_per_granule, region.bytes_per_request, granules, requests
    )
    return RegionSize(
        region.kind,
        total,
        region.bytes_fixed,
        region.bytes_per_granule * granules,
        region.bytes_per_request * requests,
    )


def sizing(tables: PlanTables, kv_tokens: int | None = None, requests: int | None = None) -> Sizing:
    """The memory that opening the plan reserves. None takes the plan's default. Raises ValueError over a
    ceiling.
    """
    header: Any = tables.header
    granules = header["granules_default"] if kv_tokens is None else granules_for(kv_tokens)
    slots = header["requests_default"] if requests is None else requests
    if not 1 <= granules <= header["granules_max"]:
        most = header["granules_max"] * GRANULE_TOKENS
        raise ValueError(f"{kv_tokens} kv tokens: the plan allows 1 to {most}")
    if not 1 <= slots <= header["requests_max"]:
        raise ValueError(f"{slots} requests: the plan allows 1 to {header['requests_max']}")
    return _sized(tables, granules, slots)


def _sized(tables: PlanTables, granules: int, requests: int) -> Sizing:
    regions = tuple(region_size(region, granules, requests) for region in tables.regions)
    return Sizing(granules, requests, regions, sum(region.bytes for region in regions))


def concurrency(tables: PlanTables, memory_bytes: int, context: int) -> Concurrency:
    """The most requests of `context` tokens whose slots and granules fit in `memory_bytes`, under the plan's
    ceilings.
    """
    header: Any = tables.header
    each = granules_for(context)
    ceiling = min(header["requests_max"], header["granules_max"] // each)
    one = _sized(tables, each, 1).total_bytes
    low, high = 0, ceiling  # total_bytes grows with requests: the most that fit, by bisection
    while low < high:
        middle = (low + high + 1) // 2
        if _sized(tables, middle * each, middle).total_bytes <= memory_bytes:
            low = middle
        else:
            high = middle - 1
    ceiling_name = "requests" if ceiling == header["requests_max"] else "granules"
    bound = ceiling_name if low == ceiling else "memory"
    return Concurrency(context, each, low, bound, one, _sized(tables, low * each, low) if low else None)


def default_contexts(context: int) -> tuple[int, ...]:
    """Context lengths worth showing: powers of two from 512 up, and the plan's context."""
    lengths = []
    length = 512
    while length < context:
        lengths.append(length)
        length *= 2
    return (*lengths, context)


def concurrency_table(
    tables: PlanTables, memory_bytes: int, contexts: Iterable[int] | None = None
) -> tuple[Concurrency, ...]:
    """One line per context length. Lengths above the plan's context raise ValueError."""
    header: Any = tables.header
    most = int(header["context"])
    chosen = default_contexts(most) if contexts is None else tuple(contexts)
    for context in chosen:
        if not 1 <= context <= most:
            raise ValueError(f"a context of {context} tokens: the plan allows 1 to {most}")
    return tuple(concurrency(tables, memory_bytes, context) for context in chosen)


def format_bytes(count: int) -> str:
    """Bytes for people, in powers of 1024: `17 B`, `4.0 KiB`, `138.2 MiB`."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1023.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"
