"""Ensembles on real engines: drafts and critiques become one response."""
import ollama

import wire
from env import PLAIN, Env

NAME = f"moe-{PLAIN}"
QUERY = [{"role": "user", "content": "Name a color."}]


def case_ensemble(env: Env) -> None:
    """Seven calls; the engines' own counts are in the ledger."""
    proxy = env.proxy("ensembles")
    raw = env.openai(PLAIN, "ensembles").chat.completions.with_raw_response
    response = raw.create(model=NAME, messages=QUERY, max_tokens=8)
    parts = dict(part.split("=") for part in response.headers["x-penstock-ensemble"].split(";"))
    assert (parts["drafts"], parts["critiques"]) == ("3", "3"), parts
    last = response.parse()
    assert last.choices[0].message.content and last.usage.completion_tokens <= 8, last
    counted = last.usage.total_tokens + int(parts["input_tokens"]) + int(parts["output_tokens"])

    def is_counted() -> bool:
        return wire.fetch(proxy.admin + "/api/token_counts").json()["total_tokens"] == counted

    wire.wait_until(f"{counted} tokens in the ledger", is_counted, 5)


def case_ensemble_stream(env: Env) -> None:
    """Streams of each SDK end as they should."""
    proxy = env.proxy("ensembles")
    stream = env.openai(PLAIN, "ensembles").chat.completions.create(
        model=NAME, messages=QUERY, max_tokens=8, stream=True)
    chunks = list(stream)
    assert chunks[-1].choices[0].finish_reason, chunks[-1]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    with env.anthropic(PLAIN, "ensembles").messages.stream(
            model=NAME, messages=QUERY, max_tokens=8) as messages:
        assert messages.get_final_text()
    lines = list(ollama.Client(host=proxy.url, timeout=wire.TIMEOUT).chat(
        model=NAME, messages=QUERY, options={"num_predict": 8}, stream=True))
    assert lines[-1].done and "".join(line.message.content for line in lines), lines
