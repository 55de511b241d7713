"""The options that `run-engine`'s commands share, and the types of their values."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)
SAMPLING = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "logprobs",
    "stop",
    "stop_token_ids",
    "ignore_eos",
)
POOL = ("kv_tokens", "max_requests", "threads", "isa", "step_rows", "lock_memory")


def size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Bytes: `512M`, `2GiB`, `1.5g`, `1000000`. Units are powers of 1024. A click callback."""
    if value is None:
        return None
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise click.BadParameter(
            f"{value!r} is no size: give bytes, or a number with K, M, G or T such as 2G"
        )
    return int(float(match[1]) * 1024 ** ("KMGT".index(match[2].upper()) + 1 if match[2] else 0))


def biases(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[int, float]:
    """`TOKEN=VALUE` pairs such as `42=-100`. A click callback."""
    pairs = {}
    for value in values:
        token, _, number = value.partition("=")
        try:
            pairs[int(token)] = float(number)
        except ValueError:
            raise click.BadParameter(f"{value!r}: give TOKEN=VALUE such as 42=-100") from None
    return pairs


def _apply(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


plan_argument = click.argument("plan", type=click.Path(path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
pool_options = _apply(
    click.option(
        "--kv-tokens", type=click.IntRange(1), help="Tokens that the KV pool holds. Default: the plan's."
    ),
    click.option(
        "--max-requests", type=click.IntRange(1), help="Requests that run at once. Default: the plan's."
    ),
    click.option("--threads", type=click.IntRange(1, 256), help="Worker threads. Default: one per core."),
    click.option(
        "--isa",
        type=click.Choice(["auto", "scalar", "avx2"]),
        default="auto",
        show_default=True,
        help="Instruction set; all give the same bits.",
    ),
    click.option(
        "--step-rows", type=click.IntRange(1), help="Most rows of a step. Default: the largest bucket."
    ),
    click.option("--lock-memory", is_flag=True, help="Lock the regions in memory."),
)
sampling_options = _apply(
    click.option("-n", "--max-tokens", type=int, help="Most tokens to generate. Default: the plan's."),
    click.option("--min-tokens", type=int, default=0, help="No end before that many tokens."),
    click.option(
        "-t", "--temperature", type=float, help="0: the most likely token. Default: the plan's, else 0."
    ),
    click.option("--top-p", type=float, help="Default: the plan's, else 1."),
    click.option("--top-k", type=int, help="0: all. Default: the plan's, else 0."),
    click.option("--min-p", type=float, help="Default: the plan's, else 0."),
    click.option("--repetition-penalty", type=float, help="Default: the plan's, else 1."),
    click.option("--presence-penalty", type=float, default=0.0, help="-2 to 2, default 0."),
    click.option("--frequency-penalty", type=float, default=0.0, help="-2 to 2, default 0."),
    click.option(
        "--logit-bias", metavar="TOKEN=VALUE", callback=biases, multiple=True, help="-100 to 100; repeatable."
    ),
    click.option(
        "--seed", type=int, default=0, show_default=True, help="The same seed gives the same answer."
    ),
    click.option(
        "--logprobs", type=int, help="Logprobs of each token and of that many alternatives (with --json)."
    ),
    click.option("--stop", multiple=True, help="End before this text; repeatable."),
    click.option(
        "--stop-token", "stop_token_ids", type=int, multiple=True, help="End at this id; repeatable."
    ),
    click.option("--ignore-eos", is_flag=True, help="Go on after an eos token."),
    click.option("-q", "--quiet", is_flag=True, help="No summary on stderr."),
)
