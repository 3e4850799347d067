"""LangChain's client of Ollama's API, on llama.cpp."""
from typing import Any

import wire
from cases.chat import ASK, WEATHER, expected_text
from env import EMBED, PLAIN, TOOLS, Env

OPTIONS = {"num_predict": ASK["max_tokens"], "temperature": 0, "seed": 7}
QUESTION = ASK["messages"][0]["content"]


def langchain(env: Env, model: str = PLAIN, **options: Any) -> Any:
    """LangChain's chat model."""
    from langchain_ollama import ChatOllama

    timeout = {"timeout": wire.TIMEOUT}
    return ChatOllama(model=model, base_url=env.url(model), client_kwargs=timeout, **{**OPTIONS, **options})


def case_langchain_ollama_chat(env: Env) -> None:
    """A whole message and a stream have the engine's text, the counts and the reason."""
    env.proxy()
    message = langchain(env).invoke(QUESTION)
    assert message.content == expected_text(env), message
    assert message.response_metadata["done_reason"] == "length", message.response_metadata
    assert message.usage_metadata["output_tokens"] == ASK["max_tokens"], message.usage_metadata
    assert message.usage_metadata["input_tokens"] > 0, message.usage_metadata
    chunks = list(langchain(env).stream(QUESTION))
    assert "".join(chunk.content for chunk in chunks) == expected_text(env), chunks
    assert len(chunks) > ASK["max_tokens"], f"only {len(chunks)} chunks"


def case_langchain_ollama_tools(env: Env) -> None:
    """Calls of tools arrive with their arguments."""
    env.proxy()
    called = []
    for seed in range(1, 6):
        model = langchain(env, TOOLS, seed=seed, temperature=0.8, num_predict=400)
        called += model.bind_tools([WEATHER]).invoke("the weather please").tool_calls
    assert called, "the engine called no tool in five requests"
    assert all(call["name"] == "get_weather" and call["args"]["city"] for call in called), called


def case_langchain_ollama_embed(env: Env) -> None:
    """A vector for each document."""
    from langchain_ollama import OllamaEmbeddings

    env.proxy()
    texts = ["the red river", "a hill"]
    vectors = OllamaEmbeddings(model=EMBED, base_url=env.url(EMBED)).embed_documents(texts)
    direct = env.direct(EMBED).embeddings.create(model=EMBED, input=texts, encoding_format="float")
    assert [len(vector) for vector in vectors] == [len(item.embedding) for item in direct.data]
