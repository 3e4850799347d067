"""Many streams at once (contract R.H2)."""
import asyncio
import sys
from dataclasses import dataclass

import openai

import wire
from cases.errors import CHAT
from env import PLAIN, Env

STREAMS = 200
TOKENS = 24


@dataclass
class Received:
    """What one stream delivered."""

    ids: set[str]
    text: str
    finish: str | None


async def tell(client: openai.AsyncOpenAI, number: int) -> Received:
    """One stream, with its own prompt and seed."""
    received = Received(set(), "", None)
    stream = await client.chat.completions.create(
        model=PLAIN, max_tokens=TOKENS, temperature=1.0, seed=number, stream=True,
        messages=[{"role": "user", "content": f"tell me about number {number}"}],
    )
    async for chunk in stream:
        received.ids.add(chunk.id)
        for choice in chunk.choices:
            received.text += choice.delta.content or ""
            received.finish = choice.finish_reason or received.finish
    return received


def case_streams_directly_after_others(env: Env) -> None:
    """None is sent on a connection that llama.cpp is about to close: of 400 four or more were."""
    url = env.url() + CHAT
    for number in range(400):
        response = wire.fetch(url, {
            "model": PLAIN, "max_tokens": 2, "stream": True,
            "messages": [{"role": "user", "content": f"number {number}"}],
        })
        assert response.status == 200, f"{number}: {response.body[:200]}"


def case_200_streams(env: Env) -> None:
    """All complete, all different, none mixed, spread over two engines."""
    url = env.url()
    engines = [env.engines["plain-a"].url, env.engines["plain-b"].url]
    before = [wire.metric(engine, "tokens_predicted_total") for engine in engines]

    async def ask() -> list[Received | BaseException]:
        async with env.async_openai() as client:
            return await asyncio.gather(
                *(tell(client, number) for number in range(STREAMS)), return_exceptions=True
            )

    streams = asyncio.run(ask())
    errors = [repr(one) for one in streams if isinstance(one, BaseException)]
    assert not errors, f"{len(errors)} of {STREAMS} failed, first: {errors[0]}"
    assert all(one.finish == "length" for one in streams), [one.finish for one in streams]
    assert all(len(one.ids) == 1 for one in streams), "a stream has chunks of two responses"
    assert len({id for one in streams for id in one.ids}) == STREAMS, "a response went to two clients"
    assert len({one.text for one in streams}) == STREAMS, "two responses are the same"
    after = [wire.metric(engine, "tokens_predicted_total") for engine in engines]
    shares = [(late - early) / TOKENS / STREAMS for early, late in zip(before, after)]
    print(f"shares {shares[0]:.3f} {shares[1]:.3f}", file=sys.stderr)
    assert abs(sum(shares) - 1) < 1e-6, f"the engines generated other counts than requested: {shares}"
    if env.binary is not None:
        assert all(0.35 <= share <= 0.65 for share in shares), f"not even: {shares}"
    # Still there and still right after the storm.
    response = wire.fetch(url + CHAT, {
        "model": PLAIN, "max_tokens": 4, "stream": True,
        "messages": [{"role": "user", "content": "and now"}],
    })
    assert wire.to_events(response.body)[-1] == "[DONE]", response.body[-200:]
