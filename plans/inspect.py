"""What a plan is, for people and for programs: identity, model, numerics, sections, memory, programs, pool,
drift.

`summary` gives plain JSON-able data; `render` shows the same facts as tables, with the concurrency that a
memory budget gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .layout import GRANULE_TOKENS, NONE_INDEX, Dtype, Region, Target
from .reader import PlanFile
from .sizing import Concurrency, Sizing, concurrency_table, format_bytes, sizing

_MODEL_FIELDS = (
    "vocabulary",
    "layers",
    "hidden",
    "query_heads",
    "kv_heads",
    "head_size",
    "rotary_pairs",
    "context",
)


def summary(plan: PlanFile, memory_bytes: int | None = None) -> dict[str, Any]:
    """The plan's facts under fixed keys; sizes in bytes. `concurrency` is there when a memory budget is
    given.
    """
    header = plan.header
    defaults = sizing(plan.tables)
    result: dict[str, Any] = {
        "identity": {
            "hash": plan.hash, "file_bytes": plan.file_bytes, "format_version": header["format_version"],
            "target": Target(header["target"]).name.lower(), "name": plan.meta.get("name"),
            "checkpoint_sha256": plan.meta.get("checkpoint_sha256"), "ingot": plan.meta.get("ingot"),
        },
        "model": {"architecture": plan.meta.get("architecture")}
        | {name: header[name] for name in _MODEL_FIELDS},
        "numerics": {
            "weights": Dtype(header["weights_dtype"]).name.lower(),
            "kv": Dtype(header["kv_dtype"]).name.lower(),
            "activations": Dtype(header["activation_dtype"]).name.lower(),
        },
        "tokens": {
            "bos_token": None if header["bos_token"] == NONE_INDEX else header["bos_token"],
            "eos_tokens": list(header["eos_tokens"][: header["eos_count"]]),
            "default_max_tokens": header["default_max_tokens"],
        },
        "sections": [
            {"kind": s.kind.name, "offset": s.offset, "bytes": s.bytes,
                "count": s.count} for s in plan.sections
        ],
        "memory": _memory(plan, defaults),
        "pool": {
            "kv_tokens_default": header["granules_default"] * GRANULE_TOKENS,
            "kv_tokens_max": header["granules_max"] * GRANULE_TOKENS,
            "requests_default": header["requests_default"], "requests_max": header["requests_max"],
            "rows_max": header["rows_max"], "head_rows_max": header["head_rows_max"],
        },
        "programs": [
            {
                "family": p.family.name.lower(), "rows": p.rows, "commands": p.command_count,
                "arena_tensors": p.tensor_count, "arena_bytes": p.arena_bytes,
                "arena_lower_bound": p.arena_lower_bound,
            }
            for p in plan.tables.programs
        ],
        "calibration": plan.meta.get("calibration"),
        "drift": plan.drift,
    }  # fmt: skip
    if memory_bytes is not None:
        result["concurrency"] = [asdict(entry) for entry in concurrency_table(plan.tables, memory_bytes)]
    return result


def _memory(plan: PlanFile, defaults: Sizing) -> dict[str, Any]:
    regions = []
    for size, entry in zip(defaults.regions, plan.tables.regions, strict=True):
        regions.append({
            "kind": size.kind.name, "bytes": size.bytes, "bytes_fixed": entry.bytes_fixed,
            "bytes_per_granule": entry.bytes_per_granule, "bytes_per_request": entry.bytes_per_request,
            "tensors": sum(tensor.region == size.kind for tensor in plan.tables.tensors),
        })  # fmt: skip
    return {
        "kv_tokens": defaults.kv_tokens, "requests": defaults.requests, "total_bytes": defaults.total_bytes,
        "regions": regions,
    }  # fmt: skip


def _table(title: str, *columns: str) -> Table:
    """A plain table; all columns but the first are right-aligned."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def _facts(title: str, facts: Mapping[str, object]) -> Table:
    table = Table(
        title=title, title_justify="left", box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for name, value in facts.items():
        if value is None:
            continue
        table.add_row(Text(name), Text(", ".join(map(str, value)) if isinstance(value, list) else str(value)))
    return table


def _memory_table(facts: Mapping[str, Any]) -> Table:
    title = f"memory at {facts['kv_tokens']} kv tokens and {facts['requests']} requests"
    table = _table(title, "region", "fixed", "per granule", "per request", "reserved", "tensors")
    for region in facts["regions"]:
        sizes = (region[key] for key in ("bytes_fixed", "bytes_per_granule", "bytes_per_request", "bytes"))
        table.add_row(region["kind"], *(format_bytes(size) for size in sizes), str(region["tensors"]))
    table.add_row("total", "", "", "", format_bytes(facts["total_bytes"]), "")
    return table


def _program_table(programs: list[dict[str, Any]]) -> Table:
    table = _table("programs", "bucket", "commands", "arena", "lower bound", "over bound")
    for program in programs:
        bytes_, bound = program["arena_bytes"], program["arena_lower_bound"]
        over = f"{100 * (max(bytes_, bound) / bound - 1):.1f} %" if bound else "-"
        name = f"{program['family']}[{program['rows']}]"
        table.add_row(name, str(program["commands"]), format_bytes(bytes_), format_bytes(bound), over)
    return table


def render_concurrency(entries: tuple[Concurrency, ...], memory_bytes: int, console: Console) -> None:
    """The table of context x concurrency for a memory budget, with the terms of each line's sum."""
    table = _table(
        f"requests at once in {format_bytes(memory_bytes)}", "context", "requests", "bound by", "kv tokens",
        "weights",
        "arena + io", "kv", "state", "total", "first request"
    )  # fmt: skip
    for entry in entries:
        cells = [str(entry.context), str(entry.requests), entry.bound]
        if entry.sizing is None:
            cells += ["-"] * 6
        else:
            size = {region.kind: region.bytes for region in entry.sizing.regions}
            terms = (
                size[Region.WEIGHTS] + size[Region.SCALES], size[Region.ARENA] + size[Region.IO],
                size[Region.KV],
                size[Region.STATE], entry.sizing.total_bytes,
            )  # fmt: skip
            cells += [str(entry.sizing.kv_tokens), *(format_bytes(term) for term in terms)]
        table.add_row(*cells, format_bytes(entry.one_bytes))
    console.print(table)


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Nested mappings as dotted keys."""
    flat: dict[str, object] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            flat |= _flat(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = item
    return flat


def render(plan: PlanFile, console: Console, memory_bytes: int | None = None) -> None:
    """Prints the summary as tables. The budget of the concurrency table defaults to the plan's own default
    total.
    """
    facts = summary(plan)
    identity = facts["identity"] | {"file": format_bytes(plan.file_bytes)}
    parts = [
        _facts("plan", identity), _facts("model", facts["model"]), _facts("numerics", facts["numerics"]),
        _facts("tokens", facts["tokens"]), _facts("pool", facts["pool"]),
    ]  # fmt: skip
    sections = _table("sections", "section", "offset", "bytes", "records")
    for section in facts["sections"]:
        size = format_bytes(section["bytes"])
        sections.add_row(section["kind"], str(section["offset"]), size, str(section["count"]))
    parts += [sections, _memory_table(facts["memory"]), _program_table(facts["programs"])]
    for title in ("calibration", "drift"):
        if isinstance(facts[title], Mapping):
            parts.append(_facts(title, _flat(facts[title])))
    for part in parts:
        console.print(part)
        console.print()
    budget = facts["memory"]["total_bytes"] if memory_bytes is None else memory_bytes
    render_concurrency(concurrency_table(plan.tables, budget), budget, console)
