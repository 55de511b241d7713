"""Rotary frequencies against transformers' own functions, for every kind and the odd corners of yarn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ingot.compiler.checkpoint.spec import RopeKind, RopeSpec
from ingot.compiler.graph.rope import rope_frequencies
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
CASES: dict[str, tuple[float, int, dict[str, Any]]] = {
    "default": (10000.0, 64, {"rope_type": "default"}),
    "default, odd base": (123456.7, 40, {"rope_type": "default"}),
    "linear": (10000.0, 80, {"rope_type": "linear", "factor": 3.0}),
    "llama3.2": (500000.0, 64, {"rope_type": "llama3", **LLAMA3}),
    "llama3.1": (500000.0, 128, {"rope_type": "llama3", **LLAMA3, "factor": 8.0}),
    "yarn": (10000.0, 128, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}),
    "yarn, factor below one": (
        10000.0, 64, {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 4096}
    ),
    "yarn, betas": (1000000.0, 128, {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768,
        "beta_fast": 16.0, "beta_slow": 2.0,
    }),
    "yarn, attention factor": (10000.0, 64, {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "attention_factor": 0.9,
    }),
    "yarn, mscale": (10000.0, 64, {
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.707,
        "mscale_all_dim": 1.2,
    }),
    "yarn, not truncated": (150000.0, 64, {
        "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False,
    }),
    "yarn, one corner": (
        10000.0, 8, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_transformers(name: str) -> None:
    """Goal: the same float32 frequencies to the last bit or two, and the same attention factor."""
    theta, dims, parameters = CASES[name]
    context = 16384
    config = LlamaConfig(
        hidden_size=2 * dims, num_attention_heads=2, head_dim=dims, max_position_embeddings=context,
        rope_parameters={"rope_theta": theta, **parameters},
    )  # fmt: skip
    wanted = LlamaRotaryEmbedding(config)
    rest = {key: float(value) for key, value in parameters.items() if key != "rope_type"}
    spec = RopeSpec(RopeKind(parameters["rope_type"]), theta, dims, rest)
    found = rope_frequencies(spec, context)
    assert found.inverse_frequency.dtype == np.float32
    assert found.inverse_frequency.shape == (dims // 2,)
    np.testing.assert_allclose(found.inverse_frequency, wanted.inv_freq.numpy(), rtol=5e-7)
    assert found.attention_factor == pytest.approx(wanted.attention_scaling, rel=1e-12)


def test_yarn_factor_from_context() -> None:
    """Goal: a yarn config without a factor takes context / original, as for transformers' null factor."""
    original = {"original_max_position_embeddings": 4096.0}
    given = rope_frequencies(RopeSpec(RopeKind.YARN, 10000.0, 64, {"factor": 4.0, **original}), 16384)
    derived = rope_frequencies(RopeSpec(RopeKind.YARN, 10000.0, 64, original), 16384)
    np.testing.assert_array_equal(given.inverse_frequency, derived.inverse_frequency)
    assert given.attention_factor == derived.attention_factor


def test_none_has_no_pairs() -> None:
    """Goal: a model without rotary embedding has no frequencies."""
    assert rope_frequencies(RopeSpec(RopeKind.NONE, 0.0, 0), 128).inverse_frequency.shape == (0,)


def test_default_is_exact_powers() -> None:
    """Goal: known values, independent of transformers: theta^(-2i/d)."""
    found = rope_frequencies(RopeSpec(RopeKind.DEFAULT, 10000.0, 4), 128).inverse_frequency
    assert found.tolist() == [1.0, np.float32(0.01)]
    assert torch.from_numpy(found).dtype == torch.float32
