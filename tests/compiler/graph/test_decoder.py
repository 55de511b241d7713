"""What the decoder's graphs contain for each ModelSpec field, and what it refuses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from ingot.compiler.checkpoint.spec import ModelSpec, RopeKind, RopeSpec
from ingot.compiler.graph.decoder import decoder
from ingot.compiler.graph.graph import Kind
from ingot.compiler.graph.verify import GraphError
from support.models import SMALL, VARIANTS, random_source


def _kinds(spec: ModelSpec) -> Counter[str]:
    return Counter(op.kind for graph in decoder(spec, 8, 4) for op in graph.ops)


@pytest.mark.parametrize("name", VARIANTS)
def test_weights_are_the_checkpoint(name: str) -> None:
    """Goal: the graphs use exactly the tensors that such a checkpoint has, with their shapes."""
    spec = VARIANTS[name]
    source = random_source(spec)
    weights = {
        tensor.name: tensor.shape
        for graph in decoder(spec, 8, 4)
        for tensor in graph.tensors.values()
        if tensor.kind == Kind.WEIGHT and tensor.sources
    }
    assert weights == {tensor: source.shape(tensor) for tensor in source.names()}


def test_plain_ops() -> None:
    """Goal: sixteen ops a layer, two before, four in the head."""
    assert _kinds(SMALL) == {
        "embed": 1, "rope_table": 1, "rms_norm": 5, "linear": 15, "rope": 4, "kv_write": 2, "attention": 2,
        "add": 4, "silu_mul": 2, "gather_rows": 1, "sample": 1,
    }  # fmt: skip


def test_fields_change_ops() -> None:
    """Goal: qk_norm adds two ops a layer, no rope takes two away, a model without rope has no table."""
    assert _kinds(VARIANTS["qk_norm"])["qk_norm"] == 4
    assert _kinds(VARIANTS["rope_off"])["rope"] == 2
    assert _kinds(VARIANTS["rope_none"])["rope"] == _kinds(VARIANTS["rope_none"])["rope_table"] == 0
    assert _kinds(replace(SMALL, layer_rope=(False, False)))["rope_table"] == 0
    body, _ = decoder(VARIANTS["windows"], 8, 4)
    assert [op.attributes["window"] for op in body.ops if op.kind == "attention"] == [0, 24]
    body, _ = decoder(VARIANTS["yarn"], 8, 4)
    assert body.ops[1].attributes["attention_factor"] == pytest.approx(1.1386294361119891)


def test_tables_and_last_op() -> None:
    """Goal: rows_max sizes the body's tables and hidden, which the last add writes; the head reads it and
    writes logits.
    """
    body, head = decoder(SMALL, 8, 4)
    assert body.rows == 8
    assert head.rows == 4
    assert body.ops[-1].kind == "add"
    assert body.ops[-1].outputs["out"] == "hidden"
    assert body.tensors["hidden"].shape == head.tensors["hidden"].shape == (8, 48)
    assert head.tensors["logits"].shape == (4, 211)
    assert head.ops[-1].kind == "sample"


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (replace(SMALL, activation="gelu"), "activation 'gelu'"),
        (replace(SMALL, layer_window=(0,)), "one entry for each"),
        (replace(SMALL, kv_heads=3), "do not share 3 kv heads"),
        (replace(SMALL, rope=RopeSpec(RopeKind.DEFAULT, 1e4, 32)), "32 rotary dimensions"),
        (replace(SMALL, rope=RopeSpec(RopeKind.DEFAULT, 1e4, 7)), "7 rotary dimensions"),
    ],
    ids=["activation", "windows", "heads", "rope too wide", "rope odd"],
)
def test_refusals(spec: ModelSpec, text: str) -> None:
    """Goal: a model that the ops cannot express is one clear error."""
    with pytest.raises(GraphError, match=text):
        decoder(spec, 8, 4)
