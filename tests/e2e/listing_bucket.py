"""A bucket of small objects whose listing can be held up, made to fail, or made endless."""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_right
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

_PAGE = 1000
_HEAD = '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'


class ListingBucket:
    """`units` objects below train/, by number; their keys end with `suffix`.

    No whole page of the listing is given that begins at unit `held_at` or beyond: such a request hangs,
    or with `failing`, is refused. `listed_after` are the units after which pages were asked for (-1: the
    first), and `fetched` the keys of all reads.
    """

    def __init__(self, endpoint: str, units: int, over: threading.Event) -> None:
        self.endpoint = endpoint
        self.units = units
        self.suffix = ""
        self.held_at = 1 << 62
        self.failing = False
        self.over = over
        self.listed_after: list[int] = []
        self.fetched: list[str] = []

    def source(self) -> dict[str, object]:
        """As a configuration names it."""
        return {
            "url": "s3://bucket/train/",
            "format": "files",
            "endpoint": self.endpoint,
            "anonymous": True,
        }


def content(number: int) -> bytes:
    return f"object {number} ".encode() * 200


@contextlib.contextmanager
def listing_bucket(units: int) -> Iterator[ListingBucket]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            asked = {name: values[0] for name, values in parse_qs(url.query).items()}
            if "list-type" in asked:
                self._list(asked)
                return
            wanted = unquote(url.path).removeprefix("/bucket/")
            bucket.fetched.append(wanted)
            self._answer(200, content(int(wanted[6:13])))

        def _list(self, asked: dict[str, str]) -> None:
            after, most = asked.get("start-after", ""), min(int(asked["max-keys"]), _PAGE)
            begin = int(asked.get("continuation-token", 0))
            if not begin:
                begin = bisect_right(range(bucket.units), after, key=key)
                bucket.listed_after.append(begin - 1)
            while begin >= bucket.held_at and most == _PAGE:
                if bucket.failing:
                    self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
                    return
                if bucket.over.wait(0.02):
                    self.close_connection = True
                    return
            end = min(begin + most, bucket.units)
            rows = [
                f'<Contents><Key>{key(n)}</Key><Size>{len(content(n))}</Size><ETag>"e"</ETag></Contents>'
                for n in range(begin, end)
            ]
            more = end < bucket.units
            rows += [
                f"<IsTruncated>{str(more).lower()}</IsTruncated>",
                f"<KeyCount>{end - begin}</KeyCount>",
            ]
            rows += [f"<NextContinuationToken>{end}</NextContinuationToken>"] if more else []
            self._answer(200, (_HEAD + "".join(rows) + "</ListBucketResult>").encode())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
            self.send_header("ETag", '"e"')
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # of a daemon that was killed
                super().handle()

        def log_message(self, *_: object) -> None:
            pass

    def key(unit: int) -> str:
        return f"train/{unit:07d}{bucket.suffix}"

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        bucket = ListingBucket(f"http://127.0.0.1:{server.server_port}", units, threading.Event())
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield bucket
        finally:
            bucket.over.set()
            server.shutdown()
            thread.join()
