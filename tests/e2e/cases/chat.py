"""Chat through the openai SDK: sync, async, streamed, tools, JSON schema."""
import asyncio
import json
from typing import Any

from openai.types.chat import ChatCompletionChunk

import wire
from env import PLAIN, SLOW, TOOLS, Env

# The same bytes from the same engine every time.
ASK: dict[str, Any] = {
    "model": PLAIN, "max_tokens": 24, "temperature": 0, "seed": 7,
    "messages": [{"role": "user", "content": "where does the red river go"}],
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "the weather of a place",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"enum": [1, 2, 3]}},
            "required": ["city", "days"],
        },
    },
}
CALL: dict[str, Any] = {
    "model": TOOLS, "max_tokens": 400, "temperature": 0.8, "seed": 3,
    "messages": [{"role": "user", "content": "the weather please"}],
    "tools": [WEATHER], "tool_choice": "required",
}


def to_text(chunks: list[ChatCompletionChunk]) -> str:
    """The text of a stream, after checking that it is one whole response."""
    assert len({chunk.id for chunk in chunks}) == 1, "chunks of different responses"
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] is not None, "no finish_reason at the end"
    assert set(reasons[:-1]) == {None}, reasons
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def expected_text(env: Env) -> str:
    """The engine's direct response to `ASK`."""
    text = env.direct().chat.completions.create(**ASK).choices[0].message.content
    assert text, "the engine's response is empty"
    return text


def case_chat(env: Env) -> None:
    """A plain response: the engine's text, its usage, its finish_reason."""
    response = env.openai().chat.completions.create(**ASK)
    assert response.choices[0].message.content == expected_text(env)
    assert response.choices[0].finish_reason == "length"
    assert response.usage.completion_tokens == ASK["max_tokens"], response.usage


def case_chat_async(env: Env) -> None:
    """The asynchronous client gets the same."""

    async def ask() -> str:
        async with env.async_openai() as client:
            response = await client.chat.completions.create(**ASK)
            return response.choices[0].message.content

    assert asyncio.run(ask()) == expected_text(env)


def case_chat_stream(env: Env) -> None:
    """A stream has the text of the plain response, token by token."""
    chunks = list(env.openai().chat.completions.create(**ASK, stream=True))
    assert to_text(chunks) == expected_text(env)
    assert len(chunks) > ASK["max_tokens"], f"only {len(chunks)} chunks"


def case_chat_stream_async(env: Env) -> None:
    """The asynchronous stream too."""

    async def ask() -> list[ChatCompletionChunk]:
        async with env.async_openai() as client:
            stream = await client.chat.completions.create(**ASK, stream=True)
            return [chunk async for chunk in stream]

    assert to_text(asyncio.run(ask())) == expected_text(env)


def case_chat_stream_accumulator(env: Env) -> None:
    """The SDK's own accumulator accepts the stream; a stop string ends it."""
    words = expected_text(env).split()
    ask = {**ASK, "stop": [words[6]]}
    with env.openai().chat.completions.stream(**ask) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    direct = env.direct().chat.completions.create(**ask).choices[0]
    assert final.choices[0].finish_reason == direct.finish_reason == "stop"
    assert final.choices[0].message.content == direct.message.content != ""


def case_chat_stream_usage(env: Env) -> None:
    """With include_usage the last chunk has the usage and no choice; without, none has."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(env.openai().chat.completions.create(**ASK, **options))
    assert chunks[-1].choices == [], chunks[-1]
    usage = chunks[-1].usage
    assert usage.completion_tokens == ASK["max_tokens"], usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    assert to_text(chunks) == expected_text(env)
    plain = list(env.openai().chat.completions.create(**ASK, stream=True))
    assert all(chunk.usage is None for chunk in plain), "usage that was not requested"


def case_chat_stream_is_unbuffered(env: Env) -> None:
    """The first token arrives while the engine still generates."""
    options = {**ASK, "model": SLOW, "max_tokens": 100, "stream": True}
    stream = env.openai(SLOW).chat.completions.create(**options)
    chunks = []
    for chunk in stream:
        chunks.append(chunk)
        if len(chunks) == 3:
            busy = wire.busy_slots(env.engines["slow"].url)
            assert busy == 1, "the engine had finished when the third chunk came"
    to_text(chunks)


def case_chat_parts(env: Env) -> None:
    """Content as a list of text parts."""
    parts = [{"type": "text", "text": "where does the "}, {"type": "text", "text": "red river go"}]
    ask = {**ASK, "messages": [{"role": "user", "content": parts}]}
    response = env.openai().chat.completions.create(**ask)
    direct = env.direct().chat.completions.create(**ask)
    assert response.choices[0].message.content == direct.choices[0].message.content


def case_tool_calls(env: Env) -> None:
    """Real tool calls: a name the request offered, arguments that fit its schema."""
    message = env.openai(TOOLS).chat.completions.create(**CALL).choices[0].message
    check_calls([(c.function.name, c.function.arguments) for c in message.tool_calls or []])


def case_tool_calls_streamed(env: Env) -> None:
    """The same in pieces, put together by index."""
    calls: dict[int, list[str]] = {}
    for chunk in env.openai(TOOLS).chat.completions.create(**CALL, stream=True):
        for piece in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            call = calls.setdefault(piece.index, ["", ""])
            call[0] += piece.function.name or ""
            call[1] += piece.function.arguments or ""
    check_calls([(name, arguments) for name, arguments in calls.values()])


def check_calls(calls: list[tuple[str, str]]) -> None:
    """Every finished call is valid.  The last may be cut by max_tokens."""
    assert calls, "no tool call"
    for position, (name, arguments) in enumerate(calls):
        assert name == "get_weather", calls
        if position == 0 or position < len(calls) - 1:
            parsed = json.loads(arguments)
            assert parsed["city"] in ("Oslo", "Rome") and parsed["days"] in (1, 2, 3), parsed


def case_tool_results(env: Env) -> None:
    """A conversation with a tool result gets a response."""
    call = {"id": "call_1", "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city":"Oslo","days":1}'}}
    messages = CALL["messages"] + [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
    ]
    ask = {**CALL, "messages": messages, "tool_choice": "none", "max_tokens": 8}
    response = env.openai(TOOLS).chat.completions.create(**ask)
    assert response.usage.completion_tokens > 0, response


def case_json_schema(env: Env) -> None:
    """A JSON schema is honoured, so it reached the engine."""
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}, "count": {"enum": [1, 2]}},
        "required": ["colour", "count"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "pick", "strict": True, "schema": schema}}
    response = env.openai().chat.completions.create(**{**ASK, "max_tokens": 200}, response_format=form)
    parsed = json.loads(response.choices[0].message.content)
    assert parsed["colour"] in ("red", "blue") and parsed["count"] in (1, 2), parsed
