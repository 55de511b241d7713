"""Drift of a plan against its unquantised checkpoint, teacher-forced on held-out English and code.

Runs every document through the runtime (`Engine.score`) and through the float32 reference executor with
float32 KV, and prints perplexity ratio, mean and p99.9 KL divergence KL(reference || plan) and the share of
positions with the same most likely token. Default texts come from the Python installation (documentation
topics, standard library source), which no calibration text quotes. Example:

    python benchmarks/drift.py --model MODEL --plan m.plan --plan other.plan --tokens 2048
"""

from __future__ import annotations

import argparse
import inspect
import json
import platform
import shelve
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from ingot.compiler.checkpoint.open import open_checkpoint
from ingot.compiler.targets.reference.executor import Reference
from ingot.plans.reader import open_plan
from ingot.runtime import Engine
from numpy.typing import NDArray
from tokenizers import Tokenizer

DOCUMENT_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Drift:
    """Distances over `positions` predictions. KL in nats."""

    positions: int
    perplexity_reference: float
    perplexity_plan: float
    perplexity_ratio: float
    kl_mean: float
    kl_p999: float
    same_top: float


def default_texts() -> dict[str, str]:
    """English and code that come with Python."""
    names = (
        "assignment",
        "class",
        "customization",
        "objects",
        "import",
        "execmodel",
        "yield",
        "with",
        "function",
        "lambda",
    )
    prose = "\n\n".join(topics[name] for name in names if name in topics)
    return {"english": prose, "code": inspect.getsource(shelve) + inspect.getsource(argparse)}


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Row-wise, float64."""
    values = logits.astype(np.float64)
    values -= values.max(axis=1, keepdims=True)
    return values - np.log(np.exp(values).sum(axis=1, keepdims=True))


def compare(
    reference: list[NDArray[np.float32]], plan: list[NDArray[np.float32]], documents: list[list[int]]
) -> Drift:
    """Drift over all documents: the logits after token t predict token t + 1."""
    kl, same, nll_reference, nll_plan = [], [], [], []
    for a, b, tokens in zip(reference, plan, documents, strict=True):
        p, q, target = log_softmax(a), log_softmax(b), np.array(tokens[1:])
        kl.append((np.exp(p) * (p - q)).sum(axis=1))
        same.append(p.argmax(axis=1) == q.argmax(axis=1))
        rows = np.arange(len(target))
        nll_reference.append(-p[rows, target])
        nll_plan.append(-q[rows, target])
    divergence = np.concatenate(kl)
    low, high = float(np.concatenate(nll_reference).mean()), float(np.concatenate(nll_plan).mean())
    return Drift(
        len(divergence),
        float(np.exp(low)),
        float(np.exp(high)),
        float(np.exp(high - low)),
        float(divergence.mean()),
        float(np.quantile(divergence, 0.999)),
        float(np.concatenate(same).mean()),
    )


def circumstances() -> dict[str, str]:
    """What a result was taken with: date, commit, processor, Python, torch."""
    folder = Path(__file__).parent
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=False
    )
    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(":")[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip() or "not in a clone",
        "processor": f"{len(names)} x {names[0]}" if names else platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="the checkpoint the plans were built from")
    parser.add_argument(
        "--plan", type=Path, action="append", required=True, help="a plan; may be given several times"
    )
    parser.add_argument(
        "--text", type=Path, action="append", help="held-out UTF-8 text instead of the default ones"
    )
    parser.add_argument("--tokens", type=int, default=2048, help="tokens per text, in documents of 1024")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    checkpoint = open_checkpoint(options.model)
    assert checkpoint.weights is not None
    assert checkpoint.text.tokenizer is not None
    tokenizer = Tokenizer.from_buffer(checkpoint.text.tokenizer)
    texts = {path.name: path.read_text() for path in options.text} if options.text else default_texts()
    documents = {}
    for name, text in texts.items():
        ids = tokenizer.encode(text, add_special_tokens=False).ids[: options.tokens]
        documents[name] = [ids[i : i + DOCUMENT_TOKENS] for i in range(0, len(ids), DOCUMENT_TOKENS)]
    reference = Reference(checkpoint.spec, checkpoint.weights)
    expected: dict[str, list[NDArray[np.float32]]] = {}
    with torch.inference_mode():
        for name, parts in documents.items():
            begin = time.monotonic()
            expected[name] = [reference.forward(part).numpy() for part in parts]
            print(
                f"reference {name}: {sum(map(len, parts))} tokens in {time.monotonic() - begin:.1f} s",
                file=sys.stderr,
            )

    report: dict[str, dict[str, object]] = {}
    for path in options.plan:
        with open_plan(path) as plan:
            numerics, identity = plan.meta["numerics"], plan.hash
        row: dict[str, object] = {"numerics": numerics, "plan": identity[:16]}
        with Engine(path, max_requests=1) as engine:
            actual = {name: [engine.score(part) for part in parts] for name, parts in documents.items()}
        for name, parts in documents.items():
            row[name] = asdict(compare(expected[name], actual[name], parts))
        every = [part for parts in documents.values() for part in parts]
        row["all"] = asdict(compare([*chain(*expected.values())], [*chain(*actual.values())], every))
        report[path.name] = row
    if options.json:
        print(json.dumps({**circumstances(), "plans": report}, indent=1))
        return 0
    for file, row in report.items():
        print(f"{file} {row['plan']} {row['numerics']}")
        for name in (*documents, "all"):
            values = Drift(**row[name])  # type: ignore[arg-type]
            print(
                f"  {name:10} {values.positions:6} tokens  perplexity {values.perplexity_reference:8.3f} -> "
                f"{values.perplexity_plan:8.3f} (ratio {values.perplexity_ratio:.5f})  "
                f"mean KL {values.kl_mean:.6f}  "
                f"p99.9 {values.kl_p999:.4f}  same top {100 * values.same_top:.2f} %"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
