"""The proxies between client and engine, and the mock engine."""
import http.client
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import processes

HERE = Path(__file__).resolve().parent
CHAT = "/v1/chat/completions"
PROBE = json.dumps({"model": "mock-model", "messages": [{"role": "user", "content": "hello"}]})
READY_SECONDS = 20
# The ports of a proxy: for HTTP/1.1, for HTTP/2 without TLS, for both with it, and its own.
DOORS = ("plain", "http2", "tls", "admin")


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def wait_ready(port, process, what):
    end = time.monotonic() + READY_SECONDS
    last = "nothing"
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"{what} ended with {process.returncode}")
        try:
            status, body = ask(port, "POST", CHAT, PROBE)
            if status == 200 and b"choices" in body:
                return
            last = f"{status} {body[:200]!r}"
        except OSError as error:
            last = repr(error)
        time.sleep(0.05)
    raise SystemExit(f"{what} never responded: {last}")


class Engine:
    """The mock engine, one process behind all backends."""

    def __init__(self, rig, ports, cpu):
        self.rig, self.ports, self.cpu = rig, ports, cpu
        self.process = None

    def __enter__(self):
        for port in self.ports:
            processes.wait_free(port)
        addresses = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        command = [self.rig / "mockllm", "--listen", addresses]
        self.process = processes.start(command, self.cpu, "/dev/null")
        try:
            wait_ready(self.ports[-1], self.process, "mockllm")
        except BaseException:
            processes.stop(self.process)
            raise
        return self

    def __exit__(self, *_):
        processes.stop(self.process)

    def get(self, path):
        status, body = ask(self.ports[0], "GET", path)
        if status != 200:
            raise RuntimeError(f"mockllm returned {status} for {path}")
        return json.loads(body)

    def set(self, **knobs):
        self.get("/_set?" + "&".join(f"{name}={value}" for name, value in knobs.items()))


class Peer:
    """A proxy under test."""

    def __init__(self, name, command, conf=None, version=None, strategy="smart"):
        self.name, self.command, self.conf, self.version_command = name, command, conf, version
        self.strategy = strategy
        self.cpu = self.certificate = None
        self.doors, self.backends, self.process, self.run = {}, [], None, None

    @property
    def port(self):
        return self.doors["plain"]

    def place(self, doors, backends, cpu, certificate):
        self.doors, self.cpu, self.certificate = doors, cpu, certificate
        self.backends = [f"127.0.0.1:{backend}" for backend in backends]

    def version(self):
        if not self.version_command:
            return None
        done = subprocess.run(self.version_command, capture_output=True, text=True, timeout=10)
        return (done.stdout + done.stderr).strip().splitlines()[0]

    def __enter__(self):
        for port in self.doors.values():
            processes.wait_free(port)
        self.run = Path(tempfile.mkdtemp(prefix=f"penstock-rig-{self.name}-"))
        values = {"{conf}": self.render() if self.conf else "", "{run}": self.run,
                  "{cert}": self.certificate / "cert.pem", "{key}": self.certificate / "key.pem",
                  "{backends}": ",".join(self.backends)}
        for door, port in self.doors.items():
            values["{" + door + "}"] = f"127.0.0.1:{port}"
        command = [values.get(part, part) for part in self.command]
        self.process = processes.start(command, self.cpu, self.run / "log")
        try:
            wait_ready(self.port, self.process, self.name)
        except BaseException as error:
            log = (self.run / "log").read_text(errors="replace")[-2000:]
            self.__exit__()
            raise SystemExit(f"{error}\n{log}") from error
        return self

    def __exit__(self, *_):
        processes.stop(self.process)
        shutil.rmtree(self.run, ignore_errors=True)

    def render(self):
        """The configuration: placeholders filled, lines marked #each once per backend."""
        lines = []
        for line in (HERE / "peers" / self.conf).read_text().splitlines():
            if not line.startswith("#each"):
                lines.append(line)
                continue
            for index, backend in enumerate(self.backends):
                one = line.removeprefix("#each").replace("@@BACKEND@@", backend)
                lines.append(one.replace("@@INDEX@@", str(index)))
        text = "\n".join(lines) + "\n"
        values = {"run": self.run, "certificate": self.certificate,
                  "strategy": self.strategy, **self.doors}
        for name, value in values.items():
            text = text.replace(f"@@{name.upper()}@@", str(value))
        path = self.run / self.conf
        path.write_text(text)
        return path


def known(penstock, rig, earlier=None):
    """All proxies, by name, in the order of the table. An earlier penstock takes the floor's place."""
    floor = Peer("floor", [rig / "floor", "{plain}", "{http2}", "{tls}", "{cert}", "{key}", "{backends}"])
    if earlier:
        floor = Peer("floor", [earlier, "serve", "--config", "{conf}"], "penstock.yaml", [earlier, "--version"])
    return {peer.name: peer for peer in (
        Peer("penstock", [penstock, "serve", "--config", "{conf}"], "penstock.yaml",
             [penstock, "--version"]),
        Peer("weighted", [penstock, "serve", "--config", "{conf}"], "penstock.yaml",
             [penstock, "--version"], "weighted"),
        Peer("shadow", [penstock, "serve", "--config", "{conf}"], "penstock.yaml",
             [penstock, "--version"], "smart, shadow: { strategy: weighted }"),
        floor,
        Peer("nginx", ["nginx", "-e", "stderr", "-p", "{run}", "-c", "{conf}"], "nginx.conf",
             ["nginx", "-v"]),
        Peer("haproxy", ["haproxy", "-db", "-f", "{conf}"], "haproxy.cfg", ["haproxy", "-v"]),
    )}


def is_installed(name):
    return name in ("penstock", "weighted", "shadow", "floor") or shutil.which(name) is not None
