"""The processes of a run: engines and penstock, each ended by its own pid."""
import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

import wire

HERE = Path(__file__).resolve().parent
START_LIMIT = 15.0


def end(process: subprocess.Popen, limit: float = 3.0) -> None:
    """End a process: politely, then not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


class Engine:
    """One llama.cpp server process."""

    def __init__(self, model: Path, alias: str, log: Path, **options: Any) -> None:
        self._options = {"alias": alias, "cache": 0, **options}
        self._model = model
        self._log = log
        self.alias = alias
        self.url = ""
        self._spawn(0)

    def _spawn(self, port: int) -> None:
        options = ",".join(f"{key}={value}" for key, value in self._options.items())
        spec = f"{self._model}:{port}:{options}"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "tiny_server.py"), "--with-parent", spec],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )

    def await_ready(self) -> "Engine":
        """Block until the server responds."""
        # A timer ends a server that says nothing, which ends the read below.
        timer = threading.Timer(START_LIMIT, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if not line:
            raise AssertionError(f"the engine {self.alias} did not start, see {self._log.name}")
        self.url = json.loads(line)["url"]
        return self

    def kill(self) -> None:
        """SIGKILL: the kernel closes its connections."""
        self.process.kill()
        self.process.wait()

    def restart(self, **options: Any) -> None:
        """The same server on the same port, with other options where they are given."""
        end(self.process)
        self._options.update(options)
        self._spawn(urlsplit(self.url).port)
        self.await_ready()

    def close(self) -> None:
        """End the process."""
        end(self.process)


class Penstock:
    """`penstock serve` with its own configuration file, and a second port where `tls` is given."""

    def __init__(
        self, binary: Path, work: Path, name: str, config: dict[str, Any],
        tls: dict[str, str] | None = None,
    ) -> None:
        self._binary = binary
        self._config = config
        self._tls = tls
        self.file = work / f"penstock-{name}.yaml"
        self.log = work / f"penstock-{name}.log"
        self.log.unlink(missing_ok=True)
        for attempt in range(3):
            self._spawn()
            if self._is_up():
                return
            end(self.process)
            if b"in use" not in self.log.read_bytes():
                break
        raise AssertionError(f"penstock did not become ready ({name}): {self.last_lines()}")

    def _spawn(self) -> None:
        port, admin_port = wire.free_port(), wire.free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.admin = f"http://127.0.0.1:{admin_port}"
        listen: list[Any] = [f"127.0.0.1:{port}"]
        if self._tls is not None:
            tls_port = wire.free_port()
            self.tls_url = f"https://127.0.0.1:{tls_port}"
            listen.append({"address": f"127.0.0.1:{tls_port}", "tls": self._tls})
        config = {
            "server": {"listen": listen, "drain_timeout": "2s"},
            "admin": {"listen": f"127.0.0.1:{admin_port}"},
            **self._config,
        }
        self.file.write_text(yaml.safe_dump(config, sort_keys=False))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(self._binary), "serve", "--config", str(self.file)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )

    def _is_up(self) -> bool:
        def has_responded() -> bool:
            if self.process.poll() is not None:
                raise AssertionError("penstock ended")
            # Another process on the admin port would be ready, too.
            socket.create_connection(("127.0.0.1", urlsplit(self.url).port), 1.0).close()
            return wire.fetch(self.admin + "/health/ready").status == 200

        try:
            wire.wait_until("penstock's readiness", has_responded, START_LIMIT)
        except AssertionError:
            return False
        return True

    def last_lines(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-1500:].strip()

    def close(self) -> None:
        """End the process."""
        end(self.process)
