"""A bucket of small objects whose listing can be held up, made to fail, or made endless."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit

from tests import scripted
from tests.scripted import ScriptedServer, scripted_server

_PAGE = 1000


class ListingBucket:
    """`units` objects below train/, by number; their keys end with `suffix`. An Answer to every request.

    No whole page of the listing is given that begins at unit `held_at` or beyond: such a request hangs,
    or with `failing`, is refused. `listed_after` are the units after which pages were asked for (-1: the
    first), and `fetched` the keys of all reads.
    """

    def __init__(self, server: ScriptedServer, units: int) -> None:
        self.units = units
        self.suffix = ""
        self.held_at = 1 << 62
        self.failing = False
        self.listed_after: list[int] = []
        self.fetched: list[str] = []
        self._server = server
        server.down = self._answer

    def source(self) -> dict[str, object]:
        place = {"url": "s3://bucket/train/", "endpoint": self._server.endpoint}
        return {**place, "format": "files", "anonymous": True}

    def key(self, unit: int) -> str:
        return f"train/{unit:07d}{self.suffix}"

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        with contextlib.suppress(ConnectionError):  # of a daemon that was killed
            if "list-type" in asked:
                return self._list(handler, asked)
            wanted = unquote(url.path).removeprefix("/bucket/")
            self.fetched.append(wanted)
            scripted.body(content(int(wanted[6:13])), '"e"')(handler)
        return None

    def _list(self, handler: BaseHTTPRequestHandler, asked: dict[str, str]) -> None:
        after, most = asked.get("start-after", ""), min(int(asked["max-keys"]), _PAGE)
        begin = int(asked.get("continuation-token", 0))
        if not begin:
            begin = bisect_right(range(self.units), after, key=self.key)
            self.listed_after.append(begin - 1)
        while begin >= self.held_at and most == _PAGE:
            if self.failing:
                return scripted.refusal(403, "AccessDenied")(handler)
            if self._server.over.wait(0.02):
                return scripted.hang_up(handler)
        end = min(begin + most, self.units)
        rows = [
            f'<Contents><Key>{self.key(n)}</Key><Size>{len(content(n))}</Size><ETag>"e"</ETag></Contents>'
            for n in range(begin, end)
        ]
        more = end < self.units
        rows += [f"<IsTruncated>{str(more).lower()}</IsTruncated>"]
        rows += [f"<NextContinuationToken>{end}</NextContinuationToken>"] if more else []
        scripted.body(f"<ListBucketResult>{''.join(rows)}</ListBucketResult>".encode())(handler)
        return None


def content(number: int) -> bytes:
    return f"object {number} ".encode() * 200


@contextlib.contextmanager
def listing_bucket(units: int) -> Iterator[ListingBucket]:
    with scripted_server() as server:
        yield ListingBucket(server, units)
