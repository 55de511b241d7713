"""The whole compiler, top to bottom: checkpoint -> graph -> passes -> tables -> weights -> plan file.

`build` reads like the pipeline it is. `plan_tables` is its first half: it needs no weights and sizes a plan
from a config alone. Weights stream a slice of panels at a time; the output appears by one rename when it is
whole and verified.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..plans.layout import GRANULE_TOKENS, NONE_INDEX, SELFTEST, Dtype, Family, Limit, Target
from ..plans.records import PlanTables, Selftest
from ..plans.writer import PlanWriter
from .checkpoint.open import open_checkpoint
from .checkpoint.spec import Checkpoint, ModelSpec
from .graph.decoder import decoder
from .graph.graph import Graph
from .graph.rope import rope_frequencies
from .graph.verify import verify as verify_graph
from .numerics.calibrate import FoldedSource, KvScales, calibrate_kv
from .numerics.calibration_input import calibration_tokens, read_calibration
from .passes.assemble import assemble
from .passes.fuse import fuse
from .passes.layout import ConstantTable, layout_constants
from .passes.quantise import quantise
from .passes.schedule import Program, schedule
from .passes.specialise import buckets, specialise
from .progress import NullProgress, Progress
from .targets.cpu.lower import lower
from .targets.cpu.pack import pack
from .targets.reference.plan import PlanReference

VERSION = "0.1.0"
CONTEXT_DEFAULT_MAX = 8192  # tokens; a longer context is chosen with --context, never assumed
REQUESTS_DEFAULT = 8
POOL_CONTEXT_DEFAULT = 2048  # tokens per default request that the default pool holds
SELFTEST_PROMPT_TOKENS = 16
SELFTEST_PROBES = 32
SELFTEST_TOLERANCE = (
    0.05  # relative to the probes' root mean square: rounding flips of int8 inputs stay below 0.01
)
WEIGHTS = {"e4m3": Dtype.E4M3, "i8": Dtype.I8, "bf16": Dtype.BF16}
KV = {"e4m3": Dtype.E4M3, "e5m2": Dtype.E5M2, "i8": Dtype.I8, "bf16": Dtype.BF16}


class BuildError(Exception):
    """A build that cannot be done as asked. The text says what was found, what is allowed, what to do."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Everything a user chooses. None means the target's or the checkpoint's default; counts of tokens, rows,
    requests."""

    target: str = "cpu"
    weights: str | None = None  # cpu: i8
    kv: str | None = None  # cpu: i8
    context: int | None = None  # the checkpoint's, at most CONTEXT_DEFAULT_MAX
    rows_max: int = 256
    head_rows_max: int = 16
    requests_max: int = 64
    requests_default: int | None = None  # 8, or the ceiling when that is lower
    kv_tokens_default: int | None = None
    default_max_tokens: int = 512
    calibration: Path | None = None


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build made: the plan's path, identity (hex sha256), tables, bytes, and the seconds it took."""

    path: Path
    hash: str
    tables: PlanTables
    file_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Compiled:
    """A plan without its weight bytes: its tables and what its constants are made of."""

    tables: PlanTables
    constants: ConstantTable


def _choose(value: str | None, default: str, allowed: Mapping[str, Dtype], what: str) -> Dtype:
    name = default if value is None else value
    if name not in allowed:
        raise BuildError(f"{what} format '{name}' is not known; choose one of {', '.join(allowed)}")
    return allowed[name]


def _within(value: int, low: int, high: int, what: str) -> int:
    if not low <= value <= high:
        raise BuildError(f"{what} is {value}; it must be {low} to {high}")
    return value


def _context(spec: ModelSpec, options: BuildOptions) -> int:
    if options.context is None:
        return min(spec.context, CONTEXT_DEFAULT_MAX)
    if options.context > spec.context:
        raise BuildError(
            f"context {options.context} exceeds the {spec.context} tokens that the model was made for; "
            "choose at most that"
        )
    return _within(options.context, 2, int(Limit.CONTEXT), "context")


def plan_header(spec: ModelSpec, options: BuildOptions) -> dict[str, int]:
    """The header's fields for this model and these options. Raises BuildError for a value out of range."""
    if options.target != "cpu":
        raise BuildError(f"target '{options.target}' is not in this release; choose cpu")
    weights, kv = _choose(options.weights, "i8", WEIGHTS, "weight"), _choose(options.kv, "i8", KV, "kv")
    context = _context(spec, options)
    granules = -(-context // GRANULE_TOKENS)
    requests_max = _within(options.requests_max, 1, int(Limit.REQUESTS), "the ceiling on requests")
    requests = min(REQUESTS_DEFAULT, requests_max)
    if options.requests_default is not None:
        requests = _within(options.requests_default, 1, int(Limit.REQUESTS), "the default number of requests")
    if requests > requests_max:
        raise BuildError(
            f"--requests {requests} exceeds the ceiling of {requests_max}; "
            "choose fewer, or a higher --max-requests"
        )
    max_tokens = _within(options.default_max_tokens, 1, int(Limit.CONTEXT), "default max_tokens")
    pool = options.kv_tokens_default
    if pool is None:
        pool = max(context, requests * min(context, POOL_CONTEXT_DEFAULT))
    return {
        "target": int(Target.CPU), "vocabulary": spec.vocabulary, "layers": spec.layers,
        "hidden": spec.hidden,
        "query_heads": spec.query_heads, "kv_heads": spec.kv_heads, "head_size": spec.head_size,
        "rotary_pairs": spec.rope.rotary_dims // 2 if any(spec.layer_rope) else 0,
        "context": context,
        "rows_max": _within(options.rows_max, 1, int(Limit.ROWS), "the largest bucket"),
        "head_rows_max": _within(options.head_rows_max, 1, int(Limit.HEAD_ROWS), "the largest head bucket"),
        "requests_max": requests_max, "requests_default": requests,
        "granules_max": requests_max * granules,
        "granules_default": _within(
            -(-pool // GRANULE_TOKENS), 1, requests_max * granules, "the default pool in granules"
        ),
        "default_max_tokens": max_tokens,
        "weights_dtype": int(weights), "kv_dtype": int(kv),
        "activation_dtype": int(Dtype.I8 if weights == Dtype.I8 else Dtype.F32),
        "bos_token": NONE_INDEX if spec.bos_token is None else spec.bos_token,
    }  # fmt: skip


def _eos(spec: ModelSpec) -> tuple[int, ...]:
    if len(spec.eos_tokens) > int(Limit.EOS_TOKENS):
        raise BuildError(
            f"the checkpoint has {len(spec.eos_tokens)} eos tokens; "
            f"at most {int(Limit.EOS_TOKENS)} are allowed"
        )
    return spec.eos_tokens


def _programs(body: Graph, head: Graph, header: Mapping[str, int]) -> tuple[Program, ...]:
    """Every bucket of both families, scheduled and placed; `verify` runs on each graph."""
    programs = []
    for graph, family, rows_max in (
        (body, Family.BODY, header["rows_max"]),
        (head, Family.HEAD, header["head_rows_max"]),
    ):
        for rows in buckets(rows_max):
            bucket = specialise(graph, rows)
            verify_graph(bucket)
            programs.append(schedule(bucket, family, lower))
    return tuple(programs)


def compile_tables(checkpoint: Checkpoint, options: BuildOptions) -> Compiled:
    """All tables of the plan and the list of its constants. Reads no weight."""
    spec = checkpoint.spec
    header = plan_header(spec, options)
    weights, kv = Dtype(header["weights_dtype"]), Dtype(header["kv_dtype"])
    fused = []
    for graph in decoder(spec, header["rows_max"], header["head_rows_max"]):
        verify_graph(graph)
        quantised = quantise(graph, weights, kv)
        verify_graph(quantised)
        fused.append(fuse(quantised))
        verify_graph(fused[-1])
    body, head = fused
    folded = _fold_names(spec) if kv in (Dtype.E4M3, Dtype.E5M2) else ()
    constants = layout_constants((body, head), folded)
    tables = assemble(header, constants, body, _programs(body, head, header))
    prompt = min(SELFTEST_PROMPT_TOKENS, header["context"] - 1)
    probes = min(SELFTEST_PROBES, spec.vocabulary)
    return Compiled(
        replace(
            tables,
            header={**header, "eos_count": len(_eos(spec)), "eos_tokens": _eos(spec)},
            meta=_meta(checkpoint, header),
            tokenizer=checkpoint.text.tokenizer,
            template=checkpoint.text.template.encode() if checkpoint.text.template else None,
            selftest_bytes=SELFTEST.bytes + 4 * prompt + 8 * probes,
        ),
        constants,
    )


def plan_tables(checkpoint: Checkpoint, options: BuildOptions) -> PlanTables:
    """The tables of the plan that `build` would write, from the config alone: for sizing."""
    return compile_tables(checkpoint, options).tables


def _fold_names(spec: ModelSpec) -> tuple[tuple[str, tuple[int, ...]], ...]:
    shape = (spec.kv_heads, spec.head_size)
    return tuple((f"layer.{layer}.{part}_fold", shape) for layer in range(spec.layers) for part in ("k", "v"))


def _meta(checkpoint: Checkpoint, header: Mapping[str, int]) -> dict[str, object]:
    spec, text = checkpoint.spec, checkpoint.text
    model = asdict(spec)
    model["rope"] = {
        **asdict(spec.rope),
        "kind": str(spec.rope.kind),
        "parameters": dict(spec.rope.parameters),
    }
    return {
        "name": checkpoint.name,
        "architecture": spec.architecture,
        "ingot": VERSION,
        "model": model,
        "numerics": {
            part: Dtype(header[f"{field}_dtype"]).name.lower()
            for part, field in (("weights", "weights"), ("activations", "activation"), ("kv", "kv"))
        },
        "text": {"special": dict(text.special), "add_bos": text.add_bos, "generation": dict(text.generation)},
    }


def build(
    model: str, out: Path, options: BuildOptions | None = None, progress: Progress | None = None
) -> BuildReport:
    """Compiles the checkpoint `model` (a directory, a GGUF file or a hub name) into the plan `out`.

    Raises CheckpointError or BuildError; nothing is then left at `out`, and a plan that was there before is
    untouched.
    """
    options, progress = options or BuildOptions(), progress or NullProgress()
    begin = time.monotonic()
    progress.stage("read checkpoint")
    checkpoint = open_checkpoint(model)
    if checkpoint.weights is None:
        raise BuildError(
            f"{model} has no weights; give a checkpoint directory or a GGUF file, or use --dry-run"
        )
    progress.stage("compile")
    compiled = compile_tables(checkpoint, options)
    _say(checkpoint, compiled.tables, options, progress)
    text = read_calibration(options.calibration)
    tokens = calibration_tokens(checkpoint, text)
    meta = {**compiled.tables.meta, "checkpoint_sha256": checkpoint.weights.digest()}
    source, values = checkpoint.weights, constant_values(checkpoint.spec)
    kv = Dtype(compiled.tables.integer("kv_dtype"))
    if kv in (Dtype.E4M3, Dtype.E5M2):
        scales = calibrate_kv(checkpoint.spec, source, tokens, kv, progress)
        source = FoldedSource(checkpoint.spec, source, scales)
        values |= _fold_values(scales)
        meta["calibration"] = {"digest": text.digest, "name": text.name, "tokens": len(tokens)}
    tables = replace(compiled.tables, meta=meta)
    with PlanWriter(out, tables) as writer:
        constants = sum(constant.entry.bytes for constant in compiled.constants.constants.values())
        progress.stage("write weights", constants, "bytes")
        for name, offset, data in pack(compiled.constants, source, values):
            writer.write(name, offset, data)
            progress.advance(len(data))
        progress.stage("self-test")
        writer.selftest(golden(tables, writer, tokens))
        progress.stage("hash and verify")
        identity = writer.finish()
    progress.done()
    return BuildReport(out, identity.hex(), tables, out.stat().st_size, time.monotonic() - begin)


def _say(checkpoint: Checkpoint, tables: PlanTables, options: BuildOptions, progress: Progress) -> None:
    """Notes on what was decided for the user."""
    context = tables.header["context"]
    if options.context is None and checkpoint.spec.context > CONTEXT_DEFAULT_MAX:
        progress.note(
            f"context {context} of the model's {checkpoint.spec.context} tokens; choose more with --context"
        )
    if checkpoint.text.tokenizer is None:
        progress.note("the checkpoint has no tokenizer: this plan takes and gives token ids only")


def constant_values(spec: ModelSpec) -> dict[str, NDArray[np.float32]]:
    """Constants that are computed, not read: the rotary frequencies, float32 (rotary_pairs,)."""
    if not any(spec.layer_rope):
        return {}
    return {"rope.inverse_frequency": rope_frequencies(spec.rope, spec.context).inverse_frequency}


def _fold_values(scales: KvScales) -> dict[str, NDArray[np.float32]]:
    """The KV scales that were folded into the weights, kept in the plan: k, v of every layer, (KV, HS)
    float32."""
    values = {}
    for layer in range(scales.k.shape[0]):
        values[f"layer.{layer}.k_fold"], values[f"layer.{layer}.v_fold"] = scales.k[layer], scales.v[layer]
    return values


def golden(tables: PlanTables, writer: PlanWriter, tokens: list[int]) -> Selftest:
    """The golden prompt's probe logits, from the reference executor walking the commands over the bytes just
    written."""
    context, vocabulary = tables.integer("context"), tables.integer("vocabulary")
    prompt = tokens[: min(SELFTEST_PROMPT_TOKENS, context - 1)]
    logits = PlanReference(tables, writer.read).forward(prompt)[-1]
    order = np.argsort(-logits, kind="stable")
    spread = np.linspace(0, vocabulary - 1, min(SELFTEST_PROBES, vocabulary)).astype(np.int64)
    probes = np.unique(np.concatenate([order[: len(spread) // 2], spread]))[: len(spread)]
    return Selftest(
        tuple(prompt), tuple(int(i) for i in probes), tuple(float(x) for x in logits[probes]), int(order[0]),
        float(logits[order[0]] - logits[order[1]]), SELFTEST_TOLERANCE,
    )  # fmt: skip
