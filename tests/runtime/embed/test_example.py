"""The embedding example, from source and against an installed package, generates the engine's tokens."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.engines import generate, sealed, tokens, write_plan
from support.native import ROOT, build, run, tool
from support.tiny_plan import TinySpec

EXAMPLE = ROOT / "examples" / "cpp"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("embed")


def built(folder: Path, *settings: str) -> Path:
    run(
        tool("cmake"), "-S", EXAMPLE, "-B", folder, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        *settings,
    )  # fmt: skip
    run(tool("ninja"), "-C", folder, "-j2", "generate")
    return folder / "generate"


@pytest.fixture(scope="module", params=["source", "installed"])
def example(request: pytest.FixtureRequest, folder: Path) -> Path:
    """The example's program; `installed` finds the package that the native build installs."""
    if request.param == "source":
        return built(folder / "source")
    prefix = folder / "prefix"
    run(tool("cmake"), "--install", build(), "--prefix", prefix)
    return built(folder / "installed", "-DINGOT_INSTALLED=ON", f"-DCMAKE_PREFIX_PATH={prefix}")


@pytest.mark.parametrize(("temperature", "seed"), [(0.0, 0), (0.8, 12345678901234567890)])
def test_it_generates_what_the_engine_generates(
    example: Path, folder: Path, temperature: float, seed: int
) -> None:
    """Goal: 40 lines of C++ and a plan give the same tokens as the Python module with the same seed."""
    plan = write_plan(folder / "tiny.plan", TinySpec(layers=2))
    said = run(example, plan, "50", str(temperature), str(seed), "5", "17", "40")
    with sealed(plan) as engine:
        expected = generate(engine, tokens(5, 17, 40), max_tokens=50, temperature=temperature, seed=seed)
    assert [int(line) for line in said.split()] == expected


def test_it_says_what_is_wrong(example: Path, folder: Path) -> None:
    """Goal: a missing plan and a prompt that is too long end with the runtime's sentence and status 1."""
    plan = write_plan(folder / "tiny.plan", TinySpec())
    for arguments, text in (
        ([str(folder / "none.plan"), "5", "0", "0", "3"], "there is no such file"),
        ([str(plan), "5", "0", "0", *["3"] * 300], "the prompt has 300 tokens: at most 299"),
    ):
        done = subprocess.run([example, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert text in done.stderr


def test_the_example_is_forty_lines() -> None:
    """Goal: it stays an example: at most 40 lines, and only ingot.hpp."""
    lines = (EXAMPLE / "generate.cc").read_text().splitlines()
    assert len(lines) <= 40
    assert [line for line in lines if line.startswith('#include "')] == ['#include "ingot.hpp"']
