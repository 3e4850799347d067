"""penstock reads a real engine's load, and scraping disturbs nothing."""
import json
import socket
import struct
from typing import Any
from urllib.parse import urlsplit

import wire
from env import SLOW, Env

ASK: dict[str, Any] = {
    "model": SLOW, "max_tokens": 700, "temperature": 0.8,
    "messages": [{"role": "user", "content": "where does the red river go"}],
}
# llama.cpp is scraped every 1.2 s, and looks for its client after a second in which it is not.
SEEN = 6.0


def telemetry_of(env: Env) -> dict[str, Any]:
    """The slow engine's telemetry in `/fleet`."""
    fleet = wire.fetch(env.proxy("telemetry").admin + "/fleet").json()
    row = next(row for row in fleet["backends"] if row["name"] == "slow")
    return row.get("telemetry") or {}


def await_running(env: Env, count: int) -> None:
    """Only penstock queries the engine: a query from here would keep it from noticing a disconnect."""
    wire.wait_until(
        f"{count} running", lambda: telemetry_of(env).get("running") == count, SEEN, every=0.1
    )


def case_engine_load_is_seen(env: Env) -> None:
    """A stream shows as running while it lasts, by the engine's own metrics."""
    await_running(env, 0)
    stream = env.openai(SLOW, proxy="telemetry").chat.completions.create(**ASK, stream=True)
    assert next(iter(stream)).choices
    await_running(env, 1)
    now = telemetry_of(env)
    assert now["standing"] == "fresh" and now["waiting"] == 0 and now["load"] >= 1, now
    stream.close()
    await_running(env, 0)


def case_engine_asked_still_notices_who_left(env: Env) -> None:
    """A client that leaves while the engine reads its prompt is noticed though metrics are read."""
    await_running(env, 0)
    long = [{"role": "user", "content": "Q" * 3000}]
    body = json.dumps({**ASK, "messages": long, "stream": True}).encode()
    url = env.url(SLOW, "telemetry") + "/v1/chat/completions"
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as client:
        client.sendall(wire.head_of(url, body) + body)
        await_running(env, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await_running(env, 0)
