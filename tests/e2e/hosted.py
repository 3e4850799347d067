"""A mock of a hosted API that limits rates and falls silent, as the name of its model says."""
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LIMITED = "hosted-limited"
LIMITED_ONCE = "hosted-limited-once"
SILENT = "hosted-silent"
OPENAI_LIMIT = {
    "error": {
        "message": "Rate limit reached", "type": "requests", "param": None,
        "code": "rate_limit_exceeded",
    }
}
ANTHROPIC_LIMIT = {
    "type": "error",
    "error": {"type": "rate_limit_error", "message": "Rate limit reached"},
    "request_id": "req_hosted",
}


class Hosted:
    """Serves chat completions and messages until closed, and counts requests by model."""

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        self.left = threading.Event()
        self._closed = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Take no more requests, and let the silent ones end."""
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(hosted) -> type:
        class Handler(BaseHTTPRequestHandler):
            """One connection."""

            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                """Health checks."""
                self._send(200, {"object": "list", "data": []})

            def do_POST(self) -> None:
                """A request for work."""
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                model = body["model"]
                count = hosted.requests[model] = hosted.requests.get(model, 0) + 1
                if model == SILENT:
                    hosted.fall_silent(self.connection)
                    self.close_connection = True
                elif model == LIMITED:
                    self._refuse("20")
                elif model == LIMITED_ONCE and count == 1:
                    self._refuse("1")
                else:
                    message = {"role": "assistant", "content": "done"}
                    choice = {"index": 0, "finish_reason": "stop", "message": message}
                    self._send(200, {
                        "id": "chatcmpl-1", "object": "chat.completion", "created": 1,
                        "model": model, "choices": [choice],
                    })

            def _refuse(self, wait: str) -> None:
                is_anthropic = self.path == "/v1/messages"
                limit = ANTHROPIC_LIMIT if is_anthropic else OPENAI_LIMIT
                name = "request-id" if is_anthropic else "x-request-id"
                self._send(429, limit, {
                    "retry-after": wait, "x-ratelimit-remaining-requests": "0", name: "req_hosted",
                })

            def _send(self, status: int, body: object, fields: dict[str, str] | None = None) -> None:
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                for name, value in (fields or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                """Nothing: the cases say what went wrong."""

        return Handler

    def fall_silent(self, connection) -> None:
        """Send nothing until the other side leaves."""
        connection.settimeout(0.05)
        while not self._closed.is_set():
            try:
                if not connection.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        self.left.set()
