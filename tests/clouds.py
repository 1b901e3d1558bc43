"""Google Cloud Storage and Azure Blob Storage, as far as listing and reading go, over a scripted server.

Both ask who is asking as the real ones do: Google's self-signed tokens are verified with the account's
public key, Azure's signatures are computed again. Neither has an emulator on PyPI that speaks what
obstore does: it lists Google's buckets by the XML API.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests import scripted
from tests.scripted import Answer

ACCOUNT = "cachecdtest"
ACCOUNT_KEY = base64.b64encode(b"the key of the account").decode()
SERVICE = "reader@project.iam.gserviceaccount.com"
_PAGE = 400  # entries of a page, fewer than are asked for
_MODIFIED = "Wed, 21 Oct 2015 07:28:00 GMT"
_PRIVATE = rsa.generate_private_key(65537, 2048)

Allowed = Callable[[BaseHTTPRequestHandler], bool]


class Cloud:
    """One bucket (Google) or container (Azure) named `bucket`; an Answer to every request.

    `objects` is what it holds, `allowed` who may ask, `trouble[key]` what is answered to one read of
    an object after another before it is given.
    """

    def __init__(self, root: str, prefix: str) -> None:
        """`root`: the path of the bucket. `prefix`: what all keys begin with."""
        self.root = root
        self.prefix = prefix
        self.objects: dict[str, bytes] = {}
        self.versions: dict[str, int] = {}
        self.trouble: dict[str, list[Answer]] = {}
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
        return f'"{self.versions[key]}"'

    def _read(self, key: str) -> Answer:
        if self.trouble.get(key):
            return self.trouble[key].pop(0)
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
    """The XML API."""

    no_bucket = "NoSuchBucket"

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


# --- who is asking


def bearer(token: str) -> Allowed:
    return lambda handler: handler.headers.get("Authorization") == f"Bearer {token}"


def service_account() -> str:
    """The key file of the account SERVICE."""
    pem = _PRIVATE.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return json.dumps(
        {
            "type": "service_account",
            "client_email": SERVICE,
            "private_key": pem.decode(),
            "private_key_id": "1",
        }
    )


def signed_by_the_service(handler: BaseHTTPRequestHandler) -> bool:
    """Whether the request has a token that SERVICE has signed and that has not expired."""
    kind, _, token = handler.headers.get("Authorization", "").partition(" ")
    signed, _, signature = token.rpartition(".")
    _PRIVATE.public_key().verify(
        _decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256()
    )
    claims = json.loads(_decoded(signed.partition(".")[2]))
    return kind == "Bearer" and claims["iss"] == SERVICE and claims["exp"] > time.time()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def signed_by_the_account(handler: BaseHTTPRequestHandler) -> bool:
    """Whether the request is signed with ACCOUNT_KEY (Azure's Shared Key)."""
    headers = {name.lower(): value for name, value in handler.headers.items()}
    url = urlsplit(handler.path)
    length = headers.get("content-length", "")
    names = ("content-md5", "content-type", "date", "if-modified-since", "if-match")
    names += ("if-none-match", "if-unmodified-since", "range")
    lines = [
        handler.command,
        *(headers.get(n, "") for n in ("content-encoding", "content-language")),
    ]
    lines += ["" if length == "0" else length, *(headers.get(name, "") for name in names)]
    lines += [f"{name}:{headers[name]}" for name in sorted(headers) if name.startswith("x-ms-")]
    lines += [f"/{ACCOUNT}{url.path}"]
    lines += sorted(f"{name.lower()}:{value}" for name, value in parse_qsl(url.query))
    key = base64.b64decode(ACCOUNT_KEY)
    made = base64.b64encode(hmac.digest(key, "\n".join(lines).encode(), hashlib.sha256)).decode()
    return headers.get("authorization") == f"SharedKey {ACCOUNT}:{made}"
