"""Measures a plan on this machine: cold start, prefill, decode at 1, 2, 4 ... requests, and the share of the
memory bandwidth.

Every number is the median of at least five runs in one process. Prompts are fixed token ids and eos is
ignored, so that two runs of this benchmark compute the same. The report is JSON-able; times are in seconds,
rates per second.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, TextIO

import numpy as np

from .engine import Engine
from .sampling import refusal

READ_BYTES = 256 << 20  # of the bandwidth test: larger than the caches of most machines
DECODE_PROMPT_TOKENS = 16
PREFILL_TOKENS_DEFAULT = 512
GRANULE_TOKENS = 128
BANDWIDTH_METHOD = (
    "numpy bitwise_or.reduce over 256 MiB of uint64, one thread per slice, as many as the engine has"
)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed (nearest rank)."""
    ranked = sorted(values)
    return ranked[max(0, -(-int(share * 1000) * len(ranked) // 1000) - 1)]


def read_bandwidth(threads: int, runs: int) -> float:
    """Bytes a second that `threads` threads read from memory together: median of `runs` passes."""
    parts = np.array_split(np.ones(READ_BYTES // 8, dtype=np.uint64), threads)
    rates = []
    for _ in range(runs + 1):
        workers = [threading.Thread(target=np.bitwise_or.reduce, args=(part,)) for part in parts]
        begin = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        rates.append(READ_BYTES / (time.perf_counter() - begin))
    return median(rates[1:])  # the first pass faults the pages in


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        model = names[0] if names else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": model,
        "cores": cores,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _tokens(count: int, vocabulary: int, salt: int) -> list[int]:
    """Fixed token ids, spread over the vocabulary; different requests get different ones."""
    return [(7919 * (i + 1) + 104729 * salt) % vocabulary for i in range(count)]


def _start_seconds(plan: Path, options: Mapping[str, Any]) -> tuple[float, float]:
    """(seconds from opening the file to sealed, to the first token of a short prompt)."""
    begin = time.perf_counter()
    with Engine(plan, **options) as engine:
        sealed = time.perf_counter() - begin
        prompt = _tokens(min(DECODE_PROMPT_TOKENS, engine.info["context"] - 1), engine.info["vocabulary"], 0)
        with engine.generate(prompt, max_tokens=1, temperature=0) as stream:
            next(stream)
        return sealed, time.perf_counter() - begin


def _prefill_seconds(engine: Engine, count: int, salt: int) -> float:
    """Seconds from the request to its first token, for a prompt of `count` tokens and nothing else
    running.
    """
    prompt = _tokens(count, engine.info["vocabulary"], salt)
    begin = time.perf_counter()
    with engine.generate(prompt, max_tokens=1, temperature=0, ignore_eos=True) as stream:
        next(stream)
    return time.perf_counter() - begin


def _slack(requests: int, prompt: int, step_rows: int) -> int:
    """Most tokens that the first of `requests` requests can be ahead of the last when that has its first
    token.
    """
    return -(-prompt * requests // max(step_rows - requests + 1, 1)) + requests


def _decode_seconds(engine: Engine, requests: int, prompt: int, tokens: int, slack: int) -> list[float]:
    """Seconds of `tokens` steps in which each of `requests` requests decodes one token: the times between
    its tokens.
    """
    streams = [
        engine.generate(
            _tokens(prompt, engine.info["vocabulary"], salt),
            max_tokens=tokens + 1 + slack,
            temperature=0,
            ignore_eos=True,
        )
        for salt in range(requests)
    ]
    seconds = []
    try:
        for stream in streams:
            next(stream)
        steps = engine.stats["steps"]
        for _ in range(tokens):
            begin = time.perf_counter()
            next(streams[-1])  # admitted last, so that it has nothing in store: this is one step for all
            for stream in streams[:-1]:
                next(stream)
            seconds.append(time.perf_counter() - begin)
        assert engine.stats["steps"] - steps == tokens, "each time is that of one step"
    finally:
        for stream in streams:
            stream.close()
    return seconds


def row_counts(most: int) -> list[int]:
    """1, 2, 4 ... below `most`, and `most`."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return counts if most == 1 else [*counts, most]


@dataclass(frozen=True, slots=True)
class Load:
    """What is measured: prompt tokens of the prefill; prompt, tokens and most requests of the decode."""

    prefill: int
    prompt: int
    tokens: int
    requests: int
    step_rows: int


def _load(engine: Engine, prompt_tokens: int | None, tokens: int, step_rows: int | None) -> Load:
    """The load that context, pool and slots hold. Raises IngotError when not even one request fits."""
    info, granules = engine.info, engine.stats["granules"]
    room = min(info["context"], granules * GRANULE_TOKENS)
    prefill = min(PREFILL_TOKENS_DEFAULT, room - 1) if prompt_tokens is None else prompt_tokens
    rows = info["rows_max"] if step_rows is None else step_rows
    prompt = min(DECODE_PROMPT_TOKENS, info["context"] - 1)
    for requests in range(min(engine.stats["requests"], rows), 0, -1):
        length = prompt + tokens + 1 + _slack(requests, prompt, rows)
        if length <= room and requests * -(-length // GRANULE_TOKENS) <= granules:
            return Load(prefill, prompt, tokens, requests, rows)
    most = room - prompt - 1 - _slack(1, prompt, rows)
    raise refusal(
        "OPTION", max(most, 0), tokens, f"{tokens} decoded tokens do not fit context and pool: at most {most}"
    )


def _decode(engine: Engine, load: Load, requests: int, runs: int, bandwidth: float) -> dict[str, Any]:
    """One line of the report: `requests` side by side."""
    steps: list[float] = []
    rates = []
    slack = _slack(requests, load.prompt, load.step_rows)
    for _ in range(runs):
        seconds = _decode_seconds(engine, requests, load.prompt, load.tokens, slack)
        steps += seconds
        rates.append(requests * len(seconds) / sum(seconds))
    kv = next(region for region in engine.regions if region["name"] == "kv")
    live = load.prompt + load.tokens / 2  # tokens of KV that a row reads, on average
    bytes_per_step = engine.info["weight_bytes"] + int(
        requests * live * kv["bytes_per_granule"] / GRANULE_TOKENS
    )
    step = median(steps)
    return {
        "requests": requests,
        "tokens_per_second": median(rates),
        "step_seconds": step,
        "inter_token_seconds_p50": percentile(steps, 0.5),
        "inter_token_seconds_p99": percentile(steps, 0.99),
        "bytes_per_step": bytes_per_step,
        "bandwidth_share": bytes_per_step / step / bandwidth,
    }


def run(
    plan: Path, options: Mapping[str, Any], *, prompt_tokens: int | None, tokens: int, runs: int
) -> dict[str, Any]:
    """The whole benchmark. `options` are the Engine's; `tokens` are decoded a run, `runs` is at least 5."""
    starts = [_start_seconds(plan, options) for _ in range(runs)]
    with Engine(plan, **options) as engine:
        load = _load(engine, prompt_tokens, tokens, options.get("step_rows"))
        bandwidth = read_bandwidth(engine.stats["threads"], runs)
        _prefill_seconds(engine, load.prefill, 0)  # warm
        first = median(_prefill_seconds(engine, load.prefill, salt) for salt in range(runs))
        rows = [_decode(engine, load, count, runs, bandwidth) for count in row_counts(load.requests)]
        stats, info = engine.stats, engine.info
    return {
        "command": sys.argv,
        "ingot": _version(),
        "machine": machine(),
        "plan": info["hash"],
        "plan_bytes": info["file_bytes"],
        "target": info["target"],
        "threads": stats["threads"],
        "isa": stats["isa"],
        "runs": runs,
        "bytes_reserved": stats["bytes_reserved"],
        "weight_bytes": info["weight_bytes"],
        "cold_start": {
            "sealed_seconds": median(s[0] for s in starts),
            "first_token_seconds": median(s[1] for s in starts),
            "note": "in this process, the file in the page cache; opening verifies every byte",
        },
        "bandwidth": {"bytes_per_second": bandwidth, "method": BANDWIDTH_METHOD},
        "prefill": {
            "prompt_tokens": load.prefill,
            "first_token_seconds": first,
            "tokens_per_second": load.prefill / first,
        },
        "decode": {"prompt_tokens": load.prompt, "tokens": tokens, "rows": rows},
    }


def _version() -> str:
    try:
        return version("ingot-engine")
    except PackageNotFoundError:
        return "not installed"


def render(report: Mapping[str, Any], out: TextIO) -> None:
    """The report as text."""
    where, start, prefill, decode = (report[key] for key in ("machine", "cold_start", "prefill", "decode"))
    memory_gib = where["memory_bytes"] / 2**30
    reserved_mib, weights_mib = report["bytes_reserved"] / 2**20, report["weight_bytes"] / 2**20
    bandwidth = report["bandwidth"]
    lines = [
        f"machine    {where['cpu']}, {where['cores']} cores, {memory_gib:.0f} GiB, {where['system']}",
        f"ingot      {report['ingot']}, target {report['target']}, {report['isa']},"
        f" {report['threads']} threads",
        f"plan       {report['plan']}",
        f"memory     {reserved_mib:.1f} MiB reserved, {weights_mib:.1f} MiB of it weights",
        f"bandwidth  {bandwidth['bytes_per_second'] / 1e9:.1f} GB/s read",
        f"           ({bandwidth['method']})",
        f"cold start {start['sealed_seconds']:.3f} s to sealed,"
        f" {start['first_token_seconds']:.3f} s to a token",
        f"           ({start['note']})",
        f"prefill    {prefill['tokens_per_second']:.0f} tokens/s; first token after"
        f" {prefill['first_token_seconds']:.3f} s for {prefill['prompt_tokens']} tokens",
        f"decode     {decode['tokens']} tokens a run after {decode['prompt_tokens']};"
        f" medians of {report['runs']} runs",
        "  requests   tokens/s   p50 ms   p99 ms   MB/step   share of bandwidth",
    ]
    for row in decode["rows"]:
        p50, p99 = 1e3 * row["inter_token_seconds_p50"], 1e3 * row["inter_token_seconds_p99"]
        lines.append(
            f"  {row['requests']:8d} {row['tokens_per_second']:10.1f} {p50:8.2f} {p99:8.2f}"
            f" {row['bytes_per_step'] / 1e6:9.1f} {100 * row['bandwidth_share']:18.0f} %"
        )
    out.write("\n".join(lines) + "\n")
