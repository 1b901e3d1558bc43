"""An HTTP server that answers GETs as it is told, for what no real store can be made to do."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler], None]


class ScriptedServer:
    """`script[path]` are the answers to one GET after another; the last one is repeated, and where
    there is none, it is 404.

    `endpoint` is the server's URL, `asked` the paths of all requests so far, `headers` theirs (names in
    lower case), and `over` is set when the server ends. While `down` is set it answers all requests.
    HEAD is answered as GET is if `heads` is set, and else 501.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.script: dict[str, list[Answer]] = {}
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.over = threading.Event()
        self.down: Answer | None = None
        self.heads = False


def body(content: bytes, etag: str = '"tag"') -> Answer:
    """200 with this content, or 206 with the part that is asked for; 416 for one that begins beyond it."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if wanted := re.fullmatch(r"bytes=(\d*)-(\d+)", handler.headers.get("Range", "")):
            start, stop = max(0, len(content) - int(wanted[2])), len(content)
            if wanted[1]:
                start, stop = int(wanted[1]), min(int(wanted[2]) + 1, len(content))
            if start >= len(content):
                return refusal(416, "InvalidRange")(handler)
            part = content[start:stop]
            of = f"bytes {start}-{stop - 1}/{len(content)}"
            _head(handler, 206, len(part), etag, Content_Range=of)
            handler.wfile.write(part)
        else:
            _head(handler, 200, len(content), etag)
            if handler.command != "HEAD":
                handler.wfile.write(content)
        return None

    return answer


def refusal(status: int, code: str, message: str = "", **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        content = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        _head(handler, status, len(content), "", **headers)
        if handler.command != "HEAD":
            handler.wfile.write(content)

    return answer


def cut(content: bytes, promised: int) -> Answer:
    """200 that promises more bytes than come before the connection is closed."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        _head(handler, 200, promised, '"tag"')
        handler.wfile.write(content)
        hang_up(handler)

    return answer


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.flush()
    handler.close_connection = True
    with contextlib.suppress(OSError):
        handler.connection.shutdown(socket.SHUT_RDWR)


def chunked(content: bytes, *, whole: bool) -> Answer:
    """200 without a length, in chunks; the last one is missing unless `whole`."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.send_header("ETag", '"tag"')
        handler.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        handler.end_headers()
        if handler.command == "HEAD":
            return
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
        if whole:
            handler.wfile.write(b"0\r\n\r\n")
        else:
            hang_up(handler)

    return answer


def drip(server: ScriptedServer, promised: int, every: float) -> Answer:
    """200 that brings a byte now and then, until the client has gone or the server ends."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        _head(handler, 200, promised, '"tag"')
        with contextlib.suppress(OSError):
            while not server.over.wait(every):
                handler.wfile.write(b"x")
                handler.wfile.flush()
        handler.close_connection = True

    return answer


def silent(server: ScriptedServer) -> Answer:
    """No answer, on a connection that stays open until the server ends."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        server.over.wait()
        handler.close_connection = True

    return answer


def endless(handler: BaseHTTPRequestHandler) -> None:
    """200 of a terabyte: as much of it as the client takes."""
    _head(handler, 200, 1 << 40, '"tag"')
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(bytes(1 << 16))


def redirect(status: int, location: str) -> Answer:
    return lambda handler: _head(handler, status, 0, "", Location=location)


def echo(status: int) -> Answer:
    """An S3 error whose text repeats all that the request had in it."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        said = f"{handler.path} {handler.headers}".replace("<", "&lt;")
        refusal(status, "InternalError", said)(handler)

    return answer


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


@contextlib.contextmanager
def scripted_server(certificate: str | None = None) -> Iterator[ScriptedServer]:
    """`certificate`: a PEM file with key and certificate, for a server that speaks TLS."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            scripted.asked.append(self.path)
            scripted.headers.append({k.lower(): v for k, v in self.headers.items()})
            if scripted.down is not None:
                return scripted.down(self)
            answers = scripted.script.get(self.path) or [refusal(404, "NoSuchKey")]
            return (answers[0] if len(answers) == 1 else answers.pop(0))(self)

        def do_HEAD(self) -> None:
            if scripted.heads:
                return self.do_GET()
            return self.send_error(501)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False  # keep-alive connections may still be open
        scheme = "http"
        if certificate is not None:
            scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients hang up
        scripted = ScriptedServer(f"{scheme}://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield scripted
        finally:
            scripted.over.set()
            server.shutdown()
            thread.join()
