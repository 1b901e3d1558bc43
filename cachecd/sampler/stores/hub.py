"""Repositories of the Hugging Face Hub: asked about by huggingface_hub, read by obstore."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

from obstore.store import HTTPStore

from cachecd.errors import ConfigError, SourceError, SourceUnreachableError
from cachecd.extras import extra
from cachecd.model import ObjectInfo
from cachecd.sampler.stores.answers import redacted, refusal, seconds_of
from cachecd.sampler.stores.backend import PAGE, GoneError, TransientError
from cachecd.sampler.stores.cloud import NO_RETRIES, CloudBackend, client_options

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from cachecd.config import SourceConfig

_log = logging.getLogger(__name__)

# A revision with slashes is one of the Hub's own references, or has them as %2F.
_URL = re.compile(
    r"hf://(?:(?P<kind>datasets|models|spaces)/)?(?!(?:datasets|models|spaces|buckets)/)(?P<repo>[^/@]+/[^/@]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<folder>.*))?"
)
_COMMIT = re.compile("[0-9a-f]{40}")
_EXPECTED = "expected hf://datasets/OWNER/NAME[@REVISION]/FOLDER/"
# Seconds between two questions for a branch's commit: the Hub allows 500 in five minutes.
_PAUSE = 1.0
_OLD = 60.0  # seconds from which on what is missing, and nobody has listed, is worth a question
_MOST_KNOWN = 20_000  # objects whose version is remembered, about 300 bytes each


class _Version(NamedTuple):
    """An object as it is at one commit."""

    commit: str
    size: int
    etag: str


class HubBackend:
    """The files below an hf:// URL, at a commit.

    A branch or tag is asked once for its commit, and everything is listed and read at that one: a commit
    never changes. ETags are the Hub's hashes of contents, so a file that two commits share is the same
    object. Where the commit does not have what was listed (another process listed later, at a later
    one), the branch is asked again; then each object is read at a commit that has it as listed.

    Names that begin with a dot are left out. Of an object with an ETag, one question more is asked
    before it is first read. The token is the one that huggingface_hub finds.
    """

    def __init__(
        self, source: SourceConfig, connections: int, silence: float, threads: int = 0
    ) -> None:
        self.where = self._url = source.url
        found = _URL.fullmatch(source.url)
        if found is None:
            raise ConfigError(f"source {source.url}: {_EXPECTED}")
        with extra("hf", "sources on the Hub"):
            import huggingface_hub
        self._kind = (found["kind"] or "models").removesuffix("s")
        self._repo = found["repo"]
        self._revision = unquote(found["revision"] or "main")
        folder = unquote(found["folder"] or "").strip("/")
        self._prefix = f"{folder}/" if folder else ""
        self._silence, self._connections, self._of_ours = silence, connections, threads
        token = False if source.anonymous else huggingface_hub.get_token() or False
        endpoint = os.environ.get("HF_ENDPOINT")
        self._api = huggingface_hub.HfApi(endpoint, token, "cachecd")
        self._token = token
        self._threads = ThreadPoolExecutor(connections, "ask-hub")
        self._asking = threading.Lock()
        self._commit = ""
        self._asked_at = float("-inf")
        self._clouds: dict[str, CloudBackend] = {}
        self._known: dict[str, _Version] = {}

    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        try:
            commit = self._pinned(since=time.monotonic())
            _log.warning("%s is read at commit %s", self._url, commit)
            found = [*self._files(commit)]
        except SourceUnreachableError:
            raise
        except SourceError as error:
            raise SourceUnreachableError(f"{self.where}: cannot list: {error}") from None
        # The Hub promises no order. It wishes for fewer than 100,000 files in a repository.
        after = os.fsencode(start_after)
        found = sorted(
            (o for o in found if os.fsencode(o.key) > after), key=lambda o: os.fsencode(o.key)
        )
        for start in range(0, len(found), PAGE):
            yield found[start : start + PAGE]

    def glimpse(self) -> Sequence[ObjectInfo]:
        return [*itertools.islice(self._files(self._pinned()), 10)]

    def _files(self, commit: str) -> Iterator[ObjectInfo]:
        """The files below the URL, as the Hub lists them; none if there is no such folder."""
        try:
            tree: Iterable[Any] = self._api.list_repo_tree(
                self._repo,
                self._prefix.rstrip("/") or None,
                recursive=True,
                revision=commit,
                repo_type=self._kind,
            )
            for found in tree:
                key = found.path.removeprefix(self._prefix)
                if hasattr(found, "blob_id") and not f"/{key}".count("/."):
                    version = found.lfs.sha256 if found.lfs else found.blob_id
                    yield ObjectInfo(key, found.size, version)
        except Exception as error:
            failure = self._explained(error)
            if not isinstance(failure, GoneError):
                raise failure from None

    async def read(self, key: str, start: int, stop: int, size: int | None, etag: str) -> Buffer:
        loop, began = asyncio.get_running_loop(), time.monotonic()
        known = self._known.get(key)
        if etag and (known is None or known.etag != etag):
            known = await loop.run_in_executor(self._threads, self._find, key, etag)
        commit = known.commit if known else self._commit
        if not commit:
            commit = await loop.run_in_executor(self._threads, self._pinned)
        try:
            return await self._cloud(commit).read(key, start, stop, size, "")
        except GoneError:
            if known or began - self._asked_at < _OLD:
                raise
            later = await loop.run_in_executor(self._threads, self._pinned, began)
            if later == commit:
                raise
            return await self._cloud(later).read(key, start, stop, size, "")

    async def tail(self, key: str, length: int, etag: str) -> tuple[int, Buffer]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, self._find, key, etag)
        begin = max(0, found.size - length)
        return found.size, await self.read(key, begin, found.size, found.size, found.etag)

    async def find(self, key: str) -> ObjectInfo:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, self._find, key, "")
        return ObjectInfo(key, found.size, found.etag)

    def _find(self, key: str, etag: str) -> _Version:
        """The object at a commit that has it, with this ETag if it is given. UnitError if none has."""
        known = self._known.get(key)
        if known is not None and etag in ("", known.etag):
            return known
        began, commit = time.monotonic(), self._pinned()
        found = self._look(key, commit)
        if found is None or etag not in ("", found.etag):
            later = self._pinned(since=began)
            if later != commit:
                found = self._look(key, later) or found
        if found is None:
            raise refusal(404, "", self.where)
        if etag not in ("", found.etag):
            raise refusal(412, "", self.where)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[key] = found
        return found

    def _look(self, key: str, commit: str) -> _Version | None:
        """The object at the commit; None if it has none. Raises what the Hub's other answers mean."""
        url = f"{self._base(commit)}/{quote(key)}"
        try:
            found = self._api.get_hf_file_metadata(url=url, timeout=self._silence)
        except Exception as error:
            failure = self._explained(error)
            if isinstance(failure, GoneError):
                return None
            raise failure from None
        if found.size is None or not found.etag:
            raise TransientError("the Hub does not tell the object's size and hash")
        return _Version(commit, found.size, found.etag)

    def _pinned(self, since: float = float("-inf")) -> str:
        """The commit that the revision was when it was last asked for, at `since` at the earliest."""
        if _COMMIT.fullmatch(self._revision):
            return self._revision
        with self._asking:
            if not self._commit or self._asked_at < since:
                time.sleep(max(0.0, self._asked_at + _PAUSE - time.monotonic()))
                self._asked_at = time.monotonic()
                try:
                    about = self._api.repo_info(
                        self._repo,
                        revision=self._revision,
                        repo_type=self._kind,
                        timeout=self._silence,
                    )
                except Exception as error:
                    raise self._explained(error) from None
                if not _COMMIT.fullmatch(about.sha or ""):
                    raise TransientError(f"the Hub does not tell which commit {self._revision} is")
                self._commit = str(about.sha)
                self.where = f"{self._url} (commit {self._commit})"
            return self._commit

    def _base(self, commit: str) -> str:
        kind = "" if self._kind == "model" else f"{self._kind}s/"
        folder = quote(self._prefix.rstrip("/"))
        return f"{self._api.endpoint}/{kind}{self._repo}/resolve/{commit}/{folder}".rstrip("/")

    def _cloud(self, commit: str) -> CloudBackend:
        """What reads at the commit. Its requests are redirected to where the contents lie, and lose the
        token on the way to another host."""
        if commit not in self._clouds:
            url = self._base(commit)
            options = client_options(
                self._connections, self._silence, allow_http=url.startswith("http://")
            )
            if self._token:
                options["default_headers"] = {"authorization": f"Bearer {self._token}"}
            make: Any = HTTPStore.from_url
            store = make(url, client_options=options, retry_config=NO_RETRIES)
            self._clouds[commit] = CloudBackend(store, self.where, self._of_ours)
        return self._clouds[commit]

    def _explained(self, error: Exception) -> SourceError:
        """What an exception of huggingface_hub's means."""
        from huggingface_hub import errors

        if isinstance(error, SourceError):
            return error
        answer = getattr(error, "response", None)
        status = int(getattr(answer, "status_code", 0) or 0)
        token = "with the token that was found" if self._token else "without a token: set HF_TOKEN"
        match error:
            case errors.GatedRepoError():
                return SourceUnreachableError(
                    f"{self.where}: access to this repository has to be asked for on its page ({status}, "
                    f"{token})"
                )
            case errors.RepositoryNotFoundError():
                return SourceUnreachableError(
                    f"{self.where}: there is no such repository, or it is private ({status}, {token})"
                )
            case errors.RevisionNotFoundError():
                return SourceUnreachableError(
                    f"{self.where}: the repository has no revision {self._revision!r} ({status})"
                )
            case errors.EntryNotFoundError():
                return GoneError(f"the object is gone since it was listed ({status})")
            case errors.OfflineModeIsEnabled():
                return SourceUnreachableError(f"{self.where}: HF_HUB_OFFLINE is set: unset it")
        if status:
            headers = (
                {k.lower(): v for k, v in answer.headers.items()} if answer is not None else {}
            )
            return refusal(status, "", self.where, seconds_of(headers))
        return TransientError(
            f"cannot reach the Hub: {type(error).__name__}: {redacted(str(error))}"
        )
