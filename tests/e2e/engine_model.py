#!/usr/bin/env python3
"""Compare what is predicted of a real engine with what it does: figures of docs/performance/objectives.md.

    python engine_model.py --penstock PATH --work DIR [--minutes 2] [--rate 1.3] [--layers 12]

A llama.cpp server with four slots, behind the strategy `slo`. Mixed traffic for some minutes; then 1 to 4
streams at once, whose steps are compared with what /fleet had learned before. The same after a minute of traffic
in which the engine is stopped for 5 s, and after one with two slots. Prints predicted and measured steps, and
what came of each traffic. Run it while nothing else does. Exits with 1 if a request is lost or a step is more
than 15 % off.
"""
import argparse
import concurrent.futures
import json
import random
import signal
import statistics
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Callable

sys.dont_write_bytecode = True

import configs
import wire
from cases.prefix import words
from env import Env, RECIPES, Recipe
from processes import Engine, Penstock

MODEL, CONTEXT = "tiny-model", 4096
# Words, each of four to five tokens: a longer mix is more than the engine computes in that time.
SHORT, LONG = 20, 200
OUTPUT = 60
TURNS = 4
MOST_OFF = 0.15


def setup(engine: Engine) -> configs.Setup:
    """Penstock in front of the engine."""
    health = {**configs.HEALTH, "timeout": "8s", "fall": 20}
    backend = {"name": "engine", "url": engine.url, "engine": "llamacpp"}
    return configs.Setup({"routing": {"strategy": "slo"}, "health": health, "backends": [backend]}, {MODEL})


def body_of(prompt: str, output: int) -> dict[str, Any]:
    """A stream of so many tokens."""
    return {"model": MODEL, "stream": True, "max_tokens": output, "temperature": 0, "seed": 1,
            "ignore_eos": True, "messages": [{"role": "user", "content": prompt}]}


def ask(url: str, prompt: str, output: int) -> list[float]:
    """One stream: when its tokens came."""
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body_of(prompt, output)).encode(),
                                     {"content-type": "application/json"})
    times = []
    with urllib.request.urlopen(request, timeout=90) as response:
        for line in response:
            if line.startswith(b"data: {") and b'"content":"' in line:
                times.append(time.monotonic())
    if not times:
        raise OSError("no token came")
    return times


def traffic(url: str, seed: str, seconds: float, rate: float,
            meanwhile: Callable[[], None] | None) -> tuple[int, int]:
    """Random arrivals of short and long prompts; how many, and how many of them failed."""
    source, start, at, jobs = random.Random(seed), time.monotonic(), 0.0, []
    disturbance = threading.Timer(seconds / 6, meanwhile or (lambda: None))
    disturbance.start()
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        while (at := at + source.expovariate(rate)) < seconds:
            time.sleep(max(0.0, start + at - time.monotonic()))
            prompt = words(f"{seed} {at}", LONG if source.random() < 0.15 else SHORT)
            jobs.append(pool.submit(ask, url, prompt, source.randint(10, 60)))
    disturbance.join()
    return len(jobs), sum(1 for job in jobs if job.exception())


def learned(admin: str) -> dict[str, Any]:
    """What /fleet has of the engine."""
    models = wire.fetch(admin + "/fleet").json()["backends"][0]["models"]
    return next(model["prediction"] for model in models if model.get("prediction"))


def estimated(admin: str, prompt: str) -> int:
    """The tokens of a prompt as penstock estimates them: what is learned counts contexts in these."""
    request = {"path": "/v1/chat/completions", "body": json.dumps(body_of(prompt, OUTPUT))}
    explained = wire.fetch(admin + "/explain", request).json()
    return explained["requirements"]["estimated_tokens"]


def gaps(proxy: Penstock, streams: int, seed: str) -> tuple[list[float], float]:
    """The times between tokens while exactly so many streams run, and the tokens in all their contexts."""
    prompts = [words(f"{seed} {number}", SHORT) for number in range(streams)]
    context = sum(estimated(proxy.admin, prompt) + OUTPUT / 2 for prompt in prompts)
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        rows = list(pool.map(lambda prompt: ask(proxy.url, prompt, OUTPUT), prompts))
    first, last = max(times[0] for times in rows), min(times[-1] for times in rows)
    found = [after - before for times in rows for before, after in zip(times, times[1:])
             if before > first and after <= last]
    return found, context


def compare(env: Env, phase: str, most: int) -> float:
    """Prints predicted and measured steps of 1 to so many streams; by how much the worst is off."""
    proxy, worst = env.proxy(MODEL), 0.0
    model = learned(proxy.admin)
    for streams in range(1, most + 1):
        # llama.cpp computes requests apart whose slots are not neighbours, and takes its slots in turn.
        runs = [gaps(proxy, streams, f"{phase} {streams} {turn}") for turn in range(TURNS)]
        medians = [statistics.median(found) * 1000 for found, _ in runs]
        seen = statistics.mean(medians)
        context = statistics.mean(context for _, context in runs)
        micros = streams * model["stream_us"] + context * model["context_token_us"]
        predicted = (model["base_ms"] + micros / 1000) * model["batch_ratios"][streams - 1]
        worst = max(worst, abs(predicted / seen - 1))
        print(f"| {phase} | {streams} | {predicted:.1f} ms | {seen:.1f} ms"
              f" | {predicted / seen - 1:+.1%} |", flush=True)
    return worst


def describe(env: Env, phase: str, sent: int, failed: int) -> str:
    """What came of the traffic of a phase."""
    model = learned(env.proxy(MODEL).admin)
    return (f"{phase}: {sent} requests, {failed} failed; first tokens {model['error']:.0%} off,"
            f" {model['coverage']:.0%} within the 90th percentile; slots {model['slots']}")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penstock", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--rate", type=float, default=1.3)
    parser.add_argument("--layers", type=int, default=12)
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    RECIPES["model"] = Recipe(dim=512, layers=chosen.layers, heads=8, ffn=1536, ctx=CONTEXT)
    env, notes, lost, worst = Env(chosen.penstock.resolve(), chosen.work), [], 0, 0.0
    later = min(60.0, 60 * chosen.minutes)
    try:
        env.prepare()
        options = {"parallel": 4, "ctx": 4 * CONTEXT, "http": 32, "threads": 1}
        engine = env._spawn(MODEL, "model", MODEL, options).await_ready()
        configs.CONFIGS[MODEL] = lambda env: setup(engine)
        url = env.proxy(MODEL).url

        def stop() -> None:
            engine.process.send_signal(signal.SIGSTOP)
            time.sleep(5)
            engine.process.send_signal(signal.SIGCONT)

        def restart() -> None:
            engine.restart(parallel=2, ctx=2 * CONTEXT)
            time.sleep(3)

        print("| after | streams | predicted step | measured | off |\n|---|---|---|---|---|")
        for phase, seconds, rate, streams, before, meanwhile in (
                ("mixed traffic", 60 * chosen.minutes, chosen.rate, 4, None, None),
                ("a stop of 5 s", later, chosen.rate, 4, None, stop),
                ("a restart with 2 slots", later, chosen.rate * 0.7, 2, restart, None)):
            if before:
                before()
            sent, failed = traffic(url, phase, seconds, rate, meanwhile)
            notes.append(describe(env, phase, sent, failed))
            lost += failed
            worst = max(worst, compare(env, phase, streams))
    finally:
        env.close()
    print("\n".join(notes))
    return 0 if lost == 0 and worst <= MOST_OFF else 1


if __name__ == "__main__":
    sys.exit(main())
