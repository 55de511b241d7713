"""Each op's reference against its formula written another way, in float64 or element by element; registry and
costs.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from ingot.compiler.graph.decoder import decoder
from ingot.compiler.graph.graph import Kind, Tensor
from ingot.compiler.graph.ops import REGISTRY
from ingot.compiler.graph.ops.definition import (
    Call,
    Cost,
    Matrix,
    OpDefinition,
    Signature,
    registry,
)
from ingot.compiler.numerics.formats import round_kv
from ingot.plans.layout import Dtype
from support.models import SMALL

GRANULE = 128


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_every_op_is_registered_once() -> None:
    """Goal: the registry's kinds are exactly the contract's."""
    assert set(REGISTRY) == {
        "embed", "rope_table", "rms_norm", "linear", "qk_norm", "rope", "kv_write", "attention", "add",
        "silu_mul", "gather_rows", "sample", "fused_linear", "fused_attention",
    }  # fmt: skip
    assert all(kind == definition.kind for kind, definition in REGISTRY.items())


def test_an_op_without_a_reference_cannot_be_made() -> None:
    """Goal: a definition lacking any of its three functions is refused, and so is a second of one kind."""
    add = REGISTRY["add"]
    for missing in ("shape", "reference", "cost"):
        parts = {"shape": add.shape, "reference": add.reference, "cost": add.cost, missing: None}
        with pytest.raises(TypeError, match=f"op half has no {missing}"):
            OpDefinition("half", ("a",), ("out",), **parts)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="add is defined twice"):
        registry([add, add])


def test_embed() -> None:
    """Goal: rows by token id, repeated and unordered ids included."""
    weight, tokens = _random(11, 6), torch.tensor([3, 0, 10, 3])
    out = REGISTRY["embed"].reference(Call(4, {"tokens": tokens}, matrices={"weight": Matrix.of(weight)}))[
        "out"
    ]
    assert torch.equal(out, weight[[3, 0, 10, 3]])


def test_rope_table() -> None:
    """Goal: float32 angles, float64 cosines and sines times the factor, rounded once; far positions too."""
    positions, inverse = torch.tensor([0, 1, 77, 131071]), torch.tensor([1.0, 0.037, 1e-4])
    call = Call(4, {"positions": positions, "inverse_frequency": inverse}, {"attention_factor": 1.125})
    out = REGISTRY["rope_table"].reference(call)["out"].numpy()
    for row, position in enumerate([0, 1, 77, 131071]):
        for pair, frequency in enumerate(inverse.numpy()):
            angle = float(np.float32(position) * frequency)
            assert out[row, 0, pair] == np.float32(math.cos(angle) * 1.125)
            assert out[row, 1, pair] == np.float32(math.sin(angle) * 1.125)


def test_rms_norm() -> None:
    """Goal: x / sqrt(mean(x^2) + eps) * weight, with an eps that matters."""
    x, weight = 0.01 * _random(3, 10), _random(10, seed=1)
    out = REGISTRY["rms_norm"].reference(Call(3, {"x": x, "weight": weight}, {"eps": 1e-4}))["out"]
    wide = x.double()
    wanted = wide / (wide.square().sum(1, keepdim=True) / 10 + 1e-4).sqrt() * weight
    torch.testing.assert_close(out.double(), wanted, rtol=1e-6, atol=1e-7)


def test_linear() -> None:
    """Goal: x W^T + b; a matrix read in many slices gives the same as in one."""
    x, weight, bias = _random(4, 9), _random(7, 9, seed=1), _random(7, seed=2)
    reads = []

    def read(begin: int, end: int) -> torch.Tensor:
        reads.append((begin, end))
        return weight[begin:end]

    call = Call(4, {"x": x, "bias": bias}, matrices={"weight": Matrix((7, 9), read)})
    out = REGISTRY["linear"].reference(call)["out"]
    wanted = torch.einsum("rk,nk->rn", x.double(), weight.double()) + bias
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-6)
    assert reads == [(0, 7)]
    wide = Matrix((100, 1 << 21), lambda begin, end: torch.zeros(0))
    slices = list(wide.slices())
    assert slices[0] == (0, 4)
    assert [begin for begin, _ in slices[1:]] == [end for _, end in slices[:-1]]
    assert slices[-1][1] == 100


def test_qk_norm_and_rope() -> None:
    """Goal: heads are normalised apart; pairs (p, p + P) rotate as complex numbers; the tail stays."""
    heads, head_size, pairs = 3, 10, 4
    x, weight = _random(5, heads * head_size), _random(head_size, seed=1)
    call = Call(5, {"x": x, "weight": weight}, {"heads": heads, "eps": 1e-6})
    normed = REGISTRY["qk_norm"].reference(call)["out"]
    for head in range(heads):
        part = slice(head * head_size, (head + 1) * head_size)
        single = REGISTRY["rms_norm"].reference(Call(5, {"x": x[:, part], "weight": weight}, {"eps": 1e-6}))[
            "out"
        ]
        assert torch.equal(normed[:, part], single)

    angles = _random(5, pairs, seed=2)
    table = torch.stack([angles.cos(), angles.sin()], dim=1)
    call = Call(5, {"x": x, "table": table}, {"heads": heads, "head_size": head_size})
    out = REGISTRY["rope"].reference(call)["out"].reshape(5, heads, head_size)
    before = x.reshape(5, heads, head_size).double()
    turned = torch.complex(before[..., :pairs], before[..., pairs : 2 * pairs])
    turned = turned * torch.polar(torch.ones_like(angles), angles).to(torch.complex128)[:, None]
    torch.testing.assert_close(out[..., :pairs].double(), turned.real, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out[..., pairs : 2 * pairs].double(), turned.imag, rtol=1e-5, atol=1e-6)
    assert torch.equal(out[..., 2 * pairs :], x.reshape(5, heads, head_size)[..., 2 * pairs :])


@pytest.mark.parametrize("kv", [Dtype.F32, Dtype.BF16, Dtype.E4M3, Dtype.E5M2, Dtype.I8])
def test_kv_write(kv: Dtype) -> None:
    """Goal: a row lands at its lease's granule and column, rounded; everything else keeps its bits, NaN
    included.
    """
    kv_heads, head_size = 2, 8
    k, v = _random(3, kv_heads * head_size), _random(3, kv_heads * head_size, seed=1)
    caches = {
        "k_cache": torch.full((5, kv_heads, head_size, GRANULE), float("nan")),
        "v_cache": torch.full((5, kv_heads, GRANULE, head_size), float("nan")),
    }
    granules = torch.tensor([[4, 1], [0, 3]])
    places = [(0, 127, 4, 127), (0, 128, 1, 0), (1, 200, 3, 72)]  # lease, position, granule, column
    inputs = {
        "k": k, "v": v, "positions": torch.tensor([place[1] for place in places]),
        "leases": torch.tensor([place[0] for place in places]),
    }  # fmt: skip
    attributes = {"kv_heads": kv_heads, "head_size": head_size}
    REGISTRY["kv_write"].reference(Call(3, inputs, attributes, caches=caches, granules=granules, kv=kv))
    written = torch.zeros(5, GRANULE, dtype=torch.bool)
    for row, (_, _, granule, column) in enumerate(places):
        written[granule, column] = True
        for cache, values in (
            (caches["k_cache"][granule, :, :, column], k),
            (caches["v_cache"][granule, :, column], v),
        ):
            wanted = round_kv(values[row].reshape(kv_heads, head_size).numpy(), kv)
            np.testing.assert_array_equal(cache.numpy(), wanted)
    assert caches["k_cache"].permute(0, 3, 1, 2)[~written].isnan().all()
    assert caches["v_cache"].permute(0, 2, 1, 3)[~written].isnan().all()


@pytest.mark.parametrize("window", [0, 1, 2, 130])
def test_attention(window: int) -> None:
    """Goal: float64 softmax over exactly [begin, t] of the row's own lease, grouped heads, NaN everywhere
    else.
    """
    query_heads, kv_heads, head_size = 6, 2, 8
    lengths, granules = [300, 140], torch.tensor([[5, 0, 3], [2, 4, 1]])
    keys = torch.full((6, kv_heads, head_size, GRANULE), float("nan"))
    values = torch.full((6, kv_heads, GRANULE, head_size), float("nan"))
    history = [
        (_random(n, kv_heads, head_size, seed=n), _random(n, kv_heads, head_size, seed=n + 1))
        for n in lengths
    ]
    for lease, (k, v) in enumerate(history):
        for token in range(lengths[lease]):
            granule = granules[lease, token // GRANULE]
            keys[granule, :, :, token % GRANULE] = k[token]
            values[granule, :, token % GRANULE] = v[token]
    rows = [(0, 299), (1, 0), (0, 128), (1, 139), (0, 127)]
    q = _random(len(rows), query_heads * head_size, seed=9)
    attributes = {
        "softmax_scale": 0.3, "window": window, "query_heads": query_heads, "kv_heads": kv_heads,
        "head_size": head_size,
    }  # fmt: skip
    inputs = {
        "q": q, "positions": torch.tensor([row[1] for row in rows]),
        "leases": torch.tensor([row[0] for row in rows]),
    }  # fmt: skip
    caches = {"k_cache": keys, "v_cache": values}
    out = REGISTRY["attention"].reference(Call(5, inputs, attributes, caches=caches, granules=granules))[
        "out"
    ]
    for row, (lease, position) in enumerate(rows):
        begin = max(0, position - window + 1) if window else 0
        k, v = (part[begin : position + 1].double() for part in history[lease])
        for head in range(query_heads):
            part = slice(head * head_size, (head + 1) * head_size)
            scores = k[:, head // 3] @ q[row, part].double() * 0.3
            wanted = torch.softmax(scores, 0) @ v[:, head // 3]
            torch.testing.assert_close(out[row, part].double(), wanted, rtol=1e-5, atol=1e-6)


def test_add_silu_mul_gather() -> None:
    """Goal: the three small ones."""
    a, b = _random(4, 6), _random(4, 6, seed=1)
    assert torch.equal(REGISTRY["add"].reference(Call(4, {"a": a, "b": b}))["out"], a + b)
    out = REGISTRY["silu_mul"].reference(Call(4, {"gate": a, "up": b}))["out"]
    wanted = a.double() / (1 + (-a.double()).exp()) * b
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-7)
    index = torch.tensor([3, 3, 0])
    out = REGISTRY["gather_rows"].reference(Call(3, {"x": a, "row_index": index}))["out"]
    assert torch.equal(out, torch.stack([a[3], a[3], a[0]]))


def test_sample() -> None:
    """Goal: the largest logit, lowest id on a tie; alternatives in order; unused entries zero."""
    logits = torch.zeros(2, 30)
    logits[0, [7, 4, 20]] = 5.0
    logits[1, 29] = 1.0
    out = REGISTRY["sample"].reference(Call(2, {"logits": logits}))
    assert out["out_tokens"].tolist() == [4, 29]
    assert out["top_tokens"][0, :6].tolist() == [4, 4, 7, 20, 0, 1]
    assert out["top_tokens"].shape == out["top_logprobs"].shape == (2, 21)
    total = math.log(3 * math.exp(5) + 27)
    assert out["top_logprobs"][0, 0].item() == pytest.approx(5 - total)
    assert out["top_logprobs"][0, 4].item() == pytest.approx(-total)
    small = REGISTRY["sample"].reference(Call(1, {"logits": torch.tensor([[0.0, 2.0, 1.0]])}))
    assert small["top_tokens"][0].tolist() == [1, 1, 2, 0] + [0] * 17
    assert (small["top_logprobs"][0, 4:] == 0).all()


def test_costs() -> None:
    """Goal: a linear's cost is its weight, activations and multiply-adds; quantised weights are cheaper by
    their bytes.
    """
    body, head = decoder(SMALL, 8, 4)

    def cost(kind: str, dtype: Dtype = Dtype.F32) -> Cost:
        graph = body if any(op.kind == kind for op in body.ops) else head
        op = next(op for op in graph.ops if op.kind == kind)
        inputs = {role: graph.tensors[name] for role, name in op.inputs.items()}
        if "weight" in inputs and len(inputs["weight"].shape) == 2:
            weight = inputs["weight"]
            inputs["weight"] = Tensor(weight.name, weight.shape, dtype, Kind.WEIGHT, weight.sources)
        return REGISTRY[kind].cost(Signature(graph.rows, inputs, op.attributes))

    assert cost("linear") == Cost(4 * (64 * 48 + 8 * 48 + 8 * 64), 2 * 8 * 64 * 48)
    assert cost("linear", Dtype.BF16).bytes == 2 * 64 * 48 + 4 * 8 * (48 + 64)
    assert cost("linear", Dtype.E4M3).bytes == 64 * 48 + 4 * 64 + 4 * 8 * (48 + 64)
    assert cost("linear", Dtype.I8).bytes == 4 * 1088 + 4 * 8 * (
        48 + 64
    )  # 4 panels of one block: 48 pads to 64
    assert cost("embed") == Cost(8 * (4 + 2 * 4 * 48), 0)
    for kind in {op.kind for op in (*body.ops, *head.ops)}:
        assert cost(kind).bytes > 0
