"""The native runtime (nanobind module `_ingot`, source `bindings.cc`): plans, engines, requests.

One `Engine` may be used from several Python threads: its methods take turns. No method holds the GIL while it
computes or waits. Every refusal is an `IngotError`; a wrong argument type is a `TypeError`.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

Isa = Literal["auto", "scalar", "avx2"]

class PlanInfo(TypedDict):
    hash: str  # 64 hexadecimal digits: the plan's identity
    file_bytes: int
    target: str  # "cpu", "sm90a" or "tensorrt"
    vocabulary: int
    layers: int
    hidden: int
    query_heads: int
    kv_heads: int
    head_size: int
    context: int
    rows_max: int
    head_rows_max: int
    requests_max: int
    requests_default: int
    default_max_tokens: int
    kv_tokens_max: int
    kv_tokens_default: int
    bos_token: int | None
    eos_tokens: list[int]
    weight_bytes: int  # WEIGHTS and SCALES: read once by a step

class RegionInfo(TypedDict):
    name: str  # "weights", "scales", "state", "arena", "kv", "io", in this order
    bytes: int
    bytes_fixed: int
    bytes_per_granule: int
    bytes_per_request: int

class Stats(TypedDict):
    steps: int
    rows: int
    tokens_generated: int
    requests_finished: int
    requests_running: int
    requests: int
    granules_free: int
    granules: int
    bytes_reserved: int
    allocations_after_seal: int
    threads: int
    isa: str  # "scalar" or "avx2"

class IngotError(Exception):
    """A refusal or an operating failure. `str(error)` is `text`."""

    code: int  # ingot_code of ingot.h
    name: str  # "FILE", "PLAN", ..., the code's name without its prefix
    reason: int  # plan reason code when name is "PLAN", else 0
    limit: int
    actual: int
    text: str

class Event:
    """One generated token, or the end of a cancelled request."""

    @property
    def token(self) -> int | None:
        """The sampled token; None when `finish` is "cancelled"."""
    @property
    def position(self) -> int:
        """The token's position in the sequence (prompt + generated)."""
    @property
    def finish(self) -> Literal["stop", "length", "cancelled"] | None:
        """None: more events follow. Otherwise this is the request's last event and its handle is spent."""
    @property
    def logprob(self) -> float | None:
        """Natural log of the token's probability by the unmodified logits; None when it was not asked for."""
    @property
    def top(self) -> list[tuple[int, float]]:
        """(token, logprob), most likely first, ties by id; empty when `top_logprobs` is 0."""

class Plan:
    """A verified plan file, mapped read-only. Raises IngotError FILE or PLAN."""

    def __init__(self, path: str) -> None: ...
    @property
    def info(self) -> PlanInfo: ...
    def text(self, section: str) -> str | None:
        """Section "meta", "drift", "tokenizer" or "template"; None when the plan has none."""
    def regions(self, *, kv_tokens: int = 0, requests: int = 0) -> list[RegionInfo]:
        """Exact bytes that an engine with these options reserves. Raises IngotError OPTION."""

class Engine:
    """An engine in state init; `seal` it before the first request. Options of 0 mean the plan's default."""

    def __init__(
        self,
        plan: Plan,
        *,
        kv_tokens: int = 0,
        requests: int = 0,
        threads: int = 0,
        isa: Isa = "auto",
        step_rows: int = 0,
        lock_memory: bool = False,
    ) -> None: ...
    def seal(self) -> None:
        """Runs the plan's self-test and forbids allocation from here on."""
    def submit(
        self,
        tokens: NDArray[np.uint32],
        *,
        max_tokens: int | None = None,
        min_tokens: int = 0,
        seed: int = 0,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logprobs: bool = False,
        top_logprobs: int = 0,
        ignore_eos: bool = False,
        stop_tokens: Sequence[int] = (),
        logit_bias: Mapping[int, float] | None = None,
    ) -> int:
        """Admits a request and returns its handle. Temperature 0 is greedy. `tokens` is 1-d uint32."""
    def step(self) -> int:
        """Runs one step over all running requests; rows computed, 0 when there is nothing to do."""
    def poll(self, handle: int, capacity: int = 64) -> list[Event]:
        """Takes up to `capacity` (1 to 64) events. The event with a `finish` spends the handle."""
    def cancel(self, handle: int) -> None: ...
    def score(self, tokens: NDArray[np.uint32], chunk: int = 0) -> NDArray[np.float32]:
        """Logits after each token, (count, vocabulary); `chunk` rows a step (0: the largest bucket)."""
    @property
    def stats(self) -> Stats: ...
    def close(self) -> None:
        """Stops the workers and returns the memory. Idempotent; other calls then raise IngotError STATE."""

def verify(data: bytes) -> tuple[int, int]:
    """(reason, index) of a plan held in memory; reason 0 is sound."""

def reason_text(reason: int) -> str: ...
