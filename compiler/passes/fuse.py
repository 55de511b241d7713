"""Fuse: primitive ops become the few that a target lowers: embed, rope_table, fused_linear, fused_attention,
sample.

A command is a barrier, so a layer should have few of them: qkv with its norm, attention with rope and kv
write, o with the residual, gate and up with their norm and silu_mul, down with the residual. Patterns are
matched on who writes and who reads a value, not on names or order; an op that no pattern takes is an error,
never left to a slower path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..graph.graph import Graph, Kind, Op, Tensor
from ..graph.verify import GraphError

FUSED_KINDS = ("embed", "rope_table", "fused_linear", "fused_attention", "sample")
NAMED_MAX = 16  # ops that an error names


@dataclass(slots=True)
class _Match:
    """Ops (by index) that a pattern takes, what it puts in their place, and the tensors that are new."""

    taken: set[int]
    ops: list[Op] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)


class _Graph:
    """A graph with its writers and readers by tensor name."""

    def __init__(self, graph: Graph) -> None:
        self.tensors, self.ops = graph.tensors, graph.ops
        self.writer = {name: index for index, op in enumerate(graph.ops) for name in op.outputs.values()}
        self.readers: dict[str, set[int]] = {}
        for index, op in enumerate(graph.ops):
            for name in op.inputs.values():
                self.readers.setdefault(name, set()).add(index)

    def made_by(self, name: str, kind: str) -> int | None:
        """Index of the op of `kind` that writes the activation `name`, if one does."""
        index = self.writer.get(name)
        if index is None or self.ops[index].kind != kind or self.tensors[name].kind != Kind.ACTIVATION:
            return None
        return index

    def closed(self, match: _Match) -> bool:
        """Whether every value that disappears with the match is read inside it only."""
        kept = {name for op in match.ops for name in op.outputs.values()}
        gone = {name for index in match.taken for name in self.ops[index].outputs.values()} - kept
        return all(self.readers.get(name, set()) <= match.taken for name in gone)


def _joined(graph: _Graph, match: _Match, linears: Iterable[Op], name: str) -> dict[str, str] | None:
    """One weight, and one bias, over the rows of several linears' weights; None when they cannot join."""
    linears = tuple(linears)
    with_bias = [op for op in linears if "bias" in op.inputs]
    if with_bias and len(with_bias) != len(linears):
        return None
    joined = {}
    for role in ("weight", "bias") if with_bias else ("weight",):
        parts = [graph.tensors[op.inputs[role]] for op in linears]
        if len({(part.dtype, part.shape[1:]) for part in parts}) != 1:
            return None
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        sources = tuple(source for part in parts for source in part.sources)
        match.tensors.append(replace(parts[0], name=f"{name}.{role}", shape=shape, sources=sources))
        joined[role] = f"{name}.{role}"
    return joined


def _linear_op(
    graph: _Graph, match: _Match, x: str, weights: Mapping[str, str], out: str, layer: int | None
) -> Op:
    """The fused op of a linear that reads x, with the norm and the gather that make x, when there are any."""
    inputs: dict[str, str] = {"x": x}
    attributes: dict[str, float | int | bool] = {"silu_mul": False}
    if (index := graph.made_by(x, "rms_norm")) is not None:
        norm = graph.ops[index]
        match.taken.add(index)
        inputs |= {"x": norm.inputs["x"], "norm": norm.inputs["weight"]}
        attributes["eps"] = norm.attributes["eps"]
    if (index := graph.made_by(inputs["x"], "gather_rows")) is not None:
        match.taken.add(index)
        inputs |= dict(graph.ops[index].inputs)
    return Op("fused_linear", {**inputs, **weights}, {"out": out}, attributes, layer)


def _prepared(
    graph: _Graph, match: _Match, name: str
) -> tuple[str, str | None, str | None, float | int | bool | None]:
    """What becomes of a query or key between its linear and its use: (linear's output, rope table, norm
    weight, eps).
    """
    table = norm = eps = None
    if (at := graph.made_by(name, "rope")) is not None:
        match.taken.add(at)
        name, table = graph.ops[at].inputs["x"], graph.ops[at].inputs["table"]
    if (at := graph.made_by(name, "qk_norm")) is not None:
        match.taken.add(at)
        name, norm, eps = (
            graph.ops[at].inputs["x"],
            graph.ops[at].inputs["weight"],
            graph.ops[at].attributes["eps"],
        )
    return name, table, norm, eps


def _attention(graph: _Graph, index: int) -> _Match | None:
    """attention with its kv_write, rope, qk_norm and the three linears before them."""
    op = graph.ops[index]
    if op.kind != "attention" or (write := graph.writer.get(op.inputs["k_cache"])) is None:
        return None
    match, stored = _Match({index, write}), graph.ops[write]
    q, q_table, q_norm, q_eps = _prepared(graph, match, op.inputs["q"])
    k, k_table, k_norm, k_eps = _prepared(graph, match, stored.inputs["k"])
    if q_table != k_table or q_eps != k_eps:
        return None
    inputs = {role: op.inputs[role] for role in ("positions", "leases")}
    attributes = dict(op.attributes)
    if q_table is not None:
        inputs["rope"] = q_table
    if q_norm is not None and k_norm is not None and q_eps is not None:
        inputs |= {"q_norm": q_norm, "k_norm": k_norm}
        attributes["eps"] = q_eps
    found = [graph.made_by(name, "linear") for name in (q, k, stored.inputs["v"])]
    linears = [graph.ops[at] for at in found if at is not None]
    if len(linears) != 3 or len({linear.inputs["x"] for linear in linears}) != 1:
        return None
    match.taken |= {at for at in found if at is not None}
    qkv = f"layer.{op.layer}.qkv"
    if (weights := _joined(graph, match, linears, qkv)) is None:
        return None
    rows = graph.tensors[linears[0].outputs["out"]]
    width = sum(graph.tensors[linear.outputs["out"]].shape[1] for linear in linears)
    match.tensors.append(replace(rows, name=qkv, shape=(rows.shape[0], width)))
    outputs = {**op.outputs, **stored.outputs}
    match.ops = [
        _linear_op(graph, match, linears[0].inputs["x"], weights, qkv, op.layer),
        Op("fused_attention", {"qkv": qkv, **inputs}, outputs, attributes, op.layer),
    ]
    return match


def _gated(graph: _Graph, index: int) -> _Match | None:
    """silu_mul with the gate's and up's linears."""
    op = graph.ops[index]
    if op.kind != "silu_mul":
        return None
    found = [graph.made_by(op.inputs[role], "linear") for role in ("gate", "up")]
    linears = [graph.ops[at] for at in found if at is not None]
    if len(linears) != 2 or linears[0].inputs["x"] != linears[1].inputs["x"]:
        return None
    match = _Match({index, *(at for at in found if at is not None)})
    if (weights := _joined(graph, match, linears, f"layer.{op.layer}.gate_up")) is None:
        return None
    fused = _linear_op(graph, match, linears[0].inputs["x"], weights, op.outputs["out"], op.layer)
    match.ops = [replace(fused, attributes={**fused.attributes, "silu_mul": True})]
    return match


def _residual(graph: _Graph, index: int) -> _Match | None:
    """add with the linear that makes one of its operands; the other is the residual."""
    op = graph.ops[index]
    if op.kind != "add":
        return None
    for made, kept in (("b", "a"), ("a", "b")):
        if (at := graph.made_by(op.inputs[made], "linear")) is None:
            continue
        linear, match = graph.ops[at], _Match({index, at})
        weights = {role: name for role, name in linear.inputs.items() if role != "x"}
        weights["residual"] = op.inputs[kept]
        match.ops = [_linear_op(graph, match, linear.inputs["x"], weights, op.outputs["out"], op.layer)]
        return match
    return None


def _plain(graph: _Graph, index: int) -> _Match | None:
    """A linear by itself, with the norm and gather before it."""
    op = graph.ops[index]
    if op.kind != "linear":
        return None
    match = _Match({index})
    weights = {role: name for role, name in op.inputs.items() if role != "x"}
    match.ops = [_linear_op(graph, match, op.inputs["x"], weights, op.outputs["out"], op.layer)]
    return match


PATTERNS = (_attention, _gated, _residual, _plain)


def fuse(graph: Graph) -> Graph:
    """The graph with only FUSED_KINDS left. Raises GraphError naming an op that no pattern takes."""
    view = _Graph(graph)
    matches: dict[int, _Match] = {}
    taken: set[int] = set()
    for pattern in PATTERNS:
        for index in range(len(graph.ops)):
            if index in taken or (match := pattern(view, index)) is None:
                continue
            if not taken.isdisjoint(match.taken) or not view.closed(match):
                continue
            matches[index] = match  # the match's last op: all that the new ops read is written before it
            taken |= match.taken
    ops: list[Op] = []
    tensors = dict(graph.tensors)
    for index, op in enumerate(graph.ops):
        if index in matches:
            ops += matches[index].ops
            tensors |= {tensor.name: tensor for tensor in matches[index].tensors}
        elif index not in taken:
            ops.append(op)
    left = [f"{op.kind} (layer {op.layer})" for op in ops if op.kind not in FUSED_KINDS]
    if left:
        more = f" and {len(left) - NAMED_MAX} more" if len(left) > NAMED_MAX else ""
        raise GraphError(f"no pattern takes {', '.join(left[:NAMED_MAX])}{more}: all ops must be fused")
    used = {name for op in ops for name in (*op.inputs.values(), *op.outputs.values())}
    return replace(graph, ops=tuple(ops), tensors={name: tensors[name] for name in tensors if name in used})
