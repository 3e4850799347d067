"""Prompts go where their prefix is cached, by the engines' own count."""
import collections
import concurrent.futures
import random

import configs
from env import Env

CONVERSATIONS = 8
TURNS = 5
# Which engine a conversation begins on decides much: one round of few conversations says little.
ROUNDS = 2
HOT = 32


def words(seed: str, count: int) -> str:
    """Text that is the same for the same seed."""
    source = random.Random(seed)
    return " ".join("".join(source.choices("abcdefgh", k=4)) for _ in range(count))


def talk(env: Env, proxy: str, seed: str, number: int) -> tuple[int, int]:
    """One conversation; the tokens of its prompts, and those found cached."""
    client = env.openai(configs.CACHED, proxy)
    # Its own part is long against what a turn adds: coming back to an engine is worth a wait there.
    messages = [{"role": "system", "content": f"{words(seed, 20)} {words(f'{seed} {number}', 200)}"}]
    asked = cached = 0
    for turn in range(TURNS):
        messages.append({"role": "user", "content": words(f"{seed} {number} {turn}", 12)})
        response = client.chat.completions.create(
            model=configs.CACHED, messages=messages, max_tokens=16, temperature=0, seed=1)
        asked += response.usage.prompt_tokens
        cached += response.usage.prompt_tokens_details.cached_tokens
        messages.append({"role": "assistant", "content": words(f"{seed} {number} {turn} a", 4)})
    return asked, cached


def play(env: Env, proxy: str, seed: str) -> list[tuple[int, int]]:
    """Concurrent conversations with one system prompt; prompt and cached tokens of each."""
    env.proxy(proxy)
    with concurrent.futures.ThreadPoolExecutor(CONVERSATIONS) as pool:
        return list(pool.map(lambda number: talk(env, proxy, seed, number), range(CONVERSATIONS)))


def case_prefixes_raise_what_engines_find_cached(env: Env) -> None:
    """The same conversations by prefix and in turn: the engines' own count of cached tokens."""
    found: dict[str, list[tuple[int, int]]] = {"cached-in-turn": [], "cached-by-prefix": []}
    for number in range(ROUNDS):
        for proxy, talks in found.items():
            talks += play(env, proxy, f"{proxy} {number}")
    in_turn, by_prefix = (
        sum(cached for _, cached in talks) / sum(prompt for prompt, _ in talks) for talks in found.values())
    print(f"cached tokens: {by_prefix:.0%} of the prompts by prefix, {in_turn:.0%} in turn")
    assert by_prefix > 0.4 and by_prefix > 1.5 * in_turn, (by_prefix, in_turn)


def case_a_hot_prefix_is_spread(env: Env) -> None:
    """Many at once with one beginning, against load: no engine gets much more than its part."""
    system = words("hot", 80)
    env.proxy("cached-by-load")

    def ask(number: int) -> str:
        client = env.openai(configs.CACHED, "cached-by-load")
        raw = client.chat.completions.with_raw_response.create(
            model=configs.CACHED, max_tokens=24, temperature=0, seed=1,
            messages=[{"role": "system", "content": system}, {"role": "user", "content": words(f"hot {number}", 12)}])
        assert raw.parse().usage.completion_tokens > 0
        return raw.headers["x-penstock-backend"]

    with concurrent.futures.ThreadPoolExecutor(HOT) as pool:
        shares = collections.Counter(pool.map(ask, range(HOT)))
    print(f"a hot prefix, {HOT} at once: {sorted(shares.values(), reverse=True)}")
    assert len(shares) == 4, shares
    assert max(shares.values()) <= HOT // 2, shares
