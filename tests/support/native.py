"""Builds the runtime's native tests once per session: `native("core_test")` is a file to run or to load."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build" / "native-tests"


def tool(name: str) -> str:
    """A build tool of the environment that runs the tests, or of the system."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found is not None, f"{name} is not installed: install it to run the native tests"
    return found


def run(*command: str | Path, timeout: float = 600) -> str:
    """Runs a command; its standard output. Fails with all it said when it does."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, (
        f"{command[0]} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    )
    return done.stdout


@cache
def build() -> Path:
    """Configures and builds with INGOT_TESTS; other sessions in the same checkout wait their turn."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(
            tool("cmake"), "-S", ROOT / "runtime", "-B", BUILD, "-G", "Ninja", "-DINGOT_TESTS=ON",
            f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        )  # fmt: skip
        run(tool("ninja"), "-C", BUILD, "-j2", timeout=1200)
    return BUILD


@cache
def native(name: str) -> Path:
    """The built file of this name."""
    found = [path for path in build().rglob(name) if path.is_file()]
    assert len(found) == 1, f"{name}: {len(found)} files of this name were built"
    return found[0]
