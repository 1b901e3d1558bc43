"""Every store that only fsspec supports: sftp, hdfs, memory, the Hugging Face Hub ..."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import fsspec.core

from cachecd.errors import ConfigError, SourceError, SourceUnreachableError, UnitError
from cachecd.model import ObjectInfo
from cachecd.stores.answers import redacted, refusal, retry_after, without_secrets
from cachecd.stores.backend import PAGE, Backend, GoneError, TransientError
from cachecd.stores.extras import extra

if TYPE_CHECKING:
    from cachecd.config import SourceConfig

_log = logging.getLogger(__name__)
_SCHEMES = ("s3", "gs", "az", "https", "http", "hf", "file")  # of most sources
_COMMIT = re.compile("[0-9a-f]{40}")
# Seconds between two requests for a branch's commit: the Hub allows 500 in five minutes.
_PAUSE = 1.0
_OLD = 60.0  # seconds until a missing object that was never listed causes another request


class FsspecBackend(Backend):
    """The files below a URL, read in threads.

    fsspec's file systems have no common way to mark temporary failures. So every failure is retried,
    unless it is clearly caused by the object.
    """

    def __init__(self, url: str, connections: int) -> None:
        self.where = without_secrets(url)
        scheme = url.partition("://")[0]
        try:
            self._fs, root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise ConfigError(
                f"source {self.where}: {scheme}:// needs a package: {error}"
            ) from error
        except ValueError as error:
            why = redacted(str(error))
            if scheme not in fsspec.available_protocols():
                close = get_close_matches(scheme, _SCHEMES, 1, 0.5)
                why = f"no store has URLs that begin with {scheme}://"
                why += f": did you mean {close[0]}://?" if close else ""
            raise ConfigError(f"source {self.where}: {why}") from error
        # Some libraries connect at once, and raise errors that are not an OSError.
        except Exception as error:
            raise SourceUnreachableError(f"{self.where}: {redacted(str(error))}") from error
        self._folder = str(root).rstrip("/") + "/"
        self._threads = ThreadPoolExecutor(connections, "read-fsspec")

    def _root(self, since: float = float("-inf")) -> str:
        """Returns the folder's path, at a commit that is not older than `since`."""
        return self._folder

    def _etag(self, about: dict[str, Any]) -> str:
        """Returns the ETag in fsspec's reply, or ""."""
        return ""

    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        try:
            root = self._root(since=time.monotonic())
            entries: dict[str, Any] = self._fs.find(root, detail=True)
        except SourceUnreachableError:
            raise
        except Exception as error:
            raise SourceUnreachableError(f"{self.where}: cannot list: {_message(error)}") from error
        objects = []
        for path, about in entries.items():
            key = path.removeprefix(root)
            if os.fsencode(key) <= os.fsencode(start_after):
                continue
            if about.get("size") is None:
                raise SourceUnreachableError(
                    f"{self.where}: the store does not report the size of {key}"
                )
            objects.append(ObjectInfo(key, int(about["size"]), self._etag(about)))
        objects.sort(key=lambda o: os.fsencode(o.key))
        for start in range(0, len(objects), PAGE):
            yield objects[start : start + PAGE]

    async def read(self, key: str, start: int, stop: int, size: int | None, etag: str) -> bytes:
        # One byte beyond the listed size shows that an object has grown.
        end = stop + 1 if size and stop == size else stop
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._read, key, start, end, etag)

    async def tail(self, key: str, length: int, etag: str) -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        info = await self.find(key)
        start, etag = max(0, info.size - length), etag or info.etag
        data = loop.run_in_executor(self._threads, self._read, key, start, info.size, etag)
        return info.size, await data

    def _read(self, key: str, start: int, stop: int, etag: str) -> bytes:
        with self._explained():
            path = self._root() + key
            data: bytes = self._fs.cat_file(path, start=start or None, end=stop)
        return data

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except SourceError:
            raise
        except FileNotFoundError as error:
            raise GoneError("the object was deleted after it was listed") from error
        except (PermissionError, IsADirectoryError) as error:
            raise UnitError(f"cannot read the object: {_message(error)}") from error
        except Exception as error:
            raise TransientError(f"cannot read the object: {_message(error)}") from error

    async def find(self, key: str) -> ObjectInfo:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._find, key)

    def _find(self, key: str, since: float = float("-inf")) -> ObjectInfo:
        with self._explained():
            entry: dict[str, Any] = self._fs.info(self._root(since) + key)
        if entry.get("type") == "directory":
            raise GoneError("found a folder with this name, expected an object")
        if entry.get("size") is None:
            raise UnitError("the store does not report the object's size")
        return ObjectInfo(key, int(entry["size"]), self._etag(entry))


class HubBackend(FsspecBackend):
    """The files below an hf:// URL, at one commit.

    A branch or tag is resolved to a commit once. Everything is listed and read at this commit, because a
    commit never changes. ETags are the Hub's hashes of contents. If another process listed a later
    commit, the commit may lack a listed object: then the branch is resolved again. huggingface_hub finds
    the token.
    """

    def __init__(self, source: SourceConfig, connections: int) -> None:
        self.where = self._url = source.url
        with extra("hf", "sources on the Hub"):
            from huggingface_hub import HfApi, HfFileSystem, get_token
        place, _, revision = source.address.place.partition("@")
        *kind, owner, name = place.split("/")
        self._kind = kind[0].removesuffix("s") if kind else "model"
        self._repo, self._revision = f"{owner}/{name}", unquote(revision or "main")
        self._prefix = source.address.prefix
        self._token = False if source.anonymous else get_token() or False
        hub = os.environ.get("HF_ENDPOINT")
        self._api = HfApi(hub, self._token, "cachecd")
        self._fs = HfFileSystem(endpoint=hub, token=self._token, skip_instance_cache=True)
        self._folder, self._asked_at = "", float("-inf")
        self._asking = threading.Lock()
        self._threads = ThreadPoolExecutor(connections, "read-hub")

    def _root(self, since: float = float("-inf")) -> str:
        with self._asking:
            fixed = _COMMIT.fullmatch(self._revision)
            if not self._folder or (self._asked_at < since and not fixed):
                commit = self._revision if fixed else self._commit()
                kind = "" if self._kind == "model" else f"{self._kind}s/"
                self._folder = f"{kind}{self._repo}@{commit}/{self._prefix}"
                self.where = f"{self._url} (commit {commit})"
                _log.warning("%s is read at commit %s", self._url, commit)
            return self._folder

    def _commit(self) -> str:
        """Returns the current commit of the revision."""
        from huggingface_hub import errors

        time.sleep(max(0.0, self._asked_at + _PAUSE - time.monotonic()))
        self._asked_at = time.monotonic()
        try:
            with self._explained():
                return str(
                    self._api.repo_info(
                        self._repo, revision=self._revision, repo_type=self._kind
                    ).sha
                )
        except SourceError as error:
            message = (
                "with the token from this machine"
                if self._token
                else "without a token: set HF_TOKEN"
            )
            match cause := error.__cause__:
                case errors.GatedRepoError():
                    why = "access to this repository must be requested on its page"
                case errors.RepositoryNotFoundError():
                    why = "there is no such repository, or it is private"
                case errors.RevisionNotFoundError():
                    why = f"the repository has no revision {self._revision!r}"
                case _:
                    raise
            status = cause.response.status_code
            raise SourceUnreachableError(f"{self._url}: {why} ({status}, {message})") from None

    def _etag(self, about: dict[str, Any]) -> str:
        return str(about["lfs"]["sha256"] if about.get("lfs") else about.get("blob_id") or "")

    def _find(self, key: str, since: float = float("-inf"), etag: str = "") -> ObjectInfo:
        """Finds an object, with this ETag unless it is "". UnitError if no commit has the object."""
        began = time.monotonic()
        try:
            info = super()._find(key, since)
            if etag in ("", info.etag):
                return info
        except GoneError:
            if began - self._asked_at < _OLD and not etag:
                raise
        info = super()._find(key, began)
        if etag not in ("", info.etag):
            raise refusal(412, "", self.where)
        return info

    def _read(self, key: str, start: int, stop: int, etag: str) -> bytes:
        while True:  # another thread may resolve a later commit meanwhile
            root = self._root()
            self._find(key, etag=etag)
            if root == self._root():
                break
        with self._explained():
            data: bytes = self._fs.cat_file(
                root + key, start=start or None, end=stop, cache_type="none"
            )
        return data

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        with super()._explained():
            try:
                yield
            except Exception as error:
                answer = getattr(error, "response", None)
                if answer is None:
                    raise
                headers = {name.lower(): value for name, value in answer.headers.items()}
                raise refusal(answer.status_code, "", self.where, retry_after(headers)) from error


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {redacted(str(error))}".rstrip(": ")
