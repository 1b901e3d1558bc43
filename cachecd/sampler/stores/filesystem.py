"""Every store that fsspec knows and this package does not: sftp, hdfs, memory ..."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fsspec.core

from cachecd.errors import ConfigError, SourceUnreachableError, UnitError
from cachecd.model import ObjectInfo
from cachecd.sampler.stores.answers import redacted, without_secrets
from cachecd.sampler.stores.backend import PAGE, GoneError, TransientError


class FsspecBackend:
    """The files below a URL, read in threads.

    Which failures pass and which do not, fsspec's file systems do not say in one way: all that is
    not plainly about the object is tried again.
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
            raise ConfigError(f"source {self.where}: {redacted(str(error))}") from error
        # Some connect at once, and what their libraries raise then is no OSError.
        except Exception as error:
            raise SourceUnreachableError(f"{self.where}: {redacted(str(error))}") from error
        self._root = str(root).rstrip("/") + "/"
        self._threads = ThreadPoolExecutor(connections, "read-fsspec")

    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        try:
            found: dict[str, Any] = self._fs.find(self._root, detail=True)
        except Exception as error:
            raise SourceUnreachableError(f"{self.where}: cannot list: {_told(error)}") from error
        objects = []
        for path, about in found.items():
            key = path.removeprefix(self._root)
            if any(name.startswith(".") for name in key.split("/")):
                continue
            if os.fsencode(key) <= os.fsencode(start_after):
                continue
            if about.get("size") is None:
                raise SourceUnreachableError(
                    f"{self.where}: the store does not tell the size of {key}"
                )
            objects.append(ObjectInfo(key, int(about["size"])))
        objects.sort(key=lambda o: os.fsencode(o.key))
        for start in range(0, len(objects), PAGE):
            yield objects[start : start + PAGE]

    def glimpse(self) -> Sequence[ObjectInfo]:
        return next(self.list(), [])

    async def read(self, key: str, start: int, stop: int, size: int | None, etag: str) -> bytes:
        # One byte more than was listed tells what has grown, however far.
        end = stop + 1 if size and stop == size else stop
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._read, key, start, end)

    async def tail(self, key: str, length: int, etag: str) -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        size = await loop.run_in_executor(self._threads, self._size, key)
        start = max(0, size - length)
        return size, await loop.run_in_executor(self._threads, self._read, key, start, size)

    def _size(self, key: str) -> int:
        with self._explained():
            size: int | None = self._fs.size(self._root + key)
        if size is None:
            raise UnitError("the store does not tell the object's size")
        return size

    def _read(self, key: str, start: int, stop: int) -> bytes:
        with self._explained():
            data: bytes = self._fs.cat_file(self._root + key, start=start or None, end=stop)
        return data

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise GoneError("the object is gone since it was listed") from error
        except (PermissionError, IsADirectoryError) as error:
            raise UnitError(f"cannot read the object: {_told(error)}") from error
        except Exception as error:
            raise TransientError(f"cannot read the object: {_told(error)}") from error

    async def find(self, key: str) -> ObjectInfo:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._find, key)

    def _find(self, key: str) -> ObjectInfo:
        try:
            found: dict[str, Any] = self._fs.info(self._root + key)
        except FileNotFoundError as error:
            raise GoneError("there is no such object") from error
        except Exception as error:
            raise TransientError(f"cannot look at the object: {_told(error)}") from error
        if found.get("type") == "directory":
            raise GoneError("there is no such object, but a folder of that name")
        if found.get("size") is None:
            raise UnitError("the store does not tell the object's size")
        return ObjectInfo(key, int(found["size"]))


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {redacted(str(error))}".rstrip(": ")
