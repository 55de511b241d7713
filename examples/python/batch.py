"""Answers many prompts, as many at once as the engine has slots: `python batch.py PLAN < prompts.txt`, one
prompt a line.

Each answer is the same, bit for bit, as if its prompt had been the only one.
"""

from __future__ import annotations

import sys

from ingot.runtime import Engine, IngotError, Stream


def main() -> None:
    prompts = [line.strip() for line in sys.stdin if line.strip()]
    answers = [""] * len(prompts)
    with Engine(sys.argv[1]) as engine:
        slots = engine.stats["requests"]
        waiting = list(range(len(prompts)))
        running: dict[int, Stream] = {}
        while waiting or running:
            while waiting and len(running) < slots:
                try:
                    running[waiting[0]] = engine.generate(prompts[waiting[0]], max_tokens=32)
                except IngotError as error:
                    if error.name != "CAPACITY" or not running:
                        raise
                    break  # no room now: a running request makes some when it ends
                waiting.pop(0)
            for i, stream in list(running.items()):
                chunk = next(stream)
                answers[i] += chunk.text
                if chunk.finish is not None:
                    del running[i]
    for prompt, answer in zip(prompts, answers, strict=True):
        print(f"{prompt} -> {answer!r}")


if __name__ == "__main__":
    main()
