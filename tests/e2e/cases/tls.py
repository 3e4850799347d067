"""The openai SDK over TLS, with its own authority: HTTP/1.1 and HTTP/2, plain and streamed."""
import asyncio
import ssl
from typing import Any

import openai

import wire
from cases.chat import ASK, expected_text, to_text
from env import Env, Skip

VERSIONS = {"HTTP/1.1": {"http1": True, "http2": False}, "HTTP/2": {"http1": False, "http2": True}}


def trust(env: Env) -> ssl.SSLContext:
    """Settings that trust only the run's authority, as strictly as Python can."""
    if env.tls is None:
        raise Skip("no certificates given (--tls)")
    context = ssl.create_default_context(cafile=str(env.tls.ca))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def options(env: Env) -> dict[str, Any]:
    """What every client here is made with."""
    url = env.proxy("tls").tls_url + "/v1"
    return {"base_url": url, "api_key": "any", "max_retries": 0, "timeout": wire.TIMEOUT}


def ask(env: Env, version: str) -> None:
    """A plain response and a stream on the same connection, both in `version`."""
    transport = openai.DefaultHttpxClient(verify=trust(env), **VERSIONS[version])
    with openai.OpenAI(http_client=transport, **options(env)) as client:
        raw = client.chat.completions.with_raw_response.create(**ASK)
        assert raw.http_response.http_version == version, raw.http_response.http_version
        assert raw.parse().choices[0].message.content == expected_text(env)
        stream = client.chat.completions.create(**ASK, stream=True)
        assert stream.response.http_version == version, stream.response.http_version
        chunks = list(stream)
        assert to_text(chunks) == expected_text(env)
        assert len(chunks) > ASK["max_tokens"], f"only {len(chunks)} chunks"


def case_tls_http1(env: Env) -> None:
    """HTTP/1.1 over TLS."""
    ask(env, "HTTP/1.1")


def case_tls_http2(env: Env) -> None:
    """HTTP/2 over TLS, agreed on by ALPN."""
    ask(env, "HTTP/2")


def case_tls_http2_streams_at_once(env: Env) -> None:
    """Plain responses and streams side by side on one HTTP/2 connection do not mix."""
    transport = openai.DefaultAsyncHttpxClient(
        verify=trust(env), **VERSIONS["HTTP/2"], timeout=wire.TIMEOUT,
    )

    async def streamed(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(**ASK, stream=True)
        return to_text([chunk async for chunk in stream])

    async def plain(client: openai.AsyncOpenAI) -> str:
        response = await client.chat.completions.create(**ASK)
        return response.choices[0].message.content

    async def all_at_once() -> list[str]:
        async with openai.AsyncOpenAI(http_client=transport, **options(env)) as client:
            asked = [kind(client) for _ in range(6) for kind in (plain, streamed)]
            return await asyncio.gather(*asked)

    assert set(asyncio.run(all_at_once())) == {expected_text(env)}


def case_tls_refuses_the_untrusted(env: Env) -> None:
    """A client that does not know the authority sends nothing."""
    trust(env)
    with openai.OpenAI(**options(env)) as client:
        try:
            client.chat.completions.create(**ASK)
        except openai.APIConnectionError as error:
            assert "CERTIFICATE_VERIFY_FAILED" in str(error.__cause__), repr(error.__cause__)
        else:
            raise AssertionError("a certificate of an unknown authority was trusted")
