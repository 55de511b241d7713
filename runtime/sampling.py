"""How a request samples: the options a caller may give, the plan's defaults for those not given, and their
checks.

Defaults come from the checkpoint's generation config, which the plan keeps: with `do_sample` false they are
greedy; else its temperature (1.0 when it asks for sampling and names none, greedy when it says nothing),
top_p, top_k, min_p. The repetition penalty holds either way. The runtime checks ranges; here values become
the types that it takes, never cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

from . import _ingot

_U32_MAX = 0xFFFFFFFF
_CODES = {"OPTION": 5, "STATE": 6, "TOKEN": 10, "SAMPLING": 11}  # ingot_code of ingot.h
_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty")


class SamplingOptions(TypedDict, total=False):
    """Keyword options of a request. An option that is left out or None takes the plan's default."""

    max_tokens: int | None  # most tokens to generate; default: the plan's, capped by the context
    min_tokens: int  # no eos, stop token or stop string before that many
    temperature: float | None  # 0: the most likely token
    top_p: float | None
    top_k: int | None  # 0: all
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None  # token -> -100 to 100, at most 64
    seed: int  # default 0: the same request gives the same answer
    logprobs: int | None  # None: none; n: the token's own and those of the n most likely, n at most 20
    stop: str | Sequence[str] | None  # at most 16 stop strings; the text ends before the first that appears
    stop_token_ids: Sequence[int]  # at most 16, beside the plan's eos tokens
    ignore_eos: bool


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling that a request really uses: every value is set. `max_tokens` is the effective number."""

    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    logprobs: int | None
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Defaults:
    """A plan's sampling defaults."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


def refusal(name: str, limit: int, actual: int, text: str) -> _ingot.IngotError:
    """An IngotError like the runtime's own, for what is refused before it gets there."""
    error = _ingot.IngotError(text)
    error.code, error.name, error.reason = _CODES[name], name, 0
    error.limit, error.actual, error.text = limit, actual, text
    return error


def plan_defaults(generation: Mapping[str, Any]) -> Defaults:
    """Sampling defaults of a generation config. Raises IngotError for a value that is no number."""
    given: dict[str, Any] = {}
    for name in _FLOATS:
        if generation.get(name) is not None:
            given[name] = _float(f"the plan's {name}", generation[name])
    if generation.get("top_k") is not None:
        given["top_k"] = _count("the plan's top_k", generation["top_k"])
    do_sample = generation.get("do_sample")
    if do_sample is False:
        greedy = Defaults()
        return Defaults(repetition_penalty=given.get("repetition_penalty", greedy.repetition_penalty))
    given.setdefault("temperature", 1.0 if do_sample else 0.0)
    return Defaults(**given)


def _count(name: str, value: Any, most: int = _U32_MAX) -> int:
    """A whole number of 0 to `most`."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{name} is {value!r}: it must be a whole number")
    number = int(value.__index__())
    if not 0 <= number <= most:
        raise refusal(
            "SAMPLING", most, min(abs(number), 2**64 - 1), f"{name} is {number}: it must be 0 to {most}"
        )
    return number


def _float(name: str, value: Any) -> float:
    """A finite number that a binary32 can hold; the runtime checks its range."""
    if isinstance(value, bool) or not (
        hasattr(type(value), "__float__") or hasattr(type(value), "__index__")
    ):
        raise TypeError(f"{name} is {value!r}: it must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise refusal("SAMPLING", 0, 0, f"{name} is {number}: it must be finite")
    return number


def _bias(given: Mapping[int, float] | None) -> dict[int, float]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"logit_bias is {given!r}: it must map token ids to numbers")
    return {
        _count("a token of logit_bias", token): _float(f"the logit bias of token {token}", value)
        for token, value in given.items()
    }


def token_ids(tokens: Sequence[int]) -> list[int]:
    """A prompt of token ids as a list. Raises IngotError for an id that no vocabulary has, TypeError for
    no id.
    """
    ids = []
    for i, token in enumerate(tokens):
        if isinstance(token, bool) or not hasattr(type(token), "__index__"):
            raise TypeError(f"token {i} of the prompt is {token!r}: it must be a whole number")
        number = int(token.__index__())
        if not 0 <= number <= _U32_MAX:
            text = f"token {i} of the prompt is {number}: token ids are whole numbers from 0 on"
            raise refusal("TOKEN", _U32_MAX, min(abs(number), 2**64 - 1), text)
        ids.append(number)
    return ids


def resolve(
    options: SamplingOptions, defaults: Defaults, stops: tuple[str, ...], default_max_tokens: int
) -> Sampling:
    """The sampling of one request. `default_max_tokens` is the plan's, capped by what the prompt leaves of
    the context.
    """
    unknown = set(options) - set(SamplingOptions.__annotations__)
    if unknown:
        raise TypeError(f"{sorted(unknown)[0]} is no sampling option")
    get: Any = options.get

    def number(name: str) -> float:
        value = get(name)
        return float(getattr(defaults, name)) if value is None else _float(name, value)

    most = get("max_tokens")
    top_k = get("top_k")
    logprobs = get("logprobs")
    return Sampling(
        max_tokens=default_max_tokens if most is None else _count("max_tokens", most),
        min_tokens=_count("min_tokens", get("min_tokens", 0)),
        temperature=number("temperature"),
        top_p=number("top_p"),
        top_k=defaults.top_k if top_k is None else _count("top_k", top_k),
        min_p=number("min_p"),
        repetition_penalty=number("repetition_penalty"),
        presence_penalty=_float("presence_penalty", get("presence_penalty", 0.0)),
        frequency_penalty=_float("frequency_penalty", get("frequency_penalty", 0.0)),
        logit_bias=_bias(get("logit_bias")),
        seed=_count("seed", get("seed", 0), 2**64 - 1),
        logprobs=None if logprobs is None else _count("logprobs", logprobs),
        stop=stops,
        stop_token_ids=tuple(_count("a stop token", token) for token in get("stop_token_ids", ())),
        ignore_eos=bool(get("ignore_eos", False)),
    )
