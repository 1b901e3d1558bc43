"""Serves metrics, status, history and the page by HTTP, in a thread of its own.

    /metrics  /healthz  /readyz  /status.json  /history.json?since=SECONDS  /

The daemon hands over one document a second, whether or not a client asks. A text is made at most once for
each document, and connections are accepted at a bounded rate. All clients share the bytes of a text. So the
number of clients changes nothing for the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import math
import socket
import sys
import threading
import time
import zlib
from asyncio import BaseTransport, TimerHandle
from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib import resources
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from cachecd.monitor.history import History
from cachecd.monitor.metrics import CONTENT_TYPE, TrainerTotals, render
from cachecd.monitor.privacy import without_keys

Document = Mapping[str, Any]

_MOST_CONNECTIONS = 128  # a process often has 1,024 descriptors, and the daemon needs its own
_BACKLOG = 1024  # connections that the kernel keeps until they are accepted
_PAUSE = 0.01  # seconds between two connections, so that a flood takes a few percent of a processor
_AFTER_ERROR = 0.5  # seconds
_LONGEST = 15.0  # seconds of a connection, even if its client never sends or never reads
_STALE = 5.0  # seconds after which the daemon's loop counts as stuck
_WHOLE_KEPT, _MINUTE_KEPT = 10.0, 1.0  # seconds for which a text of the history is reused
_PIECE = 1 << 16  # bytes of a body that are sent at once
_CLOSES_WITHIN = 2.0  # seconds
_SWITCH = 0.0005  # seconds

_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/uplot.js": ("uPlot.iife.min.js", "text/javascript; charset=utf-8"),
    "/uplot.css": ("uPlot.min.css", "text/css; charset=utf-8"),
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


class HttpServer:
    """A server that ends neither the daemon nor any of its work, whatever its clients do. It accepts at
    most 100 connections a second, each for one request. It keeps at most 128 of them, each for at most 15
    seconds. All methods belong to one thread."""

    def __init__(
        self,
        host: str,
        port: int,
        history: History,
        *,
        shows_keys: bool = False,
        any_host: bool = False,
    ) -> None:
        """Listens at once. OSError. `any_host`: requests may name the server in any way. Otherwise they
        must use its IP address or `localhost`, so that no other web site can read it through a browser."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        self._site = _Site(history, shows_keys, any_host)
        config = uvicorn.Config(
            self._site.app,
            http="h11",
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            log_level="error",  # a warning for each invalid request would let clients fill the log
            access_log=False,
            server_header=False,
            date_header=False,
            headers=[("Connection", "close")],  # a connection has one request
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config, self._socket)
        self._loop: asyncio.AbstractEventLoop | None = None
        # A thread that wants to run waits for this time. With Python's 5 ms, the daemon's loop would wait
        # that long at each of its steps while the server is busy.
        sys.setswitchinterval(_SWITCH)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs. It ends by itself only because of a defect."""
        return self._thread.is_alive()

    def offer(self, document: Document) -> None:
        """Hands over the present document. The caller must not change it afterwards."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._site.receive, document, time.monotonic())

    def close(self) -> None:
        """Ends the server within about two seconds."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._server.ended.set)
        self._thread.join(_CLOSES_WITHIN)
        self._socket.close()

    def _run(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve([])
            # Connections that were accepted last are not known before their tasks have run.
            if accepting := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(accepting, timeout=0.1)
            # The clients of these do not read.
            for connection in list(self._server.server_state.connections):
                cast(Any, connection).transport.abort()
            await asyncio.sleep(0)  # the transports close their sockets

        asyncio.run(serve())


class _Server(uvicorn.Server):
    """Accepts connections one after the other, with a pause. Sleeps while nobody connects."""

    def __init__(self, config: uvicorn.Config, listening: socket.socket) -> None:
        super().__init__(config)
        self.ended = asyncio.Event()
        self._listening = listening

    async def main_loop(self) -> None:
        accepting = asyncio.ensure_future(self._accept())
        await self.ended.wait()
        accepting.cancel()
        await asyncio.wait([accepting])

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            pause = _PAUSE
            try:
                accepted, _ = await loop.sock_accept(self._listening)
                await loop.connect_accepted_socket(self._connection, accepted)
            except OSError:  # the client is gone, or the process has no free descriptor
                pause = _AFTER_ERROR
            await asyncio.sleep(pause)

    def _connection(self) -> _BriefConnection:
        state = {"server_state": self.server_state, "app_state": self.lifespan.state}
        return _BriefConnection(config=self.config, **state)


class _BriefConnection(H11Protocol):
    _ending: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        if len(self.connections) > _MOST_CONNECTIONS:
            self.transport.abort()
        else:
            self._ending = self.loop.call_later(_LONGEST, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ending is not None:
            self._ending.cancel()
        super().connection_lost(exc)


class _Pieces(Response):
    """Sends the body in pieces. So the connection of a client that does not read holds two pieces, and no
    copy of the body."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        for begin in range(0, len(self.body), _PIECE):
            piece = self.body[begin : begin + _PIECE]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class _Text:
    """A text that clients share: packed, and plain when a client first needs it."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        packer = zlib.compressobj(1, wbits=31)
        self.packed = b"".join([*map(packer.compress, pieces), packer.flush()])

    @cached_property
    def plain(self) -> bytes:
        return zlib.decompress(self.packed, wbits=31)


class _SharedHistory:
    """The text of the last `span` seconds. It is made again after `kept` seconds, if a client needs it."""

    def __init__(self, history: History, span: float, kept: float) -> None:
        self._history, self._span, self._kept = history, span, kept
        self._made = -math.inf
        self._text = _Text([])
        #: The text has all samples after this time.
        self.begin = math.inf

    def text(self) -> _Text:
        if time.monotonic() >= self._made + self._kept:
            seconds = self._history.samples("seconds")
            self.begin = seconds[-1].time - self._span if seconds else -math.inf
            self._text = _Text(self._history.text(self.begin))
            self._made = time.monotonic()
        return self._text


class _View:
    """The texts of one document, each made when a client first asks for it."""

    def __init__(
        self, document: Document, totals: TrainerTotals, shows_keys: bool, received: float
    ) -> None:
        self._document, self._totals, self._shows_keys = document, totals, shows_keys
        self.received = received

    @cached_property
    def document(self) -> Document:
        return self._document if self._shows_keys else without_keys(self._document)

    @cached_property
    def metrics(self) -> bytes:
        return render(self._document, self._totals)

    @cached_property
    def status(self) -> bytes:
        # Keys and jobs need not be Unicode, but browsers expect it: one shows nothing at all otherwise.
        return json.dumps(self.document, ensure_ascii=False).encode("utf-8", "replace")

    @property
    def is_ready(self) -> bool:
        """Whether a job could lease a set of some dataset now."""
        return any(each["leasable"] for each in self._document["datasets"].values())


class _Site:
    """The routes. Everything runs in the thread of the server."""

    def __init__(self, history: History, shows_keys: bool, any_host: bool) -> None:
        self._shows_keys, self._any_host = shows_keys, any_host
        self._totals = TrainerTotals()
        self._view: _View | None = None
        self._whole_history = _SharedHistory(history, math.inf, _WHOLE_KEPT)
        self._last_minute = _SharedHistory(history, 60.0, _MINUTE_KEPT)
        folder = resources.files("cachecd.monitor") / "page"
        self._files = {path: (folder / name).read_bytes() for path, (name, _) in _PAGE.items()}
        routes = {
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/status.json": self._status,
            "/history.json": self._history_text,
            **dict.fromkeys(_PAGE, self._file),
        }
        self.app = Starlette(
            routes=[Route(path, self._checked(answer)) for path, answer in routes.items()]
        )

    def receive(self, document: Document, now: float) -> None:
        self._totals.add(document)
        self._view = _View(document, self._totals, self._shows_keys, now)

    def _checked(self, answer: Any) -> Any:
        async def checked(request: Request) -> Response:
            host = request.headers.get("host", "")
            if not (self._any_host or _is_address(host)):
                why = (
                    "name the server by its IP address or as localhost, not as in the header Host\n"
                )
                return PlainTextResponse(why, 421, _HEADERS)
            response: Response = answer(request)
            response.headers.update(_HEADERS)
            return response

        return checked

    def _metrics(self, request: Request) -> Response:
        if self._view is None:
            return _unavailable("the daemon has made no status document yet")
        return _Pieces(self._view.metrics, headers={"Content-Type": CONTENT_TYPE})

    def _status(self, request: Request) -> Response:
        if self._view is None:
            return _unavailable("the daemon has made no status document yet")
        return _Pieces(self._view.status, media_type="application/json")

    def _healthz(self, request: Request) -> Response:
        age = time.monotonic() - self._view.received if self._view else float("inf")
        if age > _STALE:
            return _unavailable(f"the daemon has made no status document for {age:.0f} s")
        return PlainTextResponse("ok\n")

    def _readyz(self, request: Request) -> Response:
        if self._view is None or not self._view.is_ready:
            return _unavailable("no dataset has a set that a job could lease: see `cachecd status`")
        return PlainTextResponse("ok\n")

    def _history_text(self, request: Request) -> Response:
        try:
            since = float(request.query_params.get("since", "-inf"))
        except ValueError:
            return PlainTextResponse("since: expected seconds since 1970\n", 400)
        # There is no text for each `since`: clients would decide how much text the server makes.
        text = self._last_minute.text()
        if not since >= self._last_minute.begin:
            text = self._whole_history.text()
        headers = {"Content-Type": "application/json"}
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return _Pieces(text.plain, headers=headers)
        return _Pieces(text.packed, headers=headers | {"Content-Encoding": "gzip"})

    def _file(self, request: Request) -> Response:
        path = request.url.path
        return Response(self._files[path], headers={"Content-Type": _PAGE[path][1]})


def _unavailable(why: str) -> Response:
    return PlainTextResponse(why + "\n", 503)


def _is_address(host: str) -> bool:
    """Whether the header Host has an IP address, or localhost, and perhaps a port."""
    name = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost"
    return True
