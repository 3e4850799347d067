"""The dashboard in a real browser: it runs under its content security policy and shows live data."""
import http.server
import json
import re
import shutil
import subprocess
import threading

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


LONG = "inference-gpu-node-0123456789-rack-07.eu-central-1.compute.internal.example.com:8000"
FRAME = """<!doctype html><body><iframe src="/page" width="{width}" height="900"></iframe>"""
# Runs in the page, reports to the page around it.
MEASURE = """<script>
setInterval(() => {
  const row = document.querySelector("#fleet tr");
  if (!row) return;
  const edge = element => element.getBoundingClientRect().right;
  const tables = [...document.querySelectorAll(".scroll:not([hidden])")];
  parent.document.body.dataset.layout = JSON.stringify({
    state: edge(row.children[1]), width: document.documentElement.clientWidth,
    wide: tables.filter(box => box.scrollWidth > box.clientWidth).map(box => box.scrollWidth),
  });
}, 500);
</script></body>"""


def serve_measured(admin: str, width: int) -> http.server.ThreadingHTTPServer:
    """The dashboard of `admin` in a frame of `width`, every backend with a long name."""

    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind = "text/html"
            if self.path == "/frame":
                body = FRAME.format(width=width).encode()
            elif self.path == "/page":
                body = wire.fetch(admin + "/dashboard").body.replace(b"</body>", MEASURE.encode())
            else:
                body, kind = wire.fetch(admin + self.path).body, "application/json"
                for key in (b"name", b"backend"):
                    body = re.sub(rb'"%s":\s*"[^"]*"' % key, b'"%s":"%s"' % (key, LONG.encode()), body)
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def case_dashboard_fits_narrow_and_wide_screens(env: Env) -> None:
    """Long names: at 360 px the state is on the screen, at 1280 px no table is cut."""
    proxy = env.proxy()
    assert wire.fetch(proxy.url + "/v1/chat/completions", ASK).status == 200
    for width in (360, 1280):
        server = serve_measured(proxy.admin, width)
        try:
            url = f"http://127.0.0.1:{server.server_port}/frame"
            page, _ = open_page(url, str(env.work / f"browser-{width}"))
        finally:
            server.shutdown()
        found = re.search(r'data-layout="([^"]*)"', page)
        assert found, page[-1000:]
        layout = json.loads(found[1].replace("&quot;", '"'))
        assert layout["state"] <= layout["width"] <= width, (width, layout)
        if width == 1280:
            assert not layout["wide"], layout
