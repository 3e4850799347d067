"""The dashboard in a real browser: it runs under its content security policy and shows live data."""
import json
import shutil
import subprocess

import wire
from cases.chat import ASK
from env import PLAIN, Env, Skip

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def open_page(url: str, profile: str) -> tuple[str, str]:
    """The page after some of its timer ticks, and its console output."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise Skip("no browser on this machine")
    ran = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
         "--enable-logging=stderr", "--virtual-time-budget=7000", "--dump-dom", url],
        capture_output=True, text=True, timeout=20,
    )
    assert ran.returncode == 0, ran.stderr[-400:]
    return ran.stdout, ran.stderr


def case_dashboard_shows_the_fleet(env: Env) -> None:
    """Backends, cards and the last decision, with a hostile model name as plain text."""
    proxy = env.proxy()
    evil = "<img src=x onerror=alert(1)>"
    response = wire.fetch(proxy.url + "/v1/chat/completions", ASK)
    assert response.status == 200, response.body
    assert wire.fetch(proxy.url + "/v1/chat/completions", {**ASK, "model": evil}).status == 404
    page, console = open_page(proxy.admin + "/dashboard", str(env.work / "browser"))
    assert 'class="good">live<' in page, page[-2000:]
    for backend in json.loads(wire.fetch(proxy.admin + "/fleet").body)["backends"]:
        assert f'data-backend="{backend["name"]}"' in page, backend["name"]
    for word in ("requests / s", "TTFT p95", PLAIN, "polyline points="):
        assert word in page, word
    assert "<img" not in page, "a name became markup"
    for word in ("Content Security Policy", "Refused to", "Uncaught"):
        assert word not in console, console[-2000:]
