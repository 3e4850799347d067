"""The configurations penstock is started with, one function each."""
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

from hosted import LIMITED, LIMITED_ONCE, SILENT, Hosted
from recorder import Recorder
from services import Services
from tokens import Issuer
from wire import DeadPort

if TYPE_CHECKING:
    from env import Env

# A slash and a colon, as real model names have them.
PLAIN = "tiny/plain:1"
TOOLS = "tiny-tools"
EMBED = "tiny-embed"
SLOW = "tiny-slow"
LOCKED = "tiny/locked:1"
DOOMED = "tiny-doomed"
CACHED = "tiny-cached"
SHORT = "short"
HOSTILE = "<img src=x onerror=alert(1)>"
VOICE = "hosted-voice"
RANKER = "hosted-ranker"

KEY_LIMITED = "sk-limited-0001"
KEY_FREE = "sk-free-0002"
ENGINE_KEY = "sk-engine-0003"
KEY_STAFF = "sk-staff-0004"
KEY_PAST = "sk-past-0005"
KEY_FUTURE = "sk-future-0006"
KEY_INSIDE = "sk-inside-0007"
KEY_POOR = "sk-poor-0008"
KEY_SLOW = "sk-slow-0009"

# Quick checks: the waits of the fault cases are bounded by these.
HEALTH = {
    "interval": "500ms", "unhealthy_interval": "200ms", "timeout": "1s", "rise": 1, "fall": 2,
    # In turn from the first request on: what the cases count.
    "slow_start": "0s",
}


@dataclass
class Setup:
    """A configuration, the models it must list before cases run, and a key for clients."""

    config: dict[str, Any]
    models: set[str]
    key: str = "any"
    tls: dict[str, str] | None = None


def main(env: "Env") -> Setup:
    """Every engine, nothing declared: models and contexts are discovered."""
    engines = env.engines
    backends = [{"name": name, "url": engines[name].url} for name in ("plain-a", "plain-b")]
    backends += [
        {"name": "tools", "url": engines["tools"].url + "/v1", "engine": "llamacpp"},
        {"name": "embed", "url": engines["embed"].url, "engine": "llamacpp"},
        {"name": "slow", "url": engines["slow"].url, "engine": "auto"},
    ]
    config = {
        "routing": {"aliases": {"gpt-4": PLAIN}, "expose_decision": True},
        "health": HEALTH,
        "backends": backends,
    }
    return Setup(config, {PLAIN, TOOLS, EMBED, SLOW})


def declared(env: "Env") -> Setup:
    """One engine behind a recorder with declared models, one dead backend, aliases, chains."""
    env.recorder = env.keep(Recorder(env.engines["plain-a"].url))
    dead = env.keep(DeadPort())
    models = [
        {"id": PLAIN, "context_length": 2048, "capabilities": ["tools", "json_mode"]},
        {"id": "public-name", "upstream_id": PLAIN, "capabilities": ["tools"]},
        {"id": "chat-only", "upstream_id": PLAIN, "operations": ["chat"], "capabilities": []},
    ]
    config = {
        "routing": {
            "aliases": {"gpt-4": PLAIN, "gpt-4-turbo": "gpt-4", "unserved": "not-served"},
            "fallbacks": {"gone": [PLAIN], "lost": ["gone"]},
            "unknown_capability": "deny",
            "expose_decision": True,
        },
        "health": HEALTH,
        "backends": [
            {
                "name": "recorded", "url": env.recorder.url, "engine": "llamacpp",
                "authorization": "strip", "models": models,
            },
            {"name": "dead", "url": dead.url, "models": [{"id": "gone"}, {"id": "lost"}]},
        ],
    }
    return Setup(config, {PLAIN, "public-name", "chat-only"})


def auth(env: "Env") -> Setup:
    """Client keys, one of them limited to some models; two issuers of tokens; an engine with its own key."""
    locked = env.add_engine("locked", LOCKED, key=ENGINE_KEY)
    env.issuers = [Issuer(name, env.work) for name in ("one", "two")]
    key_file = env.work / "free.key"
    key_file.write_text(KEY_FREE + "\n")
    key_file.chmod(0o600)
    config = {
        "auth": {
            "keys": [
                {"name": "limited", "key": KEY_LIMITED, "models": ["tiny/*"]},
                {"name": "free", "key_file": str(key_file)},
            ],
            "jwt": [issuer.config() for issuer in env.issuers],
        },
        "health": HEALTH,
        "backends": [
            {"name": "tools", "url": env.engines["tools"].url},
            {
                "name": "locked", "url": locked.url, "engine": "llamacpp",
                "api_key": ENGINE_KEY, "authorization": "replace",
            },
        ],
    }
    return Setup(config, {TOOLS, LOCKED}, KEY_FREE)


def faults(env: "Env") -> Setup:
    """Two engines of one model in turn; the cases kill the first."""
    # No check may notice the death before a request does: requests are what is tested.
    health = {**HEALTH, "interval": "5s"}
    mortal = env.add_engine("mortal", PLAIN)
    config = {
        "routing": {"strategy": "round_robin", "expose_decision": True},
        "health": health,
        "backends": [
            {"name": "mortal", "url": mortal.url, "engine": "llamacpp"},
            {"name": "plain-b", "url": env.engines["plain-b"].url, "engine": "llamacpp"},
        ],
    }
    return Setup(config, {PLAIN})


def down(env: "Env") -> Setup:
    """One engine, which the case kills."""
    doomed = env.add_engine("doomed", DOOMED)
    backends = [{"name": "doomed", "url": doomed.url, "engine": "llamacpp"}]
    return Setup({"health": HEALTH, "backends": backends}, {DOOMED})


def hosted(env: "Env") -> Setup:
    """A mock of a hosted API: rate limits and silence."""
    env.hosted = env.keep(Hosted())
    models = [LIMITED, LIMITED_ONCE, SILENT]
    config = {
        # Short, so that one case does not hold up the next.
        "routing": {"cooldown": {"max": "1s"}},
        "timeouts": {"response": "1s"},
        "health": {**HEALTH, "breaker": {"connect_failures": 1000, "min_responses": 1000}},
        "backends": [
            {"name": "hosted", "url": env.hosted.url, "engine": "openai", "models": models}
        ],
    }
    return Setup(config, set(models))


def services(env: "Env") -> Setup:
    """An engine and a hosted API with what it lacks; defaults, patterns and forwarded paths."""
    env.services = env.keep(Services())
    config = {
        "routing": {
            "default_model": {"chat": TOOLS},
            "aliases": {"gpt-*": TOOLS},
            "passthrough": {"/v1/files*": "services", "/v1/realtime": "by-model"},
        },
        "health": HEALTH,
        "backends": [
            {"name": "tools", "url": env.engines["tools"].url},
            {
                "name": "services", "url": env.services.url, "engine": "openai",
                "models": [VOICE, RANKER],
            },
        ],
    }
    return Setup(config, {TOOLS, VOICE, RANKER})


def cached(env: "Env", routing: dict[str, Any], parallel: int = 2, context: int = 2048) -> Setup:
    """Four engines that keep the KV cache of the last prompts of their slots."""
    backends = []
    for number in range(4):
        name = f"cached-{number}"
        if name not in env.engines:
            env.add_engine(name, CACHED, parallel=parallel, ctx=parallel * context, cache=1)
        backends.append({"name": name, "url": env.engines[name].url, "engine": "llamacpp"})
    routing = {"expose_decision": True, **routing}
    return Setup({"routing": routing, "health": HEALTH, "backends": backends}, {CACHED})


def cached_in_turn(env: "Env") -> Setup:
    """Those engines in turn."""
    return cached(env, {"strategy": "round_robin"})


def cached_by_prefix(env: "Env") -> Setup:
    """The same, by the default profile of `weighted`."""
    return cached(env, {"strategy": "weighted"})


def cached_by_load(env: "Env") -> Setup:
    """The same, by cached prefixes against load: unlike by default, load outweighs a long prefix."""
    return cached(env, {"strategy": "weighted", "preset": "lmetric"})


def tls(env: "Env") -> Setup:
    """One engine behind a second port with TLS and optional HTTP/2."""
    backends = [{"name": "plain-a", "url": env.engines["plain-a"].url}]
    files = {"cert": str(env.tls.cert), "key": str(env.tls.key)}
    return Setup({"health": HEALTH, "backends": backends}, {PLAIN}, tls=files)


def telemetry(env: "Env") -> Setup:
    """An engine whose metrics are scraped at the shortest interval."""
    backends = [{"name": "slow", "url": env.engines["slow"].url}]
    config = {"telemetry": {"enabled": True}, "health": HEALTH, "backends": backends}
    return Setup(config, {SLOW})


def converted(env: "Env") -> Setup:
    """One engine, declared to serve fewer APIs than it does: the others are converted."""
    models = [
        {"id": PLAIN, "operations": ["chat"]},
        {"id": "messages-only", "upstream_id": PLAIN, "operations": ["messages"]},
    ]
    backend = {"name": "few", "url": env.engines["plain-a"].url, "models": models}
    return Setup({"health": HEALTH, "backends": [backend]}, {PLAIN, "messages-only"})


def short_context(env: "Env") -> Setup:
    """One engine with a context of 512 tokens, whose conversations may be shortened: under one name by
    what the engine reports of it, under the other only when it refuses."""
    if "short" not in env.engines:
        env.add_engine("short", SHORT, parallel=1, ctx=512)
    url = env.engines["short"].url
    names = {SHORT, "short-unknown"}
    config = {
        "health": HEALTH,
        "models": {name: {"context_shift": True} for name in names},
        "backends": [{"name": "short", "url": url, "engine": "llamacpp", "models": [
            {"id": SHORT, "context_length": 512}, {"id": "short-unknown", "upstream_id": SHORT}]}],
    }
    return Setup(config, names)


def watched(env: "Env") -> Setup:
    """One engine, and a single usage stream for the dashboard."""
    backends = [{"name": "slow", "url": env.engines["slow"].url}]
    return Setup({"usage": {"streams": 1}, "health": HEALTH, "backends": backends}, {SLOW})


def wide(env: "Env") -> Setup:
    """40 backends with long names and models, a shadow strategy, a ledger: what a dashboard must fit."""
    hosted = env.keep(Services())
    node = "inference-gpu-node-{:02}.rack-07.row-b.hall-2.eu-central-1.compute.internal."
    models = ["org/" + "a-rather-long-model-name-" * 4 + f"instruct-{number:07}" for number in range(3)]
    models.append(HOSTILE)
    backends = [
        {"name": node.format(number).ljust(120, "x"), "url": f"{hosted.url}/{number}", "engine": "openai",
         "models": models, "max_in_flight": 64}
        for number in range(40)
    ]
    config = {
        "routing": {"strategy": "weighted", "predict": True, "shadow": {"strategy": "round_robin"}},
        "ledger": {"path": str(env.work / "wide.db")},
        # One Python process plays all of them.
        "health": {**HEALTH, "interval": "5s"},
        "backends": backends,
    }
    return Setup(config, set(models))


def budgets(env: "Env") -> Setup:
    """One engine whose tokens have a price, and a budget with a name that could be markup."""
    price = {"input": 1000, "output": 1000, "currency": "EUR"}
    config = {
        "ledger": {"path": str(env.work / "budgets.db")},
        "models": {PLAIN: {"price": price}},
        "budgets": [{"name": "<b>house", "amount": 1000, "soft": "75%"}],
        "health": HEALTH,
        "backends": [{"name": "plain", "url": env.engines["plain-a"].url}],
    }
    return Setup(config, {PLAIN})


def teams(env: "Env") -> Setup:
    """Keys that are refused for every reason, one of them in a store; two zones; a budget; a limit."""
    store = str(env.work / "keys.db")

    def keys(*arguments: str) -> str:
        command = [str(env.binary), "keys", *arguments, "--store", store]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    env.revoked = keys("create", "--name", "gone", "--quiet").strip()
    keys("revoke", re.search("key_[0-9a-f]+", keys("list"))[0])
    plain, tools = env.engines["plain-a"].url, env.engines["tools"].url
    config = {
        "auth": {
            "store": store,
            # Refusals are what the cases count, and not their delay.
            "failures_per_minute": "none",
            "keys": [
                {"name": "staff", "key": KEY_STAFF, "models": ["tiny/*"]},
                {"name": "past", "key": KEY_PAST, "expires_at": "2026-01-31T18:00:00Z"},
                {"name": "future", "key": KEY_FUTURE, "not_before": "2999-01-31T18:00:00Z"},
                {"name": "inside", "key": KEY_INSIDE, "zones": ["local"]},
                {"name": "poor", "key": KEY_POOR},
                {"name": "slow", "key": KEY_SLOW, "limits": {"requests_per_minute": 1}},
            ],
        },
        "ledger": {"path": str(env.work / "teams.db")},
        "models": {PLAIN: {"price": {"input": 1000, "output": 1000, "currency": "EUR"}}},
        "budgets": [{"name": "purse", "keys": ["poor"], "amount": 0.1, "every": "day"}],
        "health": HEALTH,
        "backends": [
            {"name": "plain", "url": plain, "zone": "local"},
            {"name": "tools", "url": tools, "zone": "cloud"},
        ],
    }
    return Setup(config, {PLAIN}, KEY_STAFF)


def ensembles(env: "Env") -> Setup:
    """Two engines of one model that may make ensembles together."""
    backends = [{"name": name, "url": env.engines[name].url} for name in ("plain-a", "plain-b")]
    config = {"ensembles": {"enabled": True, "critique_tokens": 16}, "health": HEALTH, "backends": backends}
    return Setup(config, {PLAIN})


def queue(env: "Env", timeout: str = "30s") -> Setup:
    """An engine that is full with one request; the others wait, and are kept alive."""
    backends = [{"name": "slow", "url": env.engines["slow"].url, "max_in_flight": 1}]
    wait = {"size": 100, "timeout": timeout, "keep_alive": "200ms"}
    return Setup({"queue": wait, "health": HEALTH, "backends": backends}, {SLOW})


def short_queue(env: "Env") -> Setup:
    """The same, with a short wait."""
    return queue(env, "1s")


CONFIGS: dict[str, Callable[["Env"], Setup]] = {
    "main": main, "declared": declared, "auth": auth, "faults": faults, "down": down,
    "hosted": hosted,
    "services": services, "short_context": short_context,
    "cached-in-turn": cached_in_turn,
    "cached-by-prefix": cached_by_prefix,
    "cached-by-load": cached_by_load,
    "tls": tls,
    "telemetry": telemetry,
    "converted": converted,
    "ensembles": ensembles,
    "budgets": budgets,
    "queue": queue,
    "short-queue": short_queue,
    "teams": teams, "watched": watched,
    "wide": wide,
}
