"""S3, Google Cloud Storage and Azure through obstore, which reads in native threads."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import obstore
import obstore.exceptions
import obstore.store

from cachecd.config.address import NO_PATH
from cachecd.errors import ConfigError, SourceError, SourceUnreachableError, UnitError
from cachecd.model import ObjectInfo
from cachecd.stores.answers import is_version, redacted, refusal, without_secrets
from cachecd.stores.backend import (
    PAGE,
    Backend,
    NoSizeError,
    NotPartialError,
    TransientError,
    resized,
)
from cachecd.stores.key_ranges import Ask, KeyPage, OutOfOrderError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from cachecd.config import SourceConfig

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
# The debug text of a failed connection ends with its cause: `message: "Connection refused"`.
_CAUSE = re.compile(r'(?:message|error): "([^"\\]{1,200})"')

# The places where obstore looks for credentials, before it requests a token of the machine's own account.
_CREDENTIALS = {
    "GCS": "GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT and gcloud's application default "
    "credentials, and requested the machine's service account",
    "MicrosoftAzure": "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN and AZURE_CLIENT_ID with "
    "AZURE_CLIENT_SECRET and AZURE_TENANT_ID, and requested the machine's managed identity",
}


def client_options(connections: int, silence: float, *, allow_http: bool) -> dict[str, Any]:
    """Returns obstore's client_options. A request times out after `silence` seconds without data, but a
    transfer may take any time. The authorities of AWS_CA_BUNDLE are trusted in addition."""
    options: dict[str, Any] = {
        "allow_http": allow_http,
        "connect_timeout": timedelta(seconds=min(5.0, silence)),
        "read_timeout": timedelta(seconds=silence),
        "timeout": timedelta(days=1),  # the default, 30 s, would cut a slow link's transfers
        "pool_max_idle_per_host": str(connections),
    }
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        options["root_certificate"] = Path(bundle).read_bytes()
    return options


NO_RETRIES: Any = {"max_retries": 0}  # cachecd.stores.fetch retries


class CloudBackend(Backend):
    """Reads and lists with an obstore store whose prefix is the source's URL.

    The process must end with os._exit. Otherwise an obstore thread may call into Python while the
    interpreter ends, which aborts the process.
    """

    def __init__(self, store: Any, where: str) -> None:
        self._store = store
        self.where = where

    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        last = start_after
        try:
            for page in obstore.list(self._store, offset=start_after or None, chunk_size=PAGE):
                objects = _named(page, last)
                last = objects[-1].key if objects else last
                # The older protocol that obstore uses for Azure ignores the start key.
                if behind := [o for o in objects if os.fsencode(o.key) > os.fsencode(start_after)]:
                    yield behind
        except (obstore.exceptions.BaseError, FileNotFoundError) as error:
            failure = explain(error, self.where)
            if isinstance(failure, SourceUnreachableError):
                raise failure from None  # obstore's own text may quote the signed request
            raise SourceUnreachableError(f"{self.where}: cannot list: {failure}") from None

    async def read(self, key: str, start: int, stop: int, size: int | None, etag: str) -> Buffer:
        options: obstore.GetOptions = {}
        if (start, stop) != (0, size):  # an empty object has no range
            options["range"] = (start, stop)
        return (await self._get(key, options, size, etag))[1]

    async def tail(self, key: str, length: int, etag: str) -> tuple[int, Buffer]:
        if not isinstance(self._store, obstore.store.AzureStore):
            return await self._get(key, {"range": {"suffix": length}}, None, etag)
        size, _ = await self._get(key, {"head": True}, None, etag)  # Azure has no suffix ranges
        return size, await self.read(key, max(0, size - length), size, size, etag)

    async def _get(
        self, key: str, options: obstore.GetOptions, size: int | None, etag: str
    ) -> tuple[int, Buffer]:
        """Returns the object's size, and the bytes that the options request. Checks the size before it
        reads the body, because an object that has grown may exceed the memory."""
        if etag and not etag.startswith("W/"):  # in HTTP, If-Match never matches a weak ETag
            options["if_match"] = etag
        with self._explained(key):
            answer = await obstore.get_async(self._store, key, options=options)
            meta = answer.meta
            if size is not None and meta["size"] != size:
                raise resized(meta["size"], size)
            # Some stores ignore If-Match.
            if not is_version(meta["e_tag"] or "", etag):
                raise refusal(412, "", self.where)
            return meta["size"], await answer.bytes_async()

    async def find(self, key: str) -> ObjectInfo:
        with self._explained(key):
            meta = await obstore.head_async(self._store, key)
        return ObjectInfo(key, meta["size"], meta["e_tag"] or "")

    @contextlib.contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        if re.search(NO_PATH, key):
            raise UnitError(f"obstore cannot name this object: {key!r}")
        try:
            yield
        except (obstore.exceptions.BaseError, FileNotFoundError) as error:
            raise explain(error, self.where) from None
        except ValueError as error:
            raise UnitError(f"obstore cannot name this object: {error}") from error


class GoogleBackend(CloudBackend):
    """Google's store. It can list the keys after any key, so a listing can use concurrent requests.

    Azure's store cannot: obstore's version of the protocol ignores the start key, and continues only
    after a page that it returned. Listing folder by folder would not be in key order, but only a listing
    in key order can be interrupted.
    """

    def page(self, ask: Ask) -> KeyPage:
        """Returns a part of the listing, in one attempt. Blocks."""
        try:
            pages = obstore.list(self._store, offset=ask.after or None, chunk_size=ask.most)
            raw = next(iter(pages), [])
        except (obstore.exceptions.BaseError, FileNotFoundError) as error:
            raise explain(error, self.where) from None
        except ValueError as error:
            raise OutOfOrderError(f"obstore cannot list the keys after {ask.after!r}") from error
        # obstore drops a slash at the end of `after`, so the page may begin with smaller keys.
        objects = [o for o in _named(raw, ask.after) if o.key > ask.after]
        return KeyPage(objects, more=len(raw) == ask.most)


def _named(page: Sequence[obstore.ObjectMeta], before: str) -> list[ObjectInfo]:
    """Returns the objects of a page, after the key `before`, in key order.

    obstore drops the slash at the end of a folder marker's key. This restores the slash of an empty
    object if its place in the order shows that it is a marker. It is a marker after a key that is greater
    than its name, or right before objects in its folder.
    """
    names = [o["path"] for o in page]
    objects = []
    for at, about in enumerate(page):
        name = about["path"]
        follower = names[at + 1] if at + 1 < len(names) else ""
        if not about["size"] and (before > name or follower.startswith(f"{name}/")):
            name += "/"
        objects.append(ObjectInfo(name, about["size"], about["e_tag"] or ""))
        before = name
    return objects


def untrusted(where: str) -> SourceUnreachableError:
    return SourceUnreachableError(
        f"{where}: the store's TLS certificate is not trusted: if you run the certificate authority, set "
        "AWS_CA_BUNDLE to a file with its certificate"
    )


def explain(error: Exception, where: str) -> SourceError:
    """Returns the error for an exception of obstore. Quotes only text that cannot contain secrets."""
    text = str(error)
    for provider, looked in _CREDENTIALS.items():
        if text.startswith(f"Generic {provider} error: Error performing token request"):
            status, causes = _STATUS.search(text), _CAUSE.findall(text)
            why = f"the answer was {status[1]}" if status else (causes or ["no answer"])[-1]
            return TransientError(
                f"no credentials: looked in {looked} ({why}); set one of them, or `anonymous: true` "
                "for a public bucket"
            )
    if status := _STATUS.search(text):
        code = _CODE.search(text)
        return refusal(int(status[1]), code[1] if code else "", where)
    if isinstance(error, FileNotFoundError):
        return refusal(404, "", where)
    if isinstance(error, obstore.exceptions.PreconditionError):
        return refusal(412, "", where)
    if "Invalid range" in text or "Wanted range" in text:
        return refusal(416, "", where)
    if isinstance(error, obstore.exceptions.UnauthenticatedError):
        return SourceUnreachableError(f"{where}: no usable credentials found")
    if "BareRedirect" in text or "without LOCATION" in text:
        return refusal(301, "", where)
    cause = causes[-1] if (causes := _CAUSE.findall(text)) else ""
    if "ProxyAuthRequired" in text:
        return refusal(407, "", where)
    if "tunnel" in text:
        return TransientError("the proxy does not connect to the store")
    if "invalid peer certificate" in text or "InvalidCertificate" in text:
        return untrusted(where)
    if "dns error" in text:
        return TransientError(f"cannot resolve the store's host name: {cause}")
    if "kind: Connect" in text:
        return TransientError(f"cannot connect to the store: {cause or 'no answer within 5 s'}")
    if "TimedOut" in text:
        return TransientError("the store stopped sending data")
    if "kind: Body" in text or "kind: Decode" in text:
        return TransientError(
            f"the connection broke in the middle of the object: {cause}".rstrip(": ")
        )
    if "kind: Request" in text or "kind: Interrupted" in text:
        return TransientError(f"the connection broke: {cause}".rstrip(": "))
    if "MissingContentLength" in text:
        return NoSizeError("the store does not report the object's size")
    if "NotPartial" in text or "Range request not supported" in text:
        return NotPartialError("the store sent the whole object, but a part was requested")
    return TransientError(f"{type(error).__name__}: {redacted(text)}")


# Variables with the address of an emulator or gateway, instead of the provider's address.
_ENDPOINTS = {
    True: ("GOOGLE_BASE_URL",),
    False: ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL"),
}


def open_cloud(source: SourceConfig, connections: int, silence: float) -> CloudBackend:
    """Returns the store of a gs:// or az:// URL. obstore finds credentials and endpoint in the provider's
    own variables."""
    address = source.address
    google = address.scheme == "gs"
    endpoint = next(filter(None, map(os.environ.get, _ENDPOINTS[google])), "")
    config: dict[str, Any] = {"skip_signature": True} if source.anonymous else {}
    make: Callable[..., Any] = obstore.store.from_url
    options = client_options(connections, silence, allow_http=endpoint.startswith("http://"))
    if google:  # otherwise it inflates gzip objects while it sends them, and omits their size
        options["default_headers"] = {"Accept-Encoding": "gzip"}
    try:
        store = make(
            address.root + quote(address.prefix.removesuffix("/")),  # obstore decodes it
            config=config or None,
            client_options=options,
            retry_config=NO_RETRIES,
        )
    except (obstore.exceptions.BaseError, ValueError) as error:
        reason = redacted(str(error))
        raise ConfigError(f"source {address.root}: {reason}") from error
    where = without_secrets(source.url)
    if endpoint:
        where += f" at {without_secrets(endpoint)}"
    return (GoogleBackend if google else CloudBackend)(store, where)
