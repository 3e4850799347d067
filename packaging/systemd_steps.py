"""What an operator does with the service, step by step, under the systemd that runs this. Called by
check-systemd inside of its container."""

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
TOLD = pathlib.Path("/tmp/told")


class Engine(BaseHTTPRequestHandler):
    """Streams as many events as `max_tokens` asks for, ten in a second."""

    protocol_version = "HTTP/1.1"
    begun = threading.Semaphore(0)

    def log_message(self, *_):
        pass

    def whole(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.whole({"object": "list", "data": [{"id": "m"}]})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not asked.get("stream"):
            return self.whole({"choices": [{"message": {"content": "x"}}]})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for _ in range(asked["max_tokens"]):
                event = {"choices": [{"delta": {"content": "x"}}]}
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.begun.release()
                time.sleep(0.1)
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            pass
        self.close_connection = True


def ask(port, method, path, body=None, timeout=30):
    """Status and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        text = json.dumps(body) if body is not None else None
        connection.request(method, path, text, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def chat(**more):
    return ask(DATA, "POST", "/v1/chat/completions", {"model": "m", "messages": [], **more})


class Stream(threading.Thread):
    """A stream of so many seconds, read in the background."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.status, self.text = seconds, None, ""
        self.start()
        Engine.begun.acquire()

    def run(self):
        try:
            self.status, self.text = chat(stream=True, max_tokens=self.seconds * 10)
        except (OSError, http.client.HTTPException) as error:
            self.text = f"{type(error).__name__}: {error}"

    def is_whole(self):
        self.join()
        while Engine.begun.acquire(blocking=False):
            pass
        return self.status == 200 and self.text.endswith("data: [DONE]\n\n")


class Load(threading.Thread):
    """Requests one after the other on connections of their own."""

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


def fact(name):
    return systemctl("show", "penstock", "--value", "--property", name).strip()


def pid():
    return int(fact("MainPID"))


def eventually(what, check, limit=15.0):
    until = time.monotonic() + limit
    while not check():
        assert time.monotonic() < until, f"not within {limit} s: {what}"
        time.sleep(0.05)


def configure(more=""):
    """`more` is further sections."""
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


def it_starts():
    """`systemctl start` returns once it is ready; the status line is there."""
    assert fact("UnitFileState") == "disabled" and fact("ActiveState") == "inactive"
    configure()
    drop_in(f"[Service]\nWatchdogSec={WATCHDOG}s\n")
    systemctl("start", "penstock")
    assert chat()[0] == 200, "it serves as soon as systemd calls it started"
    assert fact("ActiveState") == "active" and fact("SubState") == "running"
    eventually("the backend is seen", lambda: fact("StatusText").startswith("serving: 1 of 1"))
    shown = systemctl("status", "penstock", "--no-pager", "--lines=0")
    assert 'Status: "serving: 1 of 1 backends healthy' in shown, shown
    return shown


def it_is_nobody():
    """A user of its own without a capability, in a file system that is read-only but for its folders."""
    status = dict(
        line.split(":\t", 1)
        for line in pathlib.Path(f"/proc/{pid()}/status").read_text().splitlines()
        if ":\t" in line
    )
    user = int(status["Uid"].split()[0])
    assert 61184 <= user <= 65519, f"{user} is no dynamic user"
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


def a_reload_is_one():
    """`systemctl reload` changes the configuration and nothing else; a bad one changes nothing."""
    before = pid()
    stream = Stream(2)
    configure("routing: { aliases: { other: m } }\n")
    systemctl("reload", "penstock")
    eventually("the alias is known", lambda: '"other"' in ask(DATA, "GET", "/v1/models")[1])
    CONFIG.write_text("backends: {")
    systemctl("reload", "penstock")
    eventually("the fault is logged", lambda: "refused" in journal())
    assert chat()[0] == 200 and fact("ActiveState") == "active"
    configure()
    systemctl("reload", "penstock")
    assert stream.is_whole(), stream.text
    assert pid() == before and fact("NRestarts") == "0"


def a_failed_upgrade_changes_nothing():
    before = pid()
    CONFIG.write_text("backends: {")
    status, text = ask(ADMIN, "POST", "/upgrade", timeout=60)
    assert status == 500, text
    time.sleep(2 * WATCHDOG)
    assert pid() == before and fact("Result") == "success" and fact("NRestarts") == "0"
    assert chat()[0] == 200
    configure()


def it_is_handed_over():
    """After an upgrade the new binary takes over; systemd follows it, and no request fails."""
    before, program = pid(), os.stat(f"/proc/{pid()}/exe").st_ino
    upgraded = subprocess.run(["dpkg", "--install", "/penstock.deb"], capture_output=True, text=True)
    assert upgraded.returncode == 0, upgraded.stderr
    assert "POST http://127.0.0.1:9090/upgrade" in upgraded.stdout, upgraded.stdout
    assert pid() == before, "an upgrade restarts nothing"
    configure()
    load, stream = Load(), Stream(2)
    status, text = ask(ADMIN, "POST", "/upgrade", timeout=60)
    assert status == 200, text
    eventually("systemd follows", lambda: pid() not in (0, before))
    after = pid()
    eventually("the old process is gone", lambda: not pathlib.Path(f"/proc/{before}").exists())
    assert stream.is_whole(), stream.text
    failed = load.end()
    assert not failed, f"{len(failed)} of {load.sent}: {failed[:3]}"
    assert pid() == after == json.loads(text)["pid"], text
    assert os.stat(f"/proc/{after}/exe").st_ino != program, "it is the new binary"
    assert fact("ActiveState") == "active" and fact("NRestarts") == "0"
    # Longer than the watchdog waits: the new process is the one that is heard.
    time.sleep(3 * WATCHDOG)
    assert pid() == after and fact("Result") == "success" and chat()[0] == 200
    systemctl("reload", "penstock")
    assert chat()[0] == 200 and pid() == after
    return f"{before} -> {after}, {load.sent} requests, 0 failed"


def the_watchdog_bites():
    """A process that hangs is ended and started again."""
    before = pid()
    os.kill(before, signal.SIGSTOP)
    started = time.monotonic()
    eventually("it is started again", lambda: fact("NRestarts") == "1" and pid() != before, 30)
    took = time.monotonic() - started
    eventually("it serves again", lambda: fact("ActiveState") == "active")
    assert "Watchdog timeout" in journal(), journal()
    assert chat()[0] == 200
    return f"after {took:.1f} s"


def a_crash_is_mended():
    before = pid()
    os.kill(before, signal.SIGKILL)
    eventually("it is started again", lambda: fact("NRestarts") == "2" and pid() not in (0, before))
    eventually("it serves again", lambda: fact("ActiveState") == "active")
    assert chat()[0] == 200


def a_stop_waits_for_streams():
    """And no longer than for `drain_timeout`; also after a hand-over."""
    before = pid()
    assert ask(ADMIN, "POST", "/upgrade", timeout=60)[0] == 200
    eventually("the old process is gone", lambda: not pathlib.Path(f"/proc/{before}").exists())
    short = Stream(2)
    started = time.monotonic()
    systemctl("stop", "penstock")
    took = time.monotonic() - started
    assert short.is_whole(), short.text
    assert fact("Result") == "success" and fact("ActiveState") == "inactive"
    assert 1.0 < took < DRAIN, f"{took}"
    systemctl("start", "penstock")
    long = Stream(30)
    started = time.monotonic()
    systemctl("stop", "penstock")
    cut = time.monotonic() - started
    assert not long.is_whole()
    assert fact("Result") == "success" and fact("ActiveState") == "inactive", fact("Result")
    assert DRAIN - 0.5 < cut < DRAIN + 5, f"{cut}"
    assert not pathlib.Path("/run/penstock").exists()
    return f"{took:.1f} s for a stream of 2 s, {cut:.1f} s for one that outlives {DRAIN} s"


def a_bad_configuration_does_not_start():
    good = CONFIG.read_text()
    CONFIG.write_text("routing: { strateggy: random }\n")
    ran = subprocess.run(["systemctl", "start", "penstock"], capture_output=True)
    assert ran.returncode != 0
    assert "did you mean 'strategy'?" in journal()
    CONFIG.write_text(good)
    systemctl("reset-failed", "penstock")


def low_ports_and_keys():
    """The drop-in the unit tells of, and a key from the environment's file."""
    drop_in(
        "[Service]\nAmbientCapabilities=CAP_NET_BIND_SERVICE\n"
        "CapabilityBoundingSet=CAP_NET_BIND_SERVICE\nPrivateUsers=no\n"
    )
    environment = pathlib.Path("/etc/penstock/penstock.env")
    environment.write_text("SERVICE_KEY=sk-1\n")
    configure("auth: { keys: [{ name: t, key: '${SERVICE_KEY}' }] }\n")
    CONFIG.write_text(CONFIG.read_text().replace(f":{DATA}", ":80"))
    systemctl("start", "penstock")
    assert ask(80, "POST", "/v1/chat/completions", {"model": "m", "messages": []})[0] == 401
    status, text = ask(ADMIN, "POST", "/upgrade", timeout=60)
    assert status == 200, text
    eventually("systemd follows", lambda: pid() == json.loads(text)["pid"])
    assert ask(80, "GET", "/v1/models")[0] == 401
    systemctl("stop", "penstock")
    assert fact("Result") == "success"


def alias(name):
    """A configuration told from others by a name for the model."""
    configure(f"routing: {{ aliases: {{ {name}: m }} }}\n")


def knows(name):
    return f'"{name}"' in ask(DATA, "GET", "/v1/models")[1]


def reload_and_ask(name):
    """What `systemctl reload` put into force is in force once it returns."""
    alias(name)
    systemctl("reload", "penstock")
    assert knows(name), name
    assert fact("ActiveState") == "active" and fact("SubState") == "running"


def reloads_as_newer_ones_do():
    """The drop-in for systemd 253 and later: a reload is over when it says so, not before."""
    version = int(systemctl("--version").split()[1])
    if version < 253:
        return f"not with systemd {version}"
    drop_in(pathlib.Path("/usr/share/doc/penstock/notify-reload.conf").read_text())
    configure()
    systemctl("start", "penstock")
    assert fact("Type") == "notify-reload" and fact("ExecReload") == "", "a signal is all it takes"
    before, stream = pid(), Stream(2)
    for turn in range(5):
        reload_and_ask(f"turn-{turn}")
    refused = journal().count("is refused")
    CONFIG.write_text("backends: {")
    systemctl("reload", "penstock")
    assert fact("ActiveState") == "active" and knows("turn-4"), "the one before goes on"
    eventually("the fault is logged", lambda: journal().count("is refused") > refused)
    assert stream.is_alive(), "it ran all the while"
    assert stream.is_whole(), stream.text
    assert pid() == before, "nothing was started anew"
    upgrade_and_reload(before)
    took = unready_backends_are_waited_for()
    systemctl("stop", "penstock")
    assert fact("Result") == "success"
    return f"a backend that says nothing takes {took:.1f} s"


def upgrade_and_reload(before):
    """Whoever asks right after a hand-over has the new process reloaded."""
    alias("handed-over")
    status, text = ask(ADMIN, "POST", "/upgrade", timeout=60)
    assert status == 200, text
    alias("after-it")
    systemctl("reload", "penstock")
    assert pid() == json.loads(text)["pid"] != before, text
    # Up to then it takes connections too, and answers as it did.
    eventually("the old process is gone", lambda: not pathlib.Path(f"/proc/{before}").exists())
    assert knows("after-it"), "it was the new process that heard of it"
    reload_and_ask("alone")


def unready_backends_are_waited_for():
    """A reload waits for the first check of a new backend, and no longer than for that."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        alias("waited")
        more = f'{{ name: two, url: "http://127.0.0.1:{silent.getsockname()[1]}", models: [m] }}]'
        CONFIG.write_text(CONFIG.read_text().replace("}]\n", f"}}, {more}\n"))
        started = time.monotonic()
        systemctl("reload", "penstock")
        took = time.monotonic() - started
        assert knows("waited") and fact("ActiveState") == "active"
        return took


def it_is_hardened():
    """By the word of systemd itself; with the drop-in where there is one for it."""
    checked = analyze("verify", "--man=no", "penstock.service")
    assert not checked, checked
    said = analyze("security", "--offline=yes", "--threshold=20", "penstock.service")
    return said.splitlines()[-1].strip(" \u2192")


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
    it_starts,
    it_is_nobody,
    a_reload_is_one,
    a_failed_upgrade_changes_nothing,
    it_is_handed_over,
    the_watchdog_bites,
    a_crash_is_mended,
    a_stop_waits_for_streams,
    a_bad_configuration_does_not_start,
    low_ports_and_keys,
    reloads_as_newer_ones_do,
    it_is_hardened,
]


def main():
    engine = ThreadingHTTPServer(("127.0.0.1", ENGINE), Engine)
    engine.daemon_threads = True
    threading.Thread(target=engine.serve_forever, daemon=True).start()
    try:
        for step in STEPS:
            said = step()
            print(f"{step.__name__}: ok{f' ({said.strip()})' if said else ''}", flush=True)
        print("every step went well", flush=True)
    except Exception as error:  # whatever it is, it is told
        print(f"{step.__name__}: {type(error).__name__}: {error}", flush=True)
        traceback.print_tb(error.__traceback__, file=sys.stdout)
        sys.stdout.flush()
        (TOLD / "journal").write_text(journal())
        (TOLD / "status").write_text(systemctl("show", "penstock"))
        os._exit(1)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # Threads of requests that were cut need not be waited for.
    os._exit(0)
