#!/usr/bin/env python3
"""Compare strategies on real engines: the figures of docs/routing/strategies.md.

    python strategies.py --penstock PATH --work DIR [--rounds 3]

Four llama.cpp servers that keep the KV cache of the last prompts of their slots; conversations side
by side that share a system prompt and grow turn by turn. Every strategy gets the same kind of
conversations, with different words, so that no conversation caches another's. In each
round the strategies take turns. Prints one table: the part of the prompts the engines themselves
reported as cached, the time to the first token, and the requests of the busiest engine.
"""
import argparse
import collections
import concurrent.futures
import statistics
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True

import configs
from cases.prefix import words
from env import Env

STRATEGIES = {
    "round_robin": {"strategy": "round_robin"},
    "random": {"strategy": "random"},
    "smart": {"strategy": "smart"},
    "weighted, least-loaded": {"strategy": "weighted", "preset": "least-loaded"},
    "weighted, llm-d (3 : 2 : 2)": {"strategy": "weighted", "preset": "llm-d"},
    "weighted, balanced": {"strategy": "weighted", "preset": "balanced"},
    "weighted, lmetric": {"strategy": "weighted", "preset": "lmetric"},
    "weighted, bounded-hash": {"strategy": "weighted", "preset": "bounded-hash"},
}
CONVERSATIONS = 8
TURNS = 6


class Found:
    """What one strategy came to."""

    def __init__(self) -> None:
        self.asked = self.cached = 0
        self.first_tokens: list[float] = []
        self.engines: collections.Counter[str] = collections.Counter()

    def row(self, name: str) -> str:
        """A line of the table."""
        times = sorted(self.first_tokens)
        p95 = times[int(len(times) * 0.95)]
        busiest = max(self.engines.values()) / sum(self.engines.values())
        return (f"| {name} | {self.cached / self.asked:.0%} | {statistics.median(times) * 1000:.0f} ms"
                f" | {p95 * 1000:.0f} ms | {busiest:.0%} |")


def talk(env: Env, proxy: str, seed: str, number: int) -> tuple[int, int, list[float], list[str]]:
    """One streamed conversation: prompt tokens, cached tokens, TTFT, engines."""
    client = env.openai(configs.CACHED, proxy)
    system = f"{words(seed, 60)} {words(f'{seed} {number}', 60)}"
    messages = [{"role": "system", "content": system}]
    asked, cached, times, engines = 0, 0, [], []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": words(f"{seed} {number} {turn}", 20)})
        began = time.monotonic()
        with client.chat.completions.with_streaming_response.create(
                model=configs.CACHED, messages=messages, max_tokens=8, temperature=0, seed=1,
                stream=True, stream_options={"include_usage": True}) as response:
            engines.append(response.headers["x-penstock-backend"])
            first = None
            for chunk in response.parse():
                first = first or time.monotonic()
                if chunk.usage:
                    asked += chunk.usage.prompt_tokens
                    cached += chunk.usage.prompt_tokens_details.cached_tokens
        times.append(first - began)
        messages.append({"role": "assistant", "content": words(f"{seed} {number} {turn} a", 6)})
    return asked, cached, times, engines


def play(env: Env, proxy: str, seed: str, found: Found) -> None:
    """Conversations side by side."""
    with concurrent.futures.ThreadPoolExecutor(CONVERSATIONS) as pool:
        for asked, cached, times, engines in pool.map(
                lambda number: talk(env, proxy, seed, number), range(CONVERSATIONS)):
            found.asked += asked
            found.cached += cached
            found.first_tokens += times
            found.engines.update(engines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penstock", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    env = Env(chosen.penstock.resolve(), chosen.work)
    found = {name: Found() for name in STRATEGIES}
    try:
        env.prepare()
        for name, routing in STRATEGIES.items():
            configs.CONFIGS[name] = lambda env, routing=routing: configs.cached(env, routing)
            env.proxy(name)
        for number in range(chosen.rounds):
            for name in STRATEGIES:
                play(env, name, f"{name} {number}", found[name])
    finally:
        env.close()
    print("| strategy | prompt tokens found cached | TTFT, median | TTFT, p95 | busiest of 4 engines |")
    print("|---|---|---|---|---|")
    for name, one in found.items():
        print(one.row(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
