"""A memory budget decides the default pool: the most KV tokens that fit beside everything else, and says how.

The budget is for the regions, which is all that opening a plan reserves; a process's own base comes on top
(`terms.BASE_PROCESS_BYTES`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...plans.layout import GRANULE_TOKENS, Region
from ...plans.records import PlanTables
from ...plans.sizing import Sizing, format_bytes, granules_for, sizing


class BudgetError(Exception):
    """A budget that cannot hold the plan. The text says what it takes, what was allowed, what to do."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The defaults that a budget allows, and a sentence that says how they came about."""

    kv_tokens: int
    requests: int
    total_bytes: int
    text: str


def _text(chosen: Sizing, memory_bytes: int, wanted_requests: int, context: int) -> str:
    size = {region.kind: region.bytes for region in chosen.regions}
    kv = size.pop(Region.KV)
    text = (
        f"{format_bytes(memory_bytes)} hold a default pool of {chosen.kv_tokens:,} kv tokens for "
        f"{chosen.requests} requests: {format_bytes(kv)} kv + {format_bytes(sum(size.values()))} else = "
        f"{chosen.total_bytes:,} bytes"
    )
    if chosen.requests < wanted_requests:
        text += f"; {wanted_requests} requests would not leave room for one context of {context:,} tokens"
    return text


def fit(tables: PlanTables, memory_bytes: int, fixed_pool: bool = False, fixed_requests: bool = False) -> Fit:
    """The plan's default pool and requests, chosen so that opening it reserves at most `memory_bytes`.

    The pool is the largest that fits, at least one context and at most one for every request. When one
    context does not fit beside the default number of requests, fewer requests are taken. `fixed_pool` and
    `fixed_requests` keep the plan's own numbers. Raises BudgetError when nothing fits.
    """
    header: Any = tables.header
    context, wanted = int(header["context"]), int(header["requests_default"])
    one = int(header["granules_default"]) if fixed_pool else granules_for(context)

    def sized(granules: int, requests: int) -> Sizing:
        return sizing(tables, granules * GRANULE_TOKENS, requests)

    requests = wanted
    while requests > 1 and not fixed_requests and sized(one, requests).total_bytes > memory_bytes:
        requests -= 1
    least = sized(one, requests)
    if least.total_bytes > memory_bytes:
        raise BudgetError(
            f"--memory is {memory_bytes:,} bytes, but this plan takes at least {least.total_bytes:,} "
            f"({format_bytes(least.total_bytes)}) for {requests} request{'s' * (requests > 1)} and "
            f"{least.kv_tokens:,} kv tokens; choose more memory or a smaller --context"
            f"{', --kv-tokens' * fixed_pool}{', --requests' * fixed_requests} or --max-rows"
        )
    low = one
    high = one if fixed_pool else min(int(header["granules_max"]), requests * granules_for(context))
    while low < high:  # bytes grow with granules: the most that fit, by bisection
        middle = (low + high + 1) // 2
        if sized(middle, requests).total_bytes <= memory_bytes:
            low = middle
        else:
            high = middle - 1
    chosen = sized(low, requests)
    text = _text(chosen, memory_bytes, wanted, context)
    return Fit(chosen.kv_tokens, chosen.requests, chosen.total_bytes, text)
