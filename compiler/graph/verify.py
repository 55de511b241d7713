"""Verify: what a graph promises to every pass and target, checked between all of them.

The rules are in `verify`'s docstring; each has a function here and a mutation test. An error names the op and
the rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...plans.layout import STATE_TENSORS, TABLE_OPERANDS, Dtype, Region
from .graph import Graph, Kind, Op, Tensor
from .ops import REGISTRY
from .ops.definition import OpDefinition, Result, ShapeError, Signature

NAMES = ("body", "head")
COMPUTED_WEIGHTS = ("rope.inverse_frequency",)  # made from the spec: the only weights without sources


class GraphError(Exception):
    """A graph that breaks its promises. The text names the op or tensor and the rule, and what was found."""


def _where(index: int, op: Op) -> str:
    layer = "" if op.layer is None else f", layer {op.layer}"
    return f"op {index} ({op.kind}{layer})"


def _tensors(graph: Graph) -> None:
    """Names, dimensions, sources and dtypes of tensors by themselves."""
    if graph.name not in NAMES:
        raise GraphError(f"graph name '{graph.name}' is unknown; {' or '.join(NAMES)} is needed")
    if graph.rows < 1:
        raise GraphError(f"the graph has {graph.rows} rows; at least 1 is needed")
    for name, tensor in graph.tensors.items():
        if name != tensor.name:
            raise GraphError(f"tensor '{tensor.name}' is listed as '{name}': names must be unique and agree")
        if not tensor.shape or any(size < 1 for size in tensor.shape):
            raise GraphError(f"tensor '{name}' has shape {tensor.shape}; dimensions of at least 1 are needed")
        if tensor.kind == Kind.WEIGHT:
            if bool(tensor.sources) == (name in COMPUTED_WEIGHTS):
                raise GraphError(
                    f"weight '{name}' has sources {tensor.sources}: all but computed tables must have some"
                )
            if len(set(tensor.sources)) != len(tensor.sources):
                raise GraphError(f"weight '{name}' takes a source twice: sources must be unique")
        elif tensor.sources:
            raise GraphError(f"tensor '{name}' of kind {tensor.kind} has sources; only weights may")
        if tensor.kind == Kind.ACTIVATION and (tensor.shape[0] != graph.rows or tensor.dtype != Dtype.F32):
            raise GraphError(
                f"activation '{name}' is {tensor.dtype.name} {tensor.shape}; F32, {graph.rows} rows is needed"
            )
        if tensor.kind in (Kind.IO, Kind.STATE):
            _runtime_table(tensor)


def _runtime_table(tensor: Tensor) -> None:
    """IO and STATE tensors are tables that the runtime knows by name."""
    regions = {Kind.IO: Region.IO, Kind.STATE: Region.STATE}
    known = STATE_TENSORS.get(tensor.name)
    if known is None or known[0] != regions[tensor.kind] or known[2] != tensor.dtype:
        raise GraphError(
            f"tensor '{tensor.name}' ({tensor.kind}, {tensor.dtype.name}) is no table of the runtime"
        )


def _roles(where: str, op: Op, definition: OpDefinition, graph: Graph) -> None:
    """Roles known and complete, their tensors present, tables fed to the roles they were made for."""
    for what, found, required, optional in (
        ("input", op.inputs, definition.inputs, definition.optional_inputs),
        ("output", op.outputs, definition.outputs, ()),
    ):
        if missing := sorted(set(required) - set(found)):
            raise GraphError(f"{where} has no {what} '{missing[0]}': roles must be complete")
        if unknown := sorted(set(found) - set(required) - set(optional)):
            raise GraphError(f"{where} has an {what} '{unknown[0]}' that its kind does not know")
        for role, name in found.items():
            if name not in graph.tensors:
                raise GraphError(f"{where} names '{name}' as {what} '{role}'; the graph has no such tensor")
            table = TABLE_OPERANDS.get(role)
            if table is not None and name != table[NAMES.index(graph.name)]:
                raise GraphError(
                    f"{where} has '{name}' as {role}; the table '{table[NAMES.index(graph.name)]}' is needed"
                )
    if len(set(op.outputs.values())) != len(op.outputs):
        raise GraphError(f"{where} writes one tensor twice: a tensor is written once")


def _attributes(where: str, op: Op, definition: OpDefinition) -> None:
    """Attributes known, complete, of their type and finite; the layer is set where the kind needs one."""
    types: Mapping[str, type] = {**definition.attributes, **definition.optional_attributes}
    if missing := sorted(set(definition.attributes) - set(op.attributes)):
        raise GraphError(f"{where} has no attribute '{missing[0]}': attributes must be complete")
    for name, value in op.attributes.items():
        if name not in types:
            raise GraphError(f"{where} has an attribute '{name}' that its kind does not know")
        if type(value) is not types[name]:
            raise GraphError(
                f"{where} has a {type(value).__name__} as attribute {name}; {types[name].__name__} is needed"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise GraphError(f"{where} has attribute {name} = {value}: attributes must be finite")
    if definition.layered and (op.layer is None or op.layer < 0):
        raise GraphError(f"{where} belongs to no layer; its kind needs one")


def _result(where: str, role: str, tensor: Tensor, result: Result, rows: int) -> None:
    """An output agrees with what the shape rule says of it; one that lives across programs may have more
    rows.
    """
    if tensor.dtype not in result.dtypes:
        raise GraphError(
            f"{where} writes {role} as {tensor.dtype.name}; the rule gives {result.dtypes[0].name}"
        )
    if tensor.kind not in result.kinds:
        raise GraphError(
            f"{where} writes {role} to a tensor of kind {tensor.kind}; {' or '.join(result.kinds)} is needed"
        )
    longer = tensor.kind == Kind.IO and tensor.shape[0] >= rows and tensor.shape[1:] == result.shape[1:]
    if tensor.shape != result.shape and not longer:
        raise GraphError(f"{where} writes {role} with shape {tensor.shape}; the rule gives {result.shape}")


def _shapes(where: str, op: Op, definition: OpDefinition, graph: Graph) -> None:
    """Operands and results follow the op's shape rule."""
    inputs = {role: graph.tensors[name] for role, name in op.inputs.items()}
    try:
        results = definition.shape(Signature(graph.rows, inputs, op.attributes))
    except ShapeError as error:
        raise GraphError(f"{where} breaks its shape rule: {error}") from error
    for role, name in op.outputs.items():
        _result(where, role, graph.tensors[name], results[role], graph.rows)
    formats = {
        graph.tensors[name].dtype for name in op.outputs.values() if graph.tensors[name].kind == Kind.KV
    }
    if len(formats) > 1:
        raise GraphError(f"{where} writes caches of two formats; one KV format is needed")


class _Flow:
    """Who wrote what so far: written exactly once, before it is read, KV within its layer, nothing for
    nobody.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.writer: dict[str, Op] = {}
        self.read: set[str] = set()
        self.written_later = {name for op in graph.ops for name in op.outputs.values()}

    def op(self, where: str, op: Op) -> None:
        for role, name in op.inputs.items():
            kind, writer = self.graph.tensors[name].kind, self.writer.get(name)
            must = kind in (Kind.ACTIVATION, Kind.KV) or name in self.written_later
            if must and writer is None:
                raise GraphError(f"{where} reads {role} '{name}' before it is written")
            if kind == Kind.KV and writer is not None and writer.layer != op.layer:
                raise GraphError(
                    f"{where} reads {role} '{name}' of layer {writer.layer}: KV stays in its layer"
                )
            self.read.add(name)
        for role, name in op.outputs.items():
            if self.graph.tensors[name].kind in (Kind.WEIGHT, Kind.STATE):
                raise GraphError(f"{where} writes {role} to '{name}', which is constant to programs")
            if name in self.writer:
                raise GraphError(
                    f"{where} writes {role} to '{name}', which was written before: a tensor is written once"
                )
            self.writer[name] = op

    def end(self) -> None:
        for name, tensor in self.graph.tensors.items():
            if name not in self.read and name not in self.writer:
                raise GraphError(f"tensor '{name}' is used by no op")
            if tensor.kind == Kind.ACTIVATION and name not in self.read:
                raise GraphError(f"activation '{name}' is written and never read")


def verify(graph: Graph) -> None:
    """Raises GraphError unless the graph keeps these promises:

    - the graph is named body or head and has rows; tensors are listed once under their own name, with
      dimensions of at least 1; weights and only weights have distinct sources (a computed table has none);
      activations are float32 with the graph's rows; IO and STATE tensors are tables of the runtime, in its
      dtype;
    - op kinds are known; roles are known and complete and name tensors of the graph; a role that the runtime
      fills gets the table made for it; attributes are known, complete, of their type and finite; ops of a
      layer say which;
    - operands and results follow the op's shape rule: shapes, dtypes, kinds, one KV format per layer;
    - every activation, cache and output is written exactly once, before it is read; weights and STATE never;
      a cache is read only in the layer that wrote it; no tensor is unused and no activation unread.
    """
    _tensors(graph)
    flow = _Flow(graph)
    for index, op in enumerate(graph.ops):
        where = _where(index, op)
        definition = REGISTRY.get(op.kind)
        if definition is None:
            raise GraphError(f"{where} is of an unknown kind; known are {', '.join(sorted(REGISTRY))}")
        _roles(where, op, definition, graph)
        _attributes(where, op, definition)
        _shapes(where, op, definition, graph)
        flow.op(where, op)
    flow.end()
