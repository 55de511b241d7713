"""`build-engine`: compile a checkpoint into a plan, or size one without its weights.

Results go to stdout, progress and errors to stderr. Exit codes: 0 done, 1 an operating error (one line that
begins with `build-engine: error:`), 2 wrong usage, 130 Ctrl-C, 141 a closed pipe, 143 terminated. The output
path holds what was there before or the complete new plan, whatever happens.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, RenderableType

from ..plans.layout import MAGIC
from ..plans.sizing import concurrency_table, format_bytes
from ..plans.writer import PlanWriteError
from .checkpoint.spec import CheckpointError
from .memory.budget import BudgetError, fit
from .memory.page import memory_page
from .memory.report import concurrency_text, memory_table, summary_table
from .memory.terms import memory_map, plan_title
from .progress import LineProgress, NullProgress, Progress, RichProgress
from .recipe import KV, TARGETS, TARGETS_LATER, WEIGHTS, RecipeError, find_recipe, parse_size, read_recipe

if TYPE_CHECKING:
    from ..plans.records import PlanTables
    from .build import BuildOptions, BuildReport

OPTION_OF = {  # BuildOptions' field -> the command line's option, where the names differ
    "rows_max": "max_rows",
    "head_rows_max": "max_head_rows",
    "requests_max": "max_requests",
    "requests_default": "requests",
    "kv_tokens_default": "kv_tokens",
}
BEGINS = {"-o": MAGIC, "--report": b"<!doctype html>"}  # what an output may replace begins so


class _Terminated(BaseException):
    """SIGTERM: leave as Ctrl-C does, with nothing left behind."""


def _size(context: click.Context, parameter: click.Parameter, value: Any) -> int | None:
    """A click callback: bytes of `2G`; a recipe's value is a number already."""
    if value is None:
        return None
    try:
        return parse_size(str(value))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _recipe(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """A click callback: the recipe's values become defaults, over which the command line wins."""
    if value is not None:
        context.default_map = dict(read_recipe(find_recipe(value)))
    return value


def _count_option(name: str, text: str) -> Callable[[Any], Any]:
    return click.option(name, type=click.IntRange(1), metavar="N", help=text)


_PATH = click.Path(path_type=Path)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.argument("model")
@click.option("-o", "--output", type=_PATH, metavar="PLAN", help="The plan. Replaced only by a complete one.")
@click.option(
    "--target",
    type=click.Choice([*TARGETS, *TARGETS_LATER]),
    help="What the plan runs on. Default: cpu; the others come later.",
)
@click.option("--weights", type=click.Choice(WEIGHTS), help="Format of the weights. Default: i8.")
@click.option("--kv", type=click.Choice(KV), help="Format of the KV cache. Default: i8.")
@_count_option("--context", "Most tokens of a request, prompt and answer. Default: the model's, up to 8192.")
@_count_option("--max-rows", "Rows (tokens processed) of the largest step. Default: 256.")
@_count_option("--max-head-rows", "Rows that get logits in one step. Default: 16.")
@_count_option("--max-requests", "Ceiling on requests at once that can be chosen at open. Default: 64.")
@_count_option("--requests", "Requests at once when none are chosen at open. Default: 8.")
@_count_option("--kv-tokens", "Tokens of the KV pool when none are chosen at open. Default: 2048 a request.")
@_count_option("--default-max-tokens", "Tokens generated when a request does not say. Default: 512.")
@click.option(
    "--memory",
    metavar="BYTES",
    callback=_size,
    help="Choose the default pool so that the plan takes at most this (2G, 512MiB; powers of 1024).",
)
@click.option("--calibration", type=_PATH, metavar="FILE", help="Text for KV scales (.txt or .jsonl).")
@click.option(
    "--recipe",
    metavar="FILE",
    callback=_recipe,
    is_eager=True,
    expose_value=False,
    help="Options from a TOML file, or cpu, cpu-bf16, cpu-e4m3. The command line wins.",
)
@click.option("--dry-run", is_flag=True, help="Size the plan from config.json alone; write none.")
@click.option("--report", type=_PATH, metavar="HTML", help="Also write the memory map as a page.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors (and --json).")
@click.version_option(package_name="ingot-engine", prog_name="build-engine")
def command(model: str, **values: Any) -> None:
    """Compile MODEL, a checkpoint directory or a GGUF file, into a plan that run-engine runs.

    \b
    build-engine path/to/model -o m.plan
    build-engine path/to/model -o m.plan --context 256 --weights e4m3 --kv e4m3
    build-engine path/to/model -o m.plan --memory 1GiB --report memory.html
    build-engine path/to/model -o m.plan --recipe cpu-bf16 --max-rows 64 --json
    build-engine path/to/model --dry-run --memory 2G

    A plan that stands at PLAN is replaced when the new one is complete and verified, never before. How many
    requests and KV tokens are chosen again when the plan is opened, under its ceilings.
    """
    if values["output"] is None and not values["dry_run"]:
        raise click.UsageError("give -o PLAN, or --dry-run to size a plan without writing it")
    if values["target"] in TARGETS_LATER:
        raise click.ClickException(
            f"target {values['target']} comes later; this release builds for {TARGETS[0]}"
        )
    _check_paths(model, values)
    from .build import BuildError  # it loads torch: seconds that --help and wrong usage must not take

    try:
        _run_build(model, values)
    except BuildError as error:
        raise click.ClickException(str(error)) from error


def _check_paths(model: str, values: Mapping[str, Any]) -> None:
    """Refuses outputs that cannot be written, and files that are no earlier output, before any work is
    done.
    """
    outputs = {"-o": None if values["dry_run"] else values["output"], "--report": values["report"]}
    inputs = [Path(model), *([values["calibration"]] if values["calibration"] else [])]
    paths = {option: path for option, path in outputs.items() if path is not None}
    for option, path in paths.items():
        folder = Path(os.path.realpath(path)).parent
        if path.is_dir():
            raise click.ClickException(f"{option} {path} is a directory; give a file name")
        if path.exists() and not path.is_file():
            raise click.ClickException(f"{option} {path} is not a regular file; give another path")
        if not folder.is_dir():
            raise click.ClickException(f"{option} {path}: {folder} is no directory; create it first")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise click.ClickException(f"{option} {path}: {folder} cannot be written to")
        if any(path.exists() and other.exists() and path.samefile(other) for other in inputs):
            raise click.ClickException(f"{option} {path} is an input of this build; give another path")
        if path.exists() and path.stat().st_size and not _begins(path, BEGINS[option]):
            raise click.ClickException(
                f"{option} {path} holds something else; remove it or give another path"
            )
    if len({os.path.realpath(path) for path in paths.values()}) < len(paths):
        raise click.ClickException("-o and --report are the same file; give two paths")


def _begins(path: Path, prefix: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(prefix)) == prefix


def _run_build(model: str, values: Mapping[str, Any]) -> None:
    """Sizes or builds, then reports."""
    from . import build as pipeline
    from .checkpoint.open import open_checkpoint

    options = _options(values)
    tables: PlanTables | None = None
    notes: list[str] = []
    if values["dry_run"] or values["memory"] is not None:
        checkpoint = open_checkpoint(model, config_only=True)
        tables = pipeline.plan_tables(checkpoint, options)
        options, notes = _fit(tables, options, values)
        tables = pipeline.plan_tables(checkpoint, options) if notes else tables
    if values["dry_run"]:
        assert tables is not None
        _report(tables, None, values, notes)
        return
    progress = _progress(values)
    try:
        for note in notes:
            progress.note(note)
        report = pipeline.build(model, values["output"], options, progress)
    finally:
        progress.done()
    _report(report.tables, report, values, notes)


def _options(values: Mapping[str, Any]) -> BuildOptions:
    """The options that were given; what was not keeps `BuildOptions`' default."""
    from .build import BuildOptions

    fields = {field: values[OPTION_OF.get(field, field)] for field in BuildOptions.__dataclass_fields__}
    return BuildOptions(**{field: value for field, value in fields.items() if value is not None})


def _fit(
    tables: PlanTables, options: BuildOptions, values: Mapping[str, Any]
) -> tuple[BuildOptions, list[str]]:
    """The options with the pool that --memory allows, and how it came about. A dry run shows what does not
    fit.
    """
    if values["memory"] is None:
        return options, []
    fixed = {"fixed_pool": values["kv_tokens"] is not None, "fixed_requests": values["requests"] is not None}
    try:
        found = fit(tables, values["memory"], **fixed)
    except BudgetError as error:
        if not values["dry_run"]:
            raise
        return options, [f"does not fit: {error}"]
    return replace(options, kv_tokens_default=found.kv_tokens, requests_default=found.requests), [found.text]


def _progress(values: Mapping[str, Any]) -> Progress:
    if values["quiet"]:
        return NullProgress()
    return RichProgress() if sys.stderr.isatty() else LineProgress()


def _peak_rss_bytes() -> int:
    """Most memory that this process held so far. ru_maxrss (KiB on Linux, bytes on macOS) also counts what a
    parent held when it forked, so Linux is asked for the peak of this program alone.
    """
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _report(
    tables: PlanTables, report: BuildReport | None, values: Mapping[str, Any], notes: list[str]
) -> None:
    """The page, then the JSON object or the tables."""
    if values["report"] is not None:
        budgets = None if values["memory"] is None else [values["memory"]]
        memory_page(tables, values["report"], budgets=budgets)
    if values["as_json"]:
        click.echo(json.dumps(_json(tables, report, values, notes)))
    elif not values["quiet"]:
        _print(tables, report, values, notes)


def _budget(tables: PlanTables, values: Mapping[str, Any]) -> int:
    """The budget of the concurrency table: --memory, else what the plan takes by default."""
    return values["memory"] if values["memory"] is not None else memory_map(tables).total_bytes


def _json(
    tables: PlanTables, report: BuildReport | None, values: Mapping[str, Any], notes: list[str]
) -> dict[str, Any]:
    """What `--json` prints. Sizes in bytes; `plan` is null for a dry run."""
    found, header = memory_map(tables), tables.header
    budget = _budget(tables, values)
    plan = None
    if report is not None:
        plan = {
            "path": str(report.path), "hash": report.hash, "file_bytes": report.file_bytes,
            "seconds": report.seconds, "peak_rss_bytes": _peak_rss_bytes(),
        }  # fmt: skip
    regions = [
        {
            "kind": region.kind.name.lower(),
            "bytes": region.bytes,
            "terms": [{"name": term.name, "sum": term.sum, "bytes": term.bytes} for term in region.terms],
        }
        for region in found.regions
    ]
    return {
        "plan": plan,
        "name": tables.meta.get("name"),
        "numerics": tables.meta.get("numerics"),
        "context": header["context"],
        "requests_max": header["requests_max"],
        "memory": {
            "kv_tokens": found.kv_tokens, "requests": found.requests, "total_bytes": found.total_bytes,
            "regions": regions,
        },
        "notes": notes,
        "budget_bytes": budget,
        "concurrency": [
            {
                "context": entry.context, "requests": entry.requests, "bound": entry.bound,
                "total_bytes": entry.sizing.total_bytes if entry.sizing else None,
                "one_bytes": entry.one_bytes,
            }
            for entry in concurrency_table(tables, budget)
        ],
    }  # fmt: skip


def _print(
    tables: PlanTables, report: BuildReport | None, values: Mapping[str, Any], notes: list[str]
) -> None:
    """The summary on stdout: tables as wide as they are when nobody looks at a terminal."""
    budget = _budget(tables, values)
    parts: list[RenderableType] = [plan_title(tables), *notes, ""]
    if report is None:
        parts += [memory_table(tables), "", concurrency_text(concurrency_table(tables, budget), budget)]
    else:
        parts += [
            summary_table(memory_map(tables)),
            "",
            f"plan  {report.path}",
            f"hash  {report.hash}",
            f"size  {report.file_bytes:,} bytes ({format_bytes(report.file_bytes)})",
            f"built in {report.seconds:.1f} s, peak memory {format_bytes(_peak_rss_bytes())}",
        ]
    if values["report"] is not None:
        parts.append(f"memory map {values['report']}")
    console = Console(markup=False, highlight=False, emoji=False)
    if not sys.stdout.isatty():
        console.width = 400
    with console.capture() as captured:  # rich would answer a closed pipe with an exit code of its own
        for part in parts:
            console.print(part)
    click.echo(captured.get(), nl=False)


def main(arguments: list[str] | None = None) -> None:
    """The command's entry point: runs it and exits with its code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run(arguments))


def _terminate(number: int, frame: object) -> None:
    raise _Terminated


def run(arguments: list[str] | None = None) -> int:
    """Runs the command; every way that it can end is an exit code. click's own `main` prints more."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with command.make_context("build-engine", given) as context:
            command.invoke(context)
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
    except _Terminated:
        return 143
    except (KeyboardInterrupt, click.Abort):
        click.echo("build-engine: interrupted", err=True)
        return 130
    except click.ClickException as error:
        text = error.format_message()
    except (CheckpointError, RecipeError, BudgetError, PlanWriteError) as error:
        text = str(error)
    except MemoryError:
        text = "this process is out of memory"
    except OSError as error:
        text = f"{error.filename or 'input or output'}: {(error.strerror or str(error)).lower()}"
    click.echo(f"build-engine: error: {' '.join(text.split())}", err=True)
    return 1


if __name__ == "__main__":
    main()
