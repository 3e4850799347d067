"""Ollama's SDK on llama.cpp, which speaks another API: requests and responses are converted.  And
OpenAI's and Anthropic's SDKs on backends that are declared to speak the other's."""
import asyncio
import itertools
import json
import math
from typing import Any

import httpx
import ollama

import wire
from cases.cancel import ENDLESS, begin, check_freed
from cases.chat import ASK, WEATHER, expected_text
from env import EMBED, PLAIN, SLOW, TOOLS, Env

OPTIONS = {"num_predict": ASK["max_tokens"], "temperature": 0, "seed": 7}
CHAT: dict[str, Any] = {"model": PLAIN, "messages": ASK["messages"], "options": OPTIONS}


def client(env: Env, model: str = PLAIN) -> ollama.Client:
    """Ollama's client; its default timeout is none."""
    return ollama.Client(host=env.url(model), timeout=wire.TIMEOUT)


def case_ollama_chat(env: Env) -> None:
    """A whole response: the engine's text, its counts, why it ended."""
    env.proxy()
    response = client(env).chat(**CHAT)
    assert response.message.content == expected_text(env), response
    assert (response.model, response.done, response.done_reason) == (PLAIN, True, "length"), response
    assert response.eval_count == ASK["max_tokens"] and response.prompt_eval_count > 0, response
    assert response.total_duration > 0 and response.eval_duration > 0, response


def case_ollama_chat_stream(env: Env) -> None:
    """A stream has the text of the whole response, token by token, and one end."""
    env.proxy()
    lines = list(client(env).chat(**CHAT, stream=True))
    assert "".join(line.message.content for line in lines) == expected_text(env)
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1].done_reason == "length" and lines[-1].eval_count == ASK["max_tokens"], lines[-1]
    assert len(lines) > ASK["max_tokens"], f"only {len(lines)} lines"


def case_ollama_chat_async(env: Env) -> None:
    """The asynchronous client, streamed and not."""
    env.proxy()

    async def ask() -> tuple[str, str]:
        remote = ollama.AsyncClient(host=env.url(), timeout=wire.TIMEOUT)
        whole = await remote.chat(**CHAT)
        lines = [line async for line in await remote.chat(**CHAT, stream=True)]
        return whole.message.content, "".join(line.message.content for line in lines)

    assert asyncio.run(ask()) == (expected_text(env),) * 2


def case_ollama_generate(env: Env) -> None:
    """A prompt goes through the chat template, with its system text; a raw one does not."""
    env.proxy()
    prompt = ASK["messages"][0]["content"]
    ask = {"model": PLAIN, "prompt": prompt, "options": OPTIONS}
    assert client(env).generate(**ask).response == expected_text(env)
    lines = list(client(env).generate(**ask, stream=True))
    assert "".join(line.response for line in lines) == expected_text(env)
    raw = client(env).generate(**ask, raw=True)
    plain = env.direct().completions.create(
        model=PLAIN, prompt=prompt, max_tokens=ASK["max_tokens"], temperature=0, seed=7
    )
    assert raw.response == plain.choices[0].text, (raw.response, plain.choices[0].text)
    system = [{"role": "system", "content": "be brief"}, *ASK["messages"]]
    direct = env.direct().chat.completions.create(**{**ASK, "messages": system})
    ours = client(env).generate(**ask, system="be brief")
    assert ours.response == direct.choices[0].message.content


def case_ollama_format(env: Env) -> None:
    """A schema constrains the response."""
    env.proxy()
    schema = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
    options = {"num_predict": 100, "temperature": 0, "seed": 7}
    for stream in (False, True):
        ask = {**CHAT, "format": schema, "options": options, "stream": stream}
        response = client(env).chat(**ask)
        text = "".join(line.message.content for line in (response if stream else [response]))
        assert json.loads(text)["city"] in ("Oslo", "Rome"), text


def case_ollama_tools_and_thinking(env: Env) -> None:
    """Tools, calls with their results, and `think` reach an engine that has other names for them."""
    env.proxy()
    call = {"function": {"name": "get_weather", "arguments": {"city": "Oslo", "days": 1}}}
    messages = [
        {"role": "user", "content": "the weather please"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "get_weather", "content": "rain"},
    ]
    options = {"num_predict": 400, "temperature": 0.8, "seed": 3}
    called = 0
    for stream in (False, True):
        ask = {"model": TOOLS, "messages": messages, "tools": [WEATHER], "options": options}
        response = client(env, TOOLS).chat(**ask, think=False, stream=stream)
        lines = list(response) if stream else [response]
        assert lines[-1].done and lines[-1].prompt_eval_count > 0, lines[-1]
        for call in (call for line in lines for call in line.message.tool_calls or []):
            assert call.function.arguments["city"] in ("Oslo", "Rome"), call
            called += 1
    assert called >= 2, "the engine called no tool"


def case_ollama_embed(env: Env) -> None:
    """One vector per input, of length one, equal to the engine's; and the older form."""
    env.proxy()
    texts = ["the red river", "a hill"]
    response = client(env, EMBED).embed(model=EMBED, input=texts)
    direct = env.direct(EMBED).embeddings.create(model=EMBED, input=texts, encoding_format="float")
    assert len(response.embeddings) == 2 and response.prompt_eval_count > 0, response
    for ours, theirs in zip(response.embeddings, direct.data):
        assert math.isclose(math.hypot(*ours), 1.0, rel_tol=1e-3), math.hypot(*ours)
        cosine = sum(a * b for a, b in zip(ours, theirs.embedding)) / math.hypot(*theirs.embedding)
        assert cosine > 0.9999, cosine
    legacy = client(env, EMBED).embeddings(model=EMBED, prompt=texts[0])
    assert len(legacy.embedding) == len(response.embeddings[0])


def case_ollama_errors(env: Env) -> None:
    """Errors are ones that Ollama's client reads, with the engine's own text."""
    env.proxy()

    def refused(**ask: Any) -> ollama.ResponseError:
        for stream in (False, True):
            try:
                response = client(env).chat(**{**CHAT, **ask}, stream=stream)
                list(response)
            except ollama.ResponseError as error:
                last = error
            else:
                raise AssertionError(f"no error for {str(ask)[:100]}")
        return last

    unknown = refused(model="unlisted")
    assert unknown.status_code == 404 and unknown.error == "model 'unlisted' not found", unknown.error
    wrong = refused(messages=[{"role": "user", "content": "x", "images": [b"no image"]}])
    assert wrong.status_code == 400, (wrong.status_code, wrong.error)


def case_ollama_load(env: Env) -> None:
    """An empty request loads or unloads a model: nothing to do for an engine that has it loaded."""
    env.proxy()
    loaded = client(env).generate(model=PLAIN, prompt="")
    assert (loaded.done_reason, loaded.response) == ("load", ""), loaded
    unloaded = client(env).chat(model=PLAIN, messages=[], keep_alive=0)
    assert unloaded.done_reason == "unload", unloaded


def case_ollama_cancel(env: Env) -> None:
    """A client that leaves frees the engine's slot, streamed or not."""
    env.proxy()
    options = {"num_predict": ENDLESS["max_tokens"], "temperature": 0.8}
    ask = {"model": SLOW, "messages": ENDLESS["messages"], "options": options}
    engine = begin(env)
    stream = client(env, SLOW).chat(**ask, stream=True)
    assert len(list(itertools.islice(stream, 4))) == 4
    assert wire.busy_slots(engine) == 1
    stream.close()
    check_freed(engine, "close() of Ollama's stream")
    begin(env)
    try:
        ollama.Client(host=env.url(SLOW), timeout=1.5).chat(**ask)
    except httpx.TimeoutException:
        check_freed(engine, "a timeout of Ollama's client", silent=True)
    else:
        raise AssertionError("the response came too early")


def case_anthropic_converted(env: Env) -> None:
    """Anthropic's SDK on a backend that is declared to serve OpenAI's chat only."""
    # The SDK has no temperature any more.
    extra = {"temperature": 0}
    ask = {"model": PLAIN, "max_tokens": 24, "messages": ASK["messages"], "extra_body": extra}
    remote = env.anthropic(proxy="converted")
    chat = {**ASK}
    chat.pop("seed")
    direct = env.direct().chat.completions.create(**chat).choices[0].message.content
    message = remote.messages.create(**ask)
    assert message.content[0].text == direct, message
    assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 24, message
    with remote.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == direct and final.stop_reason == "max_tokens", final
    assert final.usage.input_tokens > 0 and final.usage.output_tokens == 24, final


def case_openai_converted(env: Env) -> None:
    """OpenAI's SDK on a backend that is declared to serve Anthropic's messages only."""
    remote = env.openai(proxy="converted")
    ask = {**ASK, "model": "messages-only"}
    ask.pop("seed")
    chat = {**ASK}
    chat.pop("seed")
    direct = env.direct().chat.completions.create(**chat).choices[0].message.content
    response = remote.chat.completions.create(**ask)
    assert response.choices[0].message.content == direct, response
    assert response.choices[0].finish_reason == "length", response
    chunks = list(remote.chat.completions.create(**ask, stream=True))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == direct and chunks[-1].choices[0].finish_reason == "length", chunks[-1]
