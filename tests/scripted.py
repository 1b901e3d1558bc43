"""An HTTP server that answers GETs as it is told, for what no real store can be made to do."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler], None]


class ScriptedServer:
    """`script[path]` are the answers to one GET after another; the last one is repeated, and where
    there is none, it is 404.

    `endpoint` is the server's URL, `asked` the paths of all requests so far.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.script: dict[str, list[Answer]] = {}
        self.asked: list[str] = []


def body(content: bytes, etag: str = '"tag"') -> Answer:
    """200 with this content, or 206 with the part that is asked for."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", "")):
            start, stop = int(wanted[1]), min(int(wanted[2]) + 1, len(content))
            part = content[start:stop]
            of = f"bytes {start}-{stop - 1}/{len(content)}"
            _head(handler, 206, len(part), etag, Content_Range=of)
            handler.wfile.write(part)
        else:
            _head(handler, 200, len(content), etag)
            handler.wfile.write(content)

    return answer


def refusal(status: int, code: str, message: str = "", **headers: str) -> Answer:
    """An S3 error."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        content = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        _head(handler, status, len(content), "", **headers)
        handler.wfile.write(content)

    return answer


def cut(content: bytes, promised: int) -> Answer:
    """200 that promises more bytes than come before the connection is closed."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        _head(handler, 200, promised, '"tag"')
        handler.wfile.write(content)
        _hang_up(handler)

    return answer


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    """No answer: the connection is closed."""
    _hang_up(handler)


def _head(
    handler: BaseHTTPRequestHandler, status: int, length: int, etag: str, **headers: str
) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(length))
    handler.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
    if etag:
        handler.send_header("ETag", etag)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()


def _hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.flush()
    handler.close_connection = True
    with contextlib.suppress(OSError):
        handler.connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            scripted.asked.append(self.path)
            answers = scripted.script.get(self.path) or [refusal(404, "NoSuchKey")]
            (answers[0] if len(answers) == 1 else answers.pop(0))(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False  # keep-alive connections may still be open
        scripted = ScriptedServer(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield scripted
        finally:
            server.shutdown()
            thread.join()
