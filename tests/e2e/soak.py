#!/usr/bin/env python3
"""Send requests that fail in every way, and look whether anything is left: figures of docs/performance/objectives.md.

    python soak.py --penstock PATH --work DIR [--requests 50000] [--concurrency 128] [--every 4] [--simulated 1000000]

Three faulty engines behind the strategy `slo` with a queue and `move_waiting`; clients that leave at any time, tight
objectives, retries; a reload every few seconds, which now and then takes a backend away, and each fifth time an upgrade.
Afterwards nothing in /metrics and /fleet may count a request, and the processes that were replaced must have ended. The
simulated requests run in `penstock simulate`, which checks the same at the end of each run. Exits with 1 if anything is
left.
"""
import argparse
import asyncio
import collections
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.dont_write_bytecode = True

import yaml

import wire
from processes import HERE, Penstock, end

# Whatever counts what runs now.
GAUGES = {
    "penstock_in_flight", "penstock_queue_requests", "penstock_backend_in_flight", "penstock_model_in_flight",
    "penstock_key_in_flight", "penstock_held_body_bytes", "penstock_predicted_backlog_seconds",
    "penstock_connections", "penstock_backend_others_in_flight",
}
COUNTERS = ("penstock_retries_total", "penstock_moves_total", "penstock_requests_total")
SETTLE = 25.0
FAULTS = ("restart 10s", "slow x2 20s", "429 5s", "down 8s", "scrape-lost 10s", "slow x6 10s")


def config(ports: list[int], size: int) -> dict[str, Any]:
    """Penstock in front of the engines at `ports`."""
    unlimited = {"in_flight": 1000}
    return {
        "routing": {"strategy": "slo", "max_retries": 2, "move_waiting": True, "cooldown": {"max": "1s"}},
        "queue": {"size": size, "timeout": "3s", "max_backlog": "100ms"},
        "objectives": {"chat": {"ttft": "500ms", "tpot": "50ms", "priority": 5}},
        "health": {"interval": "500ms", "unhealthy_interval": "200ms", "timeout": "1s", "rise": 1, "fall": 2,
                   "slow_start": "0s"},
        "auth": {"keys": [{"name": "a", "key": "sk-a", "weight": 3, "limits": unlimited},
                          {"name": "b", "key": "sk-b", "limits": unlimited}]},
        "backends": [{"name": f"e{port}", "url": f"http://127.0.0.1:{port}", "engine": "vllm",
                      "max_in_flight": 24, "models": ["m"]} for port in ports],
    }


class StreamCut(Exception):
    """The connection ended in the middle of a response."""


class Clients:
    """Clients that send, and leave, by chance."""

    def __init__(self, port: int, requests: int) -> None:
        self._port = port
        self._left = requests
        self._random = random.Random(7)
        self.ends: collections.Counter[str] = collections.Counter()

    def _request(self) -> tuple[bytes, bytes]:
        source = self._random
        prompt = f"{source.choice('abcdefgh') * 400} {source.random()} "
        prompt += "word " * source.choice((5, 50, 400))
        body = json.dumps({
            "model": "m", "stream": source.random() < 0.8, "max_tokens": source.randint(2, 60),
            "messages": [{"role": "user", "content": prompt}]}).encode()
        fields = [f"authorization: Bearer sk-{source.choice('aab')}", f"content-length: {len(body)}"]
        kind = source.random()
        if kind < 0.3:
            fields.append("x-gateway-inference-objective: chat")
        elif kind < 0.5:
            fields += [f"x-slo-ttft-ms: {source.choice((5, 50, 500))}", "x-priority: -1"]
        head = "\r\n".join(["POST /v1/chat/completions HTTP/1.1", "host: x", *fields])
        return f"{head}\r\n\r\n".encode(), body

    async def run(self) -> None:
        """One client after the other, on one connection for as long as that lasts."""
        writer = None
        while self._left > 0:
            self._left -= 1
            leaves, in_body = self._random.random() < 0.15, self._random.random() < 0.2
            patience = self._random.choice((0.0005, 0.005, 0.02, 0.05, 0.3)) if leaves else 40
            head, body = self._request()
            try:
                if writer is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writer.write(head + (body[:len(body) // 2] if leaves and in_body else body))
                closes = await asyncio.wait_for(self._read(reader), patience)
                if not closes:
                    continue
            except TimeoutError:
                self.ends["left" if leaves else "no response in 40 s"] += 1
            except StreamCut:
                self.ends["stream cut"] += 1
            except (OSError, asyncio.IncompleteReadError):
                # Closed while it was idle, or by an upgrade that this client had no word of.
                self.ends["connection lost"] += 1
                await asyncio.sleep(0.01)
            if writer is not None:
                writer.transport.abort()
                writer = None
        if writer is not None:
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> bool:
        """A response; whether the connection ends with it."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").lower()
        length, has_error = re.search(r"content-length: (\d+)", head), False
        try:
            if length:
                await reader.readexactly(int(length.group(1)))
            else:
                while size := int(await reader.readuntil(b"\r\n"), 16):
                    has_error |= b'"error"' in await reader.readexactly(size + 2)
                await reader.readexactly(2)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise StreamCut from error
        self.ends["stream with an error" if has_error else head[9:12]] += 1
        # After an error in a stream the connection closes, which the head could not say.
        return has_error or "connection: close" in head


class Operator:
    """Reloads and upgrades penstock while requests run."""

    def __init__(self, penstock: Penstock, ports: list[int]) -> None:
        self._penstock = penstock
        self._ports = ports
        self.file = penstock.file
        self.done: collections.Counter[str] = collections.Counter()
        self.counted: collections.Counter[str] = collections.Counter()
        self._base = {key: yaml.safe_load(self.file.read_text())[key] for key in ("server", "admin")}
        # As long as requests may take: what is cut by a shorter one is lost.
        self._base["server"]["drain_timeout"] = "30s"

    def apply(self, ports: list[int], size: int, path: str = "/reload") -> None:
        """Another configuration, in force."""
        self.file.write_text(yaml.safe_dump({**self._base, **config(ports, size)}))
        try:
            status = str(wire.fetch(self._penstock.admin + path, b"", "POST").status)
        except OSError as error:
            status = type(error).__name__
        self.done[f"{path[1:]}: {status}"] += 1

    def count(self) -> None:
        """Add what the process has counted, which is about to be replaced."""
        for name, value in metrics(self._penstock.admin).items():
            if name.split("{")[0] in COUNTERS:
                self.counted[name.split("{")[0]] += int(value)

    async def run(self, every: float) -> None:
        """Until it is cancelled."""
        number = 0
        while True:
            await asyncio.sleep(every)
            number += 1
            if number % 5 == 0:
                await asyncio.to_thread(self.count)
            ports = self._ports[:2] if number % 3 == 0 else self._ports
            path = "/upgrade" if number % 5 == 0 else "/reload"
            await asyncio.to_thread(self.apply, ports, 300 + 10 * (number % 5), path)

    def processes(self) -> list[int]:
        """Those of this configuration file: the first one, and those that its upgrades have started."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                is_over = bool(words) and (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
            except OSError:
                continue
            if str(self.file).encode() in words and not is_over:
                found.append(int(entry.name))
        return found

    def close(self) -> None:
        """End all of them."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.processes():
                os.kill(pid, sign)
            time.sleep(1)
            self._penstock.process.poll()


def metrics(admin: str) -> dict[str, float]:
    """The samples of /metrics."""
    lines = wire.fetch(admin + "/metrics").body.decode().splitlines()
    rows = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in rows}


def leftovers(admin: str) -> dict[str, float]:
    """Whatever still counts something."""
    found = {name: value for name, value in metrics(admin).items() if name.split("{")[0] in GAUGES and value}
    for backend in wire.fetch(admin + "/fleet").json()["backends"]:
        for model in backend.get("models") or []:
            parts = {"in_flight": model.get("in_flight"), **(model.get("prediction") or {})}
            for key in ("in_flight", "waiting", "streams", "backlog_ms"):
                if parts.get(key):
                    found[f"{backend['name']} {key}"] = parts[key]
    return found


async def soak(chosen: argparse.Namespace) -> bool:
    """The real requests; whether nothing is left of them."""
    ports, engines, operator = [wire.free_port() for _ in range(3)], [], None
    try:
        for number, port in enumerate(ports):
            falls = ["--down-every", "7"] if number == 2 else []
            command = [sys.executable, str(HERE / "faulty_engine.py"), str(port), "--seed", str(number), *falls]
            engines.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            engines[-1].stdout.readline()
        penstock = Penstock(chosen.penstock.resolve(), chosen.work, "soak", config(ports, 300))
        operator = Operator(penstock, ports)
        clients = Clients(urlsplit(penstock.url).port, chosen.requests)
        operating = asyncio.create_task(operator.run(chosen.every))
        await asyncio.gather(*(clients.run() for _ in range(chosen.concurrency)))
        operating.cancel()
        await asyncio.wait([operating])
        operator.apply(ports, 300)
        operator.count()
        until = time.monotonic() + SETTLE
        while (left := leftovers(penstock.admin)) or len(operator.processes()) > 1:
            if time.monotonic() > until:
                break
            await asyncio.sleep(0.5)
        replaced = len(operator.processes()) - 1
    finally:
        if operator is not None:
            operator.close()
        for engine in engines:
            end(engine)
    print(f"{chosen.requests} requests: {dict(sorted(clients.ends.items()))}")
    print(f"penstock: {dict(operator.done)}, {dict(operator.counted)}")
    print(f"left: {left or 'nothing'}, {replaced} replaced processes")
    return not left and replaced == 0


def simulate(chosen: argparse.Namespace) -> bool:
    """The simulated requests, 100,000 in each run; whether every run passed its check."""
    each = min(100_000, chosen.simulated)

    def stream(client: str, priority: int, rate: float, patience: str) -> dict[str, Any]:
        return {"client": client, "model": "m", "priority": priority, "patience": patience,
                "arrivals": {"rate": rate, "process": "gamma", "variation": 2},
                "input": {"distribution": "lognormal", "mean": 900, "deviation": 1400, "min": 20, "max": 12000},
                "output": {"distribution": "lognormal", "mean": 220, "deviation": 250, "min": 2, "max": 2000}}

    workload, fleet = chosen.work / "soak-workload.yaml", chosen.work / "soak-fleet.yaml"
    streams = [stream("people", 0, 18, "4s"), stream("batch", -1, 40, "2s")]
    workload.write_text(yaml.safe_dump({"requests": each, "streams": streams}))
    fleet.write_text(yaml.safe_dump({
        "routing": {"strategy": "slo"}, "queue": {"size": 2000, "max_backlog": "150ms"},
        "backends": [{"name": f"b{n}", "url": f"http://127.0.0.1:{n}", "engine": "vllm", "models": ["m"]}
                     for n in range(1, 5)]}))
    seconds, count = each / 58, 60 if each >= 50_000 else 12
    faults = [f"at {seconds * (n + 0.5) / count:.0f}s backend b{n % 4 + 1} {FAULTS[n % len(FAULTS)]}"
              for n in range(count)]
    command = [str(chosen.penstock), "simulate", str(workload), "--config", str(fleet), "--speed", "1", "--json",
               "--seeds", str(max(1, chosen.simulated // each)),
               *(word for fault in faults for word in ("--fault", fault))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-1500:])
        return False
    runs = json.loads(done.stdout)["configurations"][0]["seeds"]
    total = {key: sum(run[key] for run in runs) for key in ("requests", "done", "left", "retries")}
    total |= {key: sum(sum(run[key].values()) for run in runs) for key in ("shed", "failed")}
    print(f"simulated: {total}, {count * len(runs)} faults; every run passed its check")
    return True


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penstock", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--every", type=float, default=4.0)
    parser.add_argument("--simulated", type=int, default=1_000_000)
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    is_clean = asyncio.run(soak(chosen)) if chosen.requests else True
    return 0 if (simulate(chosen) if chosen.simulated else True) and is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
