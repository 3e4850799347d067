"""Streams that wait in the queue for long, as the SDKs see them (`queue.keep_alive`)."""
import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Iterator

import anthropic
import ollama
import openai

import wire
from env import SLOW, Env

MESSAGES: list[Any] = [{"role": "user", "content": "where does the red river go"}]
ENDLESS: dict[str, Any] = {"model": SLOW, "max_tokens": 3500, "temperature": 0.8, "messages": MESSAGES}


def chat(env: Env, proxy: str) -> str:
    """Chat Completions of OpenAI's SDK."""
    stream = env.openai(SLOW, proxy).chat.completions.create(
        model=SLOW, messages=MESSAGES, max_tokens=4, stream=True
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def responses(env: Env, proxy: str) -> str:
    """The Responses API of the same."""
    ask = {"model": SLOW, "input": MESSAGES, "max_output_tokens": 4}
    stream = env.openai(SLOW, proxy).responses.create(**ask, stream=True)
    return "".join(event.delta for event in stream if event.type == "response.output_text.delta")


def responses_helper(env: Env, proxy: str) -> str:
    """The same by the SDK's helper, which checks the order of events."""
    with env.openai(SLOW, proxy).responses.stream(model=SLOW, input=MESSAGES, max_output_tokens=4) as stream:
        return "".join(event.delta for event in stream if event.type == "response.output_text.delta")


def messages(env: Env, proxy: str) -> str:
    """Anthropic's SDK."""
    ask = {"model": SLOW, "max_tokens": 4, "messages": MESSAGES}
    with env.anthropic(SLOW, proxy).messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        assert stream.get_final_message().content[0].text == text
    return text


def ollama_chat(env: Env, proxy: str) -> str:
    """Ollama's own client."""
    client = ollama.Client(host=env.url(SLOW, proxy), timeout=wire.TIMEOUT)
    stream = client.chat(model=SLOW, messages=MESSAGES, options={"num_predict": 4}, stream=True)
    return "".join(part.message.content or "" for part in stream)


Client = Callable[[Env, str], str]
CLIENTS: dict[Client, type[Exception]] = {
    chat: openai.APIError,
    responses: openai.APIError,
    messages: anthropic.APIError,
    ollama_chat: ollama.ResponseError,
}


def kept_alive(env: Env, proxy: str) -> float:
    """How many streams got something while they waited."""
    page = wire.fetch(env.proxy(proxy).admin + "/metrics").body.decode()
    lines = [line for line in page.splitlines() if line.startswith("penstock_queue_kept_alive_total{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@contextlib.contextmanager
def all_waiting(env: Env, proxy: str, clients: list[Client]) -> Iterator[list[Future[str]]]:
    """Every client waits behind a stream that does not end, and has got something meanwhile."""
    before = kept_alive(env, proxy)
    first = env.openai(SLOW, proxy).chat.completions.create(**ENDLESS, stream=True)
    next(iter(first))
    with ThreadPoolExecutor(len(clients)) as pool:
        waiting = [pool.submit(client, env, proxy) for client in clients]
        try:
            wire.wait_until(
                "every stream to be kept alive",
                lambda: kept_alive(env, proxy) >= before + len(clients), 15.0,
            )
            yield waiting
        finally:
            first.close()


def case_waiting_streams_are_kept_alive(env: Env) -> None:
    """Every SDK ignores what it gets meanwhile, and has the whole text."""
    with all_waiting(env, "queue", list(CLIENTS)) as waiting:
        assert not any(one.done() for one in waiting), "one of them did not wait"
    for client, text in zip(CLIENTS, waiting):
        assert text.result(), f"{client.__name__} has no text"


def case_waiting_streams_end_in_errors(env: Env) -> None:
    """Where the wait ends in vain, every SDK raises an error with its text."""
    kinds = {**CLIENTS, responses_helper: openai.APIError}
    with all_waiting(env, "short-queue", list(kinds)) as waiting:
        for (client, kind), text in zip(kinds.items(), waiting):
            error = text.exception(wire.TIMEOUT)
            assert isinstance(error, kind), f"{client.__name__}: {error!r}"
            assert "waited for" in str(error), f"{client.__name__}: {error!r}"
