"""Models for tests of the compiler: a transformers model as ModelSpec and TensorSource, and random ones
without it.

The mapping from transformers is written here a second time, by attribute, so that tests of the graph and the
reference do not rest on the checkpoint readers.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from ingot.compiler.checkpoint.spec import ModelSpec, RopeKind, RopeSpec
from numpy.typing import NDArray
from support.checkpoints import CASES, draw_weights, make_config

INNER = {
    "self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v", "self_attn.o_proj": "o",
    "self_attn.q_norm": "q_norm", "self_attn.k_norm": "k_norm", "input_layernorm": "attention_norm",
    "post_attention_layernorm": "mlp_norm", "mlp.gate_proj": "gate", "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}  # fmt: skip
OUTER = {"model.embed_tokens": "embed", "model.norm": "final_norm", "lm_head": "head"}


class ArraySource:
    """A TensorSource over arrays in memory, float32 by canonical name."""

    def __init__(self, arrays: dict[str, NDArray[np.float32]]) -> None:
        self.arrays = arrays

    def names(self) -> list[str]:
        return sorted(self.arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.arrays[name].shape

    def read(self, name: str, begin: int = 0, end: int | None = None) -> NDArray[np.float32]:
        return self.arrays[name][begin:end]

    def digest(self) -> str:
        digest = hashlib.sha256()
        for name in self.names():
            digest.update(self.arrays[name].tobytes())
        return digest.hexdigest()


def _canonical(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem in OUTER:
        return f"{OUTER[stem]}.{kind}"
    _, _, layer, inner = stem.split(".", 3)
    return f"layer.{layer}.{INNER[inner]}.{kind}"


def source_of(model: Any) -> ArraySource:
    """Every parameter of a transformers model under its canonical name."""
    return ArraySource(
        {_canonical(name): value.detach().float().numpy() for name, value in model.named_parameters()}
    )


def _rope(config: Any, head_size: int) -> RopeSpec:
    parameters = dict(config.rope_parameters)
    kind, theta = RopeKind(parameters.pop("rope_type")), float(parameters.pop("rope_theta"))
    dims = int(head_size * parameters.pop("partial_rotary_factor", 1.0))
    return RopeSpec(
        kind, theta, dims, {name: value for name, value in parameters.items() if value is not None}
    )


def _windows(config: Any, architecture: str) -> tuple[int, ...]:
    window = getattr(config, "sliding_window", None) or 0
    if architecture == "Mistral":
        return (window,) * config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def spec_of(case: str) -> ModelSpec:
    """The ModelSpec of a case of `support.checkpoints`."""
    config, architecture = make_config(case), CASES[case].architecture
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention_bias = bool(getattr(config, "attention_bias", False))
    no_rope = getattr(config, "no_rope_layers", None)  # 1: a layer that rotates
    return ModelSpec(
        architecture=f"{architecture}ForCausalLM", vocabulary=config.vocab_size, hidden=config.hidden_size,
        intermediate=config.intermediate_size, layers=config.num_hidden_layers,
        query_heads=config.num_attention_heads, kv_heads=config.num_key_value_heads, head_size=head_size,
        context=config.max_position_embeddings, norm_eps=config.rms_norm_eps, rope=_rope(config, head_size),
        layer_window=_windows(config, architecture),
        layer_rope=tuple(bool(x) for x in no_rope or [1] * config.num_hidden_layers),
        tied_head=config.tie_word_embeddings, qkv_bias=attention_bias or architecture == "Qwen2",
        output_bias=attention_bias, mlp_bias=bool(getattr(config, "mlp_bias", False)),
        qk_norm=architecture == "Qwen3",
    )  # fmt: skip


def transformers_model(case: str, seed: int = 0) -> Any:
    """A case's model in float32 on bf16-representable weights, eager attention, drawn as make_checkpoint
    does.
    """
    import transformers

    config = make_config(case)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{CASES[case].architecture}ForCausalLM")(config)
    draw_weights(model, seed)
    with torch.no_grad():  # parameters only: a rounded module would round its rotary frequencies too
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).to(torch.float32))
    return model.eval()


SMALL = ModelSpec(
    architecture="LlamaForCausalLM", vocabulary=211, hidden=48, intermediate=72, layers=2, query_heads=4,
    kv_heads=2, head_size=16, context=512, norm_eps=1e-5, rope=RopeSpec(RopeKind.DEFAULT, 10000.0, 16),
    layer_window=(0, 0), layer_rope=(True, True), tied_head=False,
)  # fmt: skip

# One ModelSpec for each field that changes a graph.
VARIANTS: dict[str, ModelSpec] = {
    "plain": SMALL,
    "tied": replace(SMALL, tied_head=True),
    "biases": replace(SMALL, qkv_bias=True, output_bias=True, mlp_bias=True),
    "qkv_bias": replace(SMALL, qkv_bias=True),
    "qk_norm": replace(SMALL, qk_norm=True),
    "windows": replace(SMALL, layer_window=(0, 24)),
    "rope_off": replace(SMALL, layer_rope=(False, True)),
    "rope_none": replace(SMALL, rope=RopeSpec(RopeKind.NONE, 0.0, 0)),
    "partial_rope": replace(SMALL, rope=RopeSpec(RopeKind.DEFAULT, 10000.0, 8)),
    "one_kv_head": replace(
        SMALL, query_heads=7, kv_heads=1, head_size=40, rope=RopeSpec(RopeKind.DEFAULT, 1e6, 40)
    ),
    "yarn": replace(SMALL, rope=RopeSpec(
        RopeKind.YARN, 10000.0, 16, {"factor": 4.0, "original_max_position_embeddings": 128}
    )),
}  # fmt: skip


def random_source(spec: ModelSpec, seed: int = 0) -> ArraySource:
    """Seeded weights of unit gain for every tensor that `spec` has; norms around one, biases not zero."""
    generator = np.random.Generator(np.random.PCG64(seed))
    q, kv = spec.query_heads * spec.head_size, spec.kv_heads * spec.head_size
    h, f = spec.hidden, spec.intermediate
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (spec.vocabulary, h), "final_norm.weight": (h,)}
    if not spec.tied_head:
        shapes["head.weight"] = (spec.vocabulary, h)
    matrices = {
        "q": ((q, h), spec.qkv_bias), "k": ((kv, h), spec.qkv_bias), "v": ((kv, h), spec.qkv_bias),
        "o": ((h, q), spec.output_bias), "gate": ((f, h), spec.mlp_bias), "up": ((f, h), spec.mlp_bias),
        "down": ((h, f), spec.mlp_bias),
    }  # fmt: skip
    for layer in range(spec.layers):
        prefix = f"layer.{layer}"
        for name, (shape, bias) in matrices.items():
            shapes[f"{prefix}.{name}.weight"] = shape
            if bias:
                shapes[f"{prefix}.{name}.bias"] = shape[:1]
        for name in ("attention_norm", "mlp_norm"):
            shapes[f"{prefix}.{name}.weight"] = (h,)
        for name in ("q_norm", "k_norm") if spec.qk_norm else ():
            shapes[f"{prefix}.{name}.weight"] = (spec.head_size,)
    arrays = {}
    for name, shape in sorted(shapes.items()):
        drawn = generator.standard_normal(shape)
        if "norm" in name:
            drawn = 1 + 0.2 * drawn
        elif name.endswith("bias"):
            drawn = 0.2 * drawn
        else:
            drawn = drawn * (0.3 if "embed" in name or "head" in name else shape[1] ** -0.5)
        arrays[name] = drawn.astype(np.float32)
    return ArraySource(arrays)
