"""Files of a web server: obstore reads them; the links in the pages of their folders list them."""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urldefrag, urljoin

import obstore
from obstore.store import HTTPStore

from cachecd.errors import SourceUnreachableError, UnitError
from cachecd.model import ObjectInfo
from cachecd.stores.answers import redacted, refusal, without_secrets
from cachecd.stores.backend import PAGE, NoSizeError, TransientError, is_hidden
from cachecd.stores.cloud import (
    NO_RETRIES,
    CloudBackend,
    client_options,
    explain,
    untrusted,
)
from cachecd.stores.listed_urls import trusted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachecd.config import SourceConfig

_log = logging.getLogger(__name__)

_LONGEST_PAGE = 64 << 20  # bytes
_DEEPEST = 64  # nested folders, because a server may generate them endlessly


class WebBackend(CloudBackend):
    """The files below an http:// or https:// URL.

    `list` requests the folder's page and follows its links: only links one level down and without a query.
    A link that ends in "/" is a folder. For any other link, the size is requested. Files without a size
    and missing files are omitted with a warning. A hidden name is listed as an empty object.
    """

    def __init__(self, source: SourceConfig, connections: int, silence: float) -> None:
        self._url = source.address.url_of("")
        url = self._url.removesuffix("/")  # obstore adds the slash
        secure = url.startswith("https://")
        make: Any = HTTPStore.from_url
        options = client_options(connections, silence, allow_http=not secure)
        store = make(url, client_options=options, retry_config=NO_RETRIES)
        super().__init__(store, without_secrets(self._url))
        # One failure in thousands of requests for a size must not end the listing.
        self._patient = make(url, client_options=options, retry_config={"max_retries": 3})
        self._silence = silence
        self._trusted = trusted() if secure else None
        self._asking = ThreadPoolExecutor(connections, "head-web")

    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        try:
            files = self._files(start_after)
            while keys := list(islice(files, PAGE)):
                yield [*self._sized(keys)]
        except TransientError as error:
            raise SourceUnreachableError(f"{self.where}: cannot list: {error}") from None
        except UnitError as error:
            raise SourceUnreachableError(
                f"{self.where}: cannot list: the server has no page for this folder ({error})"
            ) from None

    def glimpse(self) -> Sequence[ObjectInfo]:
        return self._sized(list(islice(self._files(""), 10)))

    def _files(self, start_after: str) -> Iterator[str]:
        """Yields the keys of all files, in the order of their bytes."""
        after = os.fsencode(start_after)
        waiting = [iter(self._links(""))]
        while waiting:
            key = next(waiting[-1], None)
            if key is None:
                waiting.pop()
            elif not key.endswith("/") or is_hidden(key):
                if os.fsencode(key) > after:
                    yield key
            # A folder that sorts before `after` has later keys only if `after` is in the folder.
            elif os.fsencode(key) > after or start_after.startswith(key):
                if len(waiting) > _DEEPEST:
                    raise UnitError(f"{_DEEPEST} nested folders: {key[:200]}")
                waiting.append(iter(self._links(key)))

    def _links(self, folder: str) -> Sequence[str]:
        """Returns the keys that a folder's page links to inside the folder, in order."""
        base = self._url + quote(folder, safe="/")
        links = _PageLinks()
        links.feed(self._page(base))
        names = set()
        for link in links.found:
            url = urldefrag(urljoin(base, link)).url
            raw = url.removeprefix(base)
            if raw == url or not raw or "?" in raw:
                continue
            name = unquote(raw.removesuffix("/"))
            if "/" not in name and name not in ("", ".", ".."):
                names.add(folder + name + raw[len(raw.removesuffix("/")) :])
        return sorted(names, key=os.fsencode)

    def _page(self, url: str) -> str:
        try:
            with urllib.request.urlopen(
                url, timeout=self._silence, context=self._trusted
            ) as answer:
                text: bytes = answer.read(_LONGEST_PAGE + 1)
        except urllib.error.HTTPError as error:
            error.close()
            raise refusal(error.code, "", self.where) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or repr(error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise untrusted(self.where) from None
            raise TransientError(f"cannot read {url[:200]}: {redacted(str(reason))}") from None
        if len(text) > _LONGEST_PAGE:
            raise UnitError(f"the page of {url[:200]} has more than {_LONGEST_PAGE >> 20} MiB")
        return text.decode(errors="replace")

    def _sized(self, keys: Sequence[str]) -> Sequence[ObjectInfo]:
        return [info for info in self._asking.map(self._look_up, keys) if info is not None]

    async def find(self, key: str) -> ObjectInfo:
        with self._explained(key):
            return await asyncio.to_thread(self._about, key)

    def _about(self, key: str) -> ObjectInfo:
        try:
            meta = obstore.head(self._store, key)
        except obstore.exceptions.BaseError as error:  # some servers do not support HEAD
            if isinstance(explain(error, self.where), NoSizeError):
                raise
            meta = obstore.get(self._patient, key, options={"range": (0, 1)}).meta
        return ObjectInfo(key, meta["size"], meta["e_tag"] or "")

    def _look_up(self, key: str) -> ObjectInfo | None:
        if is_hidden(key):
            return ObjectInfo(key, 0)
        try:
            with self._explained(key):
                return self._about(key)
        except (UnitError, TransientError) as error:
            if isinstance(error, TransientError) and not isinstance(error, NoSizeError):
                raise
            reason = redacted(str(error))
            _log.warning("omitted: %s of %s: %s", ascii(key), self.where, reason)
            return None


class _PageLinks(HTMLParser):
    """The targets of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]
