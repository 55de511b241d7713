"""The Python Engine over tiny plans: streams, completions, limits, sampling defaults, stop strings, threads.

The weights are noise; a logit bias of 100 makes a token certain where a test needs to know what comes.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ingot.plans.writer import PlanWriter
from ingot.runtime import Chunk, Engine, IngotError, TextError
from ingot.runtime.sampling import Defaults, plan_defaults
from support.tiny_plan import TinySpec, tiny_plan

EOS = 2
CONTEXT = TinySpec().context
POOL_GRANULES = 12


def write(path: Path, *, generation: dict[str, Any] | None = None, **tables: Any) -> Path:
    """A tiny plan without a self-test; `tables` replaces fields of its tables, `generation` its generation
    config.
    """
    plan = tiny_plan(TinySpec())
    meta = dict(plan.tables.meta)
    meta["text"] = {**meta["text"], "generation": generation or {}}  # type: ignore[dict-item]
    with PlanWriter(path, replace(plan.tables, **{"selftest_bytes": 0, "meta": meta, **tables})) as writer:
        for name, raw in plan.weights.items():
            writer.write(name, 0, raw)
        writer.finish()
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("engine") / "tiny.plan")


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[Engine]:
    with Engine(path, threads=1) as opened:
        yield opened


@pytest.fixture(autouse=True)
def nothing_left_running(request: pytest.FixtureRequest) -> Iterator[None]:
    """Goal, of every test: whatever it did, no request holds a slot or a granule afterwards."""
    yield
    if "engine" in request.fixturenames:
        stats = request.getfixturevalue("engine").stats
        assert (stats["requests_running"], stats["granules_free"]) == (0, POOL_GRANULES)


def texts(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


# --- streams and completions --------------------------------------------------------------------------------


def test_a_completion_is_its_stream(engine: Engine) -> None:
    """Goal: complete, generate and chat give the same tokens for the same prompt, and text decodes them."""
    done = engine.complete("t5 t6", max_tokens=20, ignore_eos=True)
    chunks = list(engine.generate("t5 t6", max_tokens=20, ignore_eos=True))
    assert done.tokens == tuple(chunk.token for chunk in chunks)
    assert done.text == texts(chunks) == engine.text.decode(done.tokens)
    assert done.finish_reason == "length"
    assert done.chunks == tuple(chunks)
    assert [chunk.finish for chunk in chunks] == [None] * 19 + ["length"]
    ids = engine.text.encode("t5 t6")
    assert ids == [1, 5, 6]
    assert engine.complete(np.array(ids), max_tokens=20, ignore_eos=True).tokens == done.tokens


def test_chat_renders_and_does_not_add_bos(engine: Engine) -> None:
    """Goal: a conversation is the rendered template's ids, without the bos that plain prompts get."""
    messages = [{"role": "user", "content": "t5"}, {"role": "assistant", "content": "t6"}]
    with engine.chat(messages, max_tokens=8) as stream:
        assert stream.prompt == (5, 6)
        tokens = tuple(chunk.token for chunk in stream)
    assert engine.complete(messages, max_tokens=8).tokens == tokens
    assert engine.complete([5, 6], max_tokens=8).tokens == tokens


def test_usage_names_the_effective_max_tokens(engine: Engine) -> None:
    """Goal: the default is the plan's, capped by what the context leaves, and the answer says so."""
    bias = {EOS: 100.0}
    assert engine.complete([5], logit_bias=bias).usage.max_tokens == 64
    usage = engine.complete([5] * (CONTEXT - 10), logit_bias=bias).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.max_tokens) == (CONTEXT - 10, 1, 10)


def test_eos_ends_without_text(engine: Engine) -> None:
    """Goal: an eos or stop token is the last token and gives no text; ignore_eos and min_tokens hold it
    off.
    """
    done = engine.complete([5], logit_bias={EOS: 100.0})
    assert (done.text, done.tokens, done.finish_reason) == ("", (EOS,), "stop")
    done = engine.complete([5], logit_bias={7: 100.0}, stop_token_ids=[7])
    assert (done.text, done.tokens, done.finish_reason) == ("", (7,), "stop")
    assert len(engine.complete([5], logit_bias={EOS: 100.0}, ignore_eos=True, max_tokens=9).tokens) == 9
    done = engine.complete([5], logit_bias={EOS: 100.0}, min_tokens=4)
    assert len(done.tokens) == 5
    assert EOS not in done.tokens[:4]


@pytest.mark.parametrize("wanted", [None, 0, 3, 20])
def test_logprobs(engine: Engine, wanted: int | None) -> None:
    """Goal: None gives none, n gives the token's own and n alternatives, in descending order, greedy's
    token first.
    """
    chunks = list(engine.generate([5], max_tokens=4, logprobs=wanted, ignore_eos=True))
    for chunk in chunks:
        assert (chunk.logprob is None) == (wanted is None)
        assert len(chunk.top_logprobs) == (wanted or 0)
        if chunk.top_logprobs:
            assert chunk.top_logprobs[0] == (chunk.token, chunk.logprob)
            assert [value for _, value in chunk.top_logprobs] == sorted(
                (value for _, value in chunk.top_logprobs), reverse=True
            )


def test_score_gives_the_logits_that_generate_samples_from(engine: Engine) -> None:
    """Goal: score's last row has its maximum where greedy goes, whatever the chunk."""
    prompt = [1, 5, 9, 13]
    logits = engine.score(prompt)
    assert logits.shape == (4, 48)
    assert np.array_equal(logits, engine.score(prompt, chunk=1))
    assert engine.complete(prompt, max_tokens=1, ignore_eos=True).tokens == (int(np.argmax(logits[-1])),)


# --- several streams ----------------------------------------------------------------------------------------


def test_interleaved_streams_do_not_disturb_each_other(engine: Engine) -> None:
    """Goal: streams read in turns in one thread give what each gives alone, also when one is read far
    ahead.
    """
    prompts = [[5], [6, 7, 8], [9] * 140]
    alone = [
        engine.complete(p, max_tokens=100, ignore_eos=True, temperature=1.0, seed=3).tokens for p in prompts
    ]
    streams = [engine.generate(p, max_tokens=100, ignore_eos=True, temperature=1.0, seed=3) for p in prompts]
    read: list[list[int | None]] = [[], [], []]
    for _ in range(90):
        read[0].append(next(streams[0]).token)
    for _ in range(100):
        for i in (1, 2):
            read[i].append(next(streams[i]).token)
    read[0] += [chunk.token for chunk in streams[0]]
    assert [tuple(tokens) for tokens in read] == alone
    assert all(next(stream, None) is None for stream in streams)


def test_a_closed_stream_frees_its_lease(engine: Engine) -> None:
    """Goal: closing early, leaving a with block by an exception, and dropping a stream each end the
    request.
    """
    stream = engine.generate([5], max_tokens=200, ignore_eos=True)
    next(stream)
    assert engine.stats["granules_free"] == POOL_GRANULES - 2
    stream.close()
    stream.close()
    assert list(stream) == []
    assert engine.stats["granules_free"] == POOL_GRANULES
    with suppress(ZeroDivisionError), engine.generate([5]) as stream:
        assert next(stream).token // 0
    assert engine.stats["granules_free"] == POOL_GRANULES
    dropped: Any = engine.generate([5])
    assert engine.stats["requests_running"] == 1
    del dropped
    gc.collect()
    assert engine.stats["requests_running"] == 0


def test_closing_after_the_end_was_computed_frees_the_slot(engine: Engine) -> None:
    """Goal: a request that ended while its events wait unread gives its slot back when it is closed."""
    first = engine.generate([5], max_tokens=3, ignore_eos=True)
    list(engine.generate([6], max_tokens=20, ignore_eos=True))  # steps the first to its end
    assert engine.stats["requests_running"] == 0
    next(first)
    first.close()
    for _ in range(engine.stats["requests"] + 1):
        engine.complete([5], max_tokens=1)


def test_threads_take_turns(engine: Engine) -> None:
    """Goal: four threads, each reading its own stream, get what each gets alone."""
    alone = [engine.complete([5 + i], max_tokens=60, ignore_eos=True).tokens for i in range(4)]
    together: list[tuple[int, ...]] = [()] * 4

    def work(i: int) -> None:
        together[i] = engine.complete([5 + i], max_tokens=60, ignore_eos=True).tokens

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "max_tokens", "name", "limit"),
    [
        (CONTEXT - 1, None, None, 0),
        (CONTEXT - 1, 1, None, 0),
        (CONTEXT - 1, 2, "TOKENS_LONG", 1),
        (CONTEXT, None, "PROMPT_LONG", CONTEXT - 1),
        (CONTEXT, 1, "PROMPT_LONG", CONTEXT - 1),
        (CONTEXT + 1, None, "PROMPT_LONG", CONTEXT - 1),
        (10 * CONTEXT, None, "PROMPT_LONG", CONTEXT - 1),
        (0, None, "PROMPT_EMPTY", 1),
        (1, CONTEXT - 1, None, 0),
        (1, CONTEXT, "TOKENS_LONG", CONTEXT - 1),
    ],
)
def test_the_context_rule(
    engine: Engine, count: int, max_tokens: int | None, name: str | None, limit: int
) -> None:
    """Goal: prompt + max_tokens fits the context or is refused with the number; nothing is truncated."""
    if name is None:
        with engine.generate([5] * count, max_tokens=max_tokens) as stream:
            assert len(stream.prompt) == count
            assert next(stream).token is not None
        return
    with pytest.raises(IngotError) as caught:
        engine.generate([5] * count, max_tokens=max_tokens)
    assert (caught.value.name, caught.value.limit) == (name, limit)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"temperature": -1}, "SAMPLING"),
        ({"temperature": float("nan")}, "SAMPLING"),
        ({"top_p": 0}, "SAMPLING"),
        ({"top_p": 1e400}, "SAMPLING"),
        ({"temperature": 10**400}, "SAMPLING"),
        ({"min_p": 2}, "SAMPLING"),
        ({"top_k": -1}, "SAMPLING"),
        ({"top_k": 2**32}, "SAMPLING"),
        ({"seed": -1}, "SAMPLING"),
        ({"seed": 2**64}, "SAMPLING"),
        ({"logprobs": 21}, "SAMPLING"),
        ({"max_tokens": 0}, "SAMPLING"),
        ({"max_tokens": -5}, "SAMPLING"),
        ({"max_tokens": 2**32 - 1}, "TOKENS_LONG"),
        ({"repetition_penalty": 0}, "SAMPLING"),
        ({"presence_penalty": 3}, "SAMPLING"),
        ({"logit_bias": {5: 101}}, "SAMPLING"),
        ({"logit_bias": {48: 1}}, "TOKEN"),
        ({"logit_bias": dict.fromkeys(range(65), 1)}, "SAMPLING"),
        ({"logit_bias": {-1: 1}}, "SAMPLING"),
        ({"stop_token_ids": [48]}, "TOKEN"),
        ({"stop_token_ids": list(range(17))}, "SAMPLING"),
        ({"min_tokens": 65}, "SAMPLING"),
    ],
)
def test_sampling_out_of_range_is_refused(engine: Engine, options: dict[str, Any], name: str) -> None:
    """Goal: every value out of range is refused with its code and a text that names it; none is clipped."""
    with pytest.raises(IngotError) as caught:
        engine.generate([5], **options)
    assert caught.value.name == name, str(caught.value)
    assert str(caught.value) == caught.value.text


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": "warm"},
        {"top_k": 1.5},
        {"seed": "1"},
        {"max_tokens": True},
        {"logit_bias": [1]},
        {"logprobs": 2.0},
        {"stop_token_ids": ["a"]},
        {"temprature": 1},
    ],
)
def test_a_wrong_type_is_a_type_error(engine: Engine, options: dict[str, Any]) -> None:
    """Goal: a value of a wrong type, or an option that is none, is the caller's bug and says which."""
    with pytest.raises(
        TypeError, match=next(iter(options)).split("_ids")[0].replace("stop_token", "stop token")
    ):
        engine.generate([5], **options)


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ([48], IngotError),
        ([-1], IngotError),
        ([2**32], IngotError),
        ([1.0], TypeError),
        (["t1"], TypeError),
        ([True], TypeError),
    ],
)
def test_prompts_that_are_no_tokens(engine: Engine, prompt: Any, kind: type[Exception]) -> None:
    """Goal: an id outside the vocabulary is refused as such; what is no id is a TypeError."""
    with pytest.raises(kind) as caught:
        engine.generate(prompt)
    if isinstance(caught.value, IngotError):
        assert caught.value.name == "TOKEN"


def test_no_room_is_a_refusal_with_numbers(engine: Engine) -> None:
    """Goal: slots and granules run out with BUSY and CAPACITY; what was admitted still finishes."""
    streams = [engine.generate([5], max_tokens=4, ignore_eos=True) for _ in range(4)]
    with pytest.raises(IngotError) as caught:
        engine.generate([5])
    assert (caught.value.name, caught.value.limit) == ("BUSY", 4)
    assert [len(list(stream)) for stream in streams] == [4] * 4
    with Engine(engine.path, kv_tokens=256, max_requests=4, threads=1) as small:
        with small.generate([5], max_tokens=200):
            with pytest.raises(IngotError) as caught:
                small.generate([5])
            assert (caught.value.name, caught.value.limit, caught.value.actual) == ("CAPACITY", 0, 1)
        with pytest.raises(IngotError) as caught:
            small.generate([5], max_tokens=290)
        assert caught.value.name == "POOL"


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"kv_tokens": 10**6}, IngotError),
        ({"kv_tokens": 0}, IngotError),
        ({"kv_tokens": -1}, IngotError),
        ({"kv_tokens": 2**70}, IngotError),
        ({"max_requests": 9}, IngotError),
        ({"threads": 10**6}, IngotError),
        ({"step_rows": 5}, IngotError),
        ({"threads": "2"}, TypeError),
        ({"isa": "neon"}, ValueError),
    ],
)
def test_open_options_out_of_range(path: Path, options: dict[str, Any], kind: type[Exception]) -> None:
    """Goal: an option over the plan's ceiling is refused; 0 does not silently mean the default."""
    with pytest.raises(kind):
        Engine(path, **options)


def test_open_options_hold(path: Path) -> None:
    """Goal: pool and slots are the ones chosen, and the regions add up to what was reserved."""
    with Engine(path, kv_tokens=1000, max_requests=2, threads=1, step_rows=1, isa="scalar") as opened:
        stats = opened.stats
        assert (stats["granules"], stats["requests"], stats["threads"], stats["isa"]) == (8, 2, 1, "scalar")
        assert sum(region["bytes"] for region in opened.regions) == stats["bytes_reserved"]


def test_files_that_are_no_plan(tmp_path: Path) -> None:
    """Goal: a missing file and a file of noise are refused by name of the failure."""
    for name, content in (("FILE", None), ("PLAN", b"x" * 9000)):
        target = tmp_path / name
        if content is not None:
            target.write_bytes(content)
        with pytest.raises(IngotError) as caught:
            Engine(target)
        assert caught.value.name == name


def test_a_closed_engine_says_so(path: Path) -> None:
    """Goal: after close every call is one clear refusal, an open stream included; closing twice is fine."""
    engine = Engine(path, threads=1)
    stream = engine.generate([5], max_tokens=100, ignore_eos=True)
    next(stream)
    engine.close()
    engine.close()
    calls = [
        lambda: engine.generate([5]),
        lambda: engine.chat([{"role": "user", "content": "a"}]),
        lambda: engine.stats,
        lambda: engine.complete("t5"),
        lambda: engine.score([5]),
        lambda: next(stream),
    ]
    for call in calls:
        with pytest.raises(IngotError, match="closed") as caught:
            call()
        assert caught.value.name == "STATE"
    stream.close()


# --- text ---------------------------------------------------------------------------------------------------


def test_stop_strings_end_the_text_before_them(engine: Engine) -> None:
    """Goal: a stop string across token borders ends the answer; its text and all after it do not appear."""
    whole = engine.complete([5], max_tokens=40, ignore_eos=True).text
    words = whole.split()
    stop = f"{words[10]} {words[11]}"
    at = whole.index(stop)
    chunks = list(engine.generate([5], max_tokens=40, ignore_eos=True, stop=[stop, "never there"]))
    assert texts(chunks) == whole[:at]
    assert [chunk.finish for chunk in chunks if chunk.finish] == ["stop"]
    assert len(chunks) < 40
    assert engine.complete([5], max_tokens=40, ignore_eos=True, stop="never there").text == whole


def test_min_tokens_holds_off_stop_strings(engine: Engine) -> None:
    """Goal: before min_tokens a stop string is text like any other."""
    done = engine.complete([5], max_tokens=30, logit_bias={7: 100.0}, stop="t7", min_tokens=3)
    assert (len(done.tokens), done.text, done.finish_reason) == (3, "t7 t7 ", "stop")


def test_a_plan_of_token_ids_only(tmp_path: Path) -> None:
    """Goal: without a tokenizer ids go in and out, and everything that needs text is refused."""
    with Engine(write(tmp_path / "ids.plan", tokenizer=None, template=None), threads=1) as engine:
        done = engine.complete([5, 6], max_tokens=5, ignore_eos=True)
        assert (done.text, len(done.tokens)) == ("", 5)
        for call in (
            lambda: engine.generate("t5"),
            lambda: engine.generate([5], stop="x"),
            lambda: engine.chat([{"role": "user", "content": "t5"}]),
        ):
            with pytest.raises(TextError):
                call()


# --- sampling defaults --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({}, Defaults()),
        ({"temperature": 0.6, "top_p": 0.9}, Defaults(temperature=0.6, top_p=0.9)),
        ({"do_sample": True}, Defaults(temperature=1.0)),
        ({"do_sample": True, "temperature": 0.2, "top_k": 40}, Defaults(temperature=0.2, top_k=40)),
        ({"do_sample": False, "temperature": 0.6, "top_k": 5}, Defaults()),
        ({"do_sample": False, "repetition_penalty": 1.1}, Defaults(repetition_penalty=1.1)),
        ({"top_p": 0.9, "eos_token_id": 2}, Defaults(top_p=0.9)),
    ],
)
def test_defaults_of_a_generation_config(generation: dict[str, Any], expected: Defaults) -> None:
    """Goal: the documented rule of runtime/sampling.py, case by case."""
    assert plan_defaults(generation) == expected


def test_a_request_uses_the_plans_defaults_and_says_so(tmp_path: Path) -> None:
    """Goal: a default holds when an option is absent or None, an explicit value wins, and the stream shows
    both.
    """
    generation = {"do_sample": True, "temperature": 0.8, "top_k": 30}
    with Engine(write(tmp_path / "warm.plan", generation=generation), threads=1) as engine:
        with engine.generate([5], seed=9, top_k=None) as stream:
            assert (stream.sampling.temperature, stream.sampling.top_k, stream.sampling.seed) == (0.8, 30, 9)
        explicit = engine.complete([5], temperature=0.8, top_k=30, seed=9, max_tokens=30).tokens
        assert engine.complete([5], seed=9, max_tokens=30).tokens == explicit
        with engine.generate([5], temperature=0) as stream:
            assert stream.sampling.temperature == 0


# --- the package --------------------------------------------------------------------------------------------


def test_importing_the_package_loads_nothing() -> None:
    """Goal: no work at import: not the native module, numpy, tokenizers, jinja2 or torch."""
    code = (
        "import sys; import ingot.runtime; "
        "heavy = {'numpy', 'tokenizers', 'jinja2', 'torch', 'ingot.runtime._ingot'} & set(sys.modules); "
        "assert not heavy, heavy; from ingot.runtime import Engine; "
        "assert 'torch' not in sys.modules and 'ingot.compiler' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
