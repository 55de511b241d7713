"""`Engine`: a plan, opened, reserved and sealed, that answers prompts. This is the whole Python interface of
the runtime.

A request is a `Stream`: it is admitted when it is made and computed while it is read. Reading any stream
steps all of them, so several may be read in turns in one thread; each waits in its own bounded ring inside
the runtime. Calls from several threads take turns. Closing a stream, or dropping it, ends its request and
returns its lease.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from . import _ingot
from .sampling import Defaults, Sampling, SamplingOptions, plan_defaults, refusal, resolve, token_ids
from .text import StopMatcher, StreamDecoder, TextCodec, TextError, check_stops, text_facts

Finish = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One generated token and the text that it made certain (empty while a character or stop string is
    incomplete).

    `logprob` is None unless `logprobs` was given; `top_logprobs` holds (token, logprob), most likely first.
    `finish` is set on the last chunk: "stop" (eos, stop token or stop string), "length" (max_tokens) or
    "cancelled" (then `token` is None).
    """

    text: str
    token: int | None
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request: prompt, generated (a final eos or stop token counts), and the most that it was
    allowed.
    """

    prompt_tokens: int
    completion_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request: its text, its tokens (a final eos or stop token included), why it ended, and
    what it used.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: Finish
    usage: Usage
    chunks: tuple[Chunk, ...] = field(repr=False)


class Stream(Iterator[Chunk]):
    """The chunks of one request, as they are computed. A context manager; made by `Engine.generate` and
    `Engine.chat`.
    """

    def __init__(self, engine: Engine, handle: int, prompt: tuple[int, ...], sampling: Sampling) -> None:
        self.prompt = prompt
        self.sampling = sampling
        self._engine = engine
        self._handle: int | None = handle
        self._events: deque[_ingot.Event] = deque()
        self._decoder = StreamDecoder(engine.text) if engine.text.has_tokenizer else None
        self._matcher = StopMatcher(sampling.stop)
        self._generated = 0
        self._finished = False

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Chunk:
        if self._finished:
            raise StopIteration
        if not self._events:
            assert self._handle is not None, "a request without a handle has a last event"
            self._events += self._engine._next_events(self._handle)
            if self._events[-1].finish is not None:
                self._handle = None
        return self._chunk(self._events.popleft())

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def close(self) -> None:
        """Ends the request and returns its lease. Idempotent; later reads find the stream exhausted."""
        self._finished = True
        self._events.clear()
        handle, self._handle = self._handle, None
        if handle is not None:
            self._engine._end(handle)

    @property
    def usage(self) -> Usage:
        """What the request has used so far."""
        return Usage(len(self.prompt), self._generated, self.sampling.max_tokens)

    def _chunk(self, event: _ingot.Event) -> Chunk:
        finish, token = event.finish, event.token
        text = ""
        if token is not None:
            self._generated += 1
            if finish != "stop":  # the text of an eos or stop token is not part of the answer
                text = self._text(token)
        if finish is not None and self._matcher.matched is None:
            text += self._rest()
        if self._matcher.matched is not None:
            finish = "stop"
        chunk = Chunk(text, token, event.logprob, tuple(event.top), finish)
        if finish is not None:
            self.close()
        return chunk

    def _text(self, token: int) -> str:
        if self._decoder is None:
            return ""
        piece = self._decoder.push(token)
        if self._generated < self.sampling.min_tokens:
            return piece
        return self._matcher.push(piece)

    def _rest(self) -> str:
        """At the end: what decoder and matcher held back, up to a stop string that it completes."""
        if self._decoder is None:
            return ""
        return self._matcher.push(self._decoder.finish()) + self._matcher.finish()


class Engine:
    """Opens a plan, reserves its memory once, runs its self-test, and seals: from then on the runtime
    allocates nothing.

    `kv_tokens` and `max_requests` choose the pool and the concurrent requests under the plan's ceilings,
    `step_rows` the most rows of a step, `threads` the workers (None: the plan's defaults; one thread per
    core). `lock_memory` pins the regions. None of them, nor `isa`, changes a bit of any answer. Raises
    IngotError.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        kv_tokens: int | None = None,
        max_requests: int | None = None,
        threads: int | None = None,
        isa: _ingot.Isa = "auto",
        step_rows: int | None = None,
        lock_memory: bool = False,
    ) -> None:
        chosen = {
            "kv_tokens": _option("kv_tokens", kv_tokens),
            "requests": _option("max_requests", max_requests),
            "threads": _option("threads", threads),
            "step_rows": _option("step_rows", step_rows),
        }
        self.path = Path(path)
        plan = _ingot.Plan(os.fspath(path))
        self.info: _ingot.PlanInfo = plan.info
        self.regions: list[_ingot.RegionInfo] = plan.regions(
            kv_tokens=chosen["kv_tokens"], requests=chosen["requests"]
        )
        facts = text_facts(plan.text("meta"))
        self.text = TextCodec(plan.text("tokenizer"), plan.text("template"), facts, self.info["bos_token"])
        self.defaults: Defaults = plan_defaults(facts.generation)
        self._lock = threading.RLock()
        self._closed = False
        self._native = _ingot.Engine(plan, isa=isa, lock_memory=lock_memory, **chosen)
        try:
            self._native.seal()
        except BaseException:
            self._native.close()
            raise

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops the workers and returns the memory; streams that are still open end. Idempotent."""
        with self._lock:
            self._closed = True
            self._native.close()

    @property
    def stats(self) -> _ingot.Stats:
        """Counters and free capacity, now."""
        return self._native.stats

    def generate(self, prompt: str | Sequence[int], **options: Unpack[SamplingOptions]) -> Stream:
        """Admits a request for a prompt, text or token ids, and returns the stream of its chunks.

        Prompt and max_tokens must fit the context together; nothing is truncated. Raises IngotError when the
        request is out of range or there is no room for it now (BUSY, CAPACITY), and TextError for text that
        cannot be used.
        """
        self._check_open()
        ids = self.text.encode(prompt) if isinstance(prompt, str) else token_ids(prompt)
        return self._submit(ids, options)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template_options: Mapping[str, Any] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Stream:
        """As `generate`, for a conversation: mappings with `role` and `content`, rendered by the plan's chat
        template.

        `template_options` are variables that the template knows, such as `enable_thinking` or `tools`.
        """
        self._check_open()
        rendered = self.text.render(messages, **(template_options or {}))
        return self._submit(self.text.encode_rendered(rendered), options)

    def complete(
        self, prompt: str | Sequence[int] | Sequence[Mapping[str, Any]], **options: Unpack[SamplingOptions]
    ) -> Completion:
        """Runs one request to its end. A sequence of mappings is a conversation, anything else a prompt."""
        if not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping):
            stream = self.chat(prompt, **options)  # type: ignore[arg-type]
        else:
            stream = self.generate(prompt, **options)  # type: ignore[arg-type]
        with stream:
            chunks = tuple(stream)
        finish = chunks[-1].finish
        assert finish is not None, "the last chunk of a request says how it ended"
        tokens = tuple(chunk.token for chunk in chunks if chunk.token is not None)
        return Completion("".join(chunk.text for chunk in chunks), tokens, finish, stream.usage, chunks)

    def score(self, tokens: str | Sequence[int], chunk: int = 0) -> NDArray[np.float32]:
        """Logits after each token, (tokens, vocabulary) float32; `chunk` rows a step (0: the largest
        bucket).
        """
        self._check_open()
        ids = self.text.encode(tokens) if isinstance(tokens, str) else token_ids(tokens)
        with self._lock:
            return self._native.score(np.array(ids, dtype=np.uint32), _option("chunk", chunk))

    def _check_open(self) -> None:
        if self._closed:
            raise refusal("STATE", 0, 0, "the engine is closed: create another one")

    def _submit(self, ids: list[int], options: SamplingOptions) -> Stream:
        stops = check_stops(options.get("stop"))
        if stops and not self.text.has_tokenizer:
            raise TextError("the plan has no tokenizer: use stop_token_ids instead of stop strings")
        # A prompt that leaves no room is refused by the runtime, whatever max_tokens is.
        room = max(self.info["context"] - len(ids), 1)
        sampling = resolve(options, self.defaults, stops, min(self.info["default_max_tokens"], room))
        with self._lock:
            handle = self._native.submit(
                np.array(ids, dtype=np.uint32),
                max_tokens=sampling.max_tokens,
                min_tokens=sampling.min_tokens,
                seed=sampling.seed,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                min_p=sampling.min_p,
                repetition_penalty=sampling.repetition_penalty,
                presence_penalty=sampling.presence_penalty,
                frequency_penalty=sampling.frequency_penalty,
                logprobs=sampling.logprobs is not None,
                top_logprobs=sampling.logprobs or 0,
                ignore_eos=sampling.ignore_eos,
                stop_tokens=list(sampling.stop_token_ids),
                logit_bias=sampling.logit_bias or None,
            )
        return Stream(self, handle, tuple(ids), sampling)

    def _next_events(self, handle: int) -> list[_ingot.Event]:
        """Steps until the request has an event. Every step computes a row: a request that waits for none
        has ended.
        """
        self._check_open()
        with self._lock:
            while not (events := self._native.poll(handle)):
                rows = self._native.step()
                assert rows > 0, "a request without events has rows to compute"
        return events

    def _end(self, handle: int) -> None:
        """Cancels a request and takes its last events, which frees its lease and its slot."""
        with self._lock:
            if self._closed:
                return
            try:
                self._native.cancel(handle)
                while all(event.finish is None for event in self._native.poll(handle)):
                    pass
            except _ingot.IngotError as error:
                # An interrupt can come between taking the last event, which ends the handle, and keeping it.
                if error.name != "HANDLE":
                    raise


def _option(name: str, value: int | None) -> int:
    """An open option for the runtime, where 0 means the default; a given 0 is refused except for `chunk`."""
    if value is None:
        return 0
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{name} is {value!r}: it must be a whole number")
    least = 0 if name == "chunk" else 1
    most = 2**63 - 1 if name == "kv_tokens" else 2**32 - 1
    if not least <= value <= most:
        raise refusal("OPTION", most, abs(value), f"{name} is {value}: it must be {least} to {most}")
    return int(value)
