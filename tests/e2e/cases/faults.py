"""Engines that die: requests go on, streams end honestly, a returned engine is used again."""
import http.client
import json
import sys

import openai

import wire
from cases.chat import ASK
from cases.errors import CHAT
from env import Env
from processes import Engine

QUESTIONS = 50


def mortal_of(env: Env) -> Engine:
    """The engine that may be killed, alive whatever the case before did."""
    env.proxy("faults")
    mortal = env.engines["mortal"]
    if mortal.process.poll() is not None:
        mortal.restart()
    return mortal


def backend_of(client: openai.OpenAI) -> str:
    """One small request; returns the backend that served it."""
    raw = client.chat.completions.with_raw_response.create(**{**ASK, "max_tokens": 4})
    assert raw.parse().choices[0].finish_reason == "length"
    return raw.headers["x-penstock-backend"]


def case_killed_engine(env: Env) -> None:
    """SIGKILL among 50 requests: no client notices; restarted, the engine works again."""
    mortal = mortal_of(env)
    client = env.openai(proxy="faults")
    used: list[str] = []
    for number in range(QUESTIONS):
        if number == QUESTIONS // 3:
            mortal.kill()
        try:
            used.append(backend_of(client))
        except openai.APIError as error:
            raise AssertionError(f"request {number} of {QUESTIONS}: {error!r}") from error
    alive, dead = used[: QUESTIONS // 3], used[QUESTIONS // 3 :]
    assert {"mortal", "plain-b"} == set(alive), f"not in turn before: {alive}"
    assert set(dead) == {"plain-b"}, f"after the kill: {dead}"
    mortal.restart()
    took = wire.wait_until(
        "the restarted engine to be used", lambda: backend_of(client) == "mortal", 3.0
    )
    print(f"used again {took:.2f} s after its restart", file=sys.stderr)
    assert wire.metric(mortal.url, "tokens_predicted_total") > 0


def case_killed_mid_stream(env: Env) -> None:
    """A stream whose engine dies never looks finished and is not retried."""
    mortal = mortal_of(env)
    body = json.dumps({**ASK, "max_tokens": 1900, "stream": True}).encode()
    for _ in range(4):  # in turn: one of two goes to the engine we may kill
        connection = wire.connect(env.proxy("faults").url)
        connection.request("POST", CHAT, body, {"content-type": "application/json"})
        response = connection.getresponse()
        if response.headers["x-penstock-backend"] == "mortal":
            break
        connection.close()
    else:
        raise AssertionError("the engine was never picked")
    received, broken = response.read1(4096), False
    mortal.kill()
    try:
        while chunk := response.read1(65536):
            received += chunk
    except (http.client.HTTPException, OSError):
        broken = True
    finally:
        connection.close()
        mortal.restart()
    whole, _, _ = received.rpartition(b"\n\n")
    events = wire.to_events(whole)
    assert "[DONE]" not in events, "a cut stream looks whole"
    has_error = any(event.startswith('{"error"') for event in events)
    assert has_error or broken, f"a clean end: {received[-200:]!r}"
    ids = {json.loads(e).get("id") for e in events if e.startswith('{"choices"')}
    assert len(ids) == 1, f"a second response was glued on: {ids}"


def case_killed_mid_stream_sdk(env: Env) -> None:
    """The SDK raises instead of ending its loop."""
    mortal = mortal_of(env)
    client = env.openai(proxy="faults")
    wire.wait_until("the engine to be used", lambda: backend_of(client) == "mortal", 5.0)
    backend_of(client)  # the other one's turn: the next is the mortal's
    raw = client.chat.completions.with_raw_response.create(
        **{**ASK, "max_tokens": 1900}, stream=True
    )
    assert raw.headers["x-penstock-backend"] == "mortal", raw.headers
    stream = raw.parse()
    next(stream)
    mortal.kill()
    try:
        for _ in stream:
            pass
    except Exception as error:  # an error event or a broken body: each is an exception
        print(f"the SDK raised {type(error).__name__}: {error}", file=sys.stderr)
    else:
        raise AssertionError("the SDK took the cut stream for a whole one")
    finally:
        mortal.restart()
