"""What models there are: the list, one model, discovery."""
from urllib.parse import quote

import anthropic
import openai

import wire
from env import EMBED, PLAIN, SLOW, TOOLS, Env


def case_models_list(env: Env) -> None:
    """The SDK lists every model of every engine once, aliases too."""
    ids = [model.id for model in env.openai().models.list()]
    assert PLAIN in ids, ids
    assert len(ids) == len(set(ids)), f"a model is listed twice: {ids}"
    if env.binary is not None:
        assert set(ids) == {PLAIN, TOOLS, EMBED, SLOW, "gpt-4"}, ids


def case_models_list_fields(env: Env) -> None:
    """Entries have the four fields of the OpenAI API."""
    for model in env.openai().models.list():
        assert model.object == "model", model
        assert isinstance(model.created, int), model
        assert isinstance(model.owned_by, str) and model.owned_by, model


def case_models_retrieve(env: Env) -> None:
    """One model by its id, with slash and colon, escaped by the SDK or written plainly."""
    env.proxy()
    for model in (PLAIN, TOOLS, "gpt-4"):
        assert env.openai().models.retrieve(model).id == model
    for written in (PLAIN, quote(PLAIN, safe="")):
        response = wire.fetch(f"{env.url()}/v1/models/{written}")
        assert (response.status, response.json().get("id")) == (200, PLAIN), (written, response)


def case_models_retrieve_unknown(env: Env) -> None:
    """An unknown id is a NotFoundError with the code of the OpenAI API."""
    env.proxy()
    try:
        env.openai().models.retrieve("no/such:model")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error.body
    else:
        raise AssertionError("no error")


def case_anthropic_models(env: Env) -> None:
    """Anthropic's SDK pages through the same models, with all fields of its API."""
    env.proxy()
    client = env.anthropic()
    models = list(client.models.list(limit=2))
    assert {model.id for model in models} == {PLAIN, TOOLS, EMBED, SLOW, "gpt-4"}, models
    assert len(models) == 5, "a page was read twice"
    for model in models:
        assert (model.type, model.display_name) == ("model", model.id), model
        assert model.created_at.year >= 2026, model
    assert client.models.retrieve(PLAIN).id == PLAIN
    try:
        client.models.retrieve("no/such:model")
    except anthropic.NotFoundError as error:
        assert error.request_id and error.body["request_id"] == error.request_id, error.body
    else:
        raise AssertionError("no error")


def case_discovery_learns_the_context(env: Env) -> None:
    """A prompt beyond the engine's reported context is refused by penstock."""
    env.proxy()
    engines = [env.engines["plain-a"].url, env.engines["plain-b"].url]
    before = [wire.metric(url, "prompt_tokens_total") for url in engines]
    # 10 characters are 2 tokens for this model: about 1,600 real tokens, which would fit, but
    # 2,500 by the estimate of a quarter per character, which exceeds the 2,048 of a slot.
    prompt = "red river " * 1000
    try:
        ask = [{"role": "user", "content": prompt}]
        env.openai().chat.completions.create(model=PLAIN, messages=ask, max_tokens=4)
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded", error.body
    else:
        raise AssertionError("the prompt was accepted")
    after = [wire.metric(url, "prompt_tokens_total") for url in engines]
    assert after == before, "an engine got the prompt"
