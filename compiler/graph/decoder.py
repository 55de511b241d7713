"""Decoder: a ModelSpec becomes two graphs of primitive ops, body (rows -> hidden states) and head (chosen
rows -> tokens).

A layer is attention_norm, q, k, v, [qk_norm], [rope], kv_write, attention, o, add, mlp_norm, gate, up,
silu_mul, down, add. Families differ only in which of these a layer has and in the attributes. Weights are
float32 here, under their canonical checkpoint names; the quantise pass gives them their format.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...plans.layout import SAMPLING, TOP_LOGPROBS_MAX, Dtype
from ..checkpoint.spec import ModelSpec, RopeKind
from .graph import Graph, Kind, Op, Tensor
from .ops.definition import Attributes, cache_results
from .rope import rope_frequencies
from .verify import GraphError

INVERSE_FREQUENCY = (
    "rope.inverse_frequency"  # the one weight that no checkpoint holds: computed from spec.rope
)


class _Builder:
    """Appends ops and their tensors; `at` is the layer that ops belong to."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[Op] = []
        self.at: int | None = None

    def tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        kind: Kind,
        dtype: Dtype = Dtype.F32,
        sources: tuple[str, ...] = (),
    ) -> str:
        self.tensors[name] = Tensor(name, shape, dtype, kind, sources)
        return name

    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        return self.tensor(name, shape, Kind.WEIGHT, sources=(name,))

    def op(
        self,
        kind: str,
        inputs: Mapping[str, str],
        outputs: Mapping[str, str],
        **attributes: float | int | bool,
    ) -> None:
        self.ops.append(Op(kind, inputs, outputs, attributes, self.at))

    def row_op(
        self,
        kind: str,
        inputs: Mapping[str, str],
        out: str,
        shape: tuple[int, ...],
        attributes: Attributes | None = None,
    ) -> str:
        """An op with one output, an activation of shape (rows, *shape), unless a tensor of that name is
        there.
        """
        if out not in self.tensors:
            self.tensor(out, (self.rows, *shape), Kind.ACTIVATION)
        self.op(kind, inputs, {"out": out}, **(attributes or {}))
        return out

    def linear(self, x: str, name: str, shape: tuple[int, int], bias: bool, out: str) -> str:
        """`name` is the canonical name without .weight; shape (N, K)."""
        inputs = {"x": x, "weight": self.weight(f"{name}.weight", shape)}
        if bias:
            inputs["bias"] = self.weight(f"{name}.bias", shape[:1])
        return self.row_op("linear", inputs, out, shape[:1])

    def graph(self, name: str) -> Graph:
        return Graph(name, self.rows, self.tensors, tuple(self.ops))


def _check(spec: ModelSpec) -> None:
    """Refuses what these graphs cannot say."""
    if spec.activation != "silu":
        raise GraphError(f"activation '{spec.activation}' is not supported; silu is needed")
    if len(spec.layer_window) != spec.layers or len(spec.layer_rope) != spec.layers:
        raise GraphError(
            f"layer_window and layer_rope must have one entry for each of the {spec.layers} layers"
        )
    if spec.kv_heads < 1 or spec.query_heads % spec.kv_heads:
        raise GraphError(f"{spec.query_heads} query heads do not share {spec.kv_heads} kv heads evenly")
    if spec.rope.kind != RopeKind.NONE and not (
        0 < spec.rope.rotary_dims <= spec.head_size and spec.rope.rotary_dims % 2 == 0
    ):
        raise GraphError(f"{spec.rope.rotary_dims} rotary dimensions do not fit heads of {spec.head_size}")


def rotates(spec: ModelSpec, layer: int) -> bool:
    """Whether a layer has rotary embedding."""
    return spec.rope.kind != RopeKind.NONE and spec.layer_rope[layer]


def _attention(build: _Builder, spec: ModelSpec, layer: int, x: str, kv: Dtype) -> str:
    """The attention block of a layer without its norm and residual: the normalised x (R, H) -> o's output (R,
    H).
    """
    prefix, q_width, kv_width = (
        f"layer.{layer}",
        spec.query_heads * spec.head_size,
        spec.kv_heads * spec.head_size,
    )
    rows = {}
    for part, heads, width in (("q", spec.query_heads, q_width), ("k", spec.kv_heads, kv_width)):
        name = build.linear(x, f"{prefix}.{part}", (width, spec.hidden), spec.qkv_bias, f"{prefix}.{part}")
        if spec.qk_norm:
            inputs = {"x": name, "weight": build.weight(f"{prefix}.{part}_norm.weight", (spec.head_size,))}
            attributes: Attributes = {"heads": heads, "eps": spec.norm_eps}
            name = build.row_op("qk_norm", inputs, f"{prefix}.{part}_normalised", (width,), attributes)
        if rotates(spec, layer):
            attributes = {"heads": heads, "head_size": spec.head_size}
            name = build.row_op(
                "rope", {"x": name, "table": "rope.table"}, f"{prefix}.{part}_rotated", (width,), attributes
            )
        rows[part] = name
    rows["v"] = build.linear(x, f"{prefix}.v", (kv_width, spec.hidden), spec.qkv_bias, f"{prefix}.v")

    places = {"positions": "row_positions", "leases": "row_leases"}
    caches = {}
    for role, result in cache_results(spec.kv_heads, spec.head_size).items():
        caches[role] = build.tensor(f"{prefix}.{role}", result.shape, Kind.KV, kv)
    build.op(
        "kv_write",
        {"k": rows["k"], "v": rows["v"], **places},
        caches,
        kv_heads=spec.kv_heads,
        head_size=spec.head_size,
    )
    attributes = {
        "softmax_scale": float(spec.head_size) ** -0.5, "window": spec.layer_window[layer],
        "query_heads": spec.query_heads, "kv_heads": spec.kv_heads, "head_size": spec.head_size,
    }  # fmt: skip
    out = build.row_op(
        "attention", {"q": rows["q"], **caches, **places}, f"{prefix}.attended", (q_width,), attributes
    )
    return build.linear(out, f"{prefix}.o", (spec.hidden, q_width), spec.output_bias, f"{prefix}.o")


def _mlp(build: _Builder, spec: ModelSpec, layer: int, x: str) -> str:
    """The gated MLP of a layer without its norm and residual: (R, H) -> (R, H)."""
    prefix, wide = f"layer.{layer}", (spec.intermediate, spec.hidden)
    inputs = {
        part: build.linear(x, f"{prefix}.{part}", wide, spec.mlp_bias, f"{prefix}.{part}")
        for part in ("gate", "up")
    }
    out = build.row_op("silu_mul", inputs, f"{prefix}.gated", wide[:1])
    return build.linear(out, f"{prefix}.down", wide[::-1], spec.mlp_bias, f"{prefix}.down")


def _norm(build: _Builder, spec: ModelSpec, x: str, name: str) -> str:
    weight = build.weight(f"{name}.weight", (spec.hidden,))
    return build.row_op("rms_norm", {"x": x, "weight": weight}, name, (spec.hidden,), {"eps": spec.norm_eps})


def _body(spec: ModelSpec, rows_max: int, kv: Dtype) -> Graph:
    build = _Builder(rows_max)
    for name in ("row_tokens", "row_positions", "row_leases"):
        build.tensor(name, (rows_max,), Kind.IO, Dtype.U32)
    build.tensor("hidden", (rows_max, spec.hidden), Kind.IO)
    weight = build.weight("embed.weight", (spec.vocabulary, spec.hidden))
    x = build.row_op("embed", {"tokens": "row_tokens", "weight": weight}, "embedded", (spec.hidden,))
    if any(rotates(spec, layer) for layer in range(spec.layers)):
        pairs = spec.rope.rotary_dims // 2
        table = {"positions": "row_positions", "inverse_frequency": INVERSE_FREQUENCY}
        build.tensor(INVERSE_FREQUENCY, (pairs,), Kind.WEIGHT)
        factor = rope_frequencies(spec.rope, spec.context).attention_factor
        build.row_op("rope_table", table, "rope.table", (2, pairs), {"attention_factor": factor})
    for layer in range(spec.layers):
        build.at = layer
        prefix, last = f"layer.{layer}", layer == spec.layers - 1
        block = _attention(build, spec, layer, _norm(build, spec, x, f"{prefix}.attention_norm"), kv)
        x = build.row_op("add", {"a": x, "b": block}, f"{prefix}.attention_residual", (spec.hidden,))
        block = _mlp(build, spec, layer, _norm(build, spec, x, f"{prefix}.mlp_norm"))
        x = build.row_op(
            "add", {"a": x, "b": block}, "hidden" if last else f"{prefix}.mlp_residual", (spec.hidden,)
        )
    return build.graph("body")


def _head(spec: ModelSpec, rows_max: int, head_rows_max: int) -> Graph:
    build, top = _Builder(head_rows_max), (head_rows_max, 1 + TOP_LOGPROBS_MAX)
    build.tensor("hidden", (rows_max, spec.hidden), Kind.IO)
    for name in ("head_rows", "head_requests", "head_positions", "out_tokens"):
        build.tensor(name, (head_rows_max,), Kind.IO, Dtype.U32)
    build.tensor("logits", (head_rows_max, spec.vocabulary), Kind.IO)
    build.tensor("top_tokens", top, Kind.IO, Dtype.U32)
    build.tensor("top_logprobs", top, Kind.IO)
    build.tensor("sampling", (SAMPLING.bytes,), Kind.STATE, Dtype.U8)
    build.tensor("token_counts", (spec.vocabulary,), Kind.STATE, Dtype.U16)
    x = build.row_op("gather_rows", {"x": "hidden", "row_index": "head_rows"}, "gathered", (spec.hidden,))
    x = _norm(build, spec, x, "final_norm")
    build.linear(x, "embed" if spec.tied_head else "head", (spec.vocabulary, spec.hidden), False, "logits")
    inputs = {
        "logits": "logits", "requests": "head_requests", "positions": "head_positions",
        "sampling": "sampling", "token_counts": "token_counts",
    }  # fmt: skip
    build.op("sample", inputs, {role: role for role in ("out_tokens", "top_tokens", "top_logprobs")})
    return build.graph("head")


def decoder(spec: ModelSpec, rows_max: int, head_rows_max: int, kv: Dtype = Dtype.F32) -> tuple[Graph, Graph]:
    """The body for `rows_max` rows and the head for `head_rows_max`, float32 weights, caches of dtype `kv`.

    Raises GraphError for a model that the ops cannot express.
    """
    _check(spec)
    return _body(spec, rows_max, kv), _head(spec, rows_max, head_rows_max)
