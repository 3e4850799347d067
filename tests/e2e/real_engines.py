#!/usr/bin/env python3
"""Compare strategies on engines that run: the figures of docs/performance/real-engines.md.

    python real_engines.py --penstock [NAME=]PATH ... --work DIR --workload agents --llamacpp 4 --slow
    python real_engines.py --penstock PATH --work DIR --workload chats --batching 1 --batching 2.5
    python real_engines.py --penstock PATH --work DIR --model tiny --backend e1=URL --backend e2=URL --slow-pid PID
    python real_engines.py --penstock PATH --work DIR --llamacpp 4 --slow --server llama-server --gguf FILE --slots 16

Sessions arrive in bursts and grow turn by turn; a turn starts at its planned time, or when the one before has ended.
Every strategy, of every program that is given, gets the same sessions with other words, so that none finds what another
one left in the caches. They take turns, round by round; one process of penstock per strategy keeps what it has learned.
`--load` is relative to what `balanced` completes when all turns of a plan arrive at once. Prints per strategy: the
requests that reached both objectives, first tokens, what the engines report as cached, and how far first tokens were
off what was predicted (of the access log): the mean of the relative errors, and errors by waiting time.
`--direct` asks the first engine itself and through penstock, by turns, before anything else.
"""
import argparse
import concurrent.futures
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

sys.dont_write_bytecode = True

import configs
import simulated
import wire
from cases.prefix import words
from env import Env, RECIPES, Recipe
from llama_servers import LlamaServer
from processes import HERE, START_LIMIT, Penstock, end

STRATEGIES = {
    "auto": {},
    "slo": {"strategy": "slo"},
    "balanced": {"strategy": "weighted", "preset": "balanced"},
    "sticky": {"strategy": "weighted", "preset": "sticky"},
    "least-loaded": {"strategy": "weighted", "preset": "least-loaded"},
    "smart": {"strategy": "smart"},
    "round_robin": {"strategy": "round_robin"},
}
CONTEXT = 8192
RECIPES["live"] = Recipe(dim=256, layers=2, heads=4, ffn=768, ctx=CONTEXT, seed=3)
# A slowed engine computes for a third of the time.
STOPPED, RUNNING = 0.1, 0.05
# Of `--direct`: clients that ask one after the other, and turns of either way.
CLIENTS, TURNS = 16, 3
# The seconds that the same clients ask a new llama.cpp server before anything is measured.
WARM_UP = 1.0


class Workload(NamedTuple):
    """Sessions, in words."""

    groups: int
    # Of a system prompt, which a group of sessions shares.
    system: tuple[int, int]
    turns: tuple[int, int]
    # What a turn adds; one in `long_one_in` is long.
    short: tuple[int, int]
    long: tuple[int, int]
    long_one_in: int
    output: tuple[int, int]
    pause: tuple[float, float]


WORKLOADS = {
    "chats": Workload(8, (100, 700), (1, 3), (20, 300), (800, 2000), 10, (20, 120), (1.0, 5.0)),
    # Of a tiny model a word is three to five tokens.
    "agents": Workload(3, (150, 250), (4, 10), (8, 40), (80, 140), 8, (8, 32), (0.2, 1.0)),
}


class Turn(NamedTuple):
    """A request of a plan."""

    at: float
    session: int
    number: int
    group: int
    # Words of the system prompt, and those of each turn up to this one.
    system: int
    added: tuple[int, ...]
    output: int


class Response(NamedTuple):
    """What came of it, in seconds."""

    first: float
    further: float
    prompt: int
    cached: int


def plan(work: Workload, seconds: float, rate: float, seed: str) -> list[list[Turn]]:
    """Sessions that start in bursts (variation of the gaps 2.5): about `rate` requests per second."""
    source, shape = random.Random(seed), 1 / 2.5**2
    systems = [random.Random(f"system {group}").randint(*work.system) for group in range(work.groups)]
    per_session = sum(work.turns) / 2
    sessions, at = [], 0.0
    while True:
        at += source.gammavariate(shape, per_session / (rate * shape))
        if at >= seconds:
            return sessions
        group, moment, added, turns = source.randrange(work.groups), at, (), []
        for number in range(source.randint(*work.turns)):
            length = work.long if source.randrange(work.long_one_in) == 0 else work.short
            added += (source.randint(*length),)
            output = source.randint(*work.output)
            turns.append(Turn(moment, len(sessions), number, group, systems[group], added, output))
            moment += source.uniform(*work.pause)
        sessions.append(turns)


def messages(turn: Turn, seed: str) -> list[dict[str, str]]:
    """The conversation up to a turn."""
    rows = [{"role": "system", "content": words(f"{seed} group {turn.group}", turn.system)}]
    for number, count in enumerate(turn.added):
        if number:
            rows.append({"role": "assistant", "content": words(f"{seed} {turn.session} {number} a", 10)})
        rows.append({"role": "user", "content": words(f"{seed} {turn.session} {number}", count)})
    return rows


def ask(url: str, model: str, turn: Turn, seed: str) -> Response:
    """One stream."""
    body = {"model": model, "stream": True, "max_tokens": turn.output, "temperature": 0, "seed": 1, "ignore_eos": True,
            "stream_options": {"include_usage": True}, "messages": messages(turn, seed)}
    request = urllib.request.Request(
        url + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    began, times, usage = time.monotonic(), [], {}
    with urllib.request.urlopen(request, timeout=120) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            now = time.monotonic()
            if b'"content":"' in line or b'"content": "' in line:
                times.append(now)
            if b'"usage":{' in line or b'"usage": {' in line:
                usage = json.loads(line[6:])["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    further = (times[-1] - times[0]) / max(1, len(times) - 1)
    return Response(times[0] - began, further, usage.get("prompt_tokens", 0), cached)


def play(url: str, model: str, sessions: list[list[Turn]], seed: str) -> list[Response | None]:
    """Every session at its time; `None` for a request that failed."""
    start = time.monotonic() + 0.3

    def one(turns: list[Turn]) -> list[Response | None]:
        found = []
        for turn in turns:
            time.sleep(max(0.0, start + turn.at - time.monotonic()))
            try:
                found.append(ask(url, model, turn, seed))
            except (OSError, IndexError):
                found.append(None)
        return found

    # A session that waited for a thread would arrive late.
    with concurrent.futures.ThreadPoolExecutor(max(1, len(sessions))) as pool:
        return [response for responses in pool.map(one, sessions) for response in responses]


def measure(url: str, model: str, work: Workload, count: int) -> float:
    """Requests per second when all turns arrive at once, until the last fifth, when some engines have nothing to do."""
    turns = [turn for session in plan(work, 2.0 * count, 1.0, "rush") for turn in session][:count]
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(256) as pool:
        jobs = [pool.submit(ask, url, model, turn, "rush") for turn in turns]
        for done, _ in enumerate(concurrent.futures.as_completed(jobs)):
            if done >= 0.8 * len(turns):
                return done / (time.monotonic() - began)
    raise AssertionError("no request")


def crowd(url: str, model: str, seconds: float, seed: str) -> list[Response]:
    """Clients that each ask again as soon as they have a response."""
    until, turn = time.monotonic() + seconds, Turn(0.0, 0, 0, 0, 0, (50,), 32)

    def one(client: int) -> list[Response]:
        found = []
        while time.monotonic() < until:
            found.append(ask(url, model, turn._replace(session=client, number=len(found)), f"{seed} {len(found)}"))
        return found

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        return [response for responses in pool.map(one, range(CLIENTS)) for response in responses]


def compare_direct(proxy: Penstock, engine: str, chosen: argparse.Namespace) -> None:
    """A table of one engine itself and through penstock, with prompts of 50 words and 32 tokens each."""
    found = {"direct": (engine, []), "through penstock": (proxy.url, [])}
    for number in range(TURNS):
        for name, (url, responses) in found.items():
            responses += crowd(url, chosen.model, chosen.direct, f"{name} {number}")
    print("| | requests per second | TTFT: mean, p50, p99 | per further token |\n|---|---|---|---|")
    for name, (_, responses) in found.items():
        firsts = sorted(one.first * 1000 for one in responses)
        print(f"| {name} | {len(responses) / chosen.direct / TURNS:.1f} | {statistics.mean(firsts):.1f},"
              f" {statistics.median(firsts):.1f}, {firsts[int(len(firsts) * 0.99)]:.1f} ms"
              f" | {statistics.mean(one.further for one in responses) * 1000:.2f} ms |", flush=True)


class Slowed:
    """Processes that are stopped again and again while this lives."""

    def __init__(self, pids: list[int]) -> None:
        self._pids, self._ended = pids, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while self._pids and not self._ended.is_set():
            for signum, lasts in ((signal.SIGSTOP, STOPPED), (signal.SIGCONT, RUNNING)):
                for pid in self._pids:
                    os.kill(pid, signum)
                time.sleep(lasts)

    def close(self) -> None:
        """They run again."""
        self._ended.set()
        self._thread.join()


class Predicted(NamedTuple):
    """How far first tokens were off: the mean of the relative errors, errors by waiting time, the part within the 90th
    percentile."""

    mean: float
    weighted: float
    within: float


def predicted(log: Path, since: int) -> Predicted | None:
    """Of the lines of an access log."""
    rows = [json.loads(line) for line in log.read_text().splitlines()[since:]]
    rows = [row for row in rows if row.get("predicted_ttft_ms") and row["ttft_ms"]]
    if not rows:
        return None
    errors = [abs(row["predicted_ttft_ms"] - row["ttft_ms"]) for row in rows]
    return Predicted(
        statistics.mean(error / row["ttft_ms"] for error, row in zip(errors, rows)),
        sum(errors) / sum(row["ttft_ms"] for row in rows),
        statistics.mean(row["ttft_ms"] <= row["predicted_ttft_p90_ms"] for row in rows))


class Turns:
    """What the turns of one strategy came to, at one load."""

    def __init__(self, proxy: Penstock, log: Path, warm: int) -> None:
        self.proxy, self._log = proxy, log
        self._since = max(warm, self._lines())
        self.rounds: list[list[Response | None]] = []

    def _lines(self) -> int:
        return len(self._log.read_text().splitlines()) if self._log.exists() else 0

    def row(self, name: str, chosen: argparse.Namespace) -> str:
        """A line of the table."""
        def is_good(one: Response | None) -> bool:
            return one is not None and one.first <= chosen.ttft and one.further <= chosen.tpot

        rows = [one for responses in self.rounds for one in responses]
        done = [one for one in rows if one]
        goods = ", ".join(f"{statistics.mean(map(is_good, responses)):.1%}" for responses in self.rounds)
        firsts = sorted(one.first * 1000 for one in done)
        cached = sum(one.cached for one in done) / max(1, sum(one.prompt for one in done))
        off = predicted(self._log, self._since)
        errors = f"{off.mean:.0%}, {off.weighted:.0%}; {off.within:.0%}" if off else "-"
        return (f"| {name} | {len(rows)} ({len(rows) - len(done)} failed)"
                f" | {statistics.mean(map(is_good, rows)):.1%} ({goods})"
                f" | {statistics.mean(firsts):.0f}, {statistics.median(firsts):.0f},"
                f" {firsts[int(len(firsts) * 0.99)]:.0f} ms"
                f" | {statistics.mean(one.further for one in done) * 1000:.1f} ms | {cached:.0%} | {errors} |")


class Batching:
    """A process of batching_engine.py."""

    def __init__(self, slower: float) -> None:
        port = wire.free_port()
        command = [sys.executable, str(HERE / "batching_engine.py"), str(port), "--slower", str(slower)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{port}"
        wire.wait_until("the engine", lambda: wire.fetch(self.url + "/health").status == 200, START_LIMIT)

    def close(self) -> None:
        """End it."""
        end(self._process)


def engines(env: Env, chosen: argparse.Namespace) -> tuple[list[dict[str, str]], list[int]]:
    """The backends, and the processes to slow down."""
    backends = [dict(zip(("name", "url"), one.split("=", 1)), engine=chosen.engine) for one in chosen.backend]
    slowed = chosen.slow_pid
    for number, slower in enumerate(chosen.batching):
        engine = env.keep(Batching(slower))
        backends.append({"name": f"e{number + 1}", "url": engine.url, "engine": "vllm"})
    started = []
    for number in range(chosen.llamacpp):
        name = f"llama-{number}"
        if chosen.server:
            log = chosen.work / f"engine-{name}.log"
            started.append(env.keep(
                LlamaServer(chosen.server, chosen.gguf, chosen.model, log, chosen.slots, CONTEXT)))
        else:
            options = {"parallel": chosen.slots, "ctx": chosen.slots * CONTEXT, "cache": 1, "http": 64}
            started.append(env._spawn(name, "live", chosen.model, options))
    for number, engine in enumerate(started):
        engine.await_ready()
        # The first strategy would pay for what an engine loads with its first prompts.
        crowd(engine.url, chosen.model, WARM_UP, f"warm-up {number}")
        backends.append({"name": f"llama-{number}", "url": engine.url, "engine": "llamacpp"})
        if chosen.slow and number == 0:
            slowed = [*slowed, engine.process.pid]
    return backends, slowed


def log_of(name: str, chosen: argparse.Namespace) -> Path:
    """The access log of a strategy."""
    return chosen.work / f"access-{name}.jsonl"


def start(env: Env, name: str, binary: Path, routing: dict, backends: list, chosen: argparse.Namespace) -> Penstock:
    """A penstock with one strategy, which has found the model."""
    log = log_of(name, chosen)
    log.unlink(missing_ok=True)
    objective = {"ttft": f"{chosen.ttft * 1000:.0f}ms", "tpot": f"{chosen.tpot * 1000:.0f}ms"}
    env.binary = binary
    configs.CONFIGS[name] = lambda env: configs.Setup({
        "routing": {"predict": True, **routing}, "health": {**configs.HEALTH, "timeout": "5s", "fall": 10},
        "access_log": {"path": str(log), "replay": True}, "backends": backends,
        "objectives": {"interactive": objective}, "models": {chosen.model: {"objective": "interactive"}},
    }, {chosen.model})
    return env.proxy(name)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penstock", action="append", required=True, help="[NAME=]PATH")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--workload", choices=WORKLOADS, default="agents")
    parser.add_argument("--strategies", default="auto,slo,sticky,smart,round_robin",
                        help="of every program, or STRATEGY@NAME of one")
    parser.add_argument("--llamacpp", type=int, default=0, help="start so many llama.cpp servers")
    parser.add_argument("--server", type=Path, help="the program llama-server, instead of the package's")
    parser.add_argument("--gguf", type=Path, help="the model of this program, see llama_servers.py")
    parser.add_argument("--slots", type=int, default=4, help="of a llama.cpp server")
    parser.add_argument("--direct", type=float, metavar="SECONDS",
                        help="first compare the first engine itself and through penstock, in turns of so long")
    parser.add_argument("--batching", type=float, action="append", default=[], metavar="SLOWER",
                        help="start a batching_engine.py that is so many times as slow; its model is m")
    parser.add_argument("--slow", action="store_true", help="slow the first of these down")
    parser.add_argument("--backend", action="append", default=[], help="NAME=URL of an engine that runs")
    parser.add_argument("--slow-pid", type=int, action="append", default=[], help="slow this process down")
    parser.add_argument("--engine", default="vllm", help="what these engines are")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--seconds", type=float, action="append", default=[],
                        help="of a turn, in the order of the rates; the last (60 by default) holds for the rest")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--load", type=float, action="append", default=[])
    parser.add_argument("--rate", type=float, action="append", default=[],
                        help="requests per second, instead of --load")
    parser.add_argument("--ttft", type=float, default=2.0)
    parser.add_argument("--tpot", type=float, default=0.12)
    parser.add_argument("--simulate", metavar="FLAGS", help="simulate the turns of the last strategy on engines"
                        " learned from them, with these flags of `penstock fit` and `simulate`")
    parser.add_argument("--warm", type=int, default=50, help="requests whose predictions do not count")
    return parser.parse_args()


def at_rate(proxies: dict[str, Penstock], rate: float, seconds: float, chosen: argparse.Namespace) -> None:
    """All turns at one rate, and their table."""
    found = {name: Turns(proxy, log_of(name, chosen), chosen.warm) for name, proxy in proxies.items()}
    work, names = WORKLOADS[chosen.workload], list(found)
    for number in range(chosen.rounds):
        sessions = plan(work, seconds, rate, f"round {number}")
        # No strategy always follows the same one.
        for name in names[number % len(names):] + names[:number % len(names)]:
            responses = play(found[name].proxy.url, chosen.model, sessions, f"{name} {time.time_ns()}")
            found[name].rounds.append(responses)
            print(found[name].row(name, chosen), flush=True)
    print(f"\n{rate:.2f} requests per second\n\n| strategy | requests | goodput (turns) | TTFT: mean, p50, p99"
          " | per further token | cached | TTFT predicted: error, weighted; within p90 |\n|---|---|---|---|---|---|---|")
    for name, turns in found.items():
        print(turns.row(name, chosen), flush=True)


def run(env: Env, chosen: argparse.Namespace) -> None:
    """Everything."""
    binaries = dict(one.split("=", 1) if "=" in one else ("", one) for one in chosen.penstock)
    env.prepare()
    backends, slowed = engines(env, chosen)
    proxies = {}
    for one in chosen.strategies.split(","):
        strategy, _, only = one.partition("@")
        for name, binary in binaries.items():
            if only not in ("", name):
                continue
            full = f"{name} {strategy}".strip().replace(" ", "-")
            proxies[full] = start(env, full, Path(binary).resolve(), STRATEGIES[strategy], backends, chosen)
    if chosen.direct:
        one = start(env, "one", Path(binary).resolve(), STRATEGIES["auto"], backends[:1], chosen)
        compare_direct(one, backends[0]["url"], chosen)
        one.close()
    env.keep(Slowed(slowed))
    rates = chosen.rate
    if not rates:
        gauge = start(env, "capacity", Path(binary).resolve(), STRATEGIES["balanced"], backends, chosen)
        capacity = measure(gauge.url, chosen.model, WORKLOADS[chosen.workload], 150)
        print(f"completed {capacity:.2f} requests/s of a burst", flush=True)
        rates = [load * capacity for load in chosen.load or [0.5]]
        gauge.close()
    lengths = chosen.seconds or [60.0]
    for number, rate in enumerate(rates):
        at_rate(proxies, rate, lengths[min(number, len(lengths) - 1)], chosen)
    if chosen.simulate is not None:
        logs = {name: log_of(name, chosen) for name in reversed(proxies)}
        simulated.compare(Path(binary).resolve(), chosen.work, logs, chosen.simulate.split())


def main() -> int:
    """The command line."""
    chosen = arguments()
    chosen.work.mkdir(parents=True, exist_ok=True)
    env = Env(None, chosen.work)
    try:
        run(env, chosen)
    finally:
        env.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
