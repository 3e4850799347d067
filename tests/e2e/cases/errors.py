"""Every error class of the SDKs, with the fields the real API has."""
import json
import time
from typing import Any, Callable

import anthropic
import openai

import wire
from cases.chat import ASK, WEATHER
from env import PLAIN, Env

CHAT = "/v1/chat/completions"
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def refused(kind: type, ask: Callable[[], Any]) -> Any:
    """The error `ask` raises, which must be exactly of `kind`."""
    try:
        ask()
    except (openai.APIError, anthropic.APIError) as error:
        assert type(error) is kind, f"{type(error).__name__}: {error}"
        return error
    raise AssertionError(f"no {kind.__name__}")


def check_body(response: wire.Response, status: int, code: str) -> dict[str, Any]:
    """An OpenAI error body with all four fields; the error in it."""
    assert response.status == status, (response.status, response.body)
    assert response.headers["content-type"].startswith("application/json"), response.headers
    body = response.json()
    assert set(body) == {"error"}, body
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert error["code"] == code and error["message"] and error["type"], error
    return error


def case_unknown_model(env: Env) -> None:
    """404 `model_not_found`, naming the model."""
    env.proxy()
    client = env.openai()
    ask = {**ASK, "model": "no-such-model"}
    for streaming in (False, True):
        error = refused(
            openai.NotFoundError, lambda: client.chat.completions.create(**ask, stream=streaming)
        )
        assert (error.code, error.param) == ("model_not_found", "model"), error.body
        assert error.type == "invalid_request_error", error.body
        assert "no-such-model" in error.message, error.message
        assert error.request_id, "no x-request-id"


def case_alias_to_nowhere(env: Env) -> None:
    """An alias of an unserved model: 404 naming both."""
    client = env.openai(proxy="declared")
    error = refused(
        openai.NotFoundError, lambda: client.chat.completions.create(**{**ASK, "model": "unserved"})
    )
    assert "unserved" in error.message and "not-served" in error.message, error.message


def case_missing_capability(env: Env) -> None:
    """400 `capability_mismatch` that lists what is missing."""
    client = env.openai(proxy="declared")
    picture = [{"role": "user", "content": [{"type": "text", "text": "what"}, IMAGE]}]
    ask = {**ASK, "messages": picture}
    error = refused(openai.BadRequestError, lambda: client.chat.completions.create(**ask))
    assert error.code == "capability_mismatch" and "vision" in error.message, error.body
    ask |= {"model": "chat-only", "tools": [WEATHER]}
    error = refused(openai.BadRequestError, lambda: client.chat.completions.create(**ask))
    assert "vision" in error.message and "tools" in error.message, error.message


def case_missing_operation(env: Env) -> None:
    """A model that serves chat only: embeddings are a 400 naming the operation."""
    client = env.openai(proxy="declared")
    error = refused(
        openai.BadRequestError, lambda: client.embeddings.create(model="chat-only", input="x")
    )
    assert error.code == "capability_mismatch" and "embeddings" in error.message, error.body


def case_context_too_long(env: Env) -> None:
    """A prompt beyond the declared context is refused before it gets to an engine."""
    env.proxy("declared")
    long = [{"role": "user", "content": "red river " * 1000}]
    error = refused(
        openai.BadRequestError,
        lambda: env.openai(proxy="declared").chat.completions.create(**{**ASK, "messages": long}),
    )
    assert error.code == "context_length_exceeded", error.body


def case_engine_errors_are_relayed(env: Env) -> None:
    """An engine's own 400 arrives unchanged.  The estimate lets this prompt pass (a quarter of
    a token per character), the engine counts a token per character."""
    body = {**ASK, "messages": [{"role": "user", "content": "Q" * 6000}]}
    response = wire.fetch(env.url() + CHAT, body)
    direct = wire.fetch(env.engines["plain-a"].url + CHAT, body)
    assert response.status == direct.status == 400, response
    assert response.body == direct.body, response.body
    error = refused(openai.BadRequestError, lambda: env.openai().chat.completions.create(**body))
    assert error.type == "exceed_context_size_error", error.body


def case_malformed_requests(env: Env) -> None:
    """Bad JSON and wrong types are 400s with our codes and never reach an engine."""
    url = env.proxy().url + CHAT
    messages = json.dumps(ASK["messages"])
    bodies = {
        b'{"model": "tiny/plain:1", "messages": [': "invalid_json",
        b"": "invalid_json",
        b'{"model": "x", "messages": []} trailing': "invalid_json",
        b'{"model": 7, "messages": []}': "invalid_type",
        f'{{"model": "{PLAIN}", "messages": "hello"}}'.encode(): "invalid_type",
        f'{{"model": "", "messages": {messages}}}'.encode(): "missing_model",
        f'{{"messages": {messages}}}'.encode(): "missing_model",
    }
    for body, code in bodies.items():
        error = check_body(wire.fetch(url, body), 400, code)
        assert error["type"] == "invalid_request_error", error
    client = env.openai()
    cut = b'{"model": "'
    error = refused(
        openai.BadRequestError,
        lambda: client.post("/chat/completions", cast_to=object, content=cut),
    )
    assert error.code == "invalid_json", error.body


def case_unknown_path_and_method(env: Env) -> None:
    """404 for a path that is not ours, 405 with Allow for a wrong method."""
    url = env.proxy().url
    check_body(wire.fetch(url + "/v1/nothing", ASK), 404, "unknown_path")
    response = wire.fetch(url + CHAT)
    check_body(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "POST", response.headers


def case_anthropic_errors(env: Env) -> None:
    """On /v1/messages errors have Anthropic's shape."""
    env.proxy()
    ask = {"max_tokens": 4, "messages": ASK["messages"]}
    client = env.anthropic()
    error = refused(
        anthropic.NotFoundError, lambda: client.messages.create(model="no-such-model", **ask)
    )
    assert error.body["type"] == "error", error.body
    assert error.body["error"]["type"] == "not_found_error", error.body
    response = wire.fetch(env.url() + "/v1/messages", b"{")
    assert response.status == 400, response
    assert response.json()["error"]["type"] == "invalid_request_error", response.body


def case_all_backends_down(env: Env) -> None:
    """503 at once with Retry-After, once the engine is gone."""
    url = env.proxy("down").url + CHAT
    ask = {**ASK, "model": env.engines["doomed"].alias}
    assert wire.fetch(url, ask).status == 200
    env.engines["doomed"].kill()

    def is_refused() -> bool:
        began = time.monotonic()
        response = wire.fetch(url, ask)
        # Until a check has noticed, the attempt itself fails: a 503 all the same, as fast.
        assert response.status == 503, (response.status, response.body)
        assert int(response.headers["retry-after"]) >= 1, response.headers
        assert time.monotonic() - began < 1.0, "slow to say no"
        return json.loads(response.body)["error"]["code"] == "no_healthy_backend"

    wire.wait_until("the checks notice", is_refused, 5.0)
    response = wire.fetch(url, ask)
    check_body(response, 503, "no_healthy_backend")
    assert int(response.headers["retry-after"]) >= 1, response.headers
    client = env.openai(proxy="down")
    error = refused(openai.InternalServerError, lambda: client.chat.completions.create(**ask))
    assert (error.status_code, error.code) == (503, "no_healthy_backend"), error.body
