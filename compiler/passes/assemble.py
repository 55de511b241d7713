"""Assemble: constants, programs and pools become the tables of a plan; names become indices, costs become
bytes.

This is the only place that knows all regions. Every size is the sum of its named tensors; nothing is reserved
"for later".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...plans.layout import (
    COMMAND_TENSORS,
    ENGINE_BYTES,
    EVENT,
    EVENT_RING_ENTRIES,
    GRANULE_TOKENS,
    HUGE_PAGE_BYTES,
    NONE_INDEX,
    PAGE_BYTES,
    SAMPLING,
    STATE_TENSORS,
    TENSOR_ALIGNMENT,
    TOP_LOGPROBS_MAX,
    Dtype,
    Layout,
    Region,
    Section,
    Unit,
    round_up,
    tensor_bytes,
)
from ...plans.records import CommandEntry, PlanTables, ProgramEntry, RegionEntry, TensorEntry
from ..graph.graph import Graph, Kind
from ..graph.ops.definition import Cost
from .layout import ConstantTable, scale_name
from .schedule import Draft, Program


@dataclass(frozen=True, slots=True)
class Part:
    """The tensors of one unit of one region, and where the next one goes."""

    region: Region
    unit: Unit
    tensors: list[TensorEntry]

    def add(self, name: str, dtype: Dtype, dims: tuple[int, ...]) -> None:
        size = tensor_bytes(dims, dtype, Layout.ROWS)
        self.tensors.append(
            TensorEntry(name, self.region, self.unit, dtype, Layout.ROWS, dims, self.bytes, size)
        )

    @property
    def bytes(self) -> int:
        """End of the last tensor, rounded up to the alignment of the next."""
        if not self.tensors:
            return 0
        return round_up(self.tensors[-1].offset + self.tensors[-1].bytes, TENSOR_ALIGNMENT)


def state_dims(symbols: str, header: Mapping[str, int]) -> tuple[int, ...]:
    """Dimensions of a table of `STATE_TENSORS` from its symbols and the header's fields."""
    known = {
        "ENGINE_BYTES": ENGINE_BYTES, "EVENT_BYTES": EVENT_RING_ENTRIES * EVENT.bytes, "Y": SAMPLING.bytes,
        "S": header["context"], "V": header["vocabulary"], "C": -(-header["context"] // GRANULE_TOKENS),
        "M": header["rows_max"], "L": header["head_rows_max"], "H": header["hidden"],
        "B": 1 + TOP_LOGPROBS_MAX,
    }  # fmt: skip
    return tuple(known[symbol] if symbol in known else int(symbol) for symbol in symbols.split())


def _tables(header: Mapping[str, int]) -> dict[tuple[Region, Unit], Part]:
    parts = {(region, unit): Part(region, unit, []) for region in Region for unit in Unit}
    for name, (region, unit, dtype, symbols) in STATE_TENSORS.items():
        parts[region, unit].add(name, dtype, state_dims(symbols, header))
    return parts


def _kv(part: Part, body: Graph) -> None:
    for tensor in body.tensors.values():
        if tensor.kind != Kind.KV:
            continue
        part.add(tensor.name, tensor.dtype, tensor.shape)
        if tensor.dtype == Dtype.I8:  # one scale per token and head
            part.add(scale_name(tensor.name), Dtype.F16, (tensor.shape[0], GRANULE_TOKENS))


def _arena_name(program: Program, name: str) -> str:
    return f"{program.family.name.lower()}.{program.rows}/{name}"


def _region(kind: Region, parts: Mapping[tuple[Region, Unit], Part], arena_bytes: int) -> RegionEntry:
    section = {Region.WEIGHTS: Section.WEIGHTS, Region.SCALES: Section.SCALES}.get(kind)
    fixed = arena_bytes if kind == Region.ARENA else parts[kind, Unit.FIXED].bytes
    large = kind in (Region.WEIGHTS, Region.KV) or fixed >= HUGE_PAGE_BYTES
    return RegionEntry(
        kind,
        int(section) if section else 0,
        fixed,
        parts[kind, Unit.GRANULE].bytes,
        parts[kind, Unit.REQUEST].bytes,
        HUGE_PAGE_BYTES if large else PAGE_BYTES,
    )


def assemble(
    header: Mapping[str, int], constants: ConstantTable, body: Graph, programs: tuple[Program, ...]
) -> PlanTables:
    """The tables of a plan (META and texts are the caller's). `programs`: bodies by rows, then heads by
    rows."""
    parts = _tables(header)
    for constant in constants.constants.values():
        parts[constant.entry.region, Unit.FIXED].tensors.append(constant.entry)
    _kv(parts[Region.KV, Unit.GRANULE], body)

    tensors: list[TensorEntry] = []
    spans: list[tuple[int, int]] = []
    for region in Region:
        for unit in Unit:
            tensors += parts[region, unit].tensors
        if region != Region.ARENA:
            continue
        base = 0
        for program in programs:
            spans.append((len(tensors), len(program.arena)))
            for item in program.arena:
                tensors.append(TensorEntry(
                    _arena_name(program, item.name), region, Unit.FIXED, item.dtype, Layout.ROWS, item.dims,
                    item.offset, item.bytes, base + item.first, base + item.last,
                ))  # fmt: skip
            base += len(program.commands)
    index = {tensor.name: i for i, tensor in enumerate(tensors)}
    assert len(index) == len(tensors), "tensor names are unique"

    commands: list[CommandEntry] = []
    entries: list[ProgramEntry] = []
    for program, (begin, count) in zip(programs, spans, strict=True):
        entries.append(
            ProgramEntry(
                program.family,
                program.rows,
                len(commands),
                len(program.commands),
                begin,
                count,
                program.arena_bytes,
                program.arena_lower_bound,
            )
        )
        arena = {item.name for item in program.arena}
        commands += [
            _command(draft, cost, program, arena, index)
            for draft, cost in zip(program.commands, program.costs, strict=True)
        ]
    arena_bytes = round_up(max(program.arena_bytes for program in programs), TENSOR_ALIGNMENT)
    regions = tuple(_region(kind, parts, arena_bytes) for kind in Region)
    return PlanTables(header, regions, tuple(tensors), tuple(entries), tuple(commands), {})


def _command(
    draft: Draft, cost: Cost, program: Program, arena: set[str], index: Mapping[str, int]
) -> CommandEntry:
    indices = [
        NONE_INDEX if name is None else index[_arena_name(program, name) if name in arena else name]
        for name in draft.operands
    ]
    indices += [NONE_INDEX] * (COMMAND_TENSORS - len(indices))
    return CommandEntry(
        draft.kernel, int(draft.flags), NONE_INDEX if draft.layer is None else draft.layer, tuple(indices),
        (*draft.f, *[0.0] * (4 - len(draft.f))), (*draft.u, *[0] * (6 - len(draft.u))),
        cost.bytes, cost.flops,
    )  # fmt: skip
