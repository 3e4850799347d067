#!/usr/bin/env python3
"""An engine that fails by chance, for what no real one does on request: soak.py and queue_memory.py.

    python faulty_engine.py PORT [--seed N] [--down-every SECONDS] [--hold]

Responds with streams of 2 to 24 tokens and whole responses, and now and then with 500, 503 or 429, a connection that
closes before the head or in the middle of a stream, or a silence of 1.5 s. --down-every closes its listener and all
connections for a second, again and again. --hold never responds to a request. Ends when its standard input does.
"""
import argparse
import asyncio
import json
import os
import random
import sys
from typing import Any

MODEL = "m"
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def event(text: str, finish: str | None = None, usage: dict[str, int] | None = None) -> bytes:
    """One event of a stream, as an HTTP chunk."""
    delta = {} if finish else {"role": "assistant", "content": text}
    row: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL,
                           "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    if usage:
        row["usage"] = usage
    data = b"data: " + json.dumps(row).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(status: str, body: Any, extra: str = "") -> bytes:
    """A response that is no stream."""
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{extra}content-length: {len(data)}\r\n\r\n"
    return head.encode() + data


REFUSALS = (
    (0.03, whole("500 Internal Server Error", {"error": {"message": "broken", "code": 500}})),
    (0.05, whole("503 Service Unavailable", {"error": {"message": "full"}}, "retry-after: 1\r\n")),
    (0.06, whole("429 Too Many Requests", {"error": {"message": "rate"}}, "retry-after: 1\r\n")),
)
# Shares of the requests, after those: closed before the head, closed after a silence, cut in the middle.
CLOSED, SILENT, CUT = 0.08, 0.085, 0.11


class FaultyEngine:
    """One engine, and the connections that it has."""

    def __init__(self, seed: int, hold: bool) -> None:
        self._random = random.Random(seed)
        self._hold = hold
        self._writers: set[asyncio.StreamWriter] = set()

    def abort(self) -> None:
        """Close every connection at once."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self._writers.add(writer)
        try:
            while await self._respond(writer, *await read_request(reader)):
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError, ValueError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _respond(self, writer: asyncio.StreamWriter, path: str, body: bytes) -> bool:
        """Whether the connection goes on."""
        if not body:
            models = {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 32768}]}
            if path.startswith("/metrics"):
                writer.write(whole("404 Not Found", {}))
            else:
                writer.write(whole("200 OK", models if "models" in path else {"version": "0.9.1"}))
            return True
        if self._hold:
            await asyncio.sleep(3600)
        chance = self._random.random()
        for share, refusal in REFUSALS:
            if chance < share:
                writer.write(refusal)
                return True
        if chance < SILENT:
            await asyncio.sleep(0 if chance < CLOSED else 1.5)
            return False
        return await self._generate(writer, json.loads(body), chance < CUT)

    async def _generate(self, writer: asyncio.StreamWriter, request: dict[str, Any], is_cut: bool) -> bool:
        prompt, count = 5 + len(json.dumps(request)) // 4, self._random.randint(2, 24)
        usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
        await asyncio.sleep(0.002 + 0.00001 * prompt)
        if not request.get("stream"):
            await asyncio.sleep(0.002 * count)
            message = {"role": "assistant", "content": "w " * count}
            writer.write(whole("200 OK", {
                "id": "c", "object": "chat.completion", "created": 1, "model": MODEL, "usage": usage,
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}))
            return True
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        end = self._random.randint(0, count) if is_cut else count
        for _ in range(end):
            writer.write(event("w "))
            await writer.drain()
            await asyncio.sleep(0.002)
        if not is_cut:
            writer.write(event("", "stop", usage) + END)
        return not is_cut


async def read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """The path and the body of the next request."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1")
    fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    return head.split(" ")[1], await reader.readexactly(int(fields.get("content-length", 0)))


async def run(chosen: argparse.Namespace) -> None:
    """Serves until its standard input ends."""
    engine = FaultyEngine(chosen.seed, chosen.hold)

    async def start() -> asyncio.Server:
        return await asyncio.start_server(engine.serve, "127.0.0.1", chosen.port, backlog=1024, limit=1 << 20)

    async def fall(server: asyncio.Server) -> None:
        while chosen.down_every:
            await asyncio.sleep(chosen.down_every)
            server.close()
            engine.abort()
            await asyncio.sleep(1)
            server = await start()

    falling = asyncio.create_task(fall(await start()))
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    falling.cancel()
    os._exit(0)  # Requests that it holds do not keep it.


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--down-every", type=float)
    parser.add_argument("--hold", action="store_true")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
