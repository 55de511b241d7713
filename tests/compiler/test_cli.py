"""`build-engine` as a user meets it: what it prints where, how it ends, and what it leaves in the folder."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ingot.compiler import cli
from ingot.plans.layout import Reason
from ingot.plans.reader import open_plan
from ingot.plans.sizing import sizing
from ingot.plans.verify import verify
from support.checkpoints import make_big_checkpoint, make_checkpoint

COMMAND = [sys.executable, "-m", "ingot.compiler.cli"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
SMALL = (
    "--context",
    "256",
    "--max-rows",
    "8",
    "--max-head-rows",
    "2",
    "--max-requests",
    "4",
    "--requests",
    "2",
)
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"), "smollm2")


@pytest.fixture(scope="module")
def config_only(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as nothing but its config.json, under the same folder name."""
    folder = tmp_path_factory.mktemp("config") / model.name
    folder.mkdir()
    shutil.copy(model / "config.json", folder)
    return folder


def run(capsys: Capture, *arguments: str | Path) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of the command in this process."""
    capsys.readouterr()
    code = cli.run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refused(capsys: Capture, *arguments: str | Path) -> str:
    """The text of the one line of an operating error."""
    code, out, err = run(capsys, *arguments)
    assert code == 1, err
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("build-engine: error: ")
    assert err.count("build-engine: error: ") == 1
    assert "Traceback" not in err
    return last.removeprefix("build-engine: error: ")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- wrong usage and wrong outputs, before any work ---------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing argument 'MODEL'"),
        (["model"], "give -o PLAN, or --dry-run"),
        (["model", "-o", "m.plan", "--weights", "i4"], "'i4' is not one of 'i8', 'e4m3', 'bf16'"),
        (["model", "-o", "m.plan", "--kv", "fp8"], "'fp8' is not one of"),
        (["model", "-o", "m.plan", "--target", "rocm"], "'rocm' is not one of"),
        (["model", "-o", "m.plan", "--context", "0"], "0 is not in the range"),
        (["model", "-o", "m.plan", "--context", "many"], "'many' is not a valid integer"),
        (["model", "-o", "m.plan", "--memory", "lots"], "give bytes, or a number with K, M, G or T"),
        (["model", "-o", "m.plan", "--wieghts", "i8"], "--weights"),
        (["model", "other", "-o", "m.plan"], "unexpected extra argument"),
    ],
)
def test_wrong_usage(capsys: Capture, arguments: list[str], words: str) -> None:
    """Goal: exit code 2, what is wrong and what is allowed on stderr, nothing on stdout."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.parametrize("target", ["sm90a", "tensorrt"])
def test_targets_that_come_later_are_refused_by_name(capsys: Capture, target: str) -> None:
    """Goal: a target that exists in the design but not in this release is not built for as another."""
    text = refused(capsys, "model", "-o", "m.plan", "--target", target)
    assert text == f"target {target} comes later; this release builds for cpu"


def test_outputs_that_cannot_be_written(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a folder, a missing folder, a device, one path for two outputs: refused before any work."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert "-o folder is a directory" in refused(capsys, "model", "-o", "folder")
    assert "create it first" in refused(capsys, "model", "-o", "none/m.plan")
    assert "--report none/r.html" in refused(capsys, "model", "--dry-run", "--report", "none/r.html")
    assert "not a regular file" in refused(capsys, "model", "-o", "/dev/null")
    assert "the same file" in refused(capsys, "model", "-o", "x", "--report", "folder/../x")
    assert names(tmp_path) == ["folder"]


def test_a_folder_without_permission(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a folder that may not be written to is refused before any work (root may: so access is
    denied).
    """
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    assert "cannot be written to" in refused(capsys, "model", "-o", tmp_path / "m.plan")


def test_files_that_are_no_plan_are_not_replaced(capsys: Capture, tmp_path: Path) -> None:
    """Goal: a slip such as `-o model.safetensors` destroys nothing; nor does an input given as output."""
    precious = tmp_path / "model.safetensors"
    precious.write_bytes(b"weights")
    assert "holds something else" in refused(capsys, "model", "-o", precious)
    assert "holds something else" in refused(capsys, "model", "--dry-run", "--report", precious)
    assert "is an input" in refused(capsys, precious, "-o", precious)
    assert "is an input" in refused(capsys, "model", "-o", precious, "--calibration", precious)
    assert precious.read_bytes() == b"weights"


def test_recipe_errors_reach_the_user(capsys: Capture, tmp_path: Path) -> None:
    """Goal: an unknown key names the nearest one; an unknown recipe names those there are."""
    (tmp_path / "r.toml").write_text("contxt = 256")
    text = refused(capsys, "model", "--dry-run", "--recipe", tmp_path / "r.toml")
    assert "unknown key 'contxt'; did you mean context?" in text
    assert "cpu, cpu-bf16, cpu-e4m3" in refused(capsys, "model", "--dry-run", "--recipe", "gpu")


def test_help_is_quick_and_complete() -> None:
    """Goal: --help and wrong usage do not load torch; every option has a help text."""
    code = (
        "import sys; from ingot.compiler import cli; cli.run(['--help']); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "build-engine path/to/model -o m.plan" in done.stdout
    for parameter in cli.command.params:
        if parameter.param_type_name == "option":
            assert getattr(parameter, "help", None), f"{parameter.name} has no help"


# --- sizing -------------------------------------------------------------------------------------------------


def test_dry_run_needs_only_the_config(
    capsys: Capture, model: Path, config_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the same sizes with and without weights; nothing is written."""
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, config_only, "--dry-run", "--memory", "1G", *SMALL)
    assert (code, err) == (0, "")
    assert out == run(capsys, model, "--dry-run", "--memory", "1G", *SMALL)[1]
    for region in ("weights", "scales", "state", "arena", "kv", "io"):
        assert re.search(rf"^{region}  .*\d", out, re.MULTILINE)
    assert "requests at once in 1.0 GiB" in out
    assert re.search(r"^ +256 +4 +requests", out, re.MULTILINE)
    assert names(tmp_path) == []


@pytest.mark.parametrize("numerics", [("i8", "i8"), ("e4m3", "e5m2"), ("bf16", "bf16")])
def test_dry_run_promises_what_is_built(
    capsys: Capture, model: Path, tmp_path: Path, numerics: tuple[str, str]
) -> None:
    """Goal: each region's bytes, the pool and the total of a dry run are those of the plan, to the byte."""
    options = (*SMALL, "--weights", numerics[0], "--kv", numerics[1], "--json")
    promised = json.loads(run(capsys, model, "--dry-run", *options)[1])
    assert promised["plan"] is None
    code, out, _ = run(capsys, model, "-o", tmp_path / "m.plan", "--quiet", *options)
    assert code == 0
    built = json.loads(out)
    with open_plan(tmp_path / "m.plan") as plan:
        opened = sizing(plan.tables)
        assert plan.hash == built["plan"]["hash"]
    assert promised["memory"] == built["memory"]
    assert promised["memory"]["total_bytes"] == opened.total_bytes
    sizes = {region["kind"]: region["bytes"] for region in promised["memory"]["regions"]}
    assert sizes == {region.kind.name.lower(): region.bytes for region in opened.regions}
    for region in promised["memory"]["regions"]:
        assert sum(term["bytes"] for term in region["terms"]) == region["bytes"]
    assert (promised["numerics"]["weights"], promised["numerics"]["kv"]) == numerics


def test_memory_chooses_the_pool(capsys: Capture, model: Path) -> None:
    """Goal: --memory gives the largest pool that fits and says how; named numbers are kept; too little is an
    error for a build and a statement for a dry run.
    """

    def sized(*arguments: str) -> dict[str, Any]:
        code, out, _ = run(capsys, model, "--dry-run", "--json", *SMALL, *arguments)
        assert code == 0
        return dict(json.loads(out)["memory"])

    whole = sized("--kv-tokens", "512")
    budget = whole["total_bytes"]
    assert sized("--memory", str(budget))["kv_tokens"] == 512
    less = sized("--memory", str(budget - 1))
    assert less["kv_tokens"] == 384
    assert less["total_bytes"] < budget
    assert sized("--memory", "1T", "--kv-tokens", "256")["kv_tokens"] == 256
    _, out, _ = run(capsys, model, "--dry-run", "--memory", str(budget), *SMALL)
    assert "hold a default pool of 512 kv tokens for 2 requests" in out
    code, out, _ = run(capsys, model, "--dry-run", "--memory", "4K", *SMALL)
    assert code == 0
    assert "does not fit: --memory is 4,096 bytes" in out
    text = refused(capsys, model, "-o", "m.plan", "--memory", "4K", *SMALL)
    assert text.startswith("--memory is 4,096 bytes, but this plan takes at least ")
    assert not Path("m.plan").exists()


def test_the_command_line_wins_over_a_recipe(capsys: Capture, model: Path, tmp_path: Path) -> None:
    """Goal: a recipe's values are used; an option that is given as well replaces its own value only."""
    (tmp_path / "r.toml").write_text("context = 128\nweights = 'bf16'\nkv = 'bf16'\nmemory = '1G'")

    def sized(*arguments: str | Path) -> dict[str, Any]:
        return dict(json.loads(run(capsys, model, "--dry-run", "--json", *arguments)[1]))

    recipe = sized("--recipe", tmp_path / "r.toml")
    assert (recipe["context"], recipe["numerics"]["weights"], recipe["budget_bytes"]) == (
        128,
        "bf16",
        1 << 30,
    )
    mixed = sized("--context", "256", "--recipe", tmp_path / "r.toml", "--kv", "i8")
    assert (mixed["context"], mixed["numerics"]["weights"], mixed["numerics"]["kv"]) == (256, "bf16", "i8")
    assert sized("--recipe", "cpu") == sized()


# --- building -----------------------------------------------------------------------------------------------


def test_build_reports_and_replaces(capsys: Capture, model: Path, tmp_path: Path) -> None:
    """Goal: a verified plan and a page; the summary on stdout; progress on stderr; building again over both
    gives the same bytes; no other file is left.
    """
    plan, page = tmp_path / "m.plan", tmp_path / "memory.html"
    code, out, err = run(capsys, model, "-o", plan, "--report", page, *SMALL)
    assert code == 0, err
    assert verify(plan.read_bytes())[0] == Reason.OK
    with open_plan(plan) as opened:
        assert f"hash  {opened.hash}" in out
        assert f"{sizing(opened.tables).total_bytes:,}" in out
    assert f"plan  {plan}" in out
    assert f"size  {plan.stat().st_size:,} bytes" in out
    assert "peak memory" in out
    assert "write weights" in err
    assert page.read_text().startswith("<!doctype html>")
    assert names(tmp_path) == ["m.plan", "memory.html"]
    before = plan.read_bytes(), page.read_bytes()
    code, out, err = run(capsys, model, "-o", plan, "--report", page, "--quiet", *SMALL)
    assert (code, out, err) == (0, "", "")
    assert (plan.read_bytes(), page.read_bytes()) == before


def test_examples_of_the_help_run(
    capsys: Capture, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: every example in --help works as it stands there."""
    help_text = cli.command.help
    assert help_text is not None
    examples = re.findall(r"^ *(build-engine .+)$", help_text, re.MULTILINE)
    assert len(examples) >= 5
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "model").symlink_to(model)
    monkeypatch.chdir(tmp_path)
    for example in examples:
        code, out, err = run(capsys, *shlex.split(example)[1:])
        assert code == 0, f"{example}: {err}"
        assert out
    assert names(tmp_path) == ["m.plan", "memory.html", "path"]


def test_bars_on_a_terminal(model: Path, tmp_path: Path) -> None:
    """Goal: on a terminal progress is drawn there, and stdout still holds results only."""
    master, slave = pty.openpty()
    command = [*COMMAND, str(model), "-o", "m.plan", "--json", *SMALL]
    with subprocess.Popen(
        command, cwd=tmp_path, env={**ENVIRONMENT, "TERM": "xterm"}, stdout=subprocess.PIPE, stderr=slave
    ) as process:
        os.close(slave)
        seen = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:  # the other end is closed: EIO on Linux
                break
            if not piece:
                break
            seen += piece
        assert process.stdout is not None
        assert json.loads(process.stdout.read())["plan"]["path"] == "m.plan"
    os.close(master)
    assert process.returncode == 0
    assert b"write weights" in seen
    assert b"\x1b[" in seen


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--context", "999999"], ["999999", "context"]),
        (["--max-rows", "999999"], ["999999"]),
        (["--max-requests", "999999"], ["999999"]),
        (["--max-requests", "2", "--requests", "3"], ["--requests 3", "ceiling of 2"]),
        (["--requests", "65"], ["--requests 65", "ceiling of 64"]),
        (["--kv-tokens", "999999999"], ["pool"]),
        (["--calibration", "none.txt"], ["none.txt"]),
    ],
)
def test_a_build_that_cannot_be_leaves_nothing(
    capsys: Capture,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: list[str],
) -> None:
    """Goal: one line that names it; no plan, no page, no temporary file; an earlier plan is untouched."""
    monkeypatch.chdir(tmp_path)
    text = refused(capsys, model, "-o", "m.plan", "--report", "r.html", "--kv", "e4m3", *arguments)
    for word in words:
        assert word in text
    assert names(tmp_path) == []
    Path("m.plan").write_bytes(b"INGOTPLN old")
    refused(capsys, model, "-o", "m.plan", "--kv", "e4m3", *arguments)
    assert Path("m.plan").read_bytes() == b"INGOTPLN old"
    assert names(tmp_path) == ["m.plan"]


def test_models_that_are_none(capsys: Capture, config_only: Path, tmp_path: Path) -> None:
    """Goal: a missing folder, a folder without a config, a broken config, a config without weights: each one
    line that names it.
    """
    out = tmp_path / "m.plan"
    assert "missing" in refused(capsys, tmp_path / "missing", "-o", out)
    (tmp_path / "empty").mkdir()
    assert "empty" in refused(capsys, tmp_path / "empty", "-o", out)
    (tmp_path / "empty" / "config.json").write_text("{")
    assert "config.json" in refused(capsys, tmp_path / "empty", "--dry-run")
    refused(capsys, config_only, "-o", out)
    assert names(tmp_path) == ["empty"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_builds_leave_nothing(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Goal: Ctrl-C or SIGTERM while weights are written ends at once, without a trace, and leaves the folder
    as it was.
    """
    big = make_big_checkpoint(tmp_path, 250 << 20)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "m.plan").write_bytes(b"INGOTPLN old")
    command = [*COMMAND, str(big), "-o", str(tmp_path / "out" / "m.plan"), "--context", "256"]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("write weights"):
                break
        time.sleep(0.1)
        process.send_signal(number)
        begin = time.monotonic()
        _, err = process.communicate(timeout=60)
    assert process.returncode == code, "".join(lines) + err
    assert time.monotonic() - begin < 10
    assert "Traceback" not in err
    assert names(tmp_path / "out") == ["m.plan"]
    assert (tmp_path / "out" / "m.plan").read_bytes() == b"INGOTPLN old"


def test_a_closed_pipe_is_no_error(model: Path) -> None:
    """Goal: `build-engine ... | head -1` ends quietly with the pipe's code."""
    command = shlex.join([*COMMAND, str(model), "--dry-run", *SMALL])
    script = f"{command} | head -c 1 > /dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("0", "141")
    assert done.stderr == ""
