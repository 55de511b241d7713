"""config.json -> ModelSpec: every family as transformers reads it, and everything unknown or absurd refused
by name.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from ingot.compiler.checkpoint.config import FAMILIES, add_eos_tokens, model_spec
from ingot.compiler.checkpoint.names import tensor_shapes
from ingot.compiler.checkpoint.spec import CheckpointError, RopeKind
from support.checkpoints import CASES, make_config
from support.models import source_of, spec_of, transformers_model
from support.released_configs import EXPECTED, RELEASED


def written(case: str) -> dict[str, Any]:
    """A case's config as transformers writes it to config.json."""
    config = make_config(case)
    config.architectures = [f"{CASES[case].architecture}ForCausalLM"]
    found: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return found


def old_spelling(config: dict[str, Any]) -> dict[str, Any]:
    """The same config as transformers 4 wrote it: rope_theta and rope_scaling, torch_dtype."""
    found = dict(config)
    rope = dict(found.pop("rope_parameters"))
    found["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    found["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    found["torch_dtype"] = found.pop("dtype", None)
    return found


LLAMA = RELEASED["Llama-2-7b"]


def refused(change: dict[str, Any], base: dict[str, Any] = LLAMA) -> str:
    """The error's text for a config with some keys changed (...: left out)."""
    config = {**base, **change}
    with pytest.raises(CheckpointError) as caught:
        model_spec({key: value for key, value in config.items() if value is not ...})
    text = str(caught.value)
    assert "\n" not in text, "an error is one line"
    assert len(text) < 400, "an error is one line"
    return text


@pytest.mark.parametrize("case", CASES)
def test_as_transformers_reads_it(case: str) -> None:
    """Goal: the spec is what the transformers config says, in the new spelling and the old."""
    config = written(case)
    wanted = spec_of(case)
    for spelling in (config, old_spelling(config)):
        found = model_spec(spelling)
        assert replace(found, bos_token=None, eos_tokens=()) == wanted
        eos = config["eos_token_id"]
        assert (found.bos_token, found.eos_tokens) == (0, tuple(eos) if isinstance(eos, list) else (eos,))


@pytest.mark.parametrize("case", CASES)
def test_diff_of_defaults(case: str) -> None:
    """Goal: a config that leaves out what equals the class's default means the same."""
    config = make_config(case)
    config.architectures = [f"{CASES[case].architecture}ForCausalLM"]
    short = json.loads(config.to_json_string(use_diff=True))
    assert replace(model_spec(short), bos_token=None, eos_tokens=()) == spec_of(case)


@pytest.mark.parametrize("case", CASES)
def test_shapes_are_the_models(case: str) -> None:
    """Goal: the tensors expected of a spec are those of the transformers model, name by name."""
    source = source_of(transformers_model(case))
    assert tensor_shapes(spec_of(case)) == {name: source.shape(name) for name in source.names()}


@pytest.mark.parametrize("name", RELEASED)
def test_released_configs(name: str) -> None:
    """Goal: configs in the wild are taken as they are, and say what they are known to say."""
    spec = model_spec(RELEASED[name])
    assert (
        spec.head_size, spec.kv_heads, spec.tied_head, (spec.layer_window[0], spec.layer_window[-1]),
        sum(spec.layer_rope), str(spec.rope.kind), spec.rope.theta, spec.eos_tokens,
    ) == EXPECTED[name]  # fmt: skip


@pytest.mark.parametrize("name", RELEASED)
def test_released_configs_as_transformers(name: str) -> None:
    """Goal: what a released config leaves to defaults is filled as transformers fills it."""
    architecture = RELEASED[name]["architectures"][0]
    config = getattr(transformers, architecture.replace("ForCausalLM", "Config")).from_dict(
        dict(RELEASED[name])
    )
    spec = model_spec(RELEASED[name])
    rope = dict(config.rope_parameters)
    assert spec.rope.kind == rope.pop("rope_type")
    assert spec.rope.theta == rope.pop("rope_theta")
    rope.pop("type", None)
    assert dict(spec.rope.parameters) == rope
    assert spec.norm_eps == config.rms_norm_eps
    assert spec.tied_head == config.tie_word_embeddings
    assert spec.context == config.max_position_embeddings


def test_defaults_of_absent_keys() -> None:
    """Goal: each family's defaults are transformers': windows, head sizes, patterns, tied heads."""
    sizes = {
        "vocab_size": 128, "hidden_size": 256, "intermediate_size": 64, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 8192,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }  # fmt: skip
    specs = {name: model_spec({**sizes, "architectures": [name]}) for name in FAMILIES}
    assert specs["MistralForCausalLM"].layer_window == (4096,) * 8
    assert specs["Qwen2ForCausalLM"].layer_window == (0,) * 8
    assert [spec.head_size for spec in specs.values()] == [32, 32, 32, 128, 32]
    assert specs["SmolLM3ForCausalLM"].layer_rope == (True, True, True, False) * 2
    assert [spec.tied_head for spec in specs.values()] == [False, False, False, False, True]
    assert [spec.rope.theta for spec in specs.values()] == [1e4, 1e4, 1e4, 1e4, 2e6]
    assert {spec.norm_eps for spec in specs.values()} == {1e-6}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0), ("query_pre_attn_scalar", 256),
        ("num_experts", 8), ("logit_scale", 0.1), ("embedding_multiplier", 12.0), ("residual_multiplier",
        0.2),
        ("dual_chunk_attention_config", {"chunk_size": 4096}), ("alibi", True), ("clip_qkv", 8.0),
        ("pretraining_tp", 2), ("rope_interleaved", True), ("partial_rotary_factor", 0.5), ("use_mrope",
        True),
        ("is_encoder_decoder", True), ("sliding_window", 4096), ("a\nkey", "a\nvalue" * 1000),
    ],
)  # fmt: skip
def test_unknown_keys_are_named(key: str, value: object) -> None:
    """Goal: a key that may change the maths is refused by name, with its value, in one short line."""
    text = refused({key: value})
    assert json.dumps(key) in text or key in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "GemmaForCausalLM"), ({"architectures": None},
        "architectures"),
        ({"architectures": ["LlamaForCausalLM", "X"]}, "architectures"), ({"hidden_act": "gelu"}, "gelu"),
        ({"vocab_size": 0}, "vocab_size is 0"), ({"vocab_size": "32000"}, "vocab_size"),
        ({"vocab_size": True}, "vocab_size"), ({"vocab_size": 1 << 30}, "1048576"), ({"vocab_size": ...},
        "missing"),
        ({"hidden_size": 4097}, "multiple of 32 heads"), ({"hidden_size": 32 * 12}, "multiple of 8"),
        ({"hidden_size": 1e400}, "hidden_size"), ({"hidden_size": -4096}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "1024"), ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 5}, "multiple of num_key_value_heads"), ({"head_dim": 520}, "512"),
        ({"head_dim": 12}, "multiple of 8"), ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps"), ({"rms_norm_eps": -1e-5}, "rms_norm_eps"),
        ({"rms_norm_eps": None}, "rms_norm_eps is null"), ({"max_position_embeddings": 1 << 40}, "16777216"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"), ({"eos_token_id": 32000}, "eos_token_id"),
        ({"eos_token_id": [1, -1]}, "eos_token_id"), ({"bos_token_id": [[1]]}, "bos_token_id"),
        ({"attention_bias": 1}, "attention_bias"), ({"layer_types": ["sliding_attention"] * 32},
        "layer_types"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"), ({"quantization_config": [1]},
        "quantised"),
    ],
)  # fmt: skip
def test_bad_values(change: dict[str, Any], said: str) -> None:
    """Goal: types and ranges are checked; the error names the key or what is allowed."""
    assert said in refused(change)


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ({"type": "dynamic", "factor": 2.0}, "dynamic"), ({"rope_type": "longrope", "factor": 2.0},
        "longrope"),
        ({"rope_type": "su", "factor": 2.0}, "su"), ({"rope_type": ["yarn"]}, "yarn"),
        ({"type": "linear"}, "factor is missing"), ({"type": "linear", "factor": 0.5}, "factor is 0.5"),
        ({"type": "linear", "factor": "8"}, "factor"), ({"type": "linear", "rope_type": "yarn",
        "factor": 2.0}, "differ"),
        ({"type": "linear", "factor": 2.0, "beta_fast": 32}, "beta_fast"),
        ({"type": "yarn", "factor": 2.0, "warp": 1}, "warp"), ({"type": "yarn", "factor": 2.0,
        "truncate": 1}, "truncate"),
        ({"type": "yarn", "factor": 2.0, "attention_factor": 0}, "attention_factor"),
        ({"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}, "low_freq_factor"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0},
        "less than"),
        ({"rope_theta": 0.0}, "rope_theta"), ({"partial_rotary_factor": 0.25}, "partial_rotary_factor"),
        ("yarn", "rope_scaling"), ({"full_attention": {"rope_theta": 1e4}, "rope_type": "default"},
        "every layer type"),
    ],
)  # fmt: skip
def test_bad_rope(scaling: object, said: str) -> None:
    """Goal: unknown kinds, unknown or missing parameters and impossible numbers are refused by name."""
    assert said in refused({"rope_scaling": scaling})
    if isinstance(scaling, dict):
        assert said in refused({"rope_scaling": ..., "rope_parameters": scaling})


def test_rope_spellings() -> None:
    """Goal: old, new and per-layer-type spellings agree; two that differ are refused."""
    linear = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}
    new = model_spec({**LLAMA, "rope_parameters": linear, "rope_scaling": ...} | {"rope_scaling": None})
    old = model_spec({**LLAMA, "rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2}})
    types = ["full_attention"] * 32
    nested = model_spec(
        {
            **LLAMA,
            "layer_types": types,
            "rope_parameters": {"full_attention": linear, "sliding_attention": None},
        }
        | {"rope_parameters": {"full_attention": linear}}
    )
    assert new.rope == old.rope == nested.rope
    assert (new.rope.kind, new.rope.theta, dict(new.rope.parameters)) == (
        RopeKind.LINEAR,
        5000.0,
        {"factor": 2.0},
    )
    assert "differ" in refused({"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_parameters": linear})
    mixed = {"full_attention": linear, "sliding_attention": {**linear, "factor": 4.0}}
    qwen = RELEASED["Qwen3-0.6B"]
    change = {
        "rope_parameters": mixed, "use_sliding_window": True, "sliding_window": 64,
        "layer_types": ["full_attention", "sliding_attention"] * 14,
    }  # fmt: skip
    assert "every layer type" in refused(change, qwen)


def test_layer_types_of_anything() -> None:
    """Goal: nested rope parameters and layer types that are no strings are an error, not a crash."""
    nested = {"full_attention": {"rope_theta": 1e4}}
    assert "layer type" in refused({"layer_types": [[]] * 32, "rope_parameters": nested})
    assert "layer type" in refused({"layer_types": [], "rope_parameters": nested})


def test_yarn_takes_the_config_factor() -> None:
    """Goal: yarn's original context comes from the config's own key, then the parameter, then the context."""
    yarn = {"rope_type": "yarn", "factor": 4.0}
    assert (
        model_spec({**LLAMA, "rope_scaling": yarn}).rope.parameters["original_max_position_embeddings"]
        == 4096
    )
    given = {**yarn, "original_max_position_embeddings": 1024}
    assert (
        model_spec({**LLAMA, "rope_scaling": given}).rope.parameters["original_max_position_embeddings"]
        == 1024
    )
    outer = {**LLAMA, "rope_scaling": given, "original_max_position_embeddings": 2048}
    assert model_spec(outer).rope.parameters["original_max_position_embeddings"] == 2048


def test_windows() -> None:
    """Goal: which layers slide follows each class: by index, by type, and never without a window."""
    qwen = {
        **RELEASED["Qwen2.5-0.5B"],
        "use_sliding_window": True,
        "sliding_window": 512,
        "max_window_layers": 20,
    }
    assert model_spec(qwen).layer_window == (0,) * 20 + (512,) * 4
    types = ["sliding_attention", *["full_attention"] * 23]
    assert model_spec({**qwen, "layer_types": types}).layer_window == (512, *(0,) * 23)
    assert "use_sliding_window" in refused({**qwen, "layer_types": types, "use_sliding_window": False}, qwen)
    assert "layer_types" in refused({"layer_types": types[:5]}, qwen)
    assert "layer_types" in refused({"layer_types": ["full_attention"] * 23 + ["linear_attention"]}, qwen)
    smol = {**RELEASED["SmolLM3-3B"], "use_sliding_window": True, "sliding_window": 64, "layer_types": None}
    assert model_spec(smol).layer_window == (0, 0, 0, 64) * 9
    assert "no_rope_layers" in refused({"no_rope_layers": [1, 2] * 18}, smol)
    mistral = RELEASED["Mistral-7B-v0.1"]
    alternating = ["sliding_attention", "full_attention"] * 16
    assert "layer_types" in refused({"layer_types": alternating}, mistral)


def test_eos_tokens_of_generation_config() -> None:
    """Goal: generation_config's eos tokens follow the config's, each once; one outside the vocabulary is
    refused.
    """
    spec = model_spec(LLAMA)
    assert add_eos_tokens(spec, {"eos_token_id": [5, 2, 7]}).eos_tokens == (2, 5, 7)
    assert add_eos_tokens(spec, {}).eos_tokens == (2,)
    with pytest.raises(CheckpointError, match="eos_token_id"):
        add_eos_tokens(spec, {"eos_token_id": 32000})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=400, deadline=None)
@given(
    name=st.sampled_from(sorted(RELEASED)),
    changes=st.dictionaries(
        st.sampled_from(sorted({*LLAMA, *RELEASED["Qwen3-0.6B"], *RELEASED["SmolLM3-3B"]})),
        VALUES, min_size=1, max_size=3,
    ),
)  # fmt: skip
def test_any_config_is_a_spec_or_one_error(name: str, changes: dict[str, Any]) -> None:
    """Goal: no config, however wrong, gives anything but a spec or one CheckpointError of one line."""
    try:
        spec = model_spec({**RELEASED[name], **changes})
    except CheckpointError as error:
        refusal = str(error)
    else:
        assert spec.query_heads % spec.kv_heads == 0
        assert len(spec.layer_window) == len(spec.layer_rope) == spec.layers
        return
    assert "\n" not in refusal


def test_no_real_key_is_forgotten(tmp_path: Path) -> None:
    """Goal: everything that this transformers release writes for these classes is known."""
    for architecture in FAMILIES:
        config = getattr(transformers, architecture.replace("ForCausalLM", "Config"))()
        config.architectures = [architecture]
        config.save_pretrained(tmp_path)
        model_spec(json.loads((tmp_path / "config.json").read_text()))
        model_spec(json.loads(config.to_json_string(use_diff=False)))
