"""Verify accepts every graph that the compiler makes and refuses each kind of damage, naming the op and the
rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from ingot.compiler.graph.decoder import decoder
from ingot.compiler.graph.graph import Graph, Kind, Op, Tensor
from ingot.compiler.graph.verify import GraphError, verify
from ingot.compiler.passes.fuse import fuse
from ingot.compiler.passes.quantise import quantise
from ingot.compiler.passes.specialise import specialise
from ingot.plans.layout import Dtype
from support.models import SMALL, VARIANTS

BODY, HEAD = decoder(replace(SMALL, qk_norm=True, qkv_bias=True), 8, 4)
FUSED, FUSED_HEAD = fuse(BODY), fuse(HEAD)


def _at(graph: Graph, kind: str) -> int:
    return next(index for index, op in enumerate(graph.ops) if op.kind == kind)


def _with_op(graph: Graph, index: int, op: Op) -> Graph:
    return replace(graph, ops=(*graph.ops[:index], op, *graph.ops[index + 1 :]))


def _change(graph: Graph, kind: str, /, **changes: object) -> Graph:
    """The first op of `kind` with inputs, outputs, attributes or other fields replaced; dicts are merged."""
    index = _at(graph, kind)
    op = graph.ops[index]
    merged = {
        name: {**getattr(op, name), **value} if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    return _with_op(graph, index, replace(op, **merged))  # type: ignore[arg-type]


def _without(graph: Graph, kind: str, field: str, key: str) -> Graph:
    index = _at(graph, kind)
    left = {name: value for name, value in getattr(graph.ops[index], field).items() if name != key}
    return _with_op(graph, index, replace(graph.ops[index], **{field: left}))


def _tensor(graph: Graph, name: str, **changes: object) -> Graph:
    changed = replace(graph.tensors[name], **changes)  # type: ignore[arg-type]
    return replace(graph, tensors={**graph.tensors, name: changed})


def _add(graph: Graph, tensor: Tensor) -> Graph:
    return replace(graph, tensors={**graph.tensors, tensor.name: tensor})


def _swap(graph: Graph, first: str, second: str) -> Graph:
    ops = list(graph.ops)
    a, b = _at(graph, first), _at(graph, second)
    ops[a], ops[b] = ops[b], ops[a]
    return replace(graph, ops=tuple(ops))


def _rename_key(graph: Graph) -> Graph:
    tensors = dict(graph.tensors)
    tensors["other"] = tensors.pop("embedded")
    return replace(graph, tensors=tensors)


def _cross_layers(graph: Graph) -> Graph:
    """Layer 1's attention reads layer 0's cache."""
    index = [i for i, op in enumerate(graph.ops) if op.kind == "attention"][1]
    op = graph.ops[index]
    inputs = {**op.inputs, "k_cache": "layer.0.k_cache"}
    return _with_op(graph, index, replace(op, inputs=inputs))


def _written_twice(graph: Graph) -> Graph:
    return replace(graph, ops=(*graph.ops[:1], graph.ops[0], *graph.ops[1:]))


ONE = Tensor("spare", (8, 48), Dtype.F32, Kind.ACTIVATION)
MUTATIONS: dict[str, tuple[Callable[[], Graph], str]] = {
    # tensors by themselves
    "graph name": (lambda: replace(BODY, name="tail"), "graph name 'tail'"),
    "no rows": (lambda: replace(BODY, rows=0), "0 rows"),
    "key is not the name": (lambda: _rename_key(BODY), "listed as 'other'"),
    "zero dimension": (lambda: _tensor(BODY, "layer.0.q.bias", shape=(0,)), r"shape \(0,\)"),
    "weight without sources": (
        lambda: _tensor(BODY, "embed.weight", sources=()),
        "embed.weight' has sources",
    ),
    "computed weight with sources": (
        lambda: _tensor(BODY, "rope.inverse_frequency", sources=("x",)),
        "has sources",
    ),
    "source twice": (
        lambda: _tensor(FUSED, "layer.0.qkv.weight", sources=("a", "a", "b")),
        "takes a source twice",
    ),
    "activation with sources": (lambda: _tensor(BODY, "embedded", sources=("x",)), "only weights may"),
    "activation of other rows": (lambda: _tensor(BODY, "embedded", shape=(7, 48)), "8 rows is needed"),
    "activation of other dtype": (lambda: _tensor(BODY, "embedded", dtype=Dtype.BF16), "'embedded' is BF16"),
    "unknown table": (
        lambda: _add(BODY, Tensor("row_colours", (8,), Dtype.U32, Kind.IO)),
        "no table of the runtime",
    ),
    "table of other dtype": (lambda: _tensor(BODY, "row_tokens", dtype=Dtype.U16), "no table of the runtime"),
    "table in the wrong region": (lambda: _tensor(HEAD, "sampling", kind=Kind.IO), "no table of the runtime"),
    # kinds, roles, attributes
    "unknown kind": (
        lambda: _change(BODY, "add", kind="subtract"),
        r"op \d+ \(subtract, layer 0\) is of an unknown",
    ),
    "input missing": (
        lambda: _without(BODY, "linear", "inputs", "x"),
        r"\(linear, layer 0\) has no input 'x'",
    ),
    "input unknown": (
        lambda: _change(BODY, "add", inputs={"c": "embedded"}),
        "'c' that its kind does not know",
    ),
    "output missing": (lambda: _without(BODY, "kv_write", "outputs", "v_cache"), "has no output 'v_cache'"),
    "output unknown": (lambda: _change(BODY, "add", outputs={"sum": "embedded"}), "'sum' that its kind"),
    "no such tensor": (lambda: _change(BODY, "add", inputs={"a": "nowhere"}), "'nowhere' as input 'a'"),
    "wrong table": (
        lambda: _change(BODY, "embed", inputs={"tokens": "row_leases"}),
        "'row_tokens' is needed",
    ),
    "one tensor for two outputs": (
        lambda: _change(BODY, "kv_write", outputs={"v_cache": "layer.0.k_cache"}),
        "writes one tensor twice",
    ),
    "attribute missing": (lambda: _without(BODY, "rms_norm", "attributes", "eps"), "has no attribute 'eps'"),
    "attribute unknown": (lambda: _change(BODY, "add", attributes={"scale": 1.0}), "an attribute 'scale'"),
    "attribute of other type": (
        lambda: _change(BODY, "rope", attributes={"heads": 4.0}),
        "has a float as attribute heads",
    ),
    "attribute not finite": (
        lambda: _change(BODY, "rms_norm", attributes={"eps": float("nan")}),
        "must be finite",
    ),
    "attribute not positive": (lambda: _change(BODY, "rms_norm", attributes={"eps": 0.0}), "above 0"),
    "layer missing": (lambda: _change(BODY, "attention", layer=None), "belongs to no layer"),
    # shape rules
    "embed weight": (lambda: _tensor(BODY, "embed.weight", shape=(211, 40)), "writes out with shape"),
    "rope_table pairs": (
        lambda: _tensor(BODY, "rope.inverse_frequency", shape=(7,)),
        "writes out with shape",
    ),
    "rms_norm weight": (lambda: _tensor(BODY, "layer.0.mlp_norm.weight", shape=(47,)), "47 elements; 48"),
    "linear width": (lambda: _tensor(BODY, "layer.0.o.weight", shape=(48, 60)), "x has width 64; 60"),
    "linear outputs": (lambda: _tensor(BODY, "layer.0.gate.weight", shape=(70, 48)), "writes out with shape"),
    "linear bias": (lambda: _tensor(BODY, "layer.0.q.bias", shape=(60,)), "60 elements; 64"),
    "matrix of a KV format": (lambda: _tensor(BODY, "layer.0.q.weight", dtype=Dtype.E5M2), "weight is E5M2"),
    "norm not float32": (
        lambda: _tensor(BODY, "layer.0.mlp_norm.weight", dtype=Dtype.BF16),
        "weight is BF16",
    ),
    "matrix is an activation": (
        lambda: _change(BODY, "linear", inputs={"weight": "embedded"}),
        "of kind activation",
    ),
    "qk_norm heads": (lambda: _change(BODY, "qk_norm", attributes={"heads": 3}), "3 heads of 16"),
    "rope heads": (lambda: _change(BODY, "rope", attributes={"heads": 3}), "x has width 64; 48"),
    "rope wider than a head": (
        lambda: _change(BODY, "rope", attributes={"heads": 8, "head_size": 8}),
        "2 P at most 8",
    ),
    "kv_write heads": (lambda: _change(BODY, "kv_write", attributes={"kv_heads": 3}), "width 32; 48"),
    "cache shape": (
        lambda: _tensor(BODY, "layer.0.k_cache", shape=(2, 128, 16)),
        "writes k_cache with shape",
    ),
    "cache format": (lambda: _tensor(BODY, "layer.0.k_cache", dtype=Dtype.U8), "writes k_cache as U8"),
    "two cache formats": (lambda: _tensor(BODY, "layer.0.k_cache", dtype=Dtype.I8), "two formats"),
    "cache is an activation": (lambda: _tensor(BODY, "layer.0.k_cache", kind=Kind.ACTIVATION), "activation"),
    "attention heads": (lambda: _change(BODY, "attention", attributes={"query_heads": 3}), "3 query heads"),
    "attention window": (lambda: _change(BODY, "attention", attributes={"window": -1}), "window is -1"),
    "add widths": (lambda: _change(BODY, "add", inputs={"b": "layer.0.attended"}), "width 64; 48"),
    "silu_mul widths": (lambda: _change(BODY, "silu_mul", inputs={"up": "embedded"}), "width 48; 72"),
    "too few table rows": (lambda: _tensor(BODY, "row_tokens", shape=(7,)), "7 rows; the graph has 8"),
    "too few hidden rows": (lambda: _tensor(BODY, "hidden", shape=(7, 48)), "writes out with shape"),
    "gather indices": (lambda: _tensor(HEAD, "head_rows", shape=(3,)), "3 rows; the graph has 4"),
    "logits to an activation": (lambda: _tensor(HEAD, "top_logprobs", shape=(4, 20)), "writes top_logprobs"),
    "token counts": (lambda: _tensor(HEAD, "token_counts", shape=(210,)), "210 elements; 211"),
    "sampling record": (lambda: _tensor(HEAD, "sampling", shape=(767,)), "767 elements; 768"),
    "fused norm without eps": (
        lambda: _without(FUSED, "fused_linear", "attributes", "eps"),
        "both or neither",
    ),
    "fused eps without norm": (lambda: _without(FUSED, "fused_linear", "inputs", "norm"), "both or neither"),
    "fused bias": (lambda: _tensor(FUSED, "layer.0.qkv.bias", shape=(127,)), "127 elements; 128"),
    "fused silu_mul": (lambda: _change(FUSED, "fused_linear", attributes={"silu_mul": True}), "writes out"),
    "fused residual": (
        lambda: _change(FUSED, "fused_linear", inputs={"residual": "embedded"}),
        "width 48; 128",
    ),
    "fused qkv": (lambda: _change(FUSED, "fused_attention", attributes={"query_heads": 6}), "width 128; 160"),
    "fused k_norm missing": (lambda: _without(FUSED, "fused_attention", "inputs", "k_norm"), "all or none"),
    "fused gather": (
        lambda: _change(FUSED_HEAD, "fused_linear", inputs={"row_index": "hidden"}),
        "'head_rows'",
    ),
    # who writes and who reads
    "read before written": (lambda: _swap(BODY, "embed", "rms_norm"), "before it is written"),
    "cache read before written": (lambda: _swap(BODY, "kv_write", "attention"), "before it is written"),
    "output read before written": (lambda: _swap(HEAD, "linear", "sample"), "before it is written"),
    "written twice": (lambda: _written_twice(BODY), "a tensor is written once"),
    "weight written": (lambda: _change(BODY, "embed", outputs={"out": "layer.0.o.weight"}), "of kind weight"),
    "cache of another layer": (lambda: _cross_layers(BODY), "KV stays in its layer"),
    "unused tensor": (lambda: _add(BODY, ONE), "'spare' is used by no op"),
    "unread activation": (
        lambda: _add(_change(BODY, "add", outputs={"out": "spare"}), ONE),
        "before it is written",
    ),
    "result nobody reads": (
        lambda: _add(
            replace(BODY, ops=(*BODY.ops, Op("add", {"a": "embedded", "b": "embedded"}, {"out": "spare"}))),
            ONE,
        ),
        "written and never read",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_damage_is_refused(name: str) -> None:
    """Goal: one damage, one error that names the rule."""
    mutate, text = MUTATIONS[name]
    with pytest.raises(GraphError, match=text):
        verify(mutate())


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("weights", [Dtype.E4M3, Dtype.I8, Dtype.BF16])
def test_compiled_graphs_hold(name: str, weights: Dtype) -> None:
    """Goal: decoder, quantise, fuse and specialise all keep the promises, for every variant and KV format."""
    for graph in decoder(VARIANTS[name], 16, 4):
        verify(graph)
        for kv in (Dtype.E4M3, Dtype.E5M2, Dtype.I8, Dtype.BF16):
            quantised = quantise(graph, weights, kv)
            verify(quantised)
            fused = fuse(quantised)
            verify(fused)
            verify(specialise(fused, 1))
