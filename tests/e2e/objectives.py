#!/usr/bin/env python3
"""Compare strategies on real engines by the requests that meet their objectives: figures of docs/routing/objectives.md.

    python objectives.py --penstock PATH --work DIR [--seconds 40] [--rate 2.5] [--rounds 3]

Two llama.cpp servers with four slots each, one of them about three times as slow. Every strategy gets the same
arrivals in bursts: mostly short prompts, some long ones. The strategies take turns, round by round; one process of
penstock per strategy keeps what it has learned. Prints, per strategy, the part of the requests whose first token and
whose further tokens came in time, and how long first tokens took.
"""
import argparse
import concurrent.futures
import json
import random
import statistics
import sys
import time
import urllib.request
from pathlib import Path

sys.dont_write_bytecode = True

import configs
from cases.prefix import words
from env import Env, RECIPES, Recipe

MODEL = "tiny-unequal"
TTFT, TPOT = 1.0, 0.05
STRATEGIES = {
    "round_robin": {"strategy": "round_robin"},
    "least-loaded": {"strategy": "weighted", "preset": "least-loaded"},
    "smart": {"strategy": "smart"},
    "balanced": {"strategy": "weighted", "preset": "balanced"},
    "slo": {"strategy": "slo"},
}
RECIPES["fast"] = Recipe(dim=384, layers=3, heads=6, ffn=1024, ctx=4096, seed=2)
SLOTS, CONTEXT = 4, 4096


def unequal(env: Env, routing: dict) -> configs.Setup:
    """Two engines of different speed."""
    backends = []
    for name, model in (("fast", "fast"), ("slow", "slow")):
        if name not in env.engines:
            options = {"parallel": SLOTS, "ctx": SLOTS * CONTEXT, "cache": 1, "http": 64}
            env._spawn(name, model, MODEL, options).await_ready()
        backends.append({"name": name, "url": env.engines[name].url, "engine": "llamacpp"})
    health = {**configs.HEALTH, "timeout": "5s"}
    objective = {"ttft": f"{TTFT * 1000:.0f}ms", "tpot": f"{TPOT * 1000:.0f}ms"}
    return configs.Setup({
        "routing": {"expose_decision": True, **routing}, "health": health, "backends": backends,
        "objectives": {"interactive": objective}, "models": {MODEL: {"objective": "interactive"}},
    }, {MODEL})


def plan(seconds: float, rate: float, seed: str) -> list[tuple[float, int, int]]:
    """Arrivals in bursts (variation 3): when, words of the prompt, tokens of the output."""
    source = random.Random(seed)
    shape = 1 / 9
    arrivals, at = [], 0.0
    while True:
        at += source.gammavariate(shape, 1 / (rate * shape))
        if at >= seconds:
            return arrivals
        prompt = 600 if source.random() < 0.15 else 40
        arrivals.append((at, prompt, source.randint(10, 60)))


def ask(url: str, prompt: str, output: int) -> tuple[float, float]:
    """One stream: time to the first token, and per further token."""
    body = {"model": MODEL, "stream": True, "max_tokens": output, "temperature": 0, "seed": 1,
            "ignore_eos": True, "messages": [{"role": "user", "content": prompt}]}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    began, times = time.monotonic(), []
    with urllib.request.urlopen(request, timeout=60) as response:
        for line in response:
            if line.startswith(b"data: {") and b'"content":"' in line:
                times.append(time.monotonic())
    further = (times[-1] - times[0]) / max(1, len(times) - 1)
    return times[0] - began, further


def play(env: Env, name: str, seed: str, arrivals: list[tuple[float, int, int]]) -> list:
    """Every arrival at its time; `None` for a request that failed."""
    url, start = env.proxy(name).url, time.monotonic() + 0.3
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        jobs = []
        for number, (at, prompt, output) in enumerate(arrivals):
            time.sleep(max(0.0, start + at - time.monotonic()))
            jobs.append(pool.submit(ask, url, words(f"{seed} {number}", prompt), output))
        found = []
        for job in jobs:
            try:
                found.append(job.result())
            except OSError:
                found.append(None)
        return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penstock", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rate", type=float, default=2.5)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    env = Env(chosen.penstock.resolve(), chosen.work)
    found = {name: [] for name in STRATEGIES}
    try:
        env.prepare()
        for name, routing in STRATEGIES.items():
            configs.CONFIGS[name] = lambda env, routing=routing: unequal(env, routing)
            env.proxy(name)
        for number in range(chosen.rounds):
            arrivals = plan(chosen.seconds, chosen.rate, f"round {number}")
            names = list(STRATEGIES)
            # No strategy always follows the same one.
            for name in names[number % len(names):] + names[:number % len(names)]:
                found[name] += play(env, name, f"{name} {number}", arrivals)
    finally:
        env.close()
    print("| strategy | requests | in time | first token, mean | p95 | per further token, mean |")
    print("|---|---|---|---|---|---|")
    for name, rows in found.items():
        done = [row for row in rows if row]
        good = sum(1 for first, further in done if first <= TTFT and further <= TPOT)
        firsts = sorted(first for first, _ in done)
        print(f"| {name} | {len(rows)} | {good / len(rows):.1%} | {statistics.mean(firsts) * 1000:.0f} ms"
              f" | {firsts[int(len(firsts) * 0.95)] * 1000:.0f} ms"
              f" | {statistics.mean(further for _, further in done) * 1000:.1f} ms |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
