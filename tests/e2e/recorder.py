"""A relay between penstock and an engine that keeps what passed, byte by byte."""
import http.client
import io
import socket
import threading
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass
class Exchange:
    """A request as the engine received it, and the response as the engine sent it."""

    head: bytes
    body: bytes
    response: bytes


class _Tape:
    """Bytes posing as a socket, so that `http.client` parses them."""

    def __init__(self, taped: bytes) -> None:
        self._stream = io.BytesIO(taped)
        self._stream.close = lambda: None  # a response closes its file; the tape goes on

    def makefile(self, _mode: str) -> io.BytesIO:
        """The part of a socket that `HTTPResponse` uses."""
        return self._stream

    def next_response(self) -> bytes:
        """The body of the next recorded response."""
        response = http.client.HTTPResponse(self)
        response.begin()
        return response.read()


class Recorder:
    """Relays connections to one engine until closed."""

    def __init__(self, engine_url: str) -> None:
        parts = urlsplit(engine_url)
        self._target = (parts.hostname, parts.port)
        self._tapes: list[tuple[bytearray, bytearray]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                engine = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            tape = (bytearray(), bytearray())
            self._tapes.append(tape)
            for source, sink, kept in ((client, engine, tape[0]), (engine, client, tape[1])):
                threading.Thread(target=self._pump, args=(source, sink, kept), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
        try:
            while chunk := source.recv(65536):
                kept += chunk
                sink.sendall(chunk)
        except OSError:
            pass  # one side left: the other is closed below
        try:
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # already gone

    def exchanges(self, path: str) -> list[Exchange]:
        """Every whole exchange so far whose request went to `path`."""
        found = []
        for asked, response in list(self._tapes):
            rest, tape = bytes(asked), _Tape(bytes(response))
            while b"\r\n\r\n" in rest:
                head, rest = rest.split(b"\r\n\r\n", 1)
                length = _content_length(head)
                try:
                    exchange = Exchange(head, rest[:length], tape.next_response())
                except http.client.HTTPException:
                    break  # still under way, as a health check may be: the last on its connection
                rest = rest[length:]
                if head.split(b" ")[1] == path.encode():
                    found.append(exchange)
        return found

    def close(self) -> None:
        """Take no more connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, value = line.split(b":", 1)
        if name.lower() == b"content-length":
            return int(value)
    return 0
