"""What each region of a plan is for: its bytes as a sum of named terms, one per consumer, that adds up
exactly.

Tensors that differ only in their layer are one term. What alignment and pages add is a term too, so that a
region's terms sum to `layout.region_bytes`, which is what the runtime reserves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ...plans.layout import GRANULE_TOKENS, Dtype, Family, Region, Unit
from ...plans.records import PlanTables, ProgramEntry, RegionEntry, TensorEntry
from ...plans.sizing import region_size, sizing

# What a process that runs a plan takes besides the regions: code, libc, stacks, the tables of the plan.
# tests/runtime/core/test_memory.py holds the native runtime to it; Python adds interpreter and tokenizer.
BASE_PROCESS_BYTES = 4 << 20
_LAYER = re.compile(r"(?:^|(?<=[./]))layer\.?\d+\.")


@dataclass(frozen=True, slots=True)
class Term:
    """One consumer's share of a region: what it is, how its bytes come about, and the bytes."""

    name: str
    sum: str
    bytes: int


@dataclass(frozen=True, slots=True)
class RegionTerms:
    """A region's bytes and the terms that add up to them."""

    kind: Region
    bytes: int
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """All regions of a plan opened with `granules` of KV and `requests` slots; bytes are exact."""

    granules: int
    requests: int
    total_bytes: int
    regions: tuple[RegionTerms, ...]

    @property
    def kv_tokens(self) -> int:
        return self.granules * GRANULE_TOKENS


def kind_of(name: str) -> str:
    """A tensor's name without its program and layer: `body.16/layer.3.qkv` and `layer.7.qkv` are
    both `qkv`.
    """
    return _LAYER.sub("", name.rsplit("/", 1)[-1])


def program_name(program: ProgramEntry) -> str:
    return f"{program.family.name.lower()}[{program.rows}]"


def largest_program(tables: PlanTables, family: Family | None = None) -> ProgramEntry:
    """The program that needs the most arena; of `family` when given."""
    programs = [program for program in tables.programs if family in (None, program.family)]
    return max(programs, key=lambda program: program.arena_bytes)


def memory_map(tables: PlanTables, kv_tokens: int | None = None, requests: int | None = None) -> MemoryMap:
    """The memory that opening the plan reserves, term by term; None takes the plan's default.

    Raises ValueError for a pool or a number of requests over the plan's ceilings.
    """
    chosen = sizing(tables, kv_tokens, requests)
    regions = []
    for entry in tables.regions:
        total = region_size(entry, chosen.granules, chosen.requests).bytes
        if entry.kind == Region.ARENA:
            terms = _arena(tables, entry)
        else:
            tensors = [tensor for tensor in tables.tensors if tensor.region == entry.kind]
            terms = _tensors(tensors, chosen.granules, chosen.requests)
        rest = total - sum(term.bytes for term in terms)
        assert rest >= 0, f"the tensors of {entry.kind.name} take {-rest} bytes more than the region"
        if rest:
            terms.append(Term("alignment", "tensors to 64 bytes, parts to pages of 4096", rest))
        regions.append(RegionTerms(entry.kind, total, tuple(terms)))
    return MemoryMap(chosen.granules, chosen.requests, chosen.total_bytes, tuple(regions))


def _arena(tables: PlanTables, entry: RegionEntry) -> list[Term]:
    """The arena is shared by all programs: the largest one decides."""
    largest = largest_program(tables)
    bound = min(largest.arena_lower_bound, entry.bytes_fixed)
    terms = [Term(f"largest program {program_name(largest)}", "most bytes alive at one command", bound)]
    if over := largest.arena_bytes - bound:
        terms.append(Term("placement", f"over the lower bound by {100 * over / bound:.1f} %", over))
    return terms


def _tensors(tensors: list[TensorEntry], granules: int, requests: int) -> list[Term]:
    """One term per kind of tensor and unit, in the order of the region."""
    times = {Unit.FIXED: 1, Unit.GRANULE: granules, Unit.REQUEST: requests}
    groups: dict[tuple[Unit, str, Dtype], list[TensorEntry]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.unit, kind_of(tensor.name), tensor.dtype), []).append(tensor)
    terms = []
    for (unit, name, dtype), members in groups.items():
        once = sum(tensor.bytes for tensor in members)
        factors = [] if unit == Unit.FIXED else [f"{times[unit]:,} {unit.name.lower()}s"]
        if len(members) > 1 and len({tensor.bytes for tensor in members}) == 1:
            factors.append(f"{len(members)} layers")
            factors.append(f"{members[0].bytes:,} bytes")
        else:
            factors.append(f"{once:,} bytes")
        terms.append(Term(f"{name} ({dtype.name.lower()})", " x ".join(factors), once * times[unit]))
    return terms


def plan_title(tables: PlanTables) -> str:
    """The model's name and numerics in one line."""
    header: Any = tables.header
    weights, kv = (Dtype(header[f"{part}_dtype"]).name.lower() for part in ("weights", "kv"))
    name = tables.meta.get("name") or tables.meta.get("architecture") or "model"
    return f"{name}: weights {weights}, kv {kv}, context {header['context']:,} tokens"
