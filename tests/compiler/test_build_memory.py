"""What a build does to the machine it runs on: its memory is bounded, and a kill leaves no half plan."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.checkpoints import make_big_checkpoint, make_checkpoint

KILLS = """
import json, os, random, signal, sys, time
from pathlib import Path
from ingot.compiler import build
from ingot.plans.verify import verify
model, out, chance, outcomes = sys.argv[1], Path(sys.argv[2]), random.Random(1), []
options = build.BuildOptions(rows_max=16, requests_max=4, requests_default=2)
def start():
    child = os.fork()
    if child == 0:
        build.build(model, out, options)
        os._exit(0)
    return child
begin = time.monotonic()
assert os.waitpid(start(), 0)[1] == 0
seconds = time.monotonic() - begin
for moment in range(20):
    out.unlink(missing_ok=True)
    child = start()
    time.sleep(1.5 * seconds * (moment + chance.random()) / 20)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    outcomes.append(verify(out.read_bytes())[0].name if out.exists() else "nothing")
assert os.waitpid(start(), 0)[1] == 0
print(json.dumps(outcomes))
"""
BUILD = """
import json, sys
from pathlib import Path
from ingot.compiler import build
from ingot.compiler.checkpoint.open import open_checkpoint
def peak():  # of this program alone: ru_maxrss would count what the parent held when it forked
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
source = open_checkpoint(sys.argv[1]).weights
base = peak()
options = build.BuildOptions(weights=sys.argv[3], kv=sys.argv[4], context=512)
build.build(sys.argv[1], Path(sys.argv[2]), options)
print(json.dumps({"base": base, "peak": peak()}))
"""
LARGEST_TENSOR = 2 * 32000 * 2048  # bytes of the embedding of `make_big_checkpoint`, bf16
ALLOWED = 2 * LARGEST_TENSOR + (512 << 20)  # above the base process


def test_memory_does_not_follow_the_checkpoint(tmp_path: Path) -> None:
    """Goal: P1 for builds. Method: from a 250 MB to a 750 MB checkpoint with the same largest tensor the peak
    moves by less than a quarter of the difference, and stays below the bound.
    """
    peaks = []
    for size in (250 << 20, 750 << 20):
        path = make_big_checkpoint(tmp_path, size)
        command = [sys.executable, "-c", BUILD, str(path), str(tmp_path / "m.plan"), "i8", "i8"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        memory = json.loads(done.stdout)
        peaks.append(memory["peak"] - memory["base"])
    assert 0 < peaks[1] < ALLOWED
    assert peaks[1] - peaks[0] < (500 << 20) // 4, peaks


def test_kill_at_any_moment_leaves_nothing_or_the_whole_plan(tmp_path: Path) -> None:
    """Goal: what stands at the output path is a sound plan or nothing. Method: SIGKILL at 20 random moments
    of a build, in a process that forks after its imports, so that the moments fall inside the build.
    """
    model = make_checkpoint(tmp_path, "llama3")
    out = tmp_path / "out" / "m.plan"
    out.parent.mkdir()
    command = [sys.executable, "-c", KILLS, str(model), str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    outcomes = json.loads(done.stdout)
    assert len(outcomes) == 20
    assert set(outcomes) == {"nothing", "OK"}, outcomes
    assert [path.name for path in out.parent.iterdir()] == ["m.plan"], "the next build removes what was left"
