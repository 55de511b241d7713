"""Requests through the Python module: the context, leases, handles, rings, cancelling, stopping, turns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from ingot.runtime import _ingot
from support.engines import drain, generate, prompt, sealed, tokens, write_plan
from support.tiny_plan import TinySpec

CONTEXT = 300  # of the tiny plan; 3 granules
RING = 64


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plan(tmp_path_factory.mktemp("requests") / "tiny.plan", TinySpec())


@pytest.fixture
def engine(plan: Path) -> Iterator[_ingot.Engine]:
    with sealed(plan, threads=1) as engine:
        yield engine


def refusal(engine: _ingot.Engine, ids: np.ndarray, **sampling: object) -> _ingot.IngotError:
    before = engine.stats
    with pytest.raises(_ingot.IngotError) as caught:
        engine.submit(ids, **sampling)  # type: ignore[arg-type]
    assert engine.stats == before, "a refusal changes nothing"
    return caught.value


def test_prompts_around_the_context(engine: _ingot.Engine) -> None:
    """Goal: context - 1 tokens generate exactly one; one more or two are refused, never truncated."""
    assert len(generate(engine, prompt(CONTEXT - 1), max_tokens=1, ignore_eos=True)) == 1
    for count in (CONTEXT, CONTEXT + 1, 5000):
        error = refusal(engine, prompt(count), max_tokens=1)
        assert (error.name, error.limit, error.actual) == ("PROMPT_LONG", CONTEXT - 1, count)
        assert error.text == (
            f"the prompt has {count} tokens: at most 299 fit the context of 300 with one generated token"
        )


def test_max_tokens_around_the_context(engine: _ingot.Engine) -> None:
    """Goal: prompt + max_tokens may be the context; nothing given means the plan's default, capped."""
    assert len(generate(engine, prompt(200), max_tokens=100, ignore_eos=True)) == 100
    for most in (101, 2**32 - 1):
        error = refusal(engine, prompt(200), max_tokens=most)
        assert (error.name, error.limit) == ("TOKENS_LONG", 100)
    assert len(generate(engine, prompt(10), ignore_eos=True)) == 64
    assert len(generate(engine, prompt(CONTEXT - 9), ignore_eos=True)) == 9
    assert refusal(engine, prompt(3), max_tokens=0).name == "SAMPLING"


def test_events_are_in_order_and_carry_positions(engine: _ingot.Engine) -> None:
    """Goal: positions follow the prompt; only the last event has a finish; the handle is then spent."""
    handle = engine.submit(prompt(7), max_tokens=5, ignore_eos=True)
    events = drain(engine, handle)
    assert [event.position for event in events] == [7, 8, 9, 10, 11]
    assert [event.finish for event in events] == [None] * 4 + ["length"]
    assert all(event.logprob is None and event.top == [] for event in events)
    with pytest.raises(_ingot.IngotError, match="names no live request") as caught:
        engine.poll(handle)
    assert caught.value.name == "HANDLE"


def test_leases_are_taken_at_submit_and_returned_at_the_end(engine: _ingot.Engine) -> None:
    """Goal: a lease is ceil((prompt + max_tokens) / 128) granules, from submit to the end."""
    free = engine.stats["granules_free"]
    for count, most, granules in ((100, 28, 1), (100, 29, 2), (128, 128, 2), (128, 129, 3)):
        handle = engine.submit(prompt(count), max_tokens=most, ignore_eos=True)
        assert engine.stats["granules_free"] == free - granules
        drain(engine, handle)
        assert engine.stats["granules_free"] == free


def test_slots_and_granules_run_out_with_numbers(plan: Path) -> None:
    """Goal: BUSY, CAPACITY and POOL say what is needed and what there is; waiting or polling helps."""
    with sealed(plan, threads=1, requests=2, kv_tokens=384) as engine:
        first = engine.submit(prompt(200), max_tokens=56)
        error = refusal(engine, prompt(200), max_tokens=56)
        assert (error.name, error.limit, error.actual) == ("CAPACITY", 1, 2)
        second = engine.submit(prompt(3), max_tokens=1)
        error = refusal(engine, prompt(3), max_tokens=1)
        assert (error.name, error.limit) == ("BUSY", 2)
        drain(engine, second)
        third = engine.submit(prompt(3), max_tokens=1)
        drain(engine, first)
        drain(engine, third)
    with sealed(plan, threads=1, kv_tokens=256) as engine:
        error = refusal(engine, prompt(250), max_tokens=7)
        assert (error.name, error.limit, error.actual) == ("POOL", 2, 3)
        assert len(generate(engine, prompt(250), max_tokens=6, ignore_eos=True)) == 6


def test_handles_are_never_confused(engine: _ingot.Engine) -> None:
    """Goal: a slot that is used again has another handle; old, foreign and zero handles are refused."""
    seen: set[int] = set()
    for _ in range(20):
        handle = engine.submit(prompt(2), max_tokens=1)
        assert handle not in seen
        drain(engine, handle)
        seen.add(handle)
    live = engine.submit(prompt(2), max_tokens=1)
    for wrong in [*seen, 0, live + 1, live + (1 << 32), live - (1 << 32), 2**64 - 1, 4096]:
        for call in (engine.poll, engine.cancel):
            with pytest.raises(_ingot.IngotError) as caught:
                call(wrong)
            assert caught.value.name == "HANDLE"
    drain(engine, live)


@pytest.mark.parametrize("steps", [0, 1, 3, 6])
def test_cancel_at_any_moment(engine: _ingot.Engine, steps: int) -> None:
    """Goal: cancelled in the queue, in prefill, in decode: the lease returns at once, earlier events stay."""
    free = engine.stats["granules_free"]
    other = engine.submit(prompt(5, seed=1), max_tokens=8, ignore_eos=True)
    handle = engine.submit(prompt(6), max_tokens=50, ignore_eos=True)
    for _ in range(steps):
        engine.step()
    engine.cancel(handle)
    engine.cancel(handle)  # twice is once
    assert engine.stats["granules_free"] == free - 1
    events = engine.poll(handle)
    assert [event.finish for event in events] == [None] * (len(events) - 1) + ["cancelled"]
    assert events[-1].token is None
    assert [event.token for event in drain(engine, other)] == generate(
        engine, prompt(5, seed=1), max_tokens=8, ignore_eos=True
    )
    assert engine.stats["granules_free"] == free


def test_cancel_with_a_full_ring_and_capacity_of_one(engine: _ingot.Engine) -> None:
    """Goal: the cancelled event follows all others even when they fill the ring and are taken one by one."""
    handle = engine.submit(prompt(3), max_tokens=100, ignore_eos=True)
    while engine.step():
        pass
    engine.cancel(handle)
    taken = list(itertools.chain.from_iterable(engine.poll(handle, 1) for _ in range(RING + 1)))
    assert [event.finish for event in taken] == [None] * RING + ["cancelled"]


def test_cancel_after_the_end_changes_nothing(engine: _ingot.Engine) -> None:
    """Goal: a request that has ended keeps its finish."""
    handle = engine.submit(prompt(3), max_tokens=2, ignore_eos=True)
    while engine.step():
        pass
    engine.cancel(handle)
    assert [event.finish for event in engine.poll(handle)] == [None, "length"]


def test_a_full_ring_sits_out_and_goes_on(engine: _ingot.Engine) -> None:
    """Goal: a request nobody polls stops at 64 events, holds nobody up, loses nothing."""
    alone = generate(engine, prompt(3), max_tokens=150, ignore_eos=True)
    handle = engine.submit(prompt(3), max_tokens=150, ignore_eos=True)
    other = engine.submit(prompt(4, seed=2), max_tokens=120, ignore_eos=True)
    while len(drained := drain(engine, other)) < 120:
        pass
    assert len(drained) == 120
    assert engine.stats["requests_running"] == 1
    assert engine.step() == 0
    events = engine.poll(handle, 64)
    assert len(events) == RING
    events += drain(engine, handle)
    assert [event.token for event in events] == alone


def test_stop_tokens_and_eos(plan: Path, engine: _ingot.Engine) -> None:
    """Goal: eos and stop tokens end a request as its last token; ignore_eos and min_tokens hold."""
    free = generate(engine, prompt(9), max_tokens=60, temperature=1.0, seed=5, ignore_eos=True)
    stop = free[20]
    first = free.index(stop)
    common = {"max_tokens": 60, "temperature": 1.0, "seed": 5, "ignore_eos": True}
    events = drain(engine, engine.submit(prompt(9), stop_tokens=[stop], **common))  # type: ignore[arg-type]
    assert [event.token for event in events] == free[: first + 1]
    assert events[-1].finish == "stop"
    masked = generate(engine, prompt(9), stop_tokens=[stop], min_tokens=30, **common)
    assert stop not in masked[:30]
    bias = {2: 100.0}
    events = drain(engine, engine.submit(prompt(9), logit_bias=bias, max_tokens=5))
    assert [(event.token, event.finish) for event in events] == [(2, "stop")]
    assert generate(engine, prompt(9), logit_bias=bias, max_tokens=5, ignore_eos=True) == [2] * 5
    late = generate(engine, prompt(9), logit_bias=bias, max_tokens=5, min_tokens=3)
    assert len(late) == 4
    assert late[3] == 2
    assert 2 not in late[:3]


def test_penalties_see_prompt_and_generated_tokens(engine: _ingot.Engine) -> None:
    """Goal: counts follow the request: strong penalties spread tokens, and a new request starts anew."""
    for _ in range(2):
        made = generate(
            engine, prompt(3), max_tokens=40, presence_penalty=2.0, frequency_penalty=2.0, ignore_eos=True
        )
        assert len(set(made)) > 15
    plain = generate(engine, prompt(3), max_tokens=40, ignore_eos=True)
    assert plain != made


def test_more_decodes_than_rows_take_turns(plan: Path) -> None:
    """Goal: with 2 rows and 6 decoding requests nobody starves and everybody's tokens are as alone.

    Method: two at a time decode until their rings are full and they sit out; then all rings are emptied.
    """
    with sealed(plan, threads=1, requests=6, step_rows=2) as engine:
        alone = [generate(engine, prompt(2, seed=i), max_tokens=100, ignore_eos=True) for i in range(6)]
        handles = []
        for i in range(0, 6, 2):
            pair = (i, i + 1)
            handles += [engine.submit(prompt(2, seed=j), max_tokens=100, ignore_eos=True) for j in pair]
            while engine.step():
                pass
        made = [len(engine.poll(handle)) for handle in handles]
        assert made == [RING] * 6
        for _ in range(15):
            assert engine.step() == 2
        later = [[event.token for event in engine.poll(handle)] for handle in handles]
        assert [len(tokens) for tokens in later] == [5] * 6
        for handle, expected, seen in zip(handles, alone, later, strict=True):
            assert seen == expected[RING : RING + 5]
            assert [event.token for event in drain(engine, handle)] == expected[RING + 5 :]


def test_decode_goes_first_and_prefill_is_first_come_first_served(plan: Path) -> None:
    """Goal: a long prompt does not delay a decode by a step; earlier prompts end before later ones."""
    with sealed(plan, threads=1, requests=4) as engine:
        decoding = engine.submit(prompt(2), max_tokens=60, ignore_eos=True)
        engine.step()
        engine.poll(decoding)
        early = engine.submit(prompt(90, seed=1), max_tokens=1)
        late = engine.submit(prompt(3, seed=2), max_tokens=1)
        first = {}
        for step in range(40):
            assert engine.step() <= 4
            assert len(engine.poll(decoding)) == 1, "one token a step"
            for name, handle in (("early", early), ("late", late)):
                if name not in first and engine.poll(handle):
                    first[name] = step
        assert first["early"] == 29  # 90 tokens, 3 rows a step beside the decode
        assert first["late"] == 30


def test_score_needs_room_and_gives_it_back(plan: Path) -> None:
    """Goal: score checks its arguments, returns what it takes, and others do not disturb it."""
    with sealed(plan, threads=1, requests=2, kv_tokens=384) as engine:
        alone = engine.score(prompt(20))
        handle = engine.submit(prompt(100), max_tokens=20, ignore_eos=True)
        engine.step()
        assert np.array_equal(engine.score(prompt(20)), alone)
        before = engine.stats
        cases = {
            "PROMPT_EMPTY": (tokens(), 0), "PROMPT_LONG": (prompt(301), 0), "OPTION": (prompt(3), 5),
            "TOKEN": (tokens(1, 48), 0), "CAPACITY": (prompt(257), 0),
        }  # fmt: skip
        for name, (ids, chunk) in cases.items():
            with pytest.raises(_ingot.IngotError) as caught:
                engine.score(ids, chunk)
            assert caught.value.name == name
        assert engine.stats == before
        drain(engine, handle)
        assert engine.score(prompt(300)).shape == (300, 48)


def test_calls_in_the_wrong_state(plan: Path) -> None:
    """Goal: before seal and after close every call is refused; sealing twice is too; closing twice is not."""
    engine = _ingot.Engine(_ingot.Plan(str(plan)), threads=1)
    calls = (
        lambda: engine.submit(prompt(2)), engine.step, lambda: engine.poll(1), lambda: engine.cancel(1),
        lambda: engine.score(prompt(2)),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(_ingot.IngotError) as caught:
            call()
        assert caught.value.name == "STATE"
    engine.seal()
    with pytest.raises(_ingot.IngotError, match="already sealed"):
        engine.seal()
    engine.close()
    engine.close()
    for call in (*calls, engine.seal, lambda: engine.stats):
        with pytest.raises(_ingot.IngotError, match="is closed") as caught:
            call()
        assert caught.value.name == "STATE"


def test_python_threads_take_turns(engine: _ingot.Engine) -> None:
    """Goal: four Python threads on one engine, each with its own requests, get what they would get alone."""
    alone = [generate(engine, prompt(20, seed=i), max_tokens=30, ignore_eos=True) for i in range(4)]

    def client(i: int) -> list[list[int]]:
        return [generate(engine, prompt(20, seed=i), max_tokens=30, ignore_eos=True) for _ in range(10)]

    with ThreadPoolExecutor(4) as threads:
        for i, made in enumerate(threads.map(client, range(4))):
            assert made == [alone[i]] * 10


def test_an_empty_engine_has_nothing_to_do(engine: _ingot.Engine) -> None:
    """Goal: a step without requests computes no row and counts no step."""
    assert engine.step() == 0
    assert engine.stats["steps"] == 0
