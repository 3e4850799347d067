"""Refusals of keys, zones, budgets and limits: each SDK raises its class for the status, with the code
and the words of penstock, and sends a request again only where that can help."""
from typing import Any, Callable

import anthropic
import ollama
import openai

import wire
from cases.chat import ASK
from cases.errors import refused
from configs import KEY_FUTURE, KEY_INSIDE, KEY_PAST, KEY_POOR, KEY_SLOW, KEY_STAFF
from env import PLAIN, TOOLS, Env
from recorder import Recorder

MESSAGES = ASK["messages"]
# More than the SDKs try by default.
RETRIES = 3
# Of anthropic, the class of a 503.
UNAVAILABLE = getattr(anthropic, "ServiceUnavailableError", anthropic.InternalServerError)


def front(env: Env) -> Recorder:
    """A relay before penstock that counts what the SDKs send, their own retries among it."""
    if not hasattr(env, "front"):
        env.front = env.keep(Recorder(env.proxy("teams").url))
    return env.front


def caught(env: Env, path: str, ask: Callable[[], Any]) -> tuple[Any, int]:
    """The error that `ask` raises, or nothing, and the number of requests that it sent."""
    before, error = len(front(env).exchanges(path)), None
    try:
        ask()
    except (openai.APIError, anthropic.APIError, ollama.ResponseError) as raised:
        error = raised
    return error, len(front(env).exchanges(path)) - before


def ask_openai(env: Env, key: str, model: str = PLAIN, **more: Any) -> tuple[Any, int]:
    """A chat by OpenAI's SDK, with its retries."""
    url = front(env).url + "/v1"
    sdk = env.keep(openai.OpenAI(base_url=url, api_key=key, max_retries=RETRIES, timeout=wire.TIMEOUT))
    ask = {**ASK, "model": model, **more}
    return caught(env, "/v1/chat/completions", lambda: sdk.chat.completions.create(**ask))


def ask_anthropic(env: Env, key: str, model: str = PLAIN) -> tuple[Any, int]:
    """The same by Anthropic's SDK."""
    url = front(env).url
    sdk = env.keep(anthropic.Anthropic(base_url=url, api_key=key, max_retries=RETRIES, timeout=wire.TIMEOUT))
    ask = {"model": model, "max_tokens": ASK["max_tokens"], "messages": MESSAGES}
    return caught(env, "/v1/messages", lambda: sdk.messages.create(**ask))


def ask_ollama(env: Env, key: str, model: str = PLAIN) -> Any:
    """The same by Ollama's SDK, which has one class with the status in it, and never tries again."""
    headers = {"authorization": f"Bearer {key}"}
    sdk = ollama.Client(host=front(env).url, timeout=wire.TIMEOUT, headers=headers)
    ask = {"model": model, "messages": MESSAGES, "options": {"num_predict": ASK["max_tokens"]}}
    return caught(env, "/api/chat", lambda: sdk.chat(**ask))[0]


def check(error: Any, kind: type, status: int, code: str) -> None:
    """An error of OpenAI's SDK of exactly this class."""
    assert type(error) is kind, f"{type(error).__name__}: {error}"
    assert (error.status_code, error.code) == (status, code), error.body
    assert error.request_id, "no x-request-id"


def check_anthropic(error: Any, kind: type, status: int, what: str) -> None:
    """The same of Anthropic's SDK: its error has a type and no code."""
    assert type(error) is kind, f"{type(error).__name__}: {error}"
    assert error.status_code == status, error.status_code
    assert error.body["type"] == "error" and error.body["error"]["type"] == what, error.body
    assert error.request_id == error.body["request_id"], error.body


def case_keys_that_are_no_longer_valid(env: Env) -> None:
    """Unknown, expired, revoked and future keys: AuthenticationError with a code, sent once."""
    env.proxy("teams")
    for key, code, words in (
        ("sk-unknown", "invalid_api_key", "API key"),
        (KEY_PAST, "key_expired", "expired"),
        (env.revoked, "key_revoked", "revoked"),
        (KEY_FUTURE, "key_not_yet_valid", "valid from 2999"),
    ):
        error, sent = ask_openai(env, key)
        check(error, openai.AuthenticationError, 401, code)
        assert words in error.message and key not in str(error.body), error.body
        assert sent == 1, f"{code}: sent {sent} times"
        error, sent = ask_anthropic(env, key)
        check_anthropic(error, anthropic.AuthenticationError, 401, "authentication_error")
        assert words in error.body["error"]["message"], error.body
        assert sent == 1, f"{code}: sent {sent} times"
        error = ask_ollama(env, key)
        assert error and error.status_code == 401 and words in error.error, error


def case_model_that_a_key_may_not_use(env: Env) -> None:
    """403: PermissionDeniedError that names the model, sent once; also of a stream."""
    env.proxy("teams")
    for more in ({}, {"stream": True}):
        error, sent = ask_openai(env, KEY_STAFF, TOOLS, **more)
        check(error, openai.PermissionDeniedError, 403, "model_not_allowed")
        assert TOOLS in error.message and sent == 1, (error.message, sent)
    error, sent = ask_anthropic(env, KEY_STAFF, TOOLS)
    check_anthropic(error, anthropic.PermissionDeniedError, 403, "permission_error")
    assert TOOLS in str(error.body) and sent == 1, (error.body, sent)
    error = ask_ollama(env, KEY_STAFF, TOOLS)
    assert error and error.status_code == 403 and TOOLS in error.error, error
    assert ask_openai(env, KEY_STAFF)[0] is None, "its own model"


def case_model_outside_the_zones_of_a_key(env: Env) -> None:
    """503 that no wait helps: the SDKs try a 503 again, and this one not."""
    env.proxy("teams")
    error, sent = ask_openai(env, KEY_INSIDE, TOOLS)
    check(error, openai.InternalServerError, 503, "no_backend_in_zone")
    headers = error.response.headers
    assert headers["x-should-retry"] == "false" and "retry-after" not in headers, headers
    assert "zone local" in error.message and sent == 1, (error.message, sent)
    error, sent = ask_anthropic(env, KEY_INSIDE, TOOLS)
    check_anthropic(error, UNAVAILABLE, 503, "overloaded_error")
    assert "zone local" in str(error.body) and sent == 1, (error.body, sent)
    error = ask_ollama(env, KEY_INSIDE, TOOLS)
    assert error and error.status_code == 503 and "zone local" in error.error, error
    for ask in (ask_openai, ask_anthropic):
        assert ask(env, KEY_INSIDE)[0] is None, "the backend inside"


def case_spent_budget(env: Env) -> None:
    """429 until the budget has money again: RateLimitError, sent once although the SDKs try a 429 again."""
    env.proxy("teams")
    for _ in range(10):
        error, sent = ask_openai(env, KEY_POOR)
        if error is not None:
            break
    check(error, openai.RateLimitError, 429, "budget_exceeded")
    headers = error.response.headers
    assert headers["x-should-retry"] == "false" and 1 <= int(headers["retry-after"]) <= 86400, headers
    assert "purse" in error.message and sent == 1, (error.message, sent)
    error, sent = ask_anthropic(env, KEY_POOR)
    check_anthropic(error, anthropic.RateLimitError, 429, "rate_limit_error")
    assert "purse" in str(error.body) and sent == 1, (error.body, sent)
    error = ask_ollama(env, KEY_POOR)
    assert error and error.status_code == 429 and "purse" in error.error, error


def case_used_up_rate_limit(env: Env) -> None:
    """429 of a limit per minute: RateLimitError with the wait and what is left."""
    env.proxy("teams")
    assert ask_openai(env, KEY_SLOW)[0] is None, "the first one"
    sdk = env.openai(proxy="teams", api_key=KEY_SLOW)
    error = refused(openai.RateLimitError, lambda: sdk.chat.completions.create(**ASK))
    check(error, openai.RateLimitError, 429, "rate_limited")
    headers = error.response.headers
    assert 1 <= int(headers["retry-after"]) <= 60, headers
    assert headers["x-ratelimit-limit-requests"] == "1", headers
    assert headers["x-ratelimit-remaining-requests"] == "0", headers
    sdk = env.anthropic(proxy="teams", api_key=KEY_SLOW)
    ask = {"model": PLAIN, "max_tokens": 4, "messages": MESSAGES}
    error = refused(anthropic.RateLimitError, lambda: sdk.messages.create(**ask))
    check_anthropic(error, anthropic.RateLimitError, 429, "rate_limit_error")
    error = ask_ollama(env, KEY_SLOW)
    assert error and error.status_code == 429 and "requests" in error.error, error
