"""README.md is executed: its commands and programs run, in order, in one folder, over a small random
checkpoint.

A block marked `<!-- not run: reason -->` on the line before is left out, and says why.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.checkpoints import make_checkpoint

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"(<!-- not run: (?P<reason>.+?) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, its text, and the first line's number."""

    language: str
    code: str
    line: int


def blocks(*languages: str) -> list[Block]:
    """The README's blocks of these languages that are run."""
    return [
        Block(match["language"], match["code"], README[: match.start("code")].count("\n") + 1)
        for match in BLOCK.finditer(README)
        if match["language"] in languages and match["reason"] is None
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint at `path/to/model` and the two commands in `bin`."""
    folder = tmp_path_factory.mktemp("readme")
    checkpoint = make_checkpoint(folder, "smollm2")
    (folder / "path" / "to").mkdir(parents=True)
    checkpoint.rename(folder / "path" / "to" / "model")
    (folder / "bin").mkdir()
    for command, module in (("build-engine", "ingot.compiler.cli"), ("run-engine", "ingot.runtime.cli")):
        script = folder / "bin" / command
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        script.chmod(0o755)
    return folder


@pytest.mark.parametrize("block", blocks("bash", "python"), ids=lambda block: f"line{block.line}")
def test_block_runs(block: Block, folder: Path) -> None:
    """Goal: every command and program of the README does what it says, as it stands there."""
    command = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else [sys.executable, "-c"]
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, block.code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("block", blocks("cpp"), ids=lambda block: f"line{block.line}")
def test_cpp_block_compiles(block: Block, tmp_path: Path) -> None:
    """Goal: the C++ of the README compiles against the public headers alone, without a warning."""
    source = tmp_path / "readme.cc"
    source.write_text(block.code)
    command = ["c++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, f"-I{ROOT / 'runtime' / 'include'}", str(source)], check=True)


def test_the_python_examples_run(folder: Path) -> None:
    """Goal: the examples answer from the README's plan; a batch gives each prompt what it gets alone."""

    def example(name: str, *arguments: str, stdin: str = "") -> str:
        command = [sys.executable, str(ROOT / "examples" / "python" / name), "m.plan", *arguments]
        done = subprocess.run(command, cwd=folder, input=stdin, capture_output=True, text=True, check=True)
        return done.stdout

    assert "completion_tokens=" in example("generate.py", "The harbour", "--chat", "--max-tokens", "8")
    prompts = [f"Ship number {i}" for i in range(20)]
    together = example("batch.py", stdin="\n".join(prompts)).splitlines()
    assert together[3:4] == example("batch.py", stdin=prompts[3]).splitlines()
    assert len(together) == 20


def test_something_is_run() -> None:
    """Goal: the pattern above still finds the blocks."""
    assert len(blocks("bash")) >= 3
    assert len(blocks("python")) >= 2
    assert len(blocks("cpp")) >= 1


def test_every_path_and_target_exists() -> None:
    """Goal: no file, folder or make target that the README names is missing."""
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make (\w+)`?", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    for path in re.findall(r"`((?:plans|runtime|compiler|examples|benchmarks|tests)/[\w./-]+)`", README):
        assert (ROOT / path).exists(), path
