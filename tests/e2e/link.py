"""The way to a store, as a link that can be listened to and cut: a relay on a port of its own."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections import Counter
from urllib.parse import unquote, urlsplit

_REQUEST = re.compile(rb"GET (/[^ ?]*)(\?[^ ]*)? HTTP/1\.1\r\n")


class Link:
    """Relays connections to `endpoint`, and knows which objects were asked for.

    `endpoint` is its own URL: whoever shall use the link is given that one. `fetched` counts the GET
    requests of each object, "/bucket/key"; `requests` counts all, listings included, and
    `answered_bytes` the bytes of all answers. A context manager.
    """

    def __init__(self, endpoint: str) -> None:
        server = urlsplit(endpoint)
        self._server = (server.hostname or "", server.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.fetched: Counter[str] = Counter()
        self.requests = 0
        self.answered_bytes = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._cut = False
        self._down = False
        self._threads = [threading.Thread(target=self._accept, name="link")]
        self._threads[0].start()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """Ends all connections; new ones are refused from now on. Idempotent."""
        with self._lock:
            if self._cut:
                return
            self._cut = True
            # shutdown, unlike close, wakes the threads that wait for them.
            for one in (self._listener, *self._open):
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
            self._listener.close()

    def break_all(self) -> None:
        """Ends the connections that there are; new ones are relayed."""
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def down(self) -> None:
        """Ends all connections, and each new one at once, until `up`."""
        self._down = True
        self.break_all()

    def up(self) -> None:
        self._down = False

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._down:
                client.close()
                continue
            server = socket.create_connection(self._server)
            with self._lock:
                if self._cut:
                    client.close()
                    server.close()
                    return
                self._open |= {client, server}
                for source, sink, listening in ((client, server, True), (server, client, False)):
                    thread = threading.Thread(target=self._relay, args=(source, sink, listening))
                    self._threads.append(thread)
                    thread.start()

    def _relay(self, source: socket.socket, sink: socket.socket, listening: bool) -> None:
        heard = b""
        try:
            while data := source.recv(1 << 16):
                if listening:
                    heard = self._hear(heard + data)
                else:
                    with self._lock:
                        self.answered_bytes += len(data)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            with self._lock:
                self._open.discard(source)
                for one in (source, sink):
                    try:
                        one.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        continue
                source.close()

    def _hear(self, text: bytes) -> bytes:
        """Counts the whole requests in `text`; what is left of it. Only GETs come by: no bodies."""
        *requests, rest = text.split(b"\r\n\r\n")
        for request in requests:
            match = _REQUEST.match(request + b"\r\n")
            with self._lock:
                self.requests += 1
                if match and match[1].count(b"/") > 1 and b"list-type" not in (match[2] or b""):
                    self.fetched[unquote(match[1].decode())] += 1
        return rest
