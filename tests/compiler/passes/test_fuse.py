"""Fuse: five ops a layer, the same results, and an error for whatever no pattern takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from ingot.compiler.checkpoint.spec import ModelSpec
from ingot.compiler.graph.decoder import decoder
from ingot.compiler.graph.graph import Graph, Op
from ingot.compiler.graph.verify import GraphError, verify
from ingot.compiler.passes.fuse import FUSED_KINDS, fuse
from ingot.compiler.targets.reference.executor import Reference
from support.models import SMALL, VARIANTS, random_source

TOKENS = [int(token) for token in np.random.default_rng(0).integers(0, SMALL.vocabulary, 140)]
BIASES_AND_NORMS = replace(
    SMALL, qk_norm=True, qkv_bias=True, output_bias=True, mlp_bias=True, tied_head=True
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("spec", [*VARIANTS.values(), BIASES_AND_NORMS], ids=[*VARIANTS, "all"])
def test_same_results(spec: ModelSpec) -> None:
    """Goal: the fused graph's reference equals the primitive one's within 1e-6, for every variant."""
    source = random_source(spec)
    plain, fused = (Reference(spec, source, fused=fused).forward(TOKENS) for fused in (False, True))
    assert float((plain - fused).norm() / plain.norm()) <= 1e-6


@pytest.mark.parametrize("name", VARIANTS)
def test_five_ops_a_layer(name: str) -> None:
    """Goal: a layer is qkv, attention, o, gate_up, down, each with what belongs to it; the head two ops."""
    spec = VARIANTS[name]
    body, head = (fuse(graph) for graph in decoder(spec, 8, 4))
    for graph in (body, head):
        verify(graph)
        assert {op.kind for op in graph.ops} <= set(FUSED_KINDS)
    for layer in range(spec.layers):
        ops = [op for op in body.ops if op.layer == layer]
        linear = "fused_linear"
        assert [op.kind for op in ops] == [linear, "fused_attention", linear, linear, linear]
        qkv, attention, output, gate_up, down = ops
        assert (
            {"norm"} == set(qkv.inputs) & {"norm", "residual"} == set(gate_up.inputs) & {"norm", "residual"}
        )
        assert (
            {"residual"}
            == set(output.inputs) & {"norm", "residual"}
            == set(down.inputs) & {"norm", "residual"}
        )
        assert [op.attributes["silu_mul"] for op in (qkv, output, gate_up, down)] == [
            False,
            False,
            True,
            False,
        ]
        assert body.tensors[qkv.inputs["weight"]].sources == tuple(
            f"layer.{layer}.{part}.weight" for part in "qkv"
        )
        assert body.tensors[gate_up.inputs["weight"]].sources == (
            f"layer.{layer}.gate.weight", f"layer.{layer}.up.weight",
        )  # fmt: skip
        assert ("rope" in attention.inputs) == (spec.rope.rotary_dims > 0 and spec.layer_rope[layer])
        assert ("q_norm" in attention.inputs) == spec.qk_norm
        assert ("bias" in qkv.inputs) == spec.qkv_bias
    assert body.ops[-1].outputs["out"] == "hidden"
    assert [op.kind for op in head.ops] == ["fused_linear", "sample"]
    assert {"x", "norm", "row_index", "weight"} == set(head.ops[0].inputs)


def _change(graph: Graph, kind: str, **inputs: str) -> Graph:
    index = next(i for i, op in enumerate(graph.ops) if op.kind == kind)
    op = graph.ops[index]
    changed = replace(op, inputs={**op.inputs, **inputs})
    return replace(graph, ops=(*graph.ops[:index], changed, *graph.ops[index + 1 :]))


BODY, HEAD = decoder(replace(SMALL, qk_norm=True), 8, 4)


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        (_change(BODY, "attention", q="layer.0.q_normalised"), "rope"),
        (_change(BODY, "rope", x="layer.0.q"), "qk_norm"),
        (_change(BODY, "kv_write", v="layer.0.attention_norm"), "qk_norm"),
        (_change(BODY, "silu_mul", up="layer.0.attention_residual"), "silu_mul"),
        (
            replace(BODY, ops=(*BODY.ops, Op("add", {"a": "embedded", "b": "hidden"}, {"out": "layer.0.q"}))),
            "add",
        ),
        (replace(HEAD, ops=tuple(op for op in HEAD.ops if op.kind != "linear")), "gather_rows"),
    ],
    ids=[
        "k rotates alone",
        "k is normalised alone",
        "v is no linear",
        "up is no linear",
        "bare add",
        "no head",
    ],
)
def test_left_over_is_an_error(graph: Graph, text: str) -> None:
    """Goal: an op that cannot be fused as it stands is named; nothing is fused into something else."""
    with pytest.raises(GraphError, match=rf"no pattern takes .*\b{text} \(layer"):
        fuse(graph)


def test_a_value_read_twice_is_not_swallowed() -> None:
    """Goal: a norm that something else reads too stays, and is therefore named."""
    extra = Op(
        "rms_norm", {"x": "layer.0.attention_norm", "weight": "final"}, {"out": "layer.1.q"}, {"eps": 1e-5}
    )
    with pytest.raises(GraphError, match="rms_norm"):
        fuse(replace(BODY, ops=(*BODY.ops, extra)))


def test_uneven_biases_are_not_joined() -> None:
    """Goal: q with a bias beside k without one cannot be one matrix: named, not dropped."""
    body, _ = decoder(replace(SMALL, qkv_bias=True), 8, 4)
    index = next(i for i, op in enumerate(body.ops) if op.outputs.get("out") == "layer.0.k")
    inputs = {role: name for role, name in body.ops[index].inputs.items() if role != "bias"}
    ops = (*body.ops[:index], replace(body.ops[index], inputs=inputs), *body.ops[index + 1 :])
    with pytest.raises(GraphError, match=r"no pattern takes rms_norm \(layer 0\), linear"):
        fuse(replace(body, ops=ops))
