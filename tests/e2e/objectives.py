#!/usr/bin/env python3
"""Compare strategies on real engines by the requests that meet their objectives: figures of docs/performance/objectives.md.

    python objectives.py --penstock PATH --work DIR [--load 0.4] [--seconds 40] [--rounds 3] [--strategies slo,balanced]

Two llama.cpp servers with four slots each, one of them about three times as slow. First it is measured how many
requests both serve in a second when they are never idle; `--load` is the part of that which arrives, in bursts: mostly
short prompts, some long ones. The objectives come from the engines as well, so that a slow machine has the same task as
a fast one: twice the time of a long prompt on the fast engine, and five times that of a token in a full batch
of the slow one. Every strategy gets the same arrivals. The strategies take turns, round by round; one process of
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
from typing import NamedTuple

sys.dont_write_bytecode = True

import configs
from cases.prefix import words
from env import Env, RECIPES, Recipe

MODEL = "tiny-unequal"
STRATEGIES = {
    "round_robin": {"strategy": "round_robin"},
    "least-loaded": {"strategy": "weighted", "preset": "least-loaded"},
    "smart": {"strategy": "smart"},
    "balanced": {"strategy": "weighted", "preset": "balanced"},
    "slo": {"strategy": "slo"},
}
RECIPES["fast"] = Recipe(dim=384, layers=3, heads=6, ffn=1024, ctx=4096, seed=2)
SLOTS, CONTEXT = 4, 4096
SHORT, LONG = 40, 600
LONG_PART = 0.15
# Requests by which an engine's speed is measured: about as long for both.
MEASURED = {"fast": 60, "slow": 20}


class Engines(NamedTuple):
    """What both can do: requests per second, and the objectives in seconds."""

    capacity: float
    ttft: float
    tpot: float


def start(env: Env) -> list[str]:
    """Two engines of different speed; their URLs."""
    options = {"parallel": SLOTS, "ctx": SLOTS * CONTEXT, "cache": 1, "http": 64}
    return [env._spawn(name, name, MODEL, options).await_ready().url for name in MEASURED]


def setup(env: Env, engines: Engines, routing: dict) -> configs.Setup:
    """Both engines behind penstock with a strategy."""
    backends = [{"name": name, "url": env.engines[name].url, "engine": "llamacpp"} for name in MEASURED]
    objective = {"ttft": f"{engines.ttft * 1000:.0f}ms", "tpot": f"{engines.tpot * 1000:.0f}ms"}
    return configs.Setup({
        "routing": {"expose_decision": True, **routing}, "health": {**configs.HEALTH, "timeout": "5s"},
        "backends": backends,
        "objectives": {"interactive": objective}, "models": {MODEL: {"objective": "interactive"}},
    }, {MODEL})


def draw(source: random.Random) -> tuple[int, int]:
    """One request: words of the prompt, tokens of the output."""
    prompt = LONG if source.random() < LONG_PART else SHORT
    return prompt, source.randint(10, 60)


def plan(seconds: float, rate: float, seed: str) -> list[tuple[float, int, int]]:
    """Arrivals in bursts (variation 3): when, words of the prompt, tokens of the output."""
    source = random.Random(seed)
    shape = 1 / 9
    arrivals, at = [], 0.0
    while True:
        at += source.gammavariate(shape, 1 / (rate * shape))
        if at >= seconds:
            return arrivals
        arrivals.append((at, *draw(source)))


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


def serve(url: str, name: str) -> float:
    """Requests per second of an engine that is never idle."""
    source, count, began = random.Random(name), MEASURED[name], time.monotonic()
    drawn = [(number, *draw(source)) for number in range(count)]
    with concurrent.futures.ThreadPoolExecutor(SLOTS) as pool:
        list(pool.map(lambda one: ask(url, words(f"{name} {one[0]}", one[1]), one[2]), drawn))
    return count / (time.monotonic() - began)


def measure(urls: list[str]) -> Engines:
    """What the engines can do, asked directly."""
    fast, slow = urls
    alone = [ask(fast, words(f"alone {number}", LONG), 2)[0] for number in range(3)]
    with concurrent.futures.ThreadPoolExecutor(SLOTS) as pool:
        full = list(pool.map(lambda number: ask(slow, words(f"full {number}", SHORT), 60)[1], range(SLOTS)))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        rates = list(pool.map(serve, urls, MEASURED))
    return Engines(sum(rates), 2 * statistics.median(alone), 5 * statistics.median(full))


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
    parser.add_argument("--load", type=float, default=0.4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    chosen = parser.parse_args()
    strategies = {name: STRATEGIES[name] for name in chosen.strategies.split(",")}
    chosen.work.mkdir(parents=True, exist_ok=True)
    env = Env(chosen.penstock.resolve(), chosen.work)
    found = {name: [] for name in strategies}
    try:
        env.prepare()
        engines = measure(start(env))
        rate = chosen.load * engines.capacity
        print(f"served {engines.capacity:.1f} requests/s when never idle, sent {rate:.1f}; objectives"
              f" {engines.ttft * 1000:.0f} ms and {engines.tpot * 1000:.0f} ms per further token", flush=True)
        for name, routing in strategies.items():
            configs.CONFIGS[name] = lambda env, routing=routing: setup(env, engines, routing)
            env.proxy(name)
        for number in range(chosen.rounds):
            arrivals = plan(chosen.seconds, rate, f"round {number}")
            names = list(strategies)
            # No strategy always follows the same one.
            for name in names[number % len(names):] + names[:number % len(names)]:
                found[name] += play(env, name, f"{name} {number}", arrivals)
    finally:
        env.close()
    print("| strategy | requests | in time | first token, mean | p95 | per further token, mean |")
    print("|---|---|---|---|---|---|")
    for name, rows in found.items():
        done = [row for row in rows if row]
        good = sum(1 for first, further in done if first <= engines.ttft and further <= engines.tpot)
        firsts = sorted(first for first, _ in done)
        print(f"| {name} | {len(rows)} | {good / len(rows):.1%} | {statistics.mean(firsts) * 1000:.0f} ms"
              f" | {firsts[int(len(firsts) * 0.95)] * 1000:.0f} ms"
              f" | {statistics.mean(further for _, further in done) * 1000:.1f} ms |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
