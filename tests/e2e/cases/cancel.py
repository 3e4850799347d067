"""Clients that leave: the engine's slot is free soon after (contract R.D1).

llama.cpp notices a client that left in two ways: a token it cannot write, or, while it has
nothing to write, a look at the connection after a whole second without any event inside.  Every
response to /slots or /metrics is such an event: polling them faster than that keeps it from ever
looking.  So the checks for the second way look once, late.
"""
import asyncio
import json
import socket
import struct
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import wire
from env import SLOW, Env

FREED = 2.0
QUIET = 2.0
# Goes on for many times the bounds above.
ENDLESS: dict[str, Any] = {
    "model": SLOW, "max_tokens": 3500, "temperature": 0.8,
    "messages": [{"role": "user", "content": "where does the red river go"}],
}
# A prompt the engine reads for seconds, in steps of 64 tokens.
LONG = [{"role": "user", "content": "Q" * 3000}]


def begin(env: Env) -> str:
    """The slow engine, idle; its address."""
    engine = env.engines["slow"].url
    wire.wait_until("the engine to be idle", lambda: not wire.busy_slots(engine), 15.0, every=1.2)
    return engine


def check_freed(engine: str, what: str, silent: bool = False) -> None:
    """The slot is free within the bound.  `silent`: the engine had nothing to write."""
    if silent:
        time.sleep(QUIET)  # nothing to await: asking would keep the engine from noticing
        assert not wire.busy_slots(engine), f"still busy {QUIET} s after {what}"
        return
    took = wire.wait_until(f"a free slot after {what}", lambda: not wire.busy_slots(engine), FREED)
    print(f"slot free {took * 1000:.0f} ms after {what}", file=sys.stderr)


def leave(env: Env, ask: dict[str, Any], how: str, after: bytes = b"") -> None:
    """Send a request over a bare socket and leave when the engine works on it and, if given,
    `after` was received."""
    engine = begin(env)
    url = env.url(SLOW) + "/v1/chat/completions"
    body = json.dumps(ask).encode()
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as client:
        client.sendall(wire.head_of(url, body) + body)
        wire.wait_until("the engine to begin", lambda: wire.busy_slots(engine), 5.0)
        received = b""
        while after not in received:
            chunk = client.recv(65536)
            assert chunk, f"the response ended early: {received[-200:]!r}"
            received += chunk
        if not after:
            client.setblocking(False)
            try:
                early = client.recv(65536)
            except BlockingIOError:
                early = b""
            # The head of a stream comes at once, the first token after the prompt was read.
            assert b"content" not in early.split(b"\r\n\r\n")[-1], "a token came before we left"
        if how == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    check_freed(engine, f"a {how}", silent=not after)


def case_cancel_mid_stream(env: Env) -> None:
    """The SDK's stream is closed after a few tokens."""
    engine = begin(env)
    stream = env.openai(SLOW).chat.completions.create(**ENDLESS, stream=True)
    for _, chunk in zip(range(4), stream):
        assert chunk.choices
    assert wire.busy_slots(engine) == 1
    stream.close()
    check_freed(engine, "close() mid-stream")


def case_cancel_mid_stream_reset(env: Env) -> None:
    """The client's machine resets the connection."""
    leave(env, {**ENDLESS, "stream": True}, "reset", after=b'"content":" ')


def case_cancel_before_first_token(env: Env) -> None:
    """The client leaves while the engine reads the prompt."""
    leave(env, {**ENDLESS, "messages": LONG, "stream": True}, "close")


def case_cancel_before_first_token_reset(env: Env) -> None:
    """The same with a reset."""
    leave(env, {**ENDLESS, "messages": LONG, "stream": True}, "reset")


def case_cancel_without_stream(env: Env) -> None:
    """The client of a whole response disconnects before its first byte."""
    leave(env, ENDLESS, "close")


def case_cancel_tasks(env: Env) -> None:
    """Cancelled tasks of the asynchronous SDK, streaming and not, at once."""
    engine = begin(env)

    async def ask() -> None:
        async with env.async_openai(SLOW) as client:
            tasks = [
                asyncio.create_task(client.chat.completions.create(**ENDLESS)),
                asyncio.create_task(drain(client)),
            ]
            await asyncio.to_thread(
                wire.wait_until, "two busy slots", lambda: wire.busy_slots(engine) == 2, 5.0
            )
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.to_thread(check_freed, engine, "cancelled tasks", silent=True)

    async def drain(client: Any) -> None:
        async for _ in await client.chat.completions.create(**ENDLESS, stream=True):
            pass

    asyncio.run(ask())


def case_cancel_leaves_neighbours_alone(env: Env) -> None:
    """A stream beside a cancelled one goes on to its end."""
    engine = begin(env)
    client = env.openai(SLOW)
    ask = {**ENDLESS, "max_tokens": 60, "stream": True}
    staying = client.chat.completions.create(**ask)
    chunks = [next(staying)]
    leaving = client.chat.completions.create(**ENDLESS, stream=True)
    next(leaving)
    leaving.close()
    chunks += list(staying)
    assert chunks[-1].choices[0].finish_reason == "length", chunks[-1]
    assert sum(bool(c.choices[0].delta.content) for c in chunks) == 60
    check_freed(engine, "both ended")
