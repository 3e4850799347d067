"""Paths that clients call beside chat: token counts, tokenizers, other base URLs, no model."""
import http.client
import io
import json
from typing import Any
from urllib.parse import urlsplit

import configs
import wire
from cases.operations import MESSAGE
from env import EMBED, PLAIN, TOOLS, Env
from openai import OpenAI

MESSAGES = {"model": PLAIN, "messages": MESSAGE["messages"]}


def same(env: Env, path: str, body: dict[str, Any], model: str = PLAIN) -> Any:
    """The engine's own response to `body`, which penstock must not change."""
    response = wire.fetch(env.url(model) + path, {"model": model, **body})
    direct = wire.fetch(env.engine_of(model).url + path, {"model": model, **body})
    assert response.status == direct.status == 200, (path, response.status, response.body)
    assert response.json() == direct.json(), (path, response.body, direct.body)
    return response.json()


def case_count_tokens(env: Env) -> None:
    """Anthropic's SDK counts tokens, and the engine runs no model for it."""
    counted = env.anthropic().messages.count_tokens(**MESSAGES)
    direct = wire.fetch(env.engine_of(PLAIN).url + "/v1/messages/count_tokens", MESSAGES)
    assert counted.input_tokens == direct.json()["input_tokens"] > 0, counted
    long = [{"role": "user", "content": "word " * 20_000}]
    assert env.anthropic().messages.count_tokens(model=PLAIN, messages=long).input_tokens > 2048


def case_input_tokens(env: Env) -> None:
    """OpenAI's SDK counts the tokens of a request to the Responses API."""
    ask = {"model": PLAIN, "input": "one two three"}
    counted = env.openai().responses.input_tokens.count(**ask)
    assert counted.input_tokens == env.direct().responses.input_tokens.count(**ask).input_tokens > 0


def case_tokenizers(env: Env) -> None:
    """llama.cpp's tokenizer and template."""
    tokens = same(env, "/tokenize", {"content": "one two three"})["tokens"]
    assert same(env, "/detokenize", {"tokens": tokens})["content"].strip() == "one two three"
    assert "one two" in same(env, "/apply-template", {"messages": MESSAGES["messages"]})["prompt"]


def case_native_completion(env: Env) -> None:
    """llama.cpp's own completion, whole and streamed, at both of its paths."""
    body = {"model": PLAIN, "prompt": "one two", "n_predict": 8, "temperature": 0, "seed": 7}
    texts = set()
    for path in ("/completion", "/completions"):
        texts.add(wire.fetch(env.url() + path, body).json()["content"])
        streamed = wire.fetch(env.url() + path, {**body, "stream": True})
        events = [json.loads(line[6:]) for line in streamed.body.decode().splitlines() if line]
        assert events[-1]["stop"] is True, events[-1]
        texts.add("".join(event["content"] for event in events))
    texts.add(wire.fetch(env.engine_of(PLAIN).url + "/completion", body).json()["content"])
    assert len(texts) == 1 and texts != {""}, texts


def case_native_embedding(env: Env) -> None:
    """llama.cpp's own embeddings at both of its paths."""
    for path in ("/embedding", "/embeddings"):
        assert same(env, path, {"content": "one two"}, EMBED)[0]["embedding"], path


def case_base_url_without_v1(env: Env) -> None:
    """An SDK whose base URL lacks /v1 chats and lists models."""
    client = env.keep(OpenAI(base_url=env.proxy().url, api_key="any", max_retries=0))
    ask = {**MESSAGES, "max_tokens": 8, "temperature": 0, "seed": 7}
    text = client.chat.completions.create(**ask).choices[0].message.content
    assert text == env.direct().chat.completions.create(**ask).choices[0].message.content != ""
    assert PLAIN in {model.id for model in client.models.list()}
    assert client.responses.create(model=PLAIN, input="one", max_output_tokens=4).output_text


def case_no_model(env: Env) -> None:
    """Moderations and images go to the API that serves them, which picks its own model."""
    client = env.openai(proxy="services")
    assert client.moderations.create(input="one").results[0].flagged is False
    assert client.images.generate(prompt="one").data[0].b64_json == "aGk="
    picture = ("a.png", b"\x89PNG", "image/png")
    assert client.images.create_variation(image=picture).data[0].b64_json == "aGk="
    assert client.images.edit(image=picture, prompt="one").data[0].b64_json == "aGk="
    assert env.services.models == [None] * 4, env.services.models


def case_audio(env: Env) -> None:
    """Speech and transcription of a hosted API."""
    client = env.openai(proxy="services")
    spoken = client.audio.speech.create(model=configs.VOICE, input="one", voice="alloy").content
    assert spoken == b"RIFF", spoken
    transcript = client.audio.transcriptions.create(model=configs.VOICE, file=io.BytesIO(b"RIFF"))
    assert transcript.text == "received 4 bytes", transcript


def case_rerank_paths(env: Env) -> None:
    """A reranker at the paths of Cohere's, Jina's and llama.cpp's clients."""
    body = {"model": configs.RANKER, "query": "q", "documents": ["a", "b"]}
    for path in ("/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking"):
        response = wire.fetch(env.proxy("services").url + path, body)
        assert response.json()["results"][0]["index"] == 1, (path, response.body)
    assert set(env.services.paths) >= {"/v1/rerank"} and "/v2/rerank" not in env.services.paths


def case_default_model(env: Env) -> None:
    """A request without a model gets the configured one, and an unknown name the pattern's."""
    url = env.proxy("services").url
    ask = {"messages": MESSAGES["messages"], "max_tokens": 4}
    response = wire.fetch(url + "/v1/chat/completions", ask)
    assert response.json()["model"] == TOOLS, response.body
    client = env.openai(proxy="services")
    chat = client.chat.completions.create(model="gpt-4o-mini", **ask)
    assert chat.model == TOOLS, chat
    assert "gpt-*" not in {model.id for model in client.models.list()}


def case_passthrough(env: Env) -> None:
    """A WebSocket and files of a hosted API."""
    client = env.openai(proxy="services")
    uploaded = client.files.create(file=("a.txt", b"text"), purpose="batch")
    assert uploaded.id == "file-1" and client.files.retrieve("file-1").id == "file-1"
    parts = urlsplit(env.proxy("services").url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=wire.TIMEOUT)
    connection.request("GET", f"/v1/realtime?model={configs.VOICE}", headers={
        "connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    })
    response = connection.getresponse()
    assert response.status == 101, response.status
    connection.sock.sendall(b"\x81\x85\0\0\0\0hello")
    assert response.fp.read(7) == b"\x81\x05hello"
    connection.close()
