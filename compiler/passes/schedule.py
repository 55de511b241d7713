"""Schedule: a fused graph of one bucket becomes a program: commands in order, and its arena tensors with
lifetimes placed.

A command is a barrier, so an arena tensor lives from the command that writes it to the last that reads it,
both inclusive. Placement is solved by `memory/place.py` and checked by `memory/validate.py`, which shares no
code with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...plans.layout import Dtype, Family, Flag, Kernel, Layout, tensor_bytes
from ..graph.graph import Graph, Kind, Op, Tensor
from ..graph.ops import REGISTRY
from ..graph.ops.definition import Cost, Signature
from ..memory.place import Interval, Placement, place
from ..memory.validate import check


@dataclass(frozen=True, slots=True)
class Draft:
    """A command before its tensors have indices: operand names by position (None: absent) and its scratch
    tensors."""

    kernel: Kernel
    flags: Flag
    layer: int | None
    operands: tuple[str | None, ...]
    f: tuple[float, ...] = ()
    u: tuple[int, ...] = ()
    scratch: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class ArenaTensor:
    """An arena tensor of a program: offset and size in bytes, lifetime in command indices of the program."""

    name: str
    dtype: Dtype
    dims: tuple[int, ...]
    bytes: int
    offset: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Program:
    """A scheduled bucket: `commands` name their operands; arena tensors are sorted by offset."""

    family: Family
    rows: int
    commands: tuple[Draft, ...]
    costs: tuple[Cost, ...]
    arena: tuple[ArenaTensor, ...]
    arena_bytes: int
    arena_lower_bound: int


def _cost(graph: Graph, op: Op) -> Cost:
    inputs = {role: graph.tensors[name] for role, name in op.inputs.items()}
    return REGISTRY[op.kind].cost(Signature(graph.rows, inputs, op.attributes))


def schedule(graph: Graph, family: Family, lower: Callable[[Graph, Op], Draft]) -> Program:
    """Commands and a checked arena placement for one bucket."""
    commands = tuple(lower(graph, op) for op in graph.ops)
    tensors = {name: tensor for name, tensor in graph.tensors.items() if tensor.kind == Kind.ACTIVATION}
    for command in commands:
        tensors |= {tensor.name: tensor for tensor in command.scratch}
    lives: dict[str, tuple[int, int]] = {}
    for index, command in enumerate(commands):
        for name in command.operands:
            if name in tensors:
                lives[name] = (lives[name][0] if name in lives else index, index)
    intervals = [
        Interval(name, tensor_bytes(tensors[name].shape, tensors[name].dtype, Layout.ROWS), first, last)
        for name, (first, last) in lives.items()
    ]
    placement: Placement = place(intervals)
    check(intervals, placement)
    arena = [
        ArenaTensor(
            item.name,
            tensors[item.name].dtype,
            tensors[item.name].shape,
            item.bytes,
            offset,
            item.first,
            item.last,
        )
        for item, offset in zip(intervals, placement.offsets, strict=True)
    ]
    arena.sort(key=lambda tensor: (tensor.offset, tensor.first, tensor.name))
    costs = tuple(_cost(graph, op) for op in graph.ops)
    return Program(
        family, graph.rows, commands, costs, tuple(arena), placement.arena_bytes, placement.lower_bound
    )
