"""A headless Chromium, driven by its DevTools protocol over a pipe."""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from processes import end

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
         "--remote-debugging-pipe")


def find_browser() -> str | None:
    """The first browser that is installed."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Browser:
    """One browser process with one page."""

    def __init__(self, program: str, profile: Path, limit: float = 20.0) -> None:
        self._limit = limit
        self._left = b""
        self._number = 0
        self._session: str | None = None
        # What the page wrote to its console, and what its security policy refused.
        self.complaints: list[str] = []
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def place() -> None:
            """The protocol is spoken on descriptors 3 and 4; only these are inherited."""
            high = [fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, 10) for pipe in (to_browser, from_browser)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=place,
        )
        os.close(to_browser)
        os.close(from_browser)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the process."""
        os.close(self._write)
        os.close(self._read)
        end(self.process)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its result."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + self._limit
        while True:
            message = self._receive(until, method)
            if message.get("id") == number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]

    def _receive(self, until: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            part = os.read(self._read, 1 << 16) if ready else b""
            if not part:
                raise AssertionError(f"{what}: the browser does not respond")
            self._left += part
        text, _, self._left = self._left.partition(b"\0")
        message = json.loads(text)
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params)[:600])
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
        return message

    def resize(self, width: int, height: int = 900) -> None:
        """The size of the window, in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)

    def prefer(self, **features: str) -> None:
        """Media features, with underscores for dashes: `prefers_color_scheme="dark"`."""
        chosen = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=chosen)

    def open(self, url: str) -> None:
        """Load a page."""
        self.call("Page.navigate", url=url)

    def eval(self, script: str) -> Any:
        """The value of an expression in the page, as JSON; of its result where it is a promise."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script[:100]}: {json.dumps(result['exceptionDetails'])[:400]}")
        return result["result"].get("value")

    def wait(self, what: str, script: str, limit: float = 15.0) -> Any:
        """Poll until the expression is true; its value."""
        until = time.monotonic() + limit
        while True:
            value = self.eval(script)
            if value:
                return value
            if time.monotonic() > until:
                raise AssertionError(f"{what}: not within {limit:g} s")
            time.sleep(0.05)

    def press(self, key: str, code: int, text: str = "") -> None:
        """One key of the keyboard."""
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def tree(self) -> list[dict[str, Any]]:
        """The accessibility tree, as screen readers get it."""
        return self.call("Accessibility.getFullAXTree")["nodes"]

    def picture(self, path: Path, whole: bool = False) -> None:
        """A PNG of the window, or of the whole page."""
        options = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            options["clip"] = {**size, "x": 0, "y": 0, "scale": 1}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **options)["data"]))
