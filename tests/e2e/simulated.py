#!/usr/bin/env python3
"""Compare the simulator with real engines: the figures of docs/performance/simulation.md.

    python simulated.py --penstock PATH --work DIR [--seconds 60] [--rate 6]

Four llama.cpp servers get the same arrivals under every strategy: conversations that share a system prompt and grow
turn by turn, at planned times. `penstock fit` learns the engine of every backend from the access log of the first
strategy; `penstock simulate` replays the arrivals of that log under every strategy. Prints the mean time to the first
token and the part of the prompts found cached, live and simulated.
"""
import argparse
import concurrent.futures
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True

import configs
from cases.prefix import words
from env import Env

STRATEGIES = {
    "round_robin": {"strategy": "round_robin"},
    "smart": {"strategy": "smart"},
    "llm-d": {"strategy": "weighted", "preset": "llm-d"},
    "balanced": {"strategy": "weighted", "preset": "balanced"},
}
SLOTS, CONTEXT, TURNS = 2, 4096, 4
ENGINE = ["--scheduler", "llamacpp", "--slots", str(SLOTS), "--slot-context", str(CONTEXT)]


def plan(seconds: float, rate: float) -> list[tuple[float, int, int]]:
    """Arrivals: when, of which conversation, and its which turn."""
    source = random.Random("plan")
    arrivals, at, number = [], 0.0, 0
    while at < seconds:
        at += source.expovariate(rate / TURNS)
        moment = at
        for turn in range(TURNS):
            arrivals.append((moment, number, turn))
            moment += 0.5 + source.expovariate(1.0)
        number += 1
    return sorted(arrivals)


def ask(env: Env, proxy: str, number: int, turn: int) -> tuple[float, int, int]:
    """One turn: time to the first token, prompt tokens, those found cached."""
    client = env.openai(configs.CACHED, proxy)
    messages = [{"role": "system", "content": f"{words(proxy, 200)} {words(f'{proxy} {number}', 100)}"}]
    for before in range(turn):
        messages.append({"role": "user", "content": words(f"{proxy} {number} {before}", 20)})
        messages.append({"role": "assistant", "content": words(f"{proxy} {number} {before} a", 6)})
    messages.append({"role": "user", "content": words(f"{proxy} {number} {turn}", 20)})
    began, first, usage = time.monotonic(), None, None
    for chunk in client.chat.completions.create(
            model=configs.CACHED, messages=messages, max_tokens=8, temperature=0, seed=1,
            stream=True, stream_options={"include_usage": True}):
        first = first or time.monotonic()
        usage = chunk.usage or usage
    return first - began, usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens


def play(env: Env, proxy: str, arrivals: list[tuple[float, int, int]]) -> None:
    """Every arrival at its time."""
    start = time.monotonic() + 0.5
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        jobs = []
        for at, number, turn in arrivals:
            time.sleep(max(0.0, start + at - time.monotonic()))
            jobs.append(pool.submit(ask, env, proxy, number, turn))
        for job in jobs:
            job.result()


def logged(path: Path) -> list[dict]:
    """The lines of an access log that have a first token."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["ttft_ms"] is not None]


def compare(penstock: Path, work: Path, logs: dict[str, Path], flags: list[str]) -> None:
    """Prints what each strategy's log has beside a simulation: the arrivals of the first log, on the engines that it shows."""
    def run(*words: str) -> str:
        return subprocess.run([str(penstock), *words], check=True, capture_output=True, text=True).stdout

    base = next(iter(logs.values()))
    engines = []
    for name in sorted({line["backend"] for line in logged(base)}):
        file = work / f"engine-{name}.json"
        file.write_text(run("fit", str(base), "--backend", name, "--engine", "unknown", *flags, "--json"))
        engines += ["--engine", f"{name}={file}"]
    print("| strategy | TTFT, live | simulated | error | cached, live | simulated |")
    print("|---|---|---|---|---|---|")
    for name, log in logs.items():
        result = json.loads(run("simulate", str(base), "--config", str(work / f"penstock-{name}.yaml"), *engines,
                                "--speed", "1", *flags, "--seeds", "3", "--json"))
        seeds = result["configurations"][0]["seeds"]
        simulated = statistics.mean(one["ttft_seconds"]["mean"] for one in seeds)
        hits = statistics.mean(one["hit_rate"] for one in seeds)
        lines = logged(log)
        live = statistics.mean(line["ttft_ms"] for line in lines) / 1000
        cached = sum(line["tokens_cached"] or 0 for line in lines) / sum(line["tokens_in"] for line in lines)
        print(f"| {name} | {live * 1000:.0f} ms | {simulated * 1000:.0f} ms | {simulated / live - 1:+.0%}"
              f" | {cached:.0%} | {hits:.0%} |", flush=True)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penstock", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=6.0)
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    env = Env(chosen.penstock.resolve(), chosen.work)
    arrivals = plan(chosen.seconds, chosen.rate)
    logs = {name: chosen.work / f"access-{name}.jsonl" for name in STRATEGIES}

    def setup(name: str) -> configs.Setup:
        made = configs.cached(env, STRATEGIES[name], parallel=SLOTS, context=CONTEXT)
        log = {"path": str(logs[name]), "replay": True}
        return configs.Setup({**made.config, "access_log": log}, made.models)

    try:
        env.prepare()
        for name in STRATEGIES:
            logs[name].unlink(missing_ok=True)
            configs.CONFIGS[name] = lambda env, name=name: setup(name)
            env.proxy(name)
            play(env, name, arrivals)
    finally:
        env.close()

    print(f"{len(arrivals)} requests")
    compare(chosen.penstock, chosen.work, logs, ENGINE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
