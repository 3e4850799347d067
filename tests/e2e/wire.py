"""Raw HTTP without an SDK: requests, event streams, bounded waits, free ports."""
import contextlib
import http.client
import itertools
import json
import random
import re
import socket
import time
from dataclasses import dataclass
from typing import Any, Callable
from urllib.parse import urlsplit

TIMEOUT = 20.0
# What differs between two runs of the same deterministic request.
_VARYING = re.compile(rb'("id":"[^"]*"|"created":\d+|,"timings":\{[^}]*\})')


@dataclass
class Response:
    """A whole HTTP response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def connect(url: str, timeout: float = TIMEOUT) -> http.client.HTTPConnection:
    """A connection to the server `url` names."""
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)


def fetch(url: str, body: Any = None, method: str | None = None, **headers: str) -> Response:
    """One request; `body` may be bytes, or a value sent as JSON.  Underscores in header
    names stand for dashes."""
    connection = connect(url)
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        names.setdefault("content-type", "application/json")
    try:
        path = urlsplit(url).path or "/"
        connection.request(method or ("GET" if body is None else "POST"), path, body, names)
        response = connection.getresponse()
        return Response(response.status, response.headers, response.read())
    finally:
        connection.close()


def head_of(url: str, body: bytes) -> bytes:
    """A request head for a raw socket."""
    parts = urlsplit(url)
    lines = [
        f"POST {parts.path} HTTP/1.1",
        f"host: {parts.netloc}",
        "content-type: application/json",
        "authorization: Bearer any",
        f"content-length: {len(body)}",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def mask(stream: bytes) -> bytes:
    """An event stream without what no two runs share: ids, times, timings."""
    return _VARYING.sub(b"", stream)


def to_events(stream: bytes) -> list[str]:
    """The `data:` payloads of an event stream."""
    lines = stream.decode().replace("\r\n", "\n").split("\n")
    return [line[5:].strip() for line in lines if line.startswith("data:")]


def metric(engine_url: str, name: str) -> float:
    """One llama.cpp metric."""
    text = fetch(engine_url + "/metrics").body.decode()
    found = re.search(rf"^llamacpp:{name} (\S+)$", text, re.MULTILINE)
    if found is None:
        raise AssertionError(f"the engine has no metric {name}")
    return float(found.group(1))


def busy_slots(engine_url: str) -> int:
    """How many requests the engine is working on."""
    return sum(slot["is_processing"] for slot in fetch(engine_url + "/slots").json())


def wait_until(what: str, ready: Callable[[], Any], limit: float, every: float = 0.02) -> float:
    """Poll until `ready` is true; the seconds it took.  A refused connection counts as no."""
    began = time.monotonic()
    while True:
        try:
            if ready():
                return time.monotonic() - began
        except (OSError, http.client.HTTPException):
            pass  # not up yet, or already gone: the limit decides
        if time.monotonic() - began > limit:
            raise AssertionError(f"{what}: not within {limit:g} s")
        time.sleep(every)


# Below the ephemeral range: from that one, a mock engine of a story that runs beside this could
# take the port before penstock listens on it, and its 200 would look like penstock's readiness.
# Apart from the ports of the stories (`free_address`), those that browsers refuse, and penstock's
# own defaults.
_FREE_PORTS = [port for port in range(7_000, 10_000) if port not in (8080, 9090)]
random.shuffle(_FREE_PORTS)
_ports = itertools.cycle(_FREE_PORTS)


def free_port() -> int:
    """A port without a listener, which nothing else in this process gets soon."""
    for port in itertools.islice(_ports, len(_FREE_PORTS)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port from 7000 to 9999 is free")


class DeadPort:
    """A port that refuses connections for as long as this lives."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()
