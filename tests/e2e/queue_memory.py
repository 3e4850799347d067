#!/usr/bin/env python3
"""Measure the memory of a request that waits in the queue: figures of docs/performance/queue.md.

    python queue_memory.py --penstock PATH --work DIR [--count 10000] [--of waiting]

Opens that many connections, each of which gets one small response, and then has each send a stream to an engine that never
responds. --of: `waiting` in the queue, `kept-alive` there with keep-alive bytes, `sending` the first part of a body, or
`in-flight` at the engine. Prints the resident memory of penstock per idle connection, and what a request takes on top.
Opens fewer where `ulimit -n` allows no more.
"""
import argparse
import asyncio
import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.dont_write_bytecode = True

import wire
from processes import HERE, Penstock, end

KINDS = ("waiting", "kept-alive", "sending", "in-flight")
BODY = json.dumps({"model": "m", "stream": True,
                   "messages": [{"role": "user", "content": "Hello, how are you? " * 8}]}).encode()
HEAD = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()


def config(port: int, kind: str) -> dict[str, Any]:
    """Penstock in front of the engine at `port`."""
    limit = {"max_in_flight": 1} if kind in ("waiting", "kept-alive") else {}
    keep_alive = {"keep_alive": "1s"} if kind == "kept-alive" else {}
    return {
        "routing": {"strategy": "slo"}, "queue": {"size": 20000, "timeout": "10m", **keep_alive},
        "health": {"interval": "30s"},
        "backends": [{"name": "e", "url": f"http://127.0.0.1:{port}", "engine": "vllm", "models": ["m"], **limit}],
    }


def resident(pid: int) -> int:
    """Bytes of resident memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) * 1024


async def settled(pid: int) -> int:
    """The resident memory once it has not changed for two seconds."""
    last, since = resident(pid), time.monotonic()
    while time.monotonic() - since < 2.0:
        await asyncio.sleep(0.2)
        if abs(resident(pid) - last) > 100_000:
            last, since = resident(pid), time.monotonic()
    return resident(pid)


async def connect(port: int) -> asyncio.StreamWriter:
    """A connection that has had a response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=8192)
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
    return writer


async def measure(penstock: Penstock, count: int, kind: str) -> tuple[int, int, int]:
    """Resident memory: at first, with idle connections, and with a request on each."""
    pid, port = penstock.process.pid, urlsplit(penstock.url).port
    at_first, writers = await settled(pid), []
    while len(writers) < count:
        more = min(100, count - len(writers))
        writers += await asyncio.gather(*(connect(port) for _ in range(more)))
    idle = await settled(pid)
    for number, writer in enumerate(writers):
        writer.write(HEAD + (BODY[:40] if kind == "sending" else BODY))
        if number % 100 == 0:
            await asyncio.sleep(0.02)
    busy = await settled(pid)
    for writer in writers:
        writer.transport.abort()
    return at_first, idle, busy


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penstock", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--of", choices=KINDS, default=KINDS[0])
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    # Penstock needs two for each request at an engine.
    count = min(chosen.count, (resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 320) // 2)
    port = wire.free_port()
    command = [sys.executable, str(HERE / "faulty_engine.py"), str(port), "--hold"]
    engine = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        engine.stdout.readline()
        penstock = Penstock(chosen.penstock.resolve(), chosen.work, "memory", config(port, chosen.of))
        try:
            at_first, idle, busy = asyncio.run(measure(penstock, count, chosen.of))
        finally:
            penstock.close()
    finally:
        end(engine)
    print(f"{count} connections: {(idle - at_first) / count / 1000:.1f} KB each while idle,"
          f" {(busy - idle) / count / 1000:.1f} KB more with a request ({chosen.of})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
