"""The reference executor against transformers in float32: every family, prefill and decode."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ingot.compiler.targets.reference.executor import Reference
from support.checkpoints import CASES, VOCABULARY
from support.models import source_of, spec_of, transformers_model

PROMPT, DECODED = 150, 16
TOLERANCE = 1e-4  # relative L2 over the vocabulary, per position


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _tokens(seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (PROMPT + DECODED,), generator=generator).tolist()


def _distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest relative L2 distance of a position."""
    return float(((found - wanted).norm(dim=1) / wanted.norm(dim=1)).max())


@pytest.mark.parametrize("case", CASES)
def test_matches_transformers(case: str) -> None:
    """Goal: a prompt longer than any window and a granule, then 16 steps of one token, as transformers has
    it.
    """
    model, tokens = transformers_model(case), _tokens(1)
    with torch.no_grad():
        wanted = model(torch.tensor([tokens])).logits[0]
    reference = Reference(spec_of(case), source_of(model), cache=True)
    state = reference.begin(len(tokens))
    found = [reference.step(state, tokens[:PROMPT])]
    found += [reference.step(state, [token]) for token in tokens[PROMPT:]]
    assert float(wanted.std()) > 0.3, "the model's logits are flat: the comparison would show nothing"
    assert _distance(torch.cat(found), wanted) <= TOLERANCE


@pytest.mark.parametrize("case", ["mistral", "qwen3_biases", "smollm3_window"])
def test_chunks_give_the_whole(case: str) -> None:
    """Goal: positions and caches continue across chunks of any size."""
    tokens, model = _tokens(2), transformers_model(case)
    reference = Reference(spec_of(case), source_of(model), cache=True)
    whole = reference.forward(tokens)
    for chunk in (1, 37, 128):
        assert _distance(reference.forward(tokens, chunk), whole) <= 1e-5


@pytest.mark.parametrize("case", ["mistral", "qwen2_window", "smollm3_window"])
def test_window_edge(case: str) -> None:
    """Goal: the window's off-by-one shows: one token more or less is not transformers."""
    model, tokens, spec = transformers_model(case), _tokens(3), spec_of(case)
    with torch.no_grad():
        wanted = model(torch.tensor([tokens])).logits[0]
    assert any(0 < window < PROMPT for window in spec.layer_window)
    for shift in (-1, 1):
        windows = tuple(window + shift if window else 0 for window in spec.layer_window)
        shifted = Reference(replace(spec, layer_window=windows), source_of(model)).forward(tokens)
        assert _distance(shifted, wanted) > 100 * TOLERANCE


def test_matches_transformers_cache() -> None:
    """Goal: transformers decoding with its own KV cache, not only its whole-prompt pass, agrees on a windowed
    model.
    """
    model, tokens = transformers_model("mistral"), _tokens(4)
    with torch.no_grad():
        first = model(torch.tensor([tokens[:PROMPT]]), use_cache=True)
        wanted, cache = [first.logits[0]], first.past_key_values
        for token in tokens[PROMPT:]:
            step = model(torch.tensor([[token]]), cache=cache, use_cache=True)
            wanted.append(step.logits[0])
    found = Reference(spec_of("mistral"), source_of(model)).forward(tokens)
    assert _distance(found, torch.cat(wanted)) <= TOLERANCE
