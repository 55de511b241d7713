"""`run-engine`: answer a prompt, chat, inspect, verify, compare and measure plans.

Answers go to stdout, everything else to stderr. Exit codes: 0 done, 1 an operating error (one line that
begins with `run-engine: error:`) or a `diff` or `verify` that says no, 2 wrong usage, 130 Ctrl-C, 141 a
closed pipe.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from ..plans import diff as plan_diff
from ..plans.reader import PlanError, map_file, open_plan, refusal
from ..plans.verify import verify as verify_plan
from . import _ingot
from .engine import Chunk, Engine, Stream
from .options import POOL, SAMPLING, json_option, plan_argument, pool_options, sampling_options, size
from .text import TextError


@dataclass(slots=True)
class Timing:
    """When things happened in one answer, in seconds of the monotonic clock."""

    begin: float = field(default_factory=time.perf_counter)
    first: float | None = None
    last: float = 0.0
    tokens: int = 0

    def token(self) -> None:
        self.last = time.perf_counter()
        self.first = self.last if self.first is None else self.first
        self.tokens += 1

    @property
    def first_seconds(self) -> float:
        return 0.0 if self.first is None else self.first - self.begin

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Rate after the first token; None when there are no two tokens."""
        if self.first is None or self.tokens < 2:
            return None
        return (self.tokens - 1) / max(self.last - self.first, 1e-9)


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling options among a command's parameters, as `Engine` takes them."""
    return {name: values[name] for name in SAMPLING}


def _engine(plan: Path, values: Mapping[str, Any]) -> Engine:
    return Engine(plan, **{name: values[name] for name in POOL})


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _read(stream: Stream, show: bool) -> tuple[list[Chunk], Timing]:
    """All chunks of a stream, printed as they come when `show`."""
    timing = Timing()
    chunks = []
    with stream:
        for chunk in stream:
            if chunk.token is not None:
                timing.token()
            chunks.append(chunk)
            if show and chunk.text:
                _write(chunk.text)
    return chunks, timing


def _summary(stream: Stream, chunks: list[Chunk], timing: Timing, cold_seconds: float | None) -> str:
    usage, sampling = stream.usage, stream.sampling
    rate = timing.decode_tokens_per_second
    parts = [
        f"prompt {usage.prompt_tokens} tokens, first token after {timing.first_seconds:.3f} s",
        f"{usage.completion_tokens} tokens of at most {usage.max_tokens}"
        + ("" if rate is None else f", {rate:.1f} tokens/s"),
        f"ended by {chunks[-1].finish or 'interruption'}",
        f"temperature {sampling.temperature:g}"
        + (f" seed {sampling.seed}" if sampling.temperature > 0 else ""),
    ]
    if cold_seconds is not None:
        parts.append(f"plan opened and sealed in {cold_seconds:.2f} s")
    return "; ".join(parts)


def _result(engine: Engine, stream: Stream, chunks: list[Chunk], timing: Timing) -> dict[str, Any]:
    """What `--json` prints for one answer."""
    named = engine.text.has_tokenizer

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"token": token, "logprob": logprob} | (
            {"text": engine.text.token_text(token)} if named else {}
        )

    tokens = [chunk for chunk in chunks if chunk.token is not None]
    result: dict[str, Any] = {
        "text": "".join(chunk.text for chunk in chunks) if named else None,
        "tokens": [chunk.token for chunk in tokens],
        "finish_reason": chunks[-1].finish,
        "usage": asdict(stream.usage),
        "sampling": stream.sampling.as_dict(),
        "plan": engine.info["hash"],
        "timing": {
            "first_token_seconds": timing.first_seconds,
            "decode_tokens_per_second": timing.decode_tokens_per_second,
        },
    }
    if stream.sampling.logprobs is not None:
        result["logprobs"] = [
            entry(chunk.token, chunk.logprob) | {"top": [entry(*top) for top in chunk.top_logprobs]}
            for chunk in tokens
            if chunk.token is not None and chunk.logprob is not None
        ]
    return result


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="ingot-engine", prog_name="run-engine")
def cli() -> None:
    """Run plans that build-engine wrote.

    \b
    run-engine generate m.plan "The capital of France is" -n 16
    run-engine chat m.plan
    run-engine inspect m.plan --memory 2G
    """


def _prompt(prompt: str | None, tokens: str | None) -> str | list[int]:
    """The prompt of `generate`: an argument, token ids, or all of stdin."""
    if tokens is not None:
        if prompt is not None:
            raise click.UsageError("give either PROMPT or --tokens, not both")
        try:
            return [int(token) for token in re.split(r"[\s,]+", tokens.strip()) if token]
        except ValueError:
            raise click.UsageError("--tokens takes whole numbers such as '1 42 7'") from None
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise click.UsageError("give a PROMPT, --tokens, or text on stdin")
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise TextError(f"stdin is not UTF-8 at byte {error.start}: give the prompt as UTF-8") from None


@cli.command()
@plan_argument
@click.argument("prompt", required=False)
@click.option("--tokens", help="Token ids instead of text: '1 42 7'.")
@click.option("--chat", "as_chat", is_flag=True, help="Apply the plan's chat template to the prompt.")
@click.option("--system", help="System message, with --chat.")
@json_option
@sampling_options
@pool_options
def generate(plan: Path, prompt: str | None, **values: Any) -> None:
    """Answer one prompt. Without PROMPT (or with `-`) it is all of stdin.

    \b
    run-engine generate m.plan "Once upon a time" -n 64
    run-engine generate m.plan --chat "Why is the sky blue?" -t 0.7 --seed 1
    run-engine generate m.plan --tokens "1 42 7" --json --logprobs 3
    run-engine generate m.plan --stop . < prompt.txt
    """
    if values["system"] is not None and not values["as_chat"]:
        raise click.UsageError("--system needs --chat")
    content = _prompt(prompt, values["tokens"])
    if values["as_chat"] and not isinstance(content, str):
        raise click.UsageError("--chat takes text, not --tokens")
    begin = time.perf_counter()
    with _engine(plan, values) as engine:
        cold_seconds = time.perf_counter() - begin
        if values["as_chat"]:
            system = [] if values["system"] is None else [{"role": "system", "content": values["system"]}]
            stream = engine.chat([*system, {"role": "user", "content": content}], **_options(values))
        else:
            stream = engine.generate(content, **_options(values))
        show = not values["as_json"] and engine.text.has_tokenizer
        chunks, timing = _read(stream, show)
        if values["as_json"]:
            _write(json.dumps(_result(engine, stream, chunks, timing), ensure_ascii=False) + "\n")
        elif show:
            _write("\n")
        else:  # a plan of token ids only
            _write(" ".join(str(chunk.token) for chunk in chunks if chunk.token is not None) + "\n")
        if not values["quiet"]:
            click.echo(f"[{_summary(stream, chunks, timing, cold_seconds)}]", err=True)


@dataclass(slots=True)
class Conversation:
    """A chat with its history; `ask` adds a turn, or leaves the history as it was when the turn is
    refused.
    """

    engine: Engine
    options: dict[str, Any]
    system: str | None
    quiet: bool
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def ask(self, question: str, interruptible: bool) -> None:
        """Prints the answer as it comes. Ctrl-C ends the answer, not the chat, when `interruptible`."""
        asked = [*self.messages, {"role": "user", "content": question}]
        stream = self.engine.chat(asked, **self.options)
        timing = Timing()
        chunks: list[Chunk] = []
        try:
            with stream:
                for chunk in stream:
                    timing.token()
                    chunks.append(chunk)
                    _write(chunk.text)
        except KeyboardInterrupt:
            if not interruptible:
                raise
        _write("\n")
        self.messages = [*asked, {"role": "assistant", "content": "".join(chunk.text for chunk in chunks)}]
        if not self.quiet and chunks:
            click.echo(f"[{_summary(stream, chunks, timing, None)}]", err=True)


def _questions(interactive: bool) -> Iterator[str]:
    """Lines of the terminal (with a prompt), or of stdin. Ctrl-D or Ctrl-C at the prompt ends them."""
    if interactive:
        import readline  # noqa: F401 (line editing and history for input())
    while True:
        try:
            line = input("> ") if interactive else sys.stdin.readline()
        except (EOFError, KeyboardInterrupt):
            click.echo(err=True)
            return
        if not interactive and not line:
            return
        if line.strip():
            yield line.strip()


def _converse(conversation: Conversation, interactive: bool) -> None:
    for line in _questions(interactive):
        if line == "/exit":
            return
        if line == "/reset":
            conversation.reset()
            continue
        if line.startswith("/"):
            click.echo(f"{line} is no command; there are /reset and /exit", err=True)
            continue
        try:
            conversation.ask(line, interruptible=interactive)
        except (_ingot.IngotError, TextError) as error:
            if not interactive:
                raise
            click.echo(f"{error}; /reset begins a new conversation", err=True)


@cli.command()
@plan_argument
@click.option(
    "-m", "--message", "messages", multiple=True, help="Ask this and end; repeat for several turns."
)
@click.option("--system", help="System message.")
@sampling_options
@pool_options
def chat(plan: Path, messages: tuple[str, ...], **values: Any) -> None:
    """Converse, one line a turn. /reset begins anew, /exit or Ctrl-D ends, Ctrl-C stops an answer.

    The whole conversation is the prompt of each turn; one that no longer fits the context is refused. Lines
    of a piped stdin are turns; for one prompt of many lines use `generate --chat`.

    \b
    run-engine chat m.plan --system "Answer in one sentence."
    run-engine chat m.plan -m "What is a plan?" -n 64
    echo "Hello!" | run-engine chat m.plan --quiet
    """
    with _engine(plan, values) as engine:
        conversation = Conversation(engine, _options(values), values["system"], values["quiet"])
        for message in messages:
            conversation.ask(message, interruptible=False)
        if not messages:
            interactive = sys.stdin.isatty()
            if interactive and not values["quiet"]:
                click.echo(f"context {engine.info['context']} tokens; /reset, /exit", err=True)
            _converse(conversation, interactive)


@cli.command()
@plan_argument
@click.option(
    "--memory", callback=size, metavar="SIZE", help="Show how many requests this budget holds: 2G, 512M."
)
@json_option
def inspect(plan: Path, memory: int | None, as_json: bool) -> None:
    """Show what a plan is: model, numerics, memory, programs, drift, and the concurrency a memory budget
    gives.

    \b
    run-engine inspect m.plan
    run-engine inspect m.plan --memory 2G
    run-engine inspect m.plan --json | python -m json.tool
    """
    from rich.console import Console

    from ..plans import inspect as plan_inspect

    with open_plan(plan) as opened:
        if as_json:
            _write(json.dumps(plan_inspect.summary(opened, memory), ensure_ascii=False) + "\n")
            return
        # A pipe has no width: tables keep their columns there. Written by us: rich ends the process on a
        # pipe that was closed.
        console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200, highlight=False)
        with console.capture() as shown:
            plan_inspect.render(opened, console, memory)
        _write(shown.get())


@cli.command()
@plan_argument
@json_option
def verify(plan: Path, as_json: bool) -> None:
    """Check every byte of a plan. Prints `ok` and its hash, or the reason and the index, and then ends with
    1.

    \b
    run-engine verify m.plan
    """
    reason, index = verify_plan(map_file(plan))
    sound = int(reason) == 0
    if sound:
        with open_plan(plan, check=False) as opened:
            identity = opened.hash
    if as_json:
        answer: dict[str, Any] = {"ok": sound, "reason": reason.name.lower(), "index": index}
        _write(json.dumps(answer | ({"hash": identity} if sound else {})) + "\n")
    elif sound:
        _write(f"ok {identity}\n")
    if not sound:
        raise refusal(plan, reason, index)


@cli.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@json_option
def diff(first: Path, second: Path, as_json: bool) -> None:
    """Show what differs between two plans. Ends with 0 when they are identical, with 1 when they differ.

    \b
    run-engine diff old.plan new.plan
    """
    with open_plan(first) as a, open_plan(second) as b:
        difference = plan_diff(a, b)
    if as_json:
        _write(json.dumps(difference.as_dict(), ensure_ascii=False, default=str) + "\n")
    else:
        _write("\n".join(difference.lines()) + "\n")
    if not difference.identical:
        raise click.exceptions.Exit(1)


@cli.command()
@plan_argument
@click.option(
    "--prompt-tokens", type=click.IntRange(1), help="Tokens of the prefill. Default: 512, or what fits."
)
@click.option("--tokens", type=click.IntRange(2), default=32, show_default=True, help="Tokens decoded a run.")
@click.option(
    "--runs", type=click.IntRange(5, 1000), default=5, show_default=True, help="Runs; medians are shown."
)
@json_option
@pool_options
def bench(plan: Path, **values: Any) -> None:
    """Measure a plan on this machine: cold start, prefill, decode at 1, 2, 4 ... requests, share of the
    bandwidth.

    \b
    run-engine bench m.plan
    run-engine bench m.plan --threads 4 --max-requests 16 --json
    """
    from . import bench as measure

    report = measure.run(
        plan,
        {name: values[name] for name in POOL},
        prompt_tokens=values["prompt_tokens"],
        tokens=values["tokens"],
        runs=values["runs"],
    )
    if values["as_json"]:
        _write(json.dumps(report) + "\n")
    else:
        measure.render(report, sys.stdout)


def main(arguments: list[str] | None = None) -> None:
    """The command's entry point: runs it and exits with its code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    """Runs the command; every way that it can end is an exit code. click's own `main` prints more."""
    try:
        with cli.make_context(
            "run-engine", sys.argv[1:] if arguments is None else list(arguments)
        ) as context:
            cli.invoke(context)
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.UsageError as error:
        error.show()
        return 2
    except BrokenPipeError:
        # Nobody reads on: what is still buffered goes nowhere, or Python reports it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (KeyboardInterrupt, click.Abort):
        return 130
    except click.ClickException as error:
        text = error.format_message()
    except (_ingot.IngotError, PlanError, TextError) as error:
        text = str(error)
    except MemoryError:
        text = "this process is out of memory: choose fewer kv tokens or requests"
    except OSError as error:
        text = f"{error.filename or 'input or output'}: {error.strerror or error}"
    click.echo(f"run-engine: error: {' '.join(text.split())}", err=True)
    return 1


if __name__ == "__main__":
    main()
