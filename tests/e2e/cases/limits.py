"""Rate limits and timeouts, as the SDKs report them and act on them."""
import time

import anthropic
import openai

from cases.chat import ASK
from cases.errors import refused
from env import Env
from hosted import LIMITED, LIMITED_ONCE, SILENT


def case_rate_limit_error(env: Env) -> None:
    """A hosted API's 429 is a RateLimitError with all its fields.  Every backend has been tried
    and the wait is long: the SDK is not to try again, so one call costs one request."""
    client = env.openai(proxy="hosted", max_retries=2)
    ask = {**ASK, "model": LIMITED}
    for streaming in (False, True):
        await_cooldown()
        before = env.hosted.requests.get(LIMITED, 0)
        error = refused(
            openai.RateLimitError, lambda: client.chat.completions.create(**ask, stream=streaming)
        )
        assert (error.status_code, error.code) == (429, "rate_limit_exceeded"), error.body
        headers = error.response.headers
        assert headers["retry-after"] == "20", headers
        assert headers["x-ratelimit-remaining-requests"] == "0", headers
        assert headers["x-upstream-request-id"] == "req_hosted", headers
        assert error.request_id and error.request_id != "req_hosted", error.request_id
        assert env.hosted.requests[LIMITED] == before + 1, "the SDK tried again"


def await_cooldown() -> None:
    """Wait until no refusal of an earlier case pauses the backend (`routing.cooldown.max`)."""
    time.sleep(1.1)


def case_anthropic_rate_limit_error(env: Env) -> None:
    """The same in Anthropic's dialect, with the request id of the hosted API."""
    client = env.anthropic(proxy="hosted", max_retries=2)
    await_cooldown()
    before = env.hosted.requests.get(LIMITED, 0)
    ask = {"model": LIMITED, "max_tokens": 4, "messages": ASK["messages"]}
    error = refused(anthropic.RateLimitError, lambda: client.messages.create(**ask))
    assert error.response.headers["retry-after"] == "20", error.response.headers
    assert error.request_id == "req_hosted", error.request_id
    assert error.body["error"]["type"] == "rate_limit_error", error.body
    assert env.hosted.requests[LIMITED] == before + 1, "the SDK tried again"


def case_short_rate_limit_is_retried(env: Env) -> None:
    """A 429 with a wait of a second: the SDK waits, tries again and succeeds."""
    client = env.openai(proxy="hosted", max_retries=1)
    await_cooldown()
    began = time.monotonic()
    response = client.chat.completions.create(**{**ASK, "model": LIMITED_ONCE})
    assert response.choices[0].message.content == "done", response
    assert 0.9 < time.monotonic() - began < 8.0
    assert env.hosted.requests[LIMITED_ONCE] == 2


def case_response_timeout(env: Env) -> None:
    """A backend that stays silent: 504 `response_timeout`, which the SDKs know as a server error."""
    ask = {**ASK, "model": SILENT}
    await_cooldown()
    client = env.openai(proxy="hosted")
    error = refused(openai.InternalServerError, lambda: client.chat.completions.create(**ask))
    assert (error.status_code, error.code) == (504, "response_timeout"), error.body
    ask = {"model": SILENT, "max_tokens": 4, "messages": ASK["messages"]}
    kind = getattr(anthropic, "DeadlineExceededError", anthropic.InternalServerError)
    try:
        env.anthropic(proxy="hosted").messages.create(**ask)
    except anthropic.APIStatusError as error:
        assert isinstance(error, (kind, anthropic.InternalServerError)), type(error)
        assert error.status_code == 504, error.status_code
        assert error.body["error"]["type"] == "timeout_error", error.body
        assert error.body["request_id"] == error.request_id, error.body
    else:
        raise AssertionError("no timeout")


def case_client_timeout(env: Env) -> None:
    """The SDK's own timeout: APITimeoutError, and the backend is let go at once."""
    await_cooldown()
    env.hosted.left.clear()
    client = env.openai(proxy="hosted", timeout=0.3)
    refused(
        openai.APITimeoutError,
        lambda: client.chat.completions.create(**{**ASK, "model": SILENT}),
    )
    assert env.hosted.left.wait(1.0), "the backend still works for a client that left"
