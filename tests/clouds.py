"""Google Cloud Storage and Azure Blob Storage, as far as listing and reading go, over a scripted server.

Neither has an emulator on PyPI that speaks what obstore does: it lists Google's buckets by the XML API.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from tests import scripted
from tests.scripted import Answer

ACCOUNT = "cachecdtest"
ACCOUNT_KEY = base64.b64encode(b"the key of the account").decode()
_PAGE = 400  # entries of a page, fewer than are asked for
_MODIFIED = "Wed, 21 Oct 2015 07:28:00 GMT"

Allowed = Callable[[BaseHTTPRequestHandler], bool]


class Cloud:
    """One bucket (Google) or container (Azure) named `bucket`; an Answer to every request.

    `objects` is what it holds, `allowed` who may ask.
    """

    def __init__(self, root: str, prefix: str) -> None:
        """`root`: the path of the bucket. `prefix`: what all keys begin with."""
        self.root = root
        self.prefix = prefix
        self.objects: dict[str, bytes] = {}
        self.versions: dict[str, int] = {}
        self.allowed: Allowed = lambda handler: True

    def put(self, objects: dict[str, bytes]) -> None:
        for key, content in objects.items():
            self.objects[self.prefix + key] = content
            self.versions[self.prefix + key] = self.versions.get(self.prefix + key, 0) + 1

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        query = dict(parse_qsl(url.query))
        if not self.allowed(handler):
            scripted.refusal(403, "AuthenticationFailed", "StringToSign: secret")(handler)
        elif url.path == self.root:
            self.list(query)(handler)
        elif not url.path.startswith(f"{self.root}/"):
            scripted.refusal(404, self.no_bucket)(handler)
        else:
            self._read(unquote(url.path.removeprefix(f"{self.root}/")))(handler)

    no_bucket = ""

    def list(self, query: dict[str, str]) -> Answer:
        raise NotImplementedError

    def page(self, query: dict[str, str], after: str) -> tuple[list[tuple[str, int, str]], str]:
        """The entries after the key `after`, and what the next page comes after: "" if there is none."""
        prefix = query.get("prefix", "")
        found = sorted((key for key in self.objects if key.startswith(prefix)), key=str.encode)
        found = [key for key in found if key.encode() > after.encode()]
        entries = [(escape(k), len(self.objects[k]), self._etag(k)) for k in found[:_PAGE]]
        return entries, found[_PAGE - 1] if len(found) > _PAGE else ""

    def _etag(self, key: str) -> str:
        return f'"{zlib.crc32(key.encode())}-{self.versions[key]}"'

    def _read(self, key: str) -> Answer:
        if key not in self.objects:
            return scripted.refusal(404, "NoSuchKey")
        return self._unless_changed(key)

    def _unless_changed(self, key: str) -> Answer:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            etag = self._etag(key)
            if handler.headers.get("If-Match", etag) != etag:
                scripted.refusal(412, "ConditionNotMet")(handler)
            else:
                scripted.body(self.objects[key], etag)(handler)

        return answer


class Google(Cloud):
    """The XML API. An object of `inflated` is inflated as it is sent, without its size, to whoever does not
    accept GZIP."""

    no_bucket = "NoSuchBucket"
    inflated: frozenset[str] = frozenset()

    def _read(self, key: str) -> Answer:
        answer = super()._read(key)

        def inflate(handler: BaseHTTPRequestHandler) -> None:
            packed = "gzip" in handler.headers.get("Accept-Encoding", "")
            plain = scripted.chunked(zlib.decompress(self.objects[key], 31), whole=True)
            (answer if packed else plain)(handler)

        return inflate if key in self.inflated else answer

    def list(self, query: dict[str, str]) -> Answer:
        assert query["list-type"] == "2"
        after = query.get("continuation-token", query.get("start-after", ""))
        entries, further = self.page(query, after)
        contents = "".join(
            f"<Contents><Key>{key}</Key><Size>{size}</Size><ETag>{etag}</ETag>"
            "<LastModified>2015-10-21T07:28:00.000Z</LastModified></Contents>"
            for key, size, etag in entries
        )
        token = f"<NextContinuationToken>{escape(further)}</NextContinuationToken>"
        text = f"<ListBucketResult>{contents}{token if further else ''}</ListBucketResult>"
        return scripted.body(text.encode())


class Azure(Cloud):
    """Version 2023-11-03 of the REST API."""

    no_bucket = "ContainerNotFound"

    def list(self, query: dict[str, str]) -> Answer:
        assert (query["restype"], query["comp"]) == ("container", "list")
        entries, further = self.page(query, query.get("marker", ""))
        blobs = "".join(
            f"<Blob><Name>{key}</Name><Properties><Last-Modified>{_MODIFIED}</Last-Modified>"
            f"<Content-Length>{size}</Content-Length><Etag>{etag}</Etag>"
            "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
            for key, size, etag in entries
        )
        marker = f"<NextMarker>{escape(further)}</NextMarker>"
        text = f"<EnumerationResults><Blobs>{blobs}</Blobs>{marker}</EnumerationResults>"
        return scripted.body(text.encode())


def bearer(token: str) -> Allowed:
    return lambda handler: handler.headers.get("Authorization") == f"Bearer {token}"
