"""Bytes reach engine and client as the other side sent them."""
import http.client
import json
from typing import Any

import wire
from cases.chat import ASK
from env import PLAIN, Env
from recorder import Exchange

CHAT = "/v1/chat/completions"
# Spacing, escapes and unknown fields a rewriting proxy would lose.
ODD = (
    '{ "messages" :[{"content":"caf\\u00e9 \\ud83d\\ude00 é","role":"user"} ],\n\t"max_tokens":6 ,'
    '"temperature":0.0, "x_unknown": [1.50, 1e2, null],"model" : "MODEL" ,"stream":STREAM}'
)


def odd_body(model: str, streaming: bool) -> bytes:
    """The odd request for `model`."""
    return ODD.replace("MODEL", model).replace("STREAM", json.dumps(streaming)).encode()


def sent(env: Env, body: bytes) -> tuple[wire.Response, Exchange]:
    """The client's response to `body`, and the exchange the recorder saw."""
    url = env.proxy("declared").url + CHAT
    before = env.recorder.exchanges(CHAT)
    response = wire.fetch(url, body, authorization="Bearer client-secret")
    assert response.status == 200, response
    # Not the last one: they are in the order of their connections. Their heads have ids, so that none is like another.
    new = [one for one in env.recorder.exchanges(CHAT) if one not in before]
    assert len(new) == 1, f"{len(new)} requests reached the engine"
    return response, new[0]


def case_sse_equals_the_engine(env: Env) -> None:
    """A streamed body through penstock and straight from the engine, ids and times apart."""
    body = json.dumps({**ASK, "stream": True, "stream_options": {"include_usage": True}}).encode()
    response = wire.fetch(env.url() + CHAT, body)
    direct = wire.fetch(env.engines["plain-a"].url + CHAT, body)
    assert response.status == direct.status == 200
    assert wire.mask(response.body) == wire.mask(direct.body)
    assert wire.to_events(response.body)[-1] == "[DONE]"


def case_responses_are_byte_identical(env: Env) -> None:
    """Streamed or whole, the client gets the very bytes the engine sent."""
    for streaming in (True, False):
        response, exchange = sent(env, odd_body(PLAIN, streaming))
        assert response.body == exchange.response, f"streaming {streaming}"


def case_requests_are_byte_identical(env: Env) -> None:
    """The engine gets the very bytes the client sent."""
    for streaming in (True, False):
        body = odd_body(PLAIN, streaming)
        _, exchange = sent(env, body)
        assert exchange.body == body, exchange.body


def case_alias_changes_only_the_model(env: Env) -> None:
    """Alias, chain of aliases and upstream_id: only the model value differs."""
    for asked in ("gpt-4", "gpt-4-turbo", "public-name"):
        _, exchange = sent(env, odd_body(asked, True))
        assert exchange.body == odd_body(PLAIN, True), exchange.body


def case_client_key_stays_here(env: Env) -> None:
    """The client's key does not reach the engine; framing and host are right."""
    _, exchange = sent(env, odd_body(PLAIN, True))
    head = exchange.head.lower()
    assert b"client-secret" not in head, "the client's key was passed on"
    assert head.count(b"\r\ncontent-length:") == 1, head
    assert b"\r\ntransfer-encoding:" not in head, head
    assert f"\r\nhost: {env.recorder.url.removeprefix('http://')}".encode() in head, head


def case_stream_headers(env: Env) -> None:
    """An event stream is marked as one, and every response has a request id."""
    env.proxy()
    response = wire.fetch(env.url() + CHAT, {**ASK, "stream": True})
    headers = response.headers
    assert headers["content-type"].startswith("text/event-stream"), headers
    assert "no-cache" in (headers["cache-control"] or ""), headers
    assert headers["x-accel-buffering"] == "no", headers
    assert headers["x-request-id"], headers
    assert headers["x-penstock-backend"] in ("plain-a", "plain-b"), headers
    assert len(headers.get_all("x-accel-buffering")) == 1, "the engine sets it too: one is enough"


def case_request_ids(env: Env) -> None:
    """The SDK shows our request id; ids differ from request to request."""
    env.proxy()
    client = env.openai()
    ids = {client.chat.completions.create(**{**ASK, "max_tokens": 1})._request_id for _ in range(3)}
    assert None not in ids and len(ids) == 3, ids


def case_connection_is_reused(env: Env) -> None:
    """One client connection carries a stream, a plain response and an error after each other.
    (The engine alone would not: it closes after every stream.)"""
    env.proxy()
    connection = wire.connect(env.url())
    bodies: list[tuple[int, Any]] = [
        (200, {**ASK, "stream": True}), (200, ASK), (400, b'{"model": "'), (200, ASK),
    ]
    sockets = set()
    for status, body in bodies:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", CHAT, raw, {"content-type": "application/json"})
        sockets.add(connection.sock)
        response: http.client.HTTPResponse = connection.getresponse()
        response.read()
        assert response.status == status, response.status
    connection.close()
    assert len(sockets) == 1, "the connection was closed in between"
