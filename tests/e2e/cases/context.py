"""Conversations that are longer than an engine's context, shortened by what the engine itself counts."""
from typing import Any

import ollama

import configs
import wire
from env import Env

UNKNOWN = "short-unknown"


def conversation(turns: int) -> list[dict[str, Any]]:
    """Messages of about 20 words each; the instructions and the question say what they are."""
    messages = [{"role": "system", "content": "Instructions"}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"turn {turn} " + "some words to read " * 5})
        messages.append({"role": "assistant", "content": f"reply {turn} " + "some words to read " * 5})
    return [*messages, {"role": "user", "content": "Question"}]


def dropped(headers: Any) -> int:
    """How many messages a response says were dropped."""
    return int(headers.get("x-penstock-context-shift", "dropped=0").removeprefix("dropped="))


def case_context_shift(env: Env) -> None:
    """The engine refuses; penstock shortens; the engine counts a prompt within its context."""
    env.proxy("short_context")
    for model in (UNKNOWN, configs.SHORT):
        client = env.openai(model, "short_context")
        raw = client.chat.completions.with_raw_response
        for stream in (False, True):
            response = raw.create(
                model=model, messages=conversation(20), max_tokens=4, stream=stream)
            count = dropped(response.headers)
            assert 0 < count < 40, (model, response.headers)
            if not stream:
                used = response.parse().usage.prompt_tokens
                # More than half of the target is used, so no more was dropped than needed.
                assert 180 <= used <= 508, (model, count, used)
            else:
                assert "".join(chunk.choices[0].delta.content or "" for chunk in response.parse()
                               if chunk.choices)
        short = raw.create(model=model, messages=conversation(1), max_tokens=4)
        assert dropped(short.headers) == 0, "what fits is not touched"


def case_context_shift_dialects(env: Env) -> None:
    """The same by Anthropic's and Ollama's SDKs; the latter's requests are converted."""
    url = env.proxy("short_context").url
    messages = conversation(20)[1:]
    response = env.anthropic(UNKNOWN, "short_context").messages.with_raw_response.create(
        model=UNKNOWN, max_tokens=4, messages=messages, system="Instructions")
    assert dropped(response.headers) > 0, response.headers
    lines = list(ollama.Client(host=url, timeout=wire.TIMEOUT).chat(
        model=UNKNOWN, messages=conversation(20), options={"num_predict": 4}, stream=True))
    assert lines[-1].done and 180 <= lines[-1].prompt_eval_count <= 508, lines[-1]
