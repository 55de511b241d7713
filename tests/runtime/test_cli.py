"""`run-engine` as a user meets it: real processes, what they print where, and how they end."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ingot.runtime import Engine
from ingot.runtime.bench import percentile, row_counts
from ingot.runtime.cli import Conversation, cli
from support.engines import write_plan
from support.tiny_plan import TinySpec

COMMAND = [sys.executable, "-m", "ingot.runtime.cli"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_plan(tmp_path_factory.mktemp("cli") / "tiny.plan", TinySpec()))


def run(*arguments: str, stdin: str | bytes = "", timeout: float = 60) -> subprocess.CompletedProcess[str]:
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [*COMMAND, *arguments], input=data, capture_output=True, timeout=timeout, check=False
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of an operating error."""
    assert done.returncode == 1, done
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("run-engine: error: ")
    return lines[0]


# --- generate -----------------------------------------------------------------------------------------------


def test_generate_prints_the_answer_and_a_summary(path: str) -> None:
    """Goal: stdout holds the text that the Engine gives and nothing else; the summary is on stderr, unless
    --quiet.
    """
    with Engine(path, threads=1) as engine:
        expected = engine.complete("t5 t6", max_tokens=12).text
    done = run("generate", path, "t5 t6", "-n", "12")
    assert (done.returncode, done.stdout) == (0, expected + "\n")
    assert "tokens/s" in done.stderr
    assert "at most 12" in done.stderr
    quiet = run("generate", path, "t5 t6", "-n", "12", "-q")
    assert (quiet.stdout, quiet.stderr) == (expected + "\n", "")


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (["t5 t6"], ""),
        (["--tokens", "1 5, 6"], ""),
        ([], "t5 t6\n"),
        (["-"], "t5 t6"),
        (["--chat", "t1 t5 t6"], ""),
    ],
)
def test_every_way_to_give_a_prompt(path: str, arguments: list[str], stdin: str) -> None:
    """Goal: argument, token ids, stdin and a templated prompt of the same tokens give the same answer."""
    reference = json.loads(run("generate", path, "t5 t6", "-n", "9", "--json").stdout)
    done = run("generate", path, *arguments, "-n", "9", "--json", stdin=stdin)
    assert json.loads(done.stdout)["tokens"] == reference["tokens"]


def test_json_has_everything(path: str) -> None:
    """Goal: --json is one object with text, tokens, logprobs, usage, the effective sampling, and the
    plan's hash.
    """
    done = run(
        "generate",
        path,
        "t5",
        "-n",
        "6",
        "--json",
        "--logprobs",
        "2",
        "-t",
        "0.5",
        "--seed",
        "7",
        "--top-k",
        "9",
        "--stop",
        "never",
        "--logit-bias",
        "3=1.5",
        "--ignore-eos",
        "--threads",
        "1",
        "--max-requests",
        "2",
    )
    answer = json.loads(done.stdout)
    assert len(answer["tokens"]) == 6
    assert answer["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 6, "max_tokens": 6}
    assert [entry["token"] for entry in answer["logprobs"]] == answer["tokens"]
    assert all(len(entry["top"]) == 2 for entry in answer["logprobs"])
    assert answer["logprobs"][0]["text"] == f"t{answer['tokens'][0]}"
    sampling = answer["sampling"]
    assert (sampling["temperature"], sampling["seed"], sampling["top_k"]) == (0.5, 7, 9)
    assert (sampling["stop"], sampling["logit_bias"], sampling["ignore_eos"]) == (["never"], {"3": 1.5}, True)
    with Engine(path, threads=1) as engine:
        assert answer["plan"] == engine.info["hash"]
        same = engine.complete(
            "t5", max_tokens=6, temperature=0.5, seed=7, top_k=9, logit_bias={3: 1.5}, ignore_eos=True
        )
        assert list(same.tokens) == answer["tokens"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (["t5", "-n", "900"], "", "exceed the context of 300"),
        (["t5 " * 400], "", "at most 299 fit"),
        (["", "--tokens", ""], "", "give either"),
        (["--tokens", "48"], "", "below 48"),
        (["--tokens", " "], "", "at least 1"),
        (["t5", "-t", "-1"], "", "temperature"),
        (["t5", "--kv-tokens", "99999999"], "", "kv_tokens"),
        (["t5", "--logprobs", "21"], "", "top_logprobs"),
        (["t5", "--stop", ""], "", "stop string"),
        ([], b"\xff\xfe", "UTF-8"),
    ],
)
def test_errors_are_one_line(path: str, arguments: list[str], stdin: Any, words: str) -> None:
    """Goal: what the runtime refuses ends with 1 and one line that says why; wrong usage ends with 2."""
    done = run("generate", path, *arguments, stdin=stdin)
    if words == "give either":
        assert done.returncode == 2
        assert words in done.stderr
    else:
        assert words in refused(done)
    assert done.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate"],
        ["nonsense"],
        ["generate", "PLAN", "a", "--isa", "neon"],
        ["generate", "PLAN", "a", "-n", "x"],
        ["generate", "PLAN", "a", "--logit-bias", "x"],
        ["generate", "PLAN", "a", "--system", "s"],
        ["generate", "PLAN", "--chat", "--tokens", "1"],
        ["generate", "PLAN", "--tokens", "1.5"],
        ["generate", "PLAN", "a", "--threads", "0"],
        ["inspect", "PLAN", "--memory", "2X"],
        ["diff", "PLAN"],
        ["bench", "PLAN", "--runs", "4"],
    ],
)
def test_wrong_usage_ends_with_2(path: str, arguments: list[str]) -> None:
    """Goal: usage errors name the option and end with 2, before anything is computed."""
    done = run(*(path if argument == "PLAN" else argument for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error" in done.stderr


@pytest.mark.parametrize("command", ["generate", "chat", "inspect", "verify", "bench"])
def test_a_missing_or_foreign_file(tmp_path: Path, command: str) -> None:
    """Goal: every command refuses a file that is not there, a folder and noise with one line, and prints
    nothing.
    """
    noise = tmp_path / "noise"
    noise.write_bytes(bytes(range(256)) * 40)
    for target in (tmp_path / "absent", tmp_path, noise):
        done = run(command, str(target), *(["t5"] if command == "generate" else []))
        refused(done)
        assert done.stdout == ""


@pytest.mark.parametrize("words", [["generate", "t5", "-n", "250", "--ignore-eos", "-q"], ["inspect"]])
def test_a_closed_pipe_is_quiet(path: str, words: list[str]) -> None:
    """Goal: when the reader goes away the command ends at once and says nothing."""
    process = subprocess.Popen(
        [*COMMAND, words[0], path, *words[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_ctrl_c_is_quiet(path: str) -> None:
    """Goal: an interrupt ends the command with 130 and no traceback."""
    process = subprocess.Popen(
        [*COMMAND, "bench", path, "--runs", "1000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


# --- chat ---------------------------------------------------------------------------------------------------


def test_chat_keeps_the_conversation(path: str) -> None:
    """Goal: each turn's prompt is the whole conversation; /reset forgets it; messages and piped lines do
    the same.
    """
    with Engine(path, threads=1) as engine:
        first = engine.complete([{"role": "user", "content": "t5"}], max_tokens=5).text
        history = [{"role": "user", "content": "t5"}, {"role": "assistant", "content": first}]
        second = engine.complete([*history, {"role": "user", "content": "t6"}], max_tokens=5).text
    by_message = run("chat", path, "-n", "5", "-q", "-m", "t5", "-m", "t6")
    assert (by_message.returncode, by_message.stdout) == (0, f"{first}\n{second}\n")
    piped = run("chat", path, "-n", "5", "-q", stdin="t5\n\nt6\n/reset\nt5\n/what\n/exit\nt9\n")
    assert piped.stdout == f"{first}\n{second}\n{first}\n"
    assert "/what is no command" in piped.stderr
    assert run("chat", path, "-n", "5", "-q", "--system", "t7", "-m", "t5").stdout != first + "\n"


def test_a_conversation_that_no_longer_fits_is_refused(path: str) -> None:
    """Goal: a turn too long for the context is an error with numbers, never a forgotten beginning."""
    assert "at most 299 fit" in refused(run("chat", path, "-q", "-m", "t5 " * 400))


class Interrupted:
    """An engine whose answer to the first question is interrupted after three tokens."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.asked: list[Any] = []

    def chat(self, messages: list[dict[str, str]], **options: Any) -> Any:
        self.asked.append(messages)
        stream = self.engine.chat(messages, **options)
        if len(self.asked) == 1:
            stream._decoder = InterruptingDecoder(stream._decoder)  # type: ignore[assignment]
        return stream


class InterruptingDecoder:
    """A stream decoder that is interrupted at the fourth token."""

    def __init__(self, decoder: Any) -> None:
        self.decoder = decoder
        self.left = 3

    def push(self, token: int) -> str:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return str(self.decoder.push(token))


def test_ctrl_c_stops_the_answer_and_keeps_the_chat(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: an interrupted answer frees its request, stays in the history as far as it came, and the chat
    goes on; where nobody is at the terminal the interrupt ends the command.
    """
    options = {"max_tokens": 20, "ignore_eos": True}
    with Engine(path, threads=1) as engine:
        interrupted: Any = Interrupted(engine)
        conversation = Conversation(interrupted, options, None, quiet=False)
        conversation.ask("t5", interruptible=True)
        assert engine.stats["requests_running"] == 0
        partial = conversation.messages[-1]["content"]
        assert len(partial.split()) == 3
        conversation.ask("t6", interruptible=True)
        assert [message["content"] for message in interrupted.asked[1]] == ["t5", partial, "t6"]
        with pytest.raises(KeyboardInterrupt):
            Conversation(Interrupted(engine), options, None, quiet=True).ask("t5", interruptible=False)  # type: ignore[arg-type]
        assert engine.stats["requests_running"] == 0
    assert "ended by interruption" in capsys.readouterr().err


@dataclass(slots=True)
class Screen:
    """What a terminal has shown and the test has not looked at yet."""

    terminal: int
    unread: bytes = b""

    def until(self, wanted: bytes, seconds: float = 30) -> None:
        """Waits for `wanted` to appear, and looks at everything up to its end."""
        end = time.monotonic() + seconds
        while wanted not in self.unread and time.monotonic() < end:
            if select.select([self.terminal], [], [], 0.2)[0]:
                self.unread += os.read(self.terminal, 4096)
        before, found, self.unread = self.unread.partition(wanted)
        assert found, before


def test_the_interactive_chat(path: str) -> None:
    """Goal: on a terminal it prompts, survives a refused turn, and ends with /exit, Ctrl-D and Ctrl-C."""
    for ending in (b"/exit\n", b"\x04", b"\x03"):
        main, terminal = pty.openpty()
        # setsid -c: the terminal is the child's controlling one, so that Ctrl-C reaches it.
        process = subprocess.Popen(
            ["setsid", "-c", "-w", *COMMAND, "chat", path, "-n", "3"],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
        )
        os.close(terminal)
        screen = Screen(main)
        try:
            screen.until(b"> ")
            os.write(main, b"t5\n")
            screen.until(b"ended by length")
            os.write(main, b"t5 " * 400 + b"\n")
            screen.until(b"/reset begins a new conversation")
            screen.until(b"> ")
            os.write(main, ending)
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()
            process.wait()
            os.close(main)


# --- inspect, verify, diff, bench ---------------------------------------------------------------------------


def test_inspect(path: str) -> None:
    """Goal: the tables are whole in a pipe, --json has the same facts, and --memory adds the concurrency."""
    shown = run("inspect", path)
    for words in ("memory at", "WEIGHTS", "programs", "body[4]", "requests at once"):
        assert words in shown.stdout
    assert "…" not in shown.stdout
    facts = json.loads(run("inspect", path, "--json", "--memory", "1M").stdout)
    with Engine(path, threads=1) as engine:
        assert facts["identity"]["hash"] == engine.info["hash"]
        assert facts["memory"]["total_bytes"] == engine.stats["bytes_reserved"]
    assert facts["concurrency"][-1]["sizing"]["total_bytes"] <= 1 << 20


def test_verify(path: str, tmp_path: Path) -> None:
    """Goal: `ok` and the hash, or the reason and index with exit 1, on stderr and as JSON."""
    done = run("verify", path)
    with Engine(path, threads=1) as engine:
        assert (done.returncode, done.stdout) == (0, f"ok {engine.info['hash']}\n")
    broken = tmp_path / "broken.plan"
    data = bytearray(Path(path).read_bytes())
    data[5000] ^= 1
    broken.write_bytes(data)
    done = run("verify", str(broken), "--json")
    assert json.loads(done.stdout) == {"ok": False, "reason": "bad_chunk_hash", "index": 0}
    assert "(bad_chunk_hash, index 0)" in refused(run("verify", str(broken)))


def test_diff(path: str, tmp_path: Path) -> None:
    """Goal: identical plans end with 0, different ones list what differs and end with 1."""
    same = run("diff", path, path)
    assert (same.returncode, same.stdout) == (0, "identical\n")
    other = str(write_plan(tmp_path / "other.plan", TinySpec(seed=2)))
    done = run("diff", path, other)
    assert (done.returncode, done.stderr) == (1, "")
    assert "bytes layer.0.qkv.weight" in done.stdout
    assert json.loads(run("diff", path, other, "--json").stdout)["identical"] is False


def test_bench(path: str) -> None:
    """Goal: the report has every promised number, at 1, 2 and 4 requests, and the JSON form the same keys."""
    text = run("bench", path, "--tokens", "8", timeout=120)
    assert text.returncode == 0, text.stderr
    for words in (
        "machine",
        "plan ",
        "threads",
        "GB/s",
        "cold start",
        "prefill",
        "p50",
        "p99",
        "MB/step",
        "bandwidth",
    ):
        assert words in text.stdout
    report = json.loads(run("bench", path, "--tokens", "8", "--json", "--threads", "1", timeout=120).stdout)
    assert [row["requests"] for row in report["decode"]["rows"]] == [1, 2, 4]
    for row in report["decode"]["rows"]:
        assert row["bytes_per_step"] > report["weight_bytes"]
        assert 0 < row["inter_token_seconds_p50"] <= row["inter_token_seconds_p99"]
    assert report["threads"] == 1


def test_bench_refuses_what_does_not_fit(path: str) -> None:
    """Goal: more tokens than context or pool hold is an error with the most that fits."""
    assert "at most" in refused(run("bench", path, "--tokens", "400"))


def test_percentiles_and_row_counts() -> None:
    """Goal: nearest rank, and powers of two up to and with the most."""
    assert [percentile([4.0, 1.0, 3.0, 2.0], share) for share in (0.25, 0.5, 0.51, 0.99)] == [
        1.0,
        2.0,
        3.0,
        4.0,
    ]
    assert percentile([5.0], 0.5) == 5.0
    assert [row_counts(most) for most in (1, 2, 3, 8)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8]]


@pytest.mark.parametrize("command", ["", "generate", "chat", "inspect", "verify", "diff", "bench"])
def test_help_has_examples(command: str) -> None:
    """Goal: every help ends with 0 and shows a command line to copy."""
    shown = CliRunner().invoke(cli, [*([command] if command else []), "--help"])
    assert shown.exit_code == 0
    assert f"run-engine {command or 'generate'} " in shown.output
