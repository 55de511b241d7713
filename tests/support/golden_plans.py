"""The plans of `plans/golden/`: tiny models through the whole compiler, and what the runtime answers.

`python tests/support/golden_plans.py` builds them anew and writes `answers.json`; only a change of the
format, of the numerics or of what the compiler emits may need that, and the commit says which. Sizes are no
multiples of a panel, a block or a granule.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from ingot.compiler.build import BuildOptions
from ingot.compiler.build import build as build_plan
from ingot.compiler.checkpoint.spec import Checkpoint, ModelSpec, RopeKind, RopeSpec, TextFiles
from ingot.runtime import Engine

sys.path.insert(0, str(Path(__file__).parent.parent))
from support.models import random_source

FOLDER = Path(__file__).resolve().parent.parent.parent / "plans" / "golden"
ANSWERS = FOLDER / "answers.json"
ANSWER_TOKENS = 140  # of prompt and answer together: more than one granule
PROMPT_TOKENS = 21

SPEC = ModelSpec(
    architecture="LlamaForCausalLM", vocabulary=67, hidden=40, intermediate=56, layers=1, query_heads=3,
    kv_heads=1, head_size=8, context=200, norm_eps=1e-5, rope=RopeSpec(RopeKind.DEFAULT, 10000.0, 8),
    layer_window=(0,), layer_rope=(True,), tied_head=True,
)  # fmt: skip
TWO_LAYERS: dict[str, Any] = {"layers": 2, "layer_window": (0, 24), "layer_rope": (True, False)}


@dataclass(frozen=True, slots=True)
class Golden:
    """A golden plan: a model, formats of weights and KV, and the largest buckets."""

    spec: ModelSpec
    weights: str
    kv: str
    rows_max: int = 4


GOLDEN: Mapping[str, Golden] = {
    "i8": Golden(SPEC, "i8", "i8", rows_max=1),
    "e4m3": Golden(replace(SPEC, qk_norm=True, tied_head=False, **TWO_LAYERS), "e4m3", "e4m3"),
    "bf16": Golden(
        replace(SPEC, qkv_bias=True, output_bias=True, mlp_bias=True, **TWO_LAYERS), "bf16", "bf16"
    ),
}  # fmt: skip


def build_golden(name: str, path: Path) -> None:
    """Builds the golden plan of this name into `path`, from weights that numpy draws by seed."""
    golden = GOLDEN[name]
    text = TextFiles(None, None, {}, False, {})
    checkpoint = Checkpoint(golden.spec, text, random_source(golden.spec), name)
    options = BuildOptions(
        weights=golden.weights, kv=golden.kv, rows_max=golden.rows_max, head_rows_max=1, requests_max=3,
        requests_default=2,
    )  # fmt: skip
    with mock.patch("ingot.compiler.build.open_checkpoint", return_value=checkpoint):
        build_plan(name, path, options)


def answer(path: Path) -> dict[str, Any]:
    """Tokens of a greedy and a sampled answer, and the sha256 of every logit's bits along the greedy one."""
    prompt = [int(i) for i in np.random.default_rng(5).integers(3, SPEC.vocabulary, PROMPT_TOKENS)]
    said: dict[str, Any] = {}
    with Engine(path, max_requests=1, threads=1) as engine:
        for name, temperature in (("greedy", 0.0), ("sampled", 0.9)):
            chunks = engine.generate(
                prompt,
                temperature=temperature,
                seed=7,
                ignore_eos=True,
                max_tokens=ANSWER_TOKENS - PROMPT_TOKENS,
            )
            said[name] = [chunk.token for chunk in chunks if chunk.token is not None]
        logits = engine.score([*prompt, *said["greedy"]])
        said["logits_sha256"] = hashlib.sha256(logits.astype("<f4").tobytes()).hexdigest()
    return said


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    answers = {}
    for name in GOLDEN:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "golden.plan"
            build_golden(name, path)
            (FOLDER / f"{name}.plan").write_bytes(path.read_bytes())
            answers[name] = answer(path)
        print(f"{name}.plan: {(FOLDER / f'{name}.plan').stat().st_size} bytes")
    lines = [f'"{name}": {json.dumps(said)}' for name, said in answers.items()]
    ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
