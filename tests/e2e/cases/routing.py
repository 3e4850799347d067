"""Names and chains: alias, upstream_id, fallback."""
import openai

from cases.chat import ASK, expected_text
from env import PLAIN, Env


def case_alias(env: Env) -> None:
    """`gpt-4` is served by the model it is an alias of."""
    env.proxy()
    response = env.openai().chat.completions.create(**{**ASK, "model": "gpt-4"})
    assert response.choices[0].message.content == expected_text(env)


def case_upstream_id(env: Env) -> None:
    """A backend's own name for a model is sent to it; clients use the public one."""
    env.proxy("declared")
    response = env.openai(proxy="declared").chat.completions.create(**{**ASK, "model": "public-name"})
    assert response.choices[0].message.content == expected_text(env)
    ids = {model.id for model in env.openai(proxy="declared").models.list()}
    assert {"public-name", PLAIN, "gpt-4"} <= ids, ids


def case_fallback(env: Env) -> None:
    """A model whose backends are down is served by its fallback, under the fallback's name."""
    env.proxy("declared")
    for streaming in (False, True):
        ask = {**ASK, "model": "gone"}
        client = env.openai(proxy="declared")
        if streaming:
            chunks = list(client.chat.completions.create(**ask, stream=True))
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        else:
            text = client.chat.completions.create(**ask).choices[0].message.content
        assert text == expected_text(env)
    body = env.recorder.exchanges("/v1/chat/completions")[-1].body
    assert f'"{PLAIN}"'.encode() in body and b'"gone"' not in body, body


def case_fallback_exhausted(env: Env) -> None:
    """A chain without a live model is a 503 that names the chain."""
    env.proxy("declared")
    try:
        env.openai(proxy="declared").chat.completions.create(**{**ASK, "model": "lost"})
    except openai.InternalServerError as error:
        assert (error.status_code, error.code) == (503, "fallback_chain_exhausted"), error.body
        assert "lost" in error.message and "gone" in error.message, error.message
    else:
        raise AssertionError("no error")
