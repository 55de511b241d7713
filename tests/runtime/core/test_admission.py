"""Hostile values: every field of submit and of open, alone and at random, is refused by name or served."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ingot.runtime import _ingot
from support.engines import drain, generate, prompt, sealed, tokens, write_plan
from support.tiny_plan import TinySpec

NAN, INF = math.nan, math.inf


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plan(tmp_path_factory.mktemp("admission") / "tiny.plan", TinySpec())


@pytest.fixture(scope="module")
def engine(plan: Path) -> Iterator[_ingot.Engine]:
    with sealed(plan, threads=1) as engine:
        yield engine


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *[("SAMPLING", {"temperature": value}, "temperature is") for value in (NAN, INF, -INF, -0.5, -1e-45)],
    *[("SAMPLING", {"top_p": value}, "top_p is") for value in (NAN, INF, 0.0, -0.1, 1.0001)],
    *[("SAMPLING", {"min_p": value}, "min_p is") for value in (NAN, -0.1, 1.1)],
    *[
        ("SAMPLING", {"repetition_penalty": value}, "repetition_penalty is")
        for value in (NAN, INF, 0.0, -1.0)
    ],
    *[("SAMPLING", {"presence_penalty": value}, "presence_penalty is") for value in (NAN, -2.1, 2.1)],
    *[("SAMPLING", {"frequency_penalty": value}, "frequency_penalty is") for value in (NAN, -2.1, 2.1)],
    *[("SAMPLING", {"top_logprobs": value}, "top_logprobs is") for value in (21, 2**32 - 1)],
    ("SAMPLING", {"min_tokens": 11, "max_tokens": 10}, "min_tokens is 11: it may be at most max_tokens"),
    ("SAMPLING", {"max_tokens": 0}, "max_tokens is 0"),
    ("SAMPLING", {"stop_tokens": [1] * 17}, "stop tokens is 17: at most 16"),
    ("SAMPLING", {"logit_bias": dict.fromkeys(range(65), 0.0)}, "logit biases is 65: at most 64"),
    ("SAMPLING", {"logit_bias": {5: 100.5}}, "logit bias of token 5 is 100.5"),
    ("SAMPLING", {"logit_bias": {5: NAN}}, "logit bias of token 5 is"),
    ("TOKEN", {"stop_tokens": [3, 48]}, "stop token 1 is 48: token ids are below 48"),
    ("TOKEN", {"logit_bias": {2**32 - 1: 1.0}}, "logit bias token 0 is 4294967295"),
]


@pytest.mark.parametrize(("name", "sampling", "text"), REFUSED)
def test_a_field_out_of_range_is_refused_by_name(
    engine: _ingot.Engine, name: str, sampling: dict[str, Any], text: str
) -> None:
    """Goal: one clear sentence that names the field, what was found and what is allowed; nothing changes."""
    before = engine.stats
    with pytest.raises(_ingot.IngotError) as caught:
        engine.submit(prompt(3), **sampling)
    assert caught.value.name == name
    assert text in caught.value.text
    assert caught.value.text == str(caught.value) == caught.value.text[0].lower() + caught.value.text[1:]
    assert engine.stats == before


@pytest.mark.parametrize("bad", [48, 49, 2**31, 2**32 - 1])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_token_outside_the_vocabulary_is_refused(engine: _ingot.Engine, bad: int, at: int) -> None:
    """Goal: wherever it stands; the text names the place."""
    ids = prompt(3)
    ids[at] = bad
    with pytest.raises(
        _ingot.IngotError, match=f"token {at} of the prompt is {bad}: token ids are below 48"
    ) as caught:
        engine.submit(ids)
    assert (caught.value.name, caught.value.limit, caught.value.actual) == ("TOKEN", 48, bad)


def test_an_empty_prompt_is_refused(engine: _ingot.Engine) -> None:
    with pytest.raises(_ingot.IngotError, match="the prompt has no token") as caught:
        engine.submit(tokens())
    assert caught.value.name == "PROMPT_EMPTY"


def test_wrong_types_are_type_errors(engine: _ingot.Engine) -> None:
    """Goal: what is no number, or does not fit its type, never reaches the runtime."""
    for sampling in (
        {"max_tokens": -1},
        {"seed": 2**64},
        {"seed": -1},
        {"top_k": 1.5},
        {"stop_tokens": [-1]},
    ):
        with pytest.raises(TypeError):
            engine.submit(prompt(3), **sampling)  # type: ignore[arg-type]
    for ids in (prompt(4).reshape(2, 2), "abc", None):
        with pytest.raises(TypeError):
            engine.submit(ids)  # type: ignore[arg-type]
    with pytest.raises((TypeError, RuntimeError)):
        engine.submit(prompt(3), logit_bias={1: "x"})  # type: ignore[dict-item]
    for capacity in (0, 65):
        with pytest.raises(ValueError, match="capacity must be 1 to 64"):
            engine.poll(1, capacity)


HOSTILE: dict[str, list[Any]] = {
    "max_tokens": [None, 0, 1, 5, 297, 298, 2**32 - 1],
    "min_tokens": [0, 0, 1, 5, 2**32 - 1],
    "seed": [0, 1, 2**63, 2**64 - 1],
    "temperature": [0.0, 1e-45, 1.0, 3.4e38, -1.0, NAN, INF],
    "top_k": [0, 1, 47, 48, 2**32 - 1],
    "top_p": [1.0, 1e-45, 0.5, 0.0, NAN],
    "min_p": [0.0, 1.0, 0.5, -1.0, NAN],
    "repetition_penalty": [1.0, 1e-45, 3.4e38, 0.0, NAN],
    "presence_penalty": [0.0, 2.0, -2.0, 2.5],
    "frequency_penalty": [0.0, 2.0, -2.0, NAN],
    "logprobs": [True, False],
    "top_logprobs": [0, 1, 20, 21],
    "ignore_eos": [True, False],
    "stop_tokens": [[], [0], [47] * 16, [48], list(range(16))],
    "logit_bias": [None, {}, {0: 100.0}, dict.fromkeys(range(48), -100.0), {47: INF}],
}


def test_random_hostile_requests_are_refused_or_finish(engine: _ingot.Engine) -> None:
    """Goal: 3,000 random mixtures: each is an IngotError or a request that ends; all stays whole."""
    draw = random.Random(7)
    admitted = 0
    for _ in range(3000):
        sampling = {
            name: draw.choice(values if draw.random() < 0.3 else values[:3])
            for name, values in HOSTILE.items()
        }
        try:
            handle = engine.submit(prompt(3), **sampling)
        except _ingot.IngotError:
            continue
        admitted += 1
        for _ in range(3):
            engine.step()
        engine.cancel(handle)
        events = engine.poll(handle)
        assert events[-1].finish is not None
        assert all(event.token is None or event.token < 48 for event in events)
    assert 100 < admitted < 3000
    stats = engine.stats
    assert (stats["requests_running"], stats["granules_free"]) == (0, stats["granules"])
    assert len(generate(engine, prompt(3), max_tokens=4, ignore_eos=True)) == 4


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kv_tokens": 8193}, "kv_tokens is 8193: at most 8192 is allowed by the plan"),
        ({"kv_tokens": 2**64 - 1}, "kv_tokens is 18446744073709551615: at most 8192"),
        ({"requests": 9}, "requests is 9: at most 8"),
        ({"step_rows": 5}, "step_rows is 5: at most 4"),
        ({"threads": 257}, "threads is 257: at most 256"),
    ],
)
def test_open_options_over_the_ceiling(plan: Path, options: dict[str, Any], text: str) -> None:
    """Goal: an option over the plan's ceiling is refused with both numbers by create and regions."""
    opened = _ingot.Plan(str(plan))
    with pytest.raises(_ingot.IngotError) as caught:
        _ingot.Engine(opened, **options)
    assert caught.value.name == "OPTION"
    assert text in caught.value.text
    if set(options) <= {"kv_tokens", "requests"}:
        with pytest.raises(_ingot.IngotError, match="at most"):
            opened.regions(**options)
    with pytest.raises(ValueError, match="isa must be"):
        _ingot.Engine(opened, isa="avx1024")  # type: ignore[arg-type]


def test_open_options_at_the_ceiling(plan: Path) -> None:
    """Goal: every ceiling itself is allowed, and what is reserved is what `regions` said."""
    opened = _ingot.Plan(str(plan))
    for options in ({"kv_tokens": 1, "requests": 1}, {"kv_tokens": 8192, "requests": 8}, {"kv_tokens": 129}):
        said = sum(region["bytes"] for region in opened.regions(**options))
        with sealed(plan, threads=2, step_rows=4, **options) as engine:
            assert engine.stats["bytes_reserved"] == said
            assert engine.stats["granules"] == -(-options["kv_tokens"] // 128)
            drain(engine, engine.submit(prompt(3), max_tokens=3))
