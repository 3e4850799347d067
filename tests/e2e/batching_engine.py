#!/usr/bin/env python3
"""An engine that batches as vLLM does and computes nothing: steps take as long as they would.

    python batching_engine.py PORT [--slower 2.5] [--slots 16] [--chunk 512] [--blocks 4000]

A step takes one token of each stream, and chunks of prompts as far as `--chunk` tokens go; it lasts 20 ms, 0.1 ms for
each prompt token and 1 ms for each stream, times `--slower`. Blocks of 16 tokens are cached; a token is four
characters. Serves chat completions as streams, and vLLM's metrics, which do not say how many slots there are.
"""
import argparse
import asyncio
import collections
import hashlib
import json
import sys
import time
from typing import Any

BLOCK, TOKEN = 16, 4
STEP, PER_TOKEN, PER_STREAM = 0.020, 0.0001, 0.001


class Request:
    """A prompt, and the queue that its tokens come by."""

    def __init__(self, body: dict[str, Any]) -> None:
        text = "".join(f"{message['role']}\0{message['content']}" for message in body["messages"]).encode()
        self.prompt = max(1, len(text) // TOKEN)
        self.output = int(body.get("max_tokens", 60))
        self.computed = self.cached = self.emitted = 0
        self.has_left = False
        self.tokens: asyncio.Queue[int] = asyncio.Queue()
        chain, size = hashlib.blake2b(digest_size=8), BLOCK * TOKEN
        self.blocks = []
        for at in range(0, len(text) - size + 1, size):
            chain.update(text[at:at + size])
            self.blocks.append(chain.digest())


class Scheduler:
    """Chunked prefill, first come, first served, with a cache of prefixes."""

    def __init__(self, slower: float, slots: int, chunk: int, blocks: int) -> None:
        self._slower, self._slots, self._chunk, self._most_blocks = slower, slots, chunk, blocks
        self.waiting: collections.deque[Request] = collections.deque()
        self.running: list[Request] = []
        self._cache: collections.OrderedDict[bytes, None] = collections.OrderedDict()
        self.asked = self.found = 0
        self._arrived = asyncio.Event()

    def add(self, request: Request) -> None:
        """A request arrives."""
        self.waiting.append(request)
        self._arrived.set()

    def _admit(self, request: Request) -> None:
        known = 0
        for block in request.blocks:
            if block not in self._cache:
                break
            self._cache.move_to_end(block)
            known += 1
        request.cached = request.computed = min(known * BLOCK, request.prompt - 1)
        self.asked, self.found = self.asked + request.prompt, self.found + request.cached
        self.running.append(request)

    def _plan(self) -> list[tuple[Request, int]]:
        """Who is computed in this step, and how many tokens of its prompt."""
        self.running = [one for one in self.running if not one.has_left]
        left, step = self._chunk, []

        def take(one: Request) -> int:
            return max(0, min(one.prompt - one.computed, left))

        for one in self.running:
            step.append((one, take(one)))
            left -= max(1, step[-1][1])
        while self.waiting and len(self.running) < self._slots and left > 0:
            one = self.waiting.popleft()
            if not one.has_left:
                self._admit(one)
                step.append((one, take(one)))
                left -= step[-1][1]
        return step

    def _end(self, one: Request, prompt: int) -> None:
        one.computed += prompt
        if one.computed < one.prompt:
            return
        if prompt:
            self._cache.update(dict.fromkeys(one.blocks))
            while len(self._cache) > self._most_blocks:
                self._cache.popitem(last=False)
        one.emitted += 1
        one.tokens.put_nowait(one.emitted)
        if one.emitted >= one.output:
            self.running.remove(one)

    async def run(self) -> None:
        """One step after the other."""
        while True:
            if not self.waiting and not self.running:
                self._arrived.clear()
                await self._arrived.wait()
            began, step = time.monotonic(), self._plan()
            prompts = sum(prompt for _, prompt in step)
            streams = sum(1 for _, prompt in step if prompt == 0)
            lasts = (STEP + PER_TOKEN * prompts + PER_STREAM * streams) * self._slower
            await asyncio.sleep(began + lasts - time.monotonic())
            for one, prompt in step:
                self._end(one, prompt)

    def metrics(self) -> str:
        """What vLLM would report."""
        used = sum(one.prompt + one.emitted for one in self.running) / BLOCK / self._most_blocks
        values = {
            "num_requests_running": len(self.running), "num_requests_waiting": len(self.waiting),
            "kv_cache_usage_perc": used, "prefix_cache_queries_total": self.asked, "prefix_cache_hits_total": self.found,
        }
        lines = [f'vllm:{name}{{model_name="m"}} {value}' for name, value in values.items()]
        lines.append(f'vllm:cache_config_info{{block_size="{BLOCK}",num_gpu_blocks="{self._most_blocks}"}} 1')
        return "\n".join(lines) + "\n"


def event(**fields: Any) -> bytes:
    """A chunk of the response."""
    data = json.dumps({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", **fields})
    text = f"data: {data}\n\n"
    return f"{len(text):x}\r\n{text}\r\n".encode()


async def stream(request: Request, writer: asyncio.StreamWriter) -> None:
    """The response of a request."""
    try:
        while request.emitted < request.output or not request.tokens.empty():
            number = await request.tokens.get()
            if number == 1:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            writer.write(event(choices=[{"index": 0, "delta": {"content": "w "}, "finish_reason": None}]))
            await writer.drain()
            if number >= request.output:
                break
        usage = {"prompt_tokens": request.prompt, "completion_tokens": request.output,
                 "total_tokens": request.prompt + request.output,
                 "prompt_tokens_details": {"cached_tokens": request.cached}}
        writer.write(event(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}]))
        writer.write(event(choices=[], usage=usage))
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    finally:
        request.has_left = request.emitted < request.output


async def serve(scheduler: Scheduler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The requests of a connection."""
    fixed = {"/health": "", "/version": '{"version": "0.11.0"}',
             "/v1/models": '{"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 32768}]}'}
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").lower()
            path = head.split(" ")[1].split("?")[0]
            lengths = [line.split(":")[1] for line in head.split("\r\n") if line.startswith("content-length:")]
            body = await reader.readexactly(int(lengths[0])) if lengths else b""
            if path == "/v1/chat/completions":
                request = Request(json.loads(body))
                scheduler.add(request)
                await stream(request, writer)
            else:
                text = scheduler.metrics() if path == "/metrics" else fixed.get(path)
                status = "404 Not Found" if text is None else "200 OK"
                kind = "text/plain" if path == "/metrics" else "application/json"
                head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(text or '')}\r\n\r\n"
                writer.write((head + (text or "")).encode())
            await writer.drain()
    except (asyncio.IncompleteReadError, OSError):
        pass  # the other side has left
    finally:
        writer.close()


async def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("--slower", type=float, default=1.0)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=4000)
    chosen = parser.parse_args()
    scheduler = Scheduler(chosen.slower, chosen.slots, chosen.chunk, chosen.blocks)
    server = await asyncio.start_server(lambda *both: serve(scheduler, *both), "127.0.0.1", chosen.port, limit=1 << 22)
    async with server:
        await scheduler.run()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
