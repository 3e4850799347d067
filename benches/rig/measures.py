"""The measurements: each yields rows, one JSON line each."""
import contextlib
import http.client
import json
import random
import socket
import subprocess
import time

import processes

# What the clients do: the proxy's door they take, connections, and the other arguments of loadgen.
SCENARIOS = {
    "S1": ("plain", 32, ["--body", 300]),
    "S2": ("plain", 16, ["--body", 32 << 10]),
    "S2new": ("plain", 16, ["--body", 32 << 10, "--new-prompts"]),
    "S3": ("plain", 4, ["--body", 1 << 20, "--image"]),
    "S4pace": ("plain", 40, ["--body", 300, "--stream"]),
    "S1tls": ("tls", 32, ["--body", 300]),
    "S2tls": ("tls", 16, ["--body", 32 << 10]),
    "S1h2c": ("http2", 8, ["--body", 300, "--http2", "--streams", 4]),
    "S1h2": ("tls", 8, ["--body", 300, "--http2", "--streams", 4]),
    "handshake": ("tls", 16, ["--body", 300, "--fresh"]),
}
PACED = dict(event_gap_ms=5, events=200)

OPEN_STREAMS = 1000
HELD = dict(event_gap_ms=1000, events=15)
IDLE_CONNECTIONS = 2000
STALLED = 100
STALL_SECONDS = 6
FLOOD = dict(event_gap_ms=0, events=200000)
CANCELS = 200
CANCEL_SECONDS = 3


class Clients:
    """A running loadgen."""

    def __init__(self, rig, cpu, port, *arguments):
        command = [rig / "loadgen", "--to", f"127.0.0.1:{port}", *arguments]
        self.process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            preexec_fn=processes.prepare(cpu))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        processes.stop(self.process)
        self.process.stdout.close()

    def result(self, seconds):
        out, _ = self.process.communicate(timeout=seconds)
        return json.loads(out)


def cpu_per_unit(peer, engine, scenario, seconds):
    """Runs the clients once and divides the proxy's CPU time by all they finished."""
    door, connections, arguments = SCENARIOS[scenario]
    trust = ["--ca", peer.certificate / "cert.pem"] if door == "tls" else []
    engine.set(**PACED)
    pid = peer.process.pid
    seen, cpu, machine = engine.get("/_stats"), processes.cpu_time(pid), processes.cpu_ticks(peer.cpu)
    began = time.monotonic()
    with Clients(engine.rig, engine.cpu, peer.doors[door], "--connections", connections,
                 "--seconds", seconds, *arguments, *trust) as clients:
        result = clients.result(seconds + 40)
    wall = time.monotonic() - began
    spent = processes.cpu_between(cpu, processes.cpu_time(pid))
    busy, stolen, ticks = (b - a for a, b in zip(machine, processes.cpu_ticks(peer.cpu)))
    after = engine.get("/_stats")
    requests = after["requests"] - seen["requests"]
    unit = "event" if scenario == "S4pace" else "request"
    share = spent / 1e6 / wall
    return {
        "kind": "cpu", "scenario": scenario, "peer": peer.name, "unit": unit,
        "cpu_us": round(spent / max(1, result[unit + "s"]), 3),
        "per_second": round(result[unit + "s"] / result["seconds"], 1),
        "cpu_share": round(share, 3),
        "others_share": round(max(0.0, busy / max(1, ticks) - share), 3),
        "stolen_share": round(stolen / max(1, ticks), 3),
        "engine_body_bytes": round((after["body_bytes"] - seen["body_bytes"]) / max(1, requests)),
        **{name: result[name] for name in (
            "requests", "events", "errors", "error_kinds", "latency_us", "event_way_us")},
    }


def memory(peer, engine):
    """RSS of a fresh proxy, idle and with streams open, each opened by a 256 KiB body."""
    engine.set(**HELD)
    time.sleep(2)
    pid = peer.process.pid
    idle = processes.resident_kib(pid)
    anonymous = processes.resident_kib(pid, "RssAnon")
    samples, most_open = [], 0
    with Clients(engine.rig, engine.cpu, peer.port, "--mode", "hold", "--stream",
                 "--connections", OPEN_STREAMS, "--body", 256 << 10) as clients:
        end = time.monotonic() + 25
        while time.monotonic() < end and len(samples) < 8 and clients.process.poll() is None:
            time.sleep(0.5)
            now_open = engine.get("/_stats")["running"]
            most_open = max(most_open, now_open)
            if now_open == OPEN_STREAMS:
                samples.append(processes.resident_kib(pid))
        result = clients.result(60)
    open_kib = max(samples, default=None)
    return {
        "kind": "memory", "peer": peer.name, "idle_kib": idle,
        "idle_anonymous_kib": anonymous, "open_kib": open_kib,
        "peak_kib": processes.resident_kib(pid, "VmHWM"), "most_open": most_open,
        "kib_per_stream": round((open_kib - idle) / OPEN_STREAMS, 1) if samples else None,
        **{name: result[name] for name in ("requests", "errors", "error_kinds")},
    }


def idle_connections(peer, engine):
    """RSS per connection that is idle after one 32 KiB body, and whether all are served again."""
    engine.set(event_gap_ms=0, events=1)
    time.sleep(1)
    pid = peer.process.pid
    fresh = processes.resident_kib(pid)
    large, small = (chat_request(peer.port, size, False) for size in (32 << 10, 300))
    errors = 0
    with contextlib.ExitStack() as open_ones:
        clients = [open_ones.enter_context(connect(peer.port)) for _ in range(IDLE_CONNECTIONS)]
        for client in clients:
            errors += not responded(client, large)
        time.sleep(2)
        idle = processes.resident_kib(pid)
        for client in clients:
            errors += not responded(client, small)
    return {"kind": "idle", "peer": peer.name, "connections": IDLE_CONNECTIONS, "errors": errors,
            "kib_per_connection": round((idle - fresh) / IDLE_CONNECTIONS, 1)}


def stalled_readers(peer, engine):
    """RSS per client that requests a long stream and reads none of it."""
    engine.set(**FLOOD)
    time.sleep(1)
    pid = peer.process.pid
    fresh = processes.resident_kib(pid)
    request = chat_request(peer.port, 300, True)
    with contextlib.ExitStack() as open_ones:
        for _ in range(STALLED):
            open_ones.enter_context(connect(peer.port)).sendall(request)
        time.sleep(STALL_SECONDS)
        stalled = processes.resident_kib(pid)
    return {"kind": "stalled", "peer": peer.name, "clients": STALLED,
            "kib_per_client": round((stalled - fresh) / STALLED, 1)}


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def chat_request(port, size, is_stream):
    """A chat request with a body of about `size` bytes."""
    body = json.dumps({"model": "mock-model", "stream": is_stream,
                       "messages": [{"role": "user", "content": "word " * (size // 5)}]})
    return (f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            f"{body}").encode()


def responded(client, request):
    """Whether a request on an open connection gets a whole response with status 200."""
    try:
        client.sendall(request)
        response = http.client.HTTPResponse(client, method="POST")
        response.begin()
        return response.status == 200 and bool(response.read())
    except (OSError, http.client.HTTPException):
        return False


def cancels(name, port, engine):
    """Clients that leave, before the response and within it, beside 40 paced streams."""
    rng = random.Random(7)
    for phase in ("waiting", "streaming"):
        engine.set(**PACED)
        left = {}
        with Clients(engine.rig, engine.cpu, port, "--connections", 40, "--seconds", 120,
                     "--stream"):
            time.sleep(0.5)
            for index in range(CANCELS):
                user = f"{'wait' if phase == 'waiting' else 'stream'}-{name}-{index}"
                left[user] = leave(port, user, phase, rng.uniform(0, 0.02))
            seen = wait_for_cancels(engine, left)
        delays = sorted((seen[user] - at) / 1e6 for user, at in left.items() if user in seen)
        yield {
            "kind": "cancel", "peer": name, "phase": phase, "cancels": len(left),
            "errors": len(left) - len(delays), "p50_ms": quantile(delays, 0.5),
            "p99_ms": quantile(delays, 0.99), "max_ms": quantile(delays, 1.0),
        }


def leave(port, user, phase, more):
    """Sends a request and closes; returns the time of the close on the machine's clock."""
    # Before the response streams and others look the same to a client, but not to a proxy.
    stream = phase == "streaming" or user.endswith(tuple("02468"))
    body = json.dumps({"model": "mock-model", "stream": stream, "user": user,
                       "messages": [{"role": "user", "content": "x" * 200}]},
                      separators=(",", ":"))
    head = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n")
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall((head + body).encode())
        if phase == "streaming":
            seen = b""
            while b"@@" not in seen:
                piece = client.recv(65536)
                if not piece:
                    break
                seen += piece
            time.sleep(more)
        else:
            # Long enough to be upstream.
            time.sleep(0.03 + more)
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def wait_for_cancels(engine, left):
    """The engine's records, once complete or timed out."""
    end = time.monotonic() + CANCEL_SECONDS
    while True:
        seen = engine.get("/_cancels")
        if left.keys() <= seen.keys() or time.monotonic() > end:
            return seen
        time.sleep(0.1)


def quantile(ordered, share):
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2)
