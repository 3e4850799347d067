"""The environment of a case: engines, penstock in several configurations, SDK clients."""
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anthropic import Anthropic
from openai import AsyncOpenAI, OpenAI

import configs
import wire
from browser import Browser, find_browser
from processes import Engine, Penstock
from tiny_gguf import Recipe, write_model

PLAIN = configs.PLAIN
TOOLS = configs.TOOLS
EMBED = configs.EMBED
SLOW = configs.SLOW

RECIPES = {
    "plain": Recipe(ctx=2048),
    "tools": Recipe(chat="tools", ctx=2048),
    # Slow enough that a generation outlives every wait of a cancel test many times over.
    "slow": Recipe(dim=512, layers=4, heads=8, ffn=1536, ctx=4096),
}
# An HTTP thread per stream, as an engine in production has: else its health check queues
# behind the streams.
ENGINES = {
    "plain-a": ("plain", PLAIN, {"parallel": 16, "ctx": 16 * 2048, "http": 240}),
    "plain-b": ("plain", PLAIN, {"parallel": 16, "ctx": 16 * 2048, "http": 240}),
    "tools": ("tools", TOOLS, {"parallel": 2, "ctx": 2 * 2048}),
    "embed": ("plain", EMBED, {"parallel": 2, "ctx": 2 * 512, "embed": 1}),
    "slow": ("slow", SLOW, {"parallel": 2, "ctx": 2 * 4096, "batch": 64}),
}


class Skip(Exception):
    """This case cannot run here; the text says why."""


@dataclass
class Certificates:
    """PEM files: an authority and a certificate it signed for 127.0.0.1."""

    ca: Path
    cert: Path
    key: Path


class Env:
    """Everything that runs, started when first needed and ended by `close`."""

    def __init__(self, binary: Path | None, work: Path, tls: Certificates | None = None) -> None:
        self.work = work
        self.binary = binary
        self.tls = tls
        self.engines: dict[str, Engine] = {}
        self._proxies: dict[str, Penstock] = {}
        self._keys: dict[str, str] = {}
        self._browser: Browser | None = None
        self._stack = contextlib.ExitStack()

    def start(self) -> None:
        """Write the models and start the engines every run needs, side by side."""
        self.prepare()
        for name in ENGINES:
            self._spawn(name, *ENGINES[name])
        for engine in self.engines.values():
            engine.await_ready()

    def prepare(self) -> None:
        """Write the models; engines start when they are added."""
        for name, recipe in RECIPES.items():
            write_model(str(self._model(name)), recipe)

    def close(self) -> None:
        """End every process and client."""
        self._stack.close()

    def _model(self, name: str) -> Path:
        return self.work / f"{name}.gguf"

    def _spawn(self, name: str, model: str, alias: str, options: dict[str, Any]) -> Engine:
        log = self.work / f"engine-{name}.log"
        engine = Engine(self._model(model), alias, log, **options)
        self.keep(engine)
        self.engines[name] = engine
        return engine

    def keep(self, part: Any) -> Any:
        """Close `part` at the end of the run."""
        self._stack.callback(part.close)
        return part

    def add_engine(self, name: str, alias: str, **options: Any) -> Engine:
        """A further plain engine, ready."""
        return self._spawn(name, "plain", alias, {"parallel": 4, "ctx": 8192, **options}).await_ready()

    def proxy(self, name: str = "main") -> Penstock:
        """Penstock with the configuration of that name, started on first use."""
        if self.binary is None:
            raise Skip("needs penstock")
        if name not in self._proxies:
            setup = configs.CONFIGS[name](self)
            proxy = self.keep(Penstock(self.binary, self.work, name, setup.config, setup.tls))
            headers = {"authorization": f"Bearer {setup.key}"}

            def discovered() -> bool:
                response = wire.fetch(proxy.url + "/v1/models", **headers)
                return response.status == 200 and setup.models <= {m["id"] for m in response.json()["data"]}

            try:
                wire.wait_until(f"every model of {name} in /v1/models", discovered, 30.0)
            except AssertionError as error:
                raise AssertionError(f"{error}: {proxy.last_lines()}") from None
            self._proxies[name] = proxy
            self._keys[name] = setup.key
        return self._proxies[name]

    def browser(self) -> Browser:
        """The browser, started on first use."""
        if self._browser is None:
            program = find_browser()
            if program is None:
                raise Skip("no browser on this machine")
            self._browser = self.keep(Browser(program, self.work / "browser"))
        return self._browser

    def url(self, model: str = PLAIN, proxy: str = "main") -> str:
        """Where requests for `model` go: penstock, or without one the engine itself."""
        if self.binary is None and proxy == "main":
            return self.engine_of(model).url
        return self.proxy(proxy).url

    def engine_of(self, model: str) -> Engine:
        """The first engine that serves `model`."""
        return next(engine for engine in self.engines.values() if engine.alias == model)

    def openai(self, model: str = PLAIN, proxy: str = "main", **options: Any) -> OpenAI:
        """A client of penstock without retries: a retry would hide a fault."""
        url = self.url(model, proxy)
        options.setdefault("api_key", self._keys.get(proxy, "any"))
        return self._client(OpenAI, url + "/v1", options)

    def async_openai(self, model: str = PLAIN, proxy: str = "main", **options: Any) -> AsyncOpenAI:
        """The same, asynchronous; the caller closes it inside its event loop."""
        url = self.url(model, proxy)
        options.setdefault("api_key", self._keys.get(proxy, "any"))
        options = {"max_retries": 0, "timeout": wire.TIMEOUT, **options}
        return AsyncOpenAI(base_url=url + "/v1", **options)

    def direct(self, model: str = PLAIN) -> OpenAI:
        """A client of the engine itself, for the response penstock must not change."""
        return self._client(OpenAI, self.engine_of(model).url + "/v1", {"api_key": "any"})

    def anthropic(self, model: str = PLAIN, proxy: str = "main", **options: Any) -> Anthropic:
        """Anthropic's client; its base address has no /v1."""
        url = self.url(model, proxy)
        options.setdefault("api_key", self._keys.get(proxy, "any"))
        return self._client(Anthropic, url, options)

    def _client(self, kind: type, url: str, options: dict[str, Any]) -> Any:
        options = {"max_retries": 0, "timeout": wire.TIMEOUT, **options}
        return self.keep(kind(base_url=url, **options))
