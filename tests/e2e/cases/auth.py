"""Client keys: authentication, allowed models, and which credentials reach the engine."""
import time

import anthropic
import openai

import wire
from cases.chat import ASK
from cases.errors import check_body, refused
from configs import ENGINE_KEY, KEY_FREE, KEY_LIMITED, LOCKED
from env import TOOLS, Env

# Every token begins with eyJ.
SECRETS = (KEY_FREE, KEY_LIMITED, ENGINE_KEY, "sk-wrong", "eyJ")


def case_wrong_key(env: Env) -> None:
    """401 `invalid_api_key`, on every path, in the client's own shape."""
    env.proxy("auth")
    wrong = env.openai(proxy="auth", api_key="sk-wrong")
    ask = {**ASK, "model": TOOLS}
    error = refused(openai.AuthenticationError, lambda: wrong.chat.completions.create(**ask))
    assert error.code == "invalid_api_key", error.body
    assert "sk-wrong" not in str(error.body), "the key is in the message"
    refused(openai.AuthenticationError, lambda: list(wrong.models.list()))
    check_body(wire.fetch(env.proxy("auth").url + "/v1/chat/completions", ask), 401, "invalid_api_key")


def case_wrong_key_anthropic(env: Env) -> None:
    """Anthropic's SDK sends its key in x-api-key."""
    env.proxy("auth")
    message = {"model": LOCKED, "max_tokens": 4, "messages": ASK["messages"]}
    wrong = env.anthropic(proxy="auth", api_key="sk-wrong")
    error = refused(anthropic.AuthenticationError, lambda: wrong.messages.create(**message))
    assert error.body["error"]["type"] == "authentication_error", error.body
    right = env.anthropic(proxy="auth", api_key=KEY_LIMITED)
    assert right.messages.create(**message).content[0].text


def case_model_outside_the_key(env: Env) -> None:
    """403 for a model the key's patterns do not cover, 200 for one they do."""
    env.proxy("auth")
    limited = env.openai(proxy="auth", api_key=KEY_LIMITED)
    error = refused(
        openai.PermissionDeniedError,
        lambda: limited.chat.completions.create(**{**ASK, "model": TOOLS}),
    )
    assert error.code == "model_not_allowed" and TOOLS in error.message, error.body
    assert limited.chat.completions.create(**{**ASK, "model": LOCKED}).choices
    free = env.openai(proxy="auth", api_key=KEY_FREE)
    assert free.chat.completions.create(**{**ASK, "model": TOOLS}).choices


def case_tokens_of_two_issuers(env: Env) -> None:
    """A token is a key: each issuer's is valid, the other's, an expired and another audience's are 401."""
    env.proxy("auth")
    one, two = env.issuers
    ask = {**ASK, "model": LOCKED}
    for issuer in (one, two):
        client = env.openai(proxy="auth", api_key=issuer.token())
        assert client.chat.completions.create(**ask).choices
        assert list(client.chat.completions.create(**ask, stream=True))
        assert [model.id for model in client.models.list()] == [LOCKED]
        error = refused(
            openai.PermissionDeniedError,
            lambda: client.chat.completions.create(**{**ASK, "model": TOOLS}),
        )
        assert error.code == "model_not_allowed", error.body
    messages = env.anthropic(proxy="auth", api_key=two.token())
    assert messages.messages.create(model=LOCKED, max_tokens=4, messages=ASK["messages"]).content[0].text
    for token, code, words in (
        (one.token(iss=two.issuer), "invalid_api_key", "signature"),
        (one.token(aud="other"), "invalid_api_key", "audience"),
        (one.token(exp=int(time.time())), "key_expired", "expired"),
        (one.token(models="all"), "model_not_allowed", LOCKED),
        (one.token(models=[]), "invalid_api_key", "models"),
    ):
        client = env.openai(proxy="auth", api_key=token)
        kind = openai.PermissionDeniedError if code == "model_not_allowed" else openai.AuthenticationError
        error = refused(kind, lambda: client.chat.completions.create(**ask))
        assert error.code == code and words in error.message, error.body
        assert token not in str(error.body), "the token is in the message"
    wrong = env.anthropic(proxy="auth", api_key=one.token(aud="other"))
    message = {"model": LOCKED, "max_tokens": 4, "messages": ASK["messages"]}
    refused(anthropic.AuthenticationError, lambda: wrong.messages.create(**message))


def case_engine_key_replaces_the_clients(env: Env) -> None:
    """An engine with its own key is discovered and used with it; the client never needs it."""
    env.proxy("auth")
    engine = env.engines["locked"].url
    bare = wire.fetch(engine + "/v1/chat/completions", ASK)
    assert bare.status == 401, "the engine does not check keys"
    client = env.openai(proxy="auth", api_key=KEY_LIMITED)
    chunks = list(client.chat.completions.create(**{**ASK, "model": LOCKED}, stream=True))
    assert chunks[-1].choices[0].finish_reason == "length", chunks[-1]


def case_keys_are_not_logged(env: Env) -> None:
    """After all that, no key is in the log or in the metrics."""
    proxy = env.proxy("auth")
    seen = proxy.log.read_text(errors="replace") + wire.fetch(proxy.admin + "/metrics").body.decode()
    assert not [key for key in SECRETS if key in seen], "a key leaked"


def case_health_needs_no_key(env: Env) -> None:
    """The data port serves /health without a key, and shows no metrics; the admin port does."""
    proxy = env.proxy("auth")
    assert wire.fetch(proxy.url + "/health").status == 200
    assert wire.fetch(proxy.url + "/metrics").status in (401, 404)
    assert b"penstock_" in wire.fetch(proxy.admin + "/metrics").body
