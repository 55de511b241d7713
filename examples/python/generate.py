"""Streams one answer from a plan: `python generate.py PLAN PROMPT`. With --chat the plan's template is
applied.
"""

from __future__ import annotations

import argparse

from ingot.runtime import Engine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan")
    parser.add_argument("prompt")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--max-tokens", type=int, default=64)
    arguments = parser.parse_args()
    with Engine(arguments.plan) as engine:
        if arguments.chat:
            messages = [{"role": "user", "content": arguments.prompt}]
            stream = engine.chat(messages, max_tokens=arguments.max_tokens)
        else:
            stream = engine.generate(arguments.prompt, max_tokens=arguments.max_tokens)
        with stream:
            for chunk in stream:
                print(chunk.text, end="", flush=True)
        print(f"\n[{stream.usage}]")


if __name__ == "__main__":
    main()
