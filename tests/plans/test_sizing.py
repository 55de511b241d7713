"""Sizes are sums that can be redone by hand, grow with what is chosen, and respect the plan's ceilings."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ingot.plans import concurrency_table, format_bytes, sizing
from ingot.plans.layout import Region, round_up
from ingot.plans.sizing import concurrency
from support.tiny_plan import tiny_plan

TABLES = tiny_plan().tables
PAGE = 4096


def test_default_sizes_are_the_documented_sums() -> None:
    """Goal: every region's bytes, recomputed by hand for 12 granules and 4 requests."""
    sizes = {region.kind: region for region in sizing(TABLES).regions}
    weights = (
        3264 + 4352 + 2176 + 6528 + 2176
    )  # embed, qkv, o, gate_up, down in i8 panels of 1088 bytes a block
    assert sizes[Region.WEIGHTS].bytes == round_up(weights, PAGE)
    assert sizes[Region.WEIGHTS].fixed == weights
    granule = 2048 + 256 + 2048 + 256  # k, k_scale, v, v_scale of one head of 16
    assert sizes[Region.KV].granules == 12 * granule
    assert sizes[Region.KV].bytes == round_up(12 * granule, PAGE)
    request = (
        1216 + 128 + 64 + 768 + 12288 + 256
    )  # tokens, counts, granule table, sampling, events, bookkeeping
    state = round_up(65536, PAGE) + round_up(12 * 64, PAGE) + round_up(4 * request, PAGE)
    assert sizes[Region.STATE].bytes == state
    assert sizing(TABLES).total_bytes == sum(region.bytes for region in sizes.values())


def test_chosen_pool_is_rounded_up_to_granules() -> None:
    """Goal: kv tokens become whole granules."""
    assert sizing(TABLES, kv_tokens=1).granules == 1
    assert sizing(TABLES, kv_tokens=129, requests=2).kv_tokens == 256


@pytest.mark.parametrize(("tokens", "requests"), [(0, 1), (64 * 128 + 1, 1), (128, 0), (128, 9), (-5, 1)])
def test_ceilings_are_errors(tokens: int, requests: int) -> None:
    """Goal: what the plan does not allow is refused with the limits."""
    with pytest.raises(ValueError, match="the plan allows 1 to"):
        sizing(TABLES, tokens, requests)


@settings(deadline=None)
@given(memory=st.integers(0, 1 << 20), context=st.integers(1, 300))
def test_concurrency_is_the_most_that_fits(memory: int, context: int) -> None:
    """Goal: that many fit and one more does not, or a ceiling forbids it. Method: compare with a count from
    one up.
    """
    entry = concurrency(TABLES, memory, context)
    each = -(-context // 128)
    count = 0
    while count < 8 and (count + 1) * each <= 64:
        if sizing(TABLES, (count + 1) * each * 128, count + 1).total_bytes > memory:
            break
        count += 1
    assert entry.requests == count
    assert (entry.sizing is None) == (count == 0)
    assert (entry.bound == "memory") == (count < 8)
    assert entry.sizing is None or entry.sizing.total_bytes <= memory
    assert entry.one_bytes == sizing(TABLES, each * 128, 1).total_bytes


def test_table_covers_the_context() -> None:
    """Goal: the last line is the plan's own context, and a longer one is refused."""
    assert [entry.context for entry in concurrency_table(TABLES, 1 << 30)] == [300]
    assert [entry.requests for entry in concurrency_table(TABLES, 1 << 30, (1, 128, 300))] == [8, 8, 8]
    with pytest.raises(ValueError, match="the plan allows 1 to 300"):
        concurrency_table(TABLES, 1 << 30, (301,))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (144_911_565, "138.2 MiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (5 << 30, "5.0 GiB"),
        (3 << 40, "3.0 TiB"),
    ],
)
def test_bytes_for_people(count: int, text: str) -> None:
    """Goal: the unit that people expect, without `1024.0 KiB`."""
    assert format_bytes(count) == text
