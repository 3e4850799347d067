"""Operates the service step by step under a real systemd: start, reload, graceful upgrade, watchdog,
crash, stop. check-systemd runs this inside its container."""

import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONFIG = pathlib.Path("/etc/penstock/penstock.yaml")
DROP_INS = pathlib.Path("/etc/systemd/system/penstock.service.d")
DATA, ADMIN, ENGINE = 8080, 9090, 8000
WATCHDOG = 2
DRAIN = 4
RESULTS = pathlib.Path("/tmp/results")


class Engine(BaseHTTPRequestHandler):
    """A mock engine: streams `max_tokens` events, ten per second."""

    protocol_version = "HTTP/1.1"
    started_streams = threading.Semaphore(0)

    def log_message(self, *_):
        pass

    def send_json(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.send_json({"object": "list", "data": [{"id": "m"}]})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not request.get("stream"):
            return self.send_json({"choices": [{"message": {"content": "x"}}]})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for _ in range(request["max_tokens"]):
                event = {"choices": [{"delta": {"content": "x"}}]}
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.started_streams.release()
                time.sleep(0.1)
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            pass
        self.close_connection = True


def send(port, method, path, body=None, timeout=30):
    """Sends a request; returns status and text of the response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        text = json.dumps(body) if body is not None else None
        connection.request(method, path, text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def chat(**more):
    return send(DATA, "POST", "/v1/chat/completions", {"model": "m", "messages": [], **more})


class Stream(threading.Thread):
    """A stream of `seconds` seconds, read in the background."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.status, self.text = seconds, None, ""
        self.start()
        Engine.started_streams.acquire()

    def run(self):
        try:
            self.status, self.text = chat(stream=True, max_tokens=self.seconds * 10)
        except (OSError, http.client.HTTPException) as error:
            self.text = f"{type(error).__name__}: {error}"

    def is_complete(self):
        self.join()
        while Engine.started_streams.acquire(blocking=False):
            pass
        return self.status == 200 and self.text.endswith("data: [DONE]\n\n")


class Load(threading.Thread):
    """Sequential requests, each on a new connection."""

    def __init__(self):
        super().__init__()
        self.sent, self.failed, self.is_over = 0, [], False
        self.start()

    def run(self):
        while not self.is_over:
            try:
                status, text = chat()
                if status != 200:
                    self.failed.append(f"{status} {text}")
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(repr(error))
            self.sent += 1
            time.sleep(0.005)

    def end(self):
        self.is_over = True
        self.join()
        return self.failed


def systemctl(*arguments):
    ran = subprocess.run(["systemctl", *arguments], capture_output=True, text=True)
    if ran.returncode:
        raise AssertionError(f"systemctl {' '.join(arguments)}: {ran.returncode} {ran.stderr}")
    return ran.stdout


def show(name):
    return systemctl("show", "penstock", "--value", "--property", name).strip()


def pid():
    return int(show("MainPID"))


def eventually(what, check, limit=15.0):
    until = time.monotonic() + limit
    while not check():
        assert time.monotonic() < until, f"{what}: not within {limit} s"
        time.sleep(0.05)


def configure(more=""):
    """Writes the configuration; `more` adds sections."""
    CONFIG.write_text(
        f'server: {{ listen: ["127.0.0.1:{DATA}", "unix:/run/penstock/api.sock"], '
        f"drain_timeout: {DRAIN}s }}\n"
        f'admin: {{ listen: "127.0.0.1:{ADMIN}" }}\n'
        "access_log: { path: /var/log/penstock/access.log }\n"
        f'{more}backends: [{{ name: one, url: "http://127.0.0.1:{ENGINE}", models: [m] }}]\n'
    )


def drop_in(text):
    DROP_INS.mkdir(exist_ok=True)
    (DROP_INS / "check.conf").write_text(text)
    systemctl("daemon-reload")


def start_waits_for_readiness():
    """`systemctl start` returns once the service is ready and has a status line."""
    assert show("UnitFileState") == "disabled" and show("ActiveState") == "inactive"
    configure()
    drop_in(f"[Service]\nWatchdogSec={WATCHDOG}s\n")
    systemctl("start", "penstock")
    assert chat()[0] == 200, "the service responds as soon as systemd reports it as started"
    assert show("ActiveState") == "active" and show("SubState") == "running"
    eventually("the backend is healthy", lambda: show("StatusText").startswith("serving: 1 of 1"))
    shown = systemctl("status", "penstock", "--no-pager", "--lines=0")
    assert 'Status: "serving: 1 of 1 backends healthy' in shown, shown
    return shown


def service_is_unprivileged():
    """A dynamic user without capabilities; the file system is read-only except its directories."""
    status = dict(
        line.split(":\t", 1)
        for line in pathlib.Path(f"/proc/{pid()}/status").read_text().splitlines()
        if ":\t" in line
    )
    user = int(status["Uid"].split()[0])
    assert 61184 <= user <= 65519, f"{user} is not a dynamic user"
    assert int(status["CapEff"], 16) == 0 and status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    log = pathlib.Path("/var/log/penstock/access.log")
    eventually("the access log is written", lambda: log.exists() and log.read_text().count("\n") >= 1)
    assert log.stat().st_uid == user
    assert pathlib.Path("/run/penstock/api.sock").is_socket()
    mounts = pathlib.Path(f"/proc/{pid()}/mountinfo").read_text().splitlines()
    root = [line.split()[5].split(",") for line in mounts if line.split()[4] == "/"]
    assert all("ro" in options for options in root), root
    limit = pathlib.Path(f"/proc/{pid()}/limits").read_text()
    open_files = next(line for line in limit.splitlines() if line.startswith("Max open files"))
    return f"user {user}, {' '.join(open_files.split())}"


def reload_keeps_process_and_streams():
    """`systemctl reload` changes only the configuration; an invalid one is refused."""
    before = pid()
    stream = Stream(2)
    configure("routing: { aliases: { other: m } }\n")
    systemctl("reload", "penstock")
    eventually("the alias is in force", lambda: '"other"' in send(DATA, "GET", "/v1/models")[1])
    CONFIG.write_text("backends: {")
    systemctl("reload", "penstock")
    eventually("the refusal is logged", lambda: "refused" in journal())
    assert chat()[0] == 200 and show("ActiveState") == "active"
    configure()
    systemctl("reload", "penstock")
    assert stream.is_complete(), stream.text
    assert pid() == before and show("NRestarts") == "0"


def failed_upgrade_changes_nothing():
    before = pid()
    CONFIG.write_text("backends: {")
    status, text = send(ADMIN, "POST", "/upgrade", timeout=60)
    assert status == 500, text
    time.sleep(2 * WATCHDOG)
    assert pid() == before and show("Result") == "success" and show("NRestarts") == "0"
    assert chat()[0] == 200
    configure()


def graceful_upgrade_loses_no_request():
    """The new binary takes over the listeners, systemd tracks its process, and no request fails."""
    before, program = pid(), os.stat(f"/proc/{pid()}/exe").st_ino
    upgraded = subprocess.run(["dpkg", "--install", "/penstock.deb"], capture_output=True, text=True)
    assert upgraded.returncode == 0, upgraded.stderr
    assert "POST http://127.0.0.1:9090/upgrade" in upgraded.stdout, upgraded.stdout
    assert pid() == before, "a package upgrade does not restart the service"
    configure()
    load, stream = Load(), Stream(2)
    status, text = send(ADMIN, "POST", "/upgrade", timeout=60)
    assert status == 200, text
    eventually("systemd tracks the new process", lambda: pid() not in (0, before))
    after = pid()
    eventually("the old process exits", lambda: not pathlib.Path(f"/proc/{before}").exists())
    assert stream.is_complete(), stream.text
    failed = load.end()
    assert not failed, f"{len(failed)} of {load.sent}: {failed[:3]}"
    assert pid() == after == json.loads(text)["pid"], text
    assert os.stat(f"/proc/{after}/exe").st_ino != program, "the new process runs the new binary"
    assert show("ActiveState") == "active" and show("NRestarts") == "0"
    # Longer than the watchdog timeout: systemd accepts the pings of the new process.
    time.sleep(3 * WATCHDOG)
    assert pid() == after and show("Result") == "success" and chat()[0] == 200
    systemctl("reload", "penstock")
    assert chat()[0] == 200 and pid() == after
    return f"{before} -> {after}, {load.sent} requests, 0 failed"


def watchdog_restarts_a_hung_process():
    """systemd kills a hung process and starts a new one."""
    before = pid()
    os.kill(before, signal.SIGSTOP)
    started = time.monotonic()
    eventually("systemd restarts the service", lambda: show("NRestarts") == "1" and pid() != before, 30)
    took = time.monotonic() - started
    eventually("the service is active again", lambda: show("ActiveState") == "active")
    assert "Watchdog timeout" in journal(), journal()
    assert chat()[0] == 200
    return f"after {took:.1f} s"


def crash_restarts_the_service():
    before = pid()
    os.kill(before, signal.SIGKILL)
    eventually("systemd restarts the service", lambda: show("NRestarts") == "2" and pid() not in (0, before))
    eventually("the service is active again", lambda: show("ActiveState") == "active")
    assert chat()[0] == 200


def stop_waits_for_streams():
    """Up to `drain_timeout`; also after a graceful upgrade."""
    before = pid()
    assert send(ADMIN, "POST", "/upgrade", timeout=60)[0] == 200
    eventually("the old process exits", lambda: not pathlib.Path(f"/proc/{before}").exists())
    short = Stream(2)
    started = time.monotonic()
    systemctl("stop", "penstock")
    took = time.monotonic() - started
    assert short.is_complete(), short.text
    assert show("Result") == "success" and show("ActiveState") == "inactive"
    assert 1.0 < took < DRAIN, f"{took}"
    systemctl("start", "penstock")
    long = Stream(30)
    started = time.monotonic()
    systemctl("stop", "penstock")
    cut = time.monotonic() - started
    assert not long.is_complete()
    assert show("Result") == "success" and show("ActiveState") == "inactive", show("Result")
    assert DRAIN - 0.5 < cut < DRAIN + 5, f"{cut}"
    assert not pathlib.Path("/run/penstock").exists()
    return f"{took:.1f} s for a stream of 2 s, {cut:.1f} s for one longer than {DRAIN} s"


def invalid_configuration_does_not_start():
    good = CONFIG.read_text()
    CONFIG.write_text("routing: { strateggy: random }\n")
    ran = subprocess.run(["systemctl", "start", "penstock"], capture_output=True)
    assert ran.returncode != 0
    assert "did you mean 'strategy'?" in journal()
    CONFIG.write_text(good)
    systemctl("reset-failed", "penstock")


def low_port_and_key_from_environment():
    """The drop-in that the unit describes, and a key from the environment file."""
    drop_in(
        "[Service]\nAmbientCapabilities=CAP_NET_BIND_SERVICE\n"
        "CapabilityBoundingSet=CAP_NET_BIND_SERVICE\nPrivateUsers=no\n"
    )
    environment = pathlib.Path("/etc/penstock/penstock.env")
    environment.write_text("SERVICE_KEY=sk-1\n")
    configure("auth: { keys: [{ name: t, key: '${SERVICE_KEY}' }] }\n")
    CONFIG.write_text(CONFIG.read_text().replace(f":{DATA}", ":80"))
    systemctl("start", "penstock")
    assert send(80, "POST", "/v1/chat/completions", {"model": "m", "messages": []})[0] == 401
    status, text = send(ADMIN, "POST", "/upgrade", timeout=60)
    assert status == 200, text
    eventually("systemd tracks the new process", lambda: pid() == json.loads(text)["pid"])
    assert send(80, "GET", "/v1/models")[0] == 401
    systemctl("stop", "penstock")
    assert show("Result") == "success"


def alias(name):
    """Writes a configuration that is recognizable by an alias of the model."""
    configure(f"routing: {{ aliases: {{ {name}: m }} }}\n")


def has_alias(name):
    return f'"{name}"' in send(DATA, "GET", "/v1/models")[1]


def reload_and_check(name):
    """The configuration is in force when `systemctl reload` returns."""
    alias(name)
    systemctl("reload", "penstock")
    assert has_alias(name), name
    assert show("ActiveState") == "active" and show("SubState") == "running"


def notify_reload_waits_for_the_reload():
    """The drop-in for systemd 253 and later: `systemctl reload` returns when the reload is complete."""
    version = int(systemctl("--version").split()[1])
    if version < 253:
        return f"skipped: systemd {version}"
    drop_in(pathlib.Path("/usr/share/doc/penstock/notify-reload.conf").read_text())
    configure()
    systemctl("start", "penstock")
    assert show("Type") == "notify-reload" and show("ExecReload") == "", "reload by signal only"
    before, stream = pid(), Stream(2)
    for turn in range(5):
        reload_and_check(f"turn-{turn}")
    refused = journal().count("configuration refused")
    CONFIG.write_text("backends: {")
    systemctl("reload", "penstock")
    assert show("ActiveState") == "active" and has_alias("turn-4"), "the previous configuration stays in force"
    eventually("the refusal is logged", lambda: journal().count("configuration refused") > refused)
    assert stream.is_alive(), "the stream is still running"
    assert stream.is_complete(), stream.text
    assert pid() == before, "the process was not restarted"
    upgrade_and_reload(before)
    took = reload_waits_for_the_first_check()
    systemctl("stop", "penstock")
    assert show("Result") == "success"
    return f"reload with a silent backend takes {took:.1f} s"


def upgrade_and_reload(before):
    """A reload right after a graceful upgrade reaches the new process."""
    alias("upgraded")
    status, text = send(ADMIN, "POST", "/upgrade", timeout=60)
    assert status == 200, text
    alias("after-upgrade")
    systemctl("reload", "penstock")
    assert pid() == json.loads(text)["pid"] != before, text
    # Until it exits it accepts connections too, with its old configuration.
    eventually("the old process exits", lambda: not pathlib.Path(f"/proc/{before}").exists())
    assert has_alias("after-upgrade"), "the new process received the reload"
    reload_and_check("alone")


def reload_waits_for_the_first_check():
    """A reload waits for the first health check of a new backend, but not longer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        alias("waited")
        more = f'{{ name: two, url: "http://127.0.0.1:{silent.getsockname()[1]}", models: [m] }}]'
        CONFIG.write_text(CONFIG.read_text().replace("}]\n", f"}}, {more}\n"))
        started = time.monotonic()
        systemctl("reload", "penstock")
        took = time.monotonic() - started
        assert has_alias("waited") and show("ActiveState") == "active"
        return took


def unit_is_hardened():
    """As rated by systemd-analyze; with the drop-in where one applies."""
    checked = analyze("verify", "--man=no", "penstock.service")
    assert not checked, checked
    output = analyze("security", "--offline=yes", "--threshold=20", "penstock.service")
    return output.splitlines()[-1].strip(" \u2192")


def analyze(*arguments):
    ran = subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def journal():
    command = ["journalctl", "--unit=penstock", "--no-pager", "--output=cat"]
    return subprocess.run(command, capture_output=True, text=True).stdout


STEPS = [
    start_waits_for_readiness,
    service_is_unprivileged,
    reload_keeps_process_and_streams,
    failed_upgrade_changes_nothing,
    graceful_upgrade_loses_no_request,
    watchdog_restarts_a_hung_process,
    crash_restarts_the_service,
    stop_waits_for_streams,
    invalid_configuration_does_not_start,
    low_port_and_key_from_environment,
    notify_reload_waits_for_the_reload,
    unit_is_hardened,
]


def main():
    engine = ThreadingHTTPServer(("127.0.0.1", ENGINE), Engine)
    engine.daemon_threads = True
    threading.Thread(target=engine.serve_forever, daemon=True).start()
    try:
        for step in STEPS:
            output = step()
            print(f"{step.__name__}: ok{f' ({output.strip()})' if output else ''}", flush=True)
        print("all steps passed", flush=True)
    except Exception as error:  # reported, whatever it is
        print(f"{step.__name__}: {type(error).__name__}: {error}", flush=True)
        traceback.print_tb(error.__traceback__, file=sys.stdout)
        sys.stdout.flush()
        (RESULTS / "journal").write_text(journal())
        (RESULTS / "status").write_text(systemctl("show", "penstock"))
        os._exit(1)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # Do not wait for threads of interrupted requests.
    os._exit(0)
