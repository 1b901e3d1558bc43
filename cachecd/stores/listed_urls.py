"""Files of any number of web servers. A row of a manifest names each file by its whole URL."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urljoin, urlsplit

import urllib3
from urllib3 import exceptions

from cachecd.errors import SourceError, SourceUnreachableError, UnitError
from cachecd.model import ObjectInfo
from cachecd.stores.answers import is_version, redacted, refusal, retry_after, without_secrets
from cachecd.stores.backend import Backend, TransientError, resized

if TYPE_CHECKING:
    from cachecd.config import SourceConfig

_Result = TypeVar("_Result")

_HOSTS = 256  # the last used hosts, whose connections are kept
_MOST_HOPS = 5
_AT_ONCE = 256 << 10  # the most bytes read from a connection at a time
_NO_URL = re.compile(r"[\x00-\x20\x7f\\]")
_TOTAL = re.compile(r"bytes [0-9*-]+/([0-9]{1,19})")


def schemes_of(url: str) -> tuple[str, ...]:
    """Returns the URL schemes that objects of a source without a host may have."""
    return ("https",) if url == "https://" else ("http", "https")


def refused(url: str, schemes: Sequence[str]) -> str | None:
    """Returns why this URL is refused, or None."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"{without_secrets(url)[:200]!r} is no URL: {error}"
    if parts.scheme not in schemes:
        allowed = " or ".join(f"{scheme}://" for scheme in schemes)
        return f"{without_secrets(url)[:200]!r}, expected {allowed}, like the source's url"
    if not host or _NO_URL.search(url):
        return f"{without_secrets(url)[:200]!r} is no URL"
    if "@" in parts.netloc:
        return "it contains a user or a password, which cachecd never sends"
    return None


def trusted() -> ssl.SSLContext:
    """Returns the usual certificate authorities, and the authorities in AWS_CA_BUNDLE."""
    context = ssl.create_default_context()
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        context.load_verify_locations(bundle)
    return context


class UrlsBackend(Backend):
    """Objects whose keys are their URLs. Only a manifest lists them.

    No request has credentials. Queries are sent unchanged. A redirection is followed if the source allows
    its scheme. If one server refuses an object, the object is at fault, unless no object can be read at
    all.
    """

    def __init__(self, source: SourceConfig, connections: int, silence: float) -> None:
        self.where = source.url
        self._schemes = schemes_of(source.url)
        self._options: dict[str, Any] = {
            "num_pools": _HOSTS,
            "maxsize": connections,
            "timeout": urllib3.Timeout(connect=min(5.0, silence), read=silence),
            "retries": False,  # tries are counted by cachecd.stores.fetch
            "ssl_context": trusted(),
        }
        self._direct = urllib3.PoolManager(**self._options)
        self._proxies: dict[str, urllib3.PoolManager] = {
            scheme: self._by_proxy(proxy)
            for scheme, proxy in urllib.request.getproxies().items()
            if scheme in self._schemes
        }
        self._threads = ThreadPoolExecutor(connections, "read-urls")

    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        raise SourceUnreachableError(
            f"{self.where}: the URL has no host: set `manifest` to a table of URLs"
        )

    async def read(self, key: str, start: int, stop: int, size: int | None, etag: str) -> bytes:
        given_up = threading.Event()
        try:
            return await self._by_thread(
                lambda: self._read(key, start, stop, size, etag, given_up.is_set)
            )
        finally:
            given_up.set()

    async def find(self, key: str) -> ObjectInfo:
        return await self._by_thread(lambda: self._find(key))

    async def tail(self, key: str, length: int, etag: str) -> tuple[int, bytes]:
        size = (await self.find(key)).size
        return size, await self.read(key, max(0, size - length), size, size, etag)

    async def _by_thread(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _read(
        self,
        key: str,
        start: int,
        stop: int,
        size: int | None,
        etag: str,
        given_up: Callable[[], bool],
    ) -> bytes:
        # In HTTP, a weak ETag never matches.
        headers = {"If-Match": etag} if etag and not etag.startswith("W/") else {}
        part = (start, stop) != (0, size)  # an empty object has no range
        if part:
            headers["Range"] = f"bytes={start}-{stop - 1}"
        with self._request("GET", key, headers) as answer:
            if part and answer.status != 206:
                raise TransientError("the store sent the whole object, but a part was requested")
            actual = _length_of(answer)
            if size is not None and actual is not None and actual != size:
                raise resized(actual, size)
            if not is_version(answer.headers.get("ETag", ""), etag):
                raise refusal(412, "", self.where)
            return _body(answer, stop - start + 1, given_up)

    def _find(self, key: str) -> ObjectInfo:
        with contextlib.suppress(TransientError), self._request("HEAD", key, {}) as answer:
            if (size := _length_of(answer)) is not None:
                return ObjectInfo(key, size, answer.headers.get("ETag", ""))
        # Some servers do not support HEAD, or omit the size.
        with self._request("GET", key, {"Range": "bytes=0-0"}) as answer:
            if (size := _length_of(answer)) is None:
                raise TransientError("the store does not report the object's size")
            return ObjectInfo(key, size, answer.headers.get("ETag", ""))

    @contextlib.contextmanager
    def _request(
        self, method: str, url: str, headers: Mapping[str, str]
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """Returns the reply, without reading its body. Raises the error of a bad reply."""
        answer: urllib3.BaseHTTPResponse | None = None
        try:
            for _ in range(_MOST_HOPS):
                if (why := refused(url, self._schemes)) is not None:
                    raise UnitError(
                        f"the server redirects to another address: {why}" if answer else why
                    )
                answer = self._pool(url).request(
                    method,
                    url,
                    headers={"Accept-Encoding": "identity", **headers},
                    redirect=False,
                    preload_content=False,
                )
                if not (further := answer.get_redirect_location()):
                    break
                answer.close()
                url = urljoin(url, further)
            else:
                raise UnitError(f"more than {_MOST_HOPS - 1} redirections")
            if answer.status not in (200, 206):
                after = retry_after({k.lower(): v for k, v in answer.headers.items()})
                raise refusal(answer.status, "", f"{urlsplit(url).hostname}", after)
            yield answer
        except SourceUnreachableError as error:
            # Only one of many servers failed. Reads from other servers show whether all fail.
            raise TransientError(str(error), denied=True) from None
        except exceptions.HTTPError as error:
            raise _explained(error) from None
        finally:
            if answer is not None:
                answer.release_conn() if answer.length_remaining == 0 else answer.close()

    def _by_proxy(self, address: str) -> urllib3.PoolManager:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        who = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        headers = urllib3.make_headers(proxy_basic_auth=who) if parts.username else None
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        return urllib3.ProxyManager(place, proxy_headers=headers, **self._options)

    def _pool(self, url: str) -> urllib3.PoolManager:
        parts = urlsplit(url)
        if not self._proxies or urllib.request.proxy_bypass(parts.netloc):
            return self._direct
        return self._proxies.get(parts.scheme, self._direct)


def _body(answer: urllib3.BaseHTTPResponse, most: int, given_up: Callable[[], bool]) -> bytes:
    """Reads up to this many bytes. If a server is very slow, ends soon after the reader gave up, because
    other servers need the thread."""
    body = bytearray()
    while len(body) < most and not given_up():
        if not (piece := answer.read1(min(most - len(body), _AT_ONCE))):
            break
        body += piece
    return bytes(body)


def _length_of(answer: urllib3.BaseHTTPResponse) -> int | None:
    """Returns the size of the whole object, if the reply shows it."""
    if answer.status == 206:
        total = _TOTAL.fullmatch(answer.headers.get("Content-Range", ""))
        return int(total[1]) if total else None
    length = answer.headers.get("Content-Length", "")
    return int(length[:19]) if length.isascii() and length.isdigit() else None


def _explained(error: exceptions.HTTPError) -> SourceError:
    # A manifest may name many hosts that no longer exist. `denied` limits each of them to two tries.
    match error:
        case exceptions.LocationParseError() | exceptions.LocationValueError():
            return UnitError("it is no URL")
        case exceptions.NameResolutionError():
            return TransientError("cannot resolve the server's host name", denied=True)
        case exceptions.SSLError():
            return TransientError(
                "the server's TLS certificate is not trusted (AWS_CA_BUNDLE names others)",
                denied=True,
            )
        case exceptions.ConnectTimeoutError() | exceptions.NewConnectionError():
            return TransientError("cannot connect to the server", denied=True)
        case exceptions.TimeoutError():
            return TransientError("the store sends no data")
        case exceptions.ProxyError():
            return TransientError("the proxy does not connect to the server")
        case exceptions.ProtocolError():
            return TransientError("the connection broke")
    return TransientError(f"{type(error).__name__}: {redacted(str(error))}")
