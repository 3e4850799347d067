"""A placeholder of a hosted API with the operations that llama.cpp lacks."""
import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

IMAGES = {"created": 1, "data": [{"b64_json": "aGk="}]}
MODERATION = {"id": "modr-1", "model": "m", "results": [
    {"flagged": False, "categories": {}, "category_scores": {}, "category_applied_input_types": {}},
]}
RANKING = {"id": "r", "results": [
    {"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1},
], "meta": {}}
FILE = {
    "id": "file-1", "object": "file", "bytes": 4, "created_at": 1, "filename": "a.txt",
    "purpose": "batch", "status": "processed",
}
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Services:
    """Serves until closed, and keeps the path and the model of each request."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.models: list[str | None] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        # A health check may leave at any time.
        self._server.handle_error = lambda *_: None
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Take no more requests."""
        self._server.shutdown()
        self._server.server_close()

    def _handler(services) -> type:
        class Handler(BaseHTTPRequestHandler):
            """One connection."""

            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                """Health checks, a file, and the upgrade to a WebSocket that returns a frame."""
                if "upgrade" in self.headers:
                    self._switch()
                elif self.path.startswith("/v1/files/"):
                    self._send(FILE)
                else:
                    self._send({"object": "list", "data": []})

            def do_POST(self) -> None:
                """A request for work."""
                body = self.rfile.read(int(self.headers["content-length"]))
                services.paths.append(self.path)
                if self.path == "/v1/files":
                    self._send(FILE)
                elif self.path.startswith("/v1/audio/transcriptions"):
                    self._send({"text": f"received {len(re.search(rb'RIFF', body)[0])} bytes"})
                elif self.path == "/v1/audio/speech":
                    self._send_bytes(b"RIFF", "audio/wav")
                elif self.path == "/v1/rerank":
                    self._send(RANKING)
                else:
                    is_form = self.headers["content-type"].startswith("multipart/")
                    named = re.search(rb'name="model"\r\n\r\n(\S+)', body)
                    model = json.loads(body).get("model") if not is_form else named and named[1]
                    services.models.append(model)
                    self._send(MODERATION if self.path == "/v1/moderations" else IMAGES)

            def _switch(self) -> None:
                key = self.headers["sec-websocket-key"].encode() + GUID
                self.send_response(101)
                self.send_header("upgrade", "websocket")
                self.send_header("connection", "Upgrade")
                accept = base64.b64encode(hashlib.sha1(key).digest()).decode()
                self.send_header("sec-websocket-accept", accept)
                self.end_headers()
                self.wfile.flush()
                frame = self.rfile.read(11)
                mask, masked = frame[2:6], frame[6:]
                text = bytes(byte ^ mask[index % 4] for index, byte in enumerate(masked))
                self.wfile.write(b"\x81\x05" + text)
                self.close_connection = True

            def _send(self, body: object) -> None:
                self._send_bytes(json.dumps(body).encode(), "application/json")

            def _send_bytes(self, body: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing: the cases say what went wrong."""

        return Handler
