"""The other operations: completions, embeddings, responses, and Anthropic's messages."""
import base64
import struct
from typing import Any

import wire
from env import EMBED, PLAIN, Env

MESSAGE: dict[str, Any] = {
    "model": PLAIN, "max_tokens": 12, "messages": [{"role": "user", "content": "one two"}],
}


def case_completions(env: Env) -> None:
    """A completion: the engine's text."""
    ask = {"model": PLAIN, "prompt": "one two three", "max_tokens": 12, "temperature": 0, "seed": 7}
    response = env.openai().completions.create(**ask)
    direct = env.direct().completions.create(**ask)
    assert response.choices[0].text == direct.choices[0].text != ""
    streamed = env.openai().completions.create(**ask, stream=True)
    assert "".join(c.choices[0].text for c in streamed if c.choices) == direct.choices[0].text


def case_embeddings(env: Env) -> None:
    """Vectors as numbers and as base64 are the engine's, for one input and for many."""
    client, direct = env.openai(EMBED), env.direct(EMBED)
    for given in ("one two", ["red river", "blue sun", "tree"]):
        ask = {"model": EMBED, "input": given}
        numbers = client.embeddings.create(**ask, encoding_format="float")
        expected = direct.embeddings.create(**ask, encoding_format="float")
        assert [d.embedding for d in numbers.data] == [d.embedding for d in expected.data]
        assert len(numbers.data) == (1 if isinstance(given, str) else len(given))
    # Without a format the SDK asks for base64 and decodes it itself.
    decoded = client.embeddings.create(model=EMBED, input="one two").data[0].embedding
    plain = client.embeddings.create(model=EMBED, input="one two", encoding_format="float")
    assert max(abs(a - b) for a, b in zip(decoded, plain.data[0].embedding)) < 1e-6


def case_embeddings_base64(env: Env) -> None:
    """Base64 on the wire is base64 for the client."""
    body = {"model": EMBED, "input": "one two", "encoding_format": "base64"}
    response = wire.fetch(env.url(EMBED) + "/v1/embeddings", body)
    raw = base64.b64decode(response.json()["data"][0]["embedding"], validate=True)
    assert len(struct.unpack(f"<{len(raw) // 4}f", raw)) == 64


def case_responses(env: Env) -> None:
    """The Responses API: text and usage."""
    ask = {"model": PLAIN, "input": "one two", "max_output_tokens": 12, "temperature": 0}
    response = env.openai().responses.create(**ask)
    assert response.output_text == env.direct().responses.create(**ask).output_text != ""
    assert response.usage.output_tokens == 12, response.usage


def case_responses_stream(env: Env) -> None:
    """Its events, from created to completed, in the engine's order."""
    ask = {"model": PLAIN, "input": "one two", "max_output_tokens": 12, "temperature": 0}
    events = list(env.openai().responses.create(**ask, stream=True))
    direct = list(env.direct().responses.create(**ask, stream=True))
    assert [event.type for event in events] == [event.type for event in direct]
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    said = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert said == "".join(e.delta for e in direct if e.type == "response.output_text.delta") != ""


def case_messages(env: Env) -> None:
    """Anthropic's SDK gets a response in its own shape."""
    response = env.anthropic().messages.create(**MESSAGE)
    assert response.type == "message" and response.role == "assistant"
    assert response.content[0].text and response.stop_reason == "max_tokens", response
    assert response.usage.output_tokens == MESSAGE["max_tokens"], response.usage


def case_messages_stream(env: Env) -> None:
    """Its stream too, checked by the SDK's own accumulator."""
    with env.anthropic().messages.stream(**MESSAGE) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text and final.content[0].text == text
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 12, final
