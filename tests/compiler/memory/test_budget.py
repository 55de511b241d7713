"""The default pool that a memory budget allows: the most that fits, never more, and said in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ingot.compiler.memory.budget import BudgetError, fit
from ingot.plans.records import PlanTables
from ingot.plans.sizing import granules_for, sizing
from support.tiny_plan import TinySpec, tiny_plan

TABLES = tiny_plan(TinySpec()).tables  # context 300: 3 granules; 64 granules and 8 requests at most
HEADER: Any = TABLES.header
CONTEXT = int(HEADER["context"])
ONE = granules_for(CONTEXT)
DEFAULT = int(HEADER["requests_default"])


def total(granules: int, requests: int) -> int:
    return sizing(TABLES, granules * 128, requests).total_bytes


def with_defaults(granules: int, requests: int) -> PlanTables:
    return replace(TABLES, header={**HEADER, "granules_default": granules, "requests_default": requests})


@settings(deadline=None)
@given(st.integers(total(ONE, 1), total(64, 8)))
def test_the_most_that_fits(memory: int) -> None:
    """Goal: within the budget, one more granule would not be (unless every request has its context), and no
    request was given up without need.
    """
    found = fit(TABLES, memory)
    granules = found.kv_tokens // 128
    assert found.total_bytes == total(granules, found.requests) <= memory
    assert granules >= ONE
    if granules < found.requests * ONE:
        assert total(granules + 1, found.requests) > memory
    if found.requests < DEFAULT:
        assert total(ONE, found.requests + 1) > memory


@given(st.integers(0, total(ONE, 1) - 1))
def test_too_little_is_refused_with_the_least(memory: int) -> None:
    """Goal: below one request of one context the refusal names what it takes and what was given."""
    with pytest.raises(BudgetError) as caught:
        fit(TABLES, memory)
    assert f"{memory:,} bytes" in str(caught.value)
    assert f"{total(ONE, 1):,}" in str(caught.value)
    assert "--context" in str(caught.value)


@settings(deadline=None)
@given(st.integers(ONE, 64), st.integers(1, 8), st.integers(total(1, 1), total(64, 8)))
def test_fixed_numbers_are_kept(granules: int, requests: int, memory: int) -> None:
    """Goal: a pool or a number of requests that the user named is kept or refused, never changed."""
    tables = with_defaults(granules, requests)
    if total(granules, requests) <= memory:
        kept = fit(tables, memory, fixed_pool=True, fixed_requests=True)
        assert (kept.kv_tokens, kept.requests) == (granules * 128, requests)
    else:
        with pytest.raises(BudgetError, match="--kv-tokens, --requests"):
            fit(tables, memory, fixed_pool=True, fixed_requests=True)
    assume(total(ONE, requests) <= memory)
    assert fit(tables, memory, fixed_requests=True).requests == requests


def test_text_says_how() -> None:
    """Goal: the sentence has the pool, the sum and, when requests were given up, why."""
    enough = fit(TABLES, total(64, 8))
    assert f"{enough.kv_tokens:,} kv tokens" in enough.text
    assert f"{enough.total_bytes:,} bytes" in enough.text
    assert "would not leave room" not in enough.text
    assert f"{DEFAULT} requests would not leave room" in fit(TABLES, total(ONE, DEFAULT) - 1).text
