"""What a budget adds to the latency of a request: counted alone, and over a Redis server.

    python3 benches/rig/shared_budgets.py --penstock target/release/penstock

Starts an engine, a `redis-server` and four penstocks on free ports of loopback: without a budget,
with one, and two that share one. A client sends one request after the other on a kept connection,
to each in turn; the other one of the two that share is busy only where it is said. Prints the
medians of the turns, in microseconds."""
import argparse
import json
import socket
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

USAGE = {"prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28}
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
REPLY = json.dumps({"object": "chat.completion", "model": "m", "choices": [CHOICE], "usage": USAGE})
BODY = json.dumps({"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]})
JSON = "content-type: application/json\r\ncontent-length:"
RESPONSE = f"HTTP/1.1 200 OK\r\n{JSON} {len(REPLY)}\r\n\r\n{REPLY}".encode()
REQUEST = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{JSON} {len(BODY)}\r\n\r\n{BODY}".encode()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def read_message(stream: socket.socket) -> bytes:
    """Reads a head and the body that its length announces; empty at the end of the stream."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = stream.recv(65536)
        if not part:
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    fields = [line.split(b":", 1) for line in head.lower().split(b"\r\n")[1:]]
    length = next((int(value) for name, value in fields if name == b"content-length"), 0)
    while len(body) < length:
        body += stream.recv(65536)
    return head


def respond(stream: socket.socket) -> None:
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while read_message(stream):
        stream.sendall(RESPONSE)


def start_engine() -> int:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def accept() -> None:
        while True:
            threading.Thread(target=respond, args=[listener.accept()[0]], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def page(port: int, path: str) -> str:
    return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2).read().decode()


def wait(is_there: Callable[[], bool]) -> None:
    for _ in range(200):
        try:
            if is_there():
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit("a process is not ready within 10 s")


class Penstock:
    """A running penstock before the engine."""

    def __init__(self, binary: str, work: Path, name: str, engine: int, sections: str) -> None:
        self.data, self.admin = free_port(), free_port()
        path = work / f"{name}.yaml"
        path.write_text(
            f'server: {{ listen: ["127.0.0.1:{self.data}"], threads: 1 }}\n'
            f'admin: {{ listen: "127.0.0.1:{self.admin}" }}\n'
            "models: { m: { price: { input: 1, output: 1 } } }\n"
            f'backends: [{{ name: e, url: "http://127.0.0.1:{engine}", engine: other, models: [m] }}]\n'
            + sections.replace("LEDGER", str(work / f"{name}.db"))
        )
        log = open(work / f"{name}.log", "w")
        self.process = subprocess.Popen([binary, "serve", "--config", path], stdout=log, stderr=log)
        wait(lambda: bool(page(self.admin, "/health/ready")))
        if "shared_state" in sections:
            wait(lambda: "\npenstock_budgets_shared 1\n" in page(self.admin, "/metrics"))

    def latencies(self, count: int) -> list[float]:
        """The microseconds of each of `count` requests."""
        times = []
        with socket.create_connection(("127.0.0.1", self.data)) as stream:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(count):
                start = time.perf_counter_ns()
                stream.sendall(REQUEST)
                head = read_message(stream)
                times.append((time.perf_counter_ns() - start) / 1000)
                if not head.startswith(b"HTTP/1.1 200 "):
                    raise SystemExit(f"not a response: {head!r}")
        return times

    def load(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.latencies(100)


def run(arguments: argparse.Namespace, work: Path, running: list[subprocess.Popen]) -> None:
    redis, engine = free_port(), start_engine()
    server = ["redis-server", "--port", str(redis), "--bind", "127.0.0.1", "--save", ""]
    running.append(subprocess.Popen(server, stdout=subprocess.DEVNULL))
    wait(lambda: socket.create_connection(("127.0.0.1", redis)).close() is None)
    budget = "ledger: { path: LEDGER }\nbudgets: [{ name: all, amount: 1000000 }]\n"
    shared = f'{budget}shared_state: {{ redis: "redis://127.0.0.1:{redis}", timeout: 1s }}\n'
    started = {}
    for name, sections in [("none", ""), ("alone", budget), ("shared", shared), ("other", shared)]:
        started[name] = Penstock(arguments.penstock, work, name, engine, sections)
        running.append(started[name].process)
    ways = {"no budget": "none", "a budget": "alone", "a shared budget": "shared"}
    medians: dict[str, list[float]] = {}
    tails: dict[str, list[float]] = {}

    def measure(label: str, name: str) -> None:
        times = sorted(started[name].latencies(arguments.requests))
        medians.setdefault(label, []).append(statistics.median(times))
        tails.setdefault(label, []).append(times[len(times) * 99 // 100])

    for name in ways.values():
        started[name].latencies(arguments.requests)
    for _ in range(arguments.turns):
        for label, name in ways.items():
            measure(label, name)
    stop = threading.Event()
    busy = threading.Thread(target=started["other"].load, args=[stop])
    busy.start()
    for _ in range(arguments.turns):
        for label, name in ways.items():
            measure(f"{label}, the other penstock busy", name)
    stop.set()
    busy.join()
    for label, values in medians.items():
        p50, p99 = statistics.median(values), statistics.median(tails[label])
        turns = ", ".join(f"{value:.0f}" for value in values)
        print(f"{label:48} p50 {p50:5.0f} p99 {p99:5.0f}   (p50 of the turns: {turns})")
    metrics = page(started["shared"].admin, "/metrics").splitlines()
    watched = ("penstock_budget_alone_total", "penstock_shared_state_errors_total")
    print("\n".join(line for line in metrics if line.startswith(watched)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--requests", type=int, default=2000)
    running: list[subprocess.Popen] = []
    with tempfile.TemporaryDirectory() as work:
        try:
            run(parser.parse_args(), Path(work), running)
        finally:
            for process in running:
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
