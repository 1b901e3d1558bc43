"""A directory in which a FileSet keeps what it found out about files without a sidecar.

For a data file it holds a sidecar, `NAME.idx`, and for a compressed one its inflated copy too,
`NAME`. NAME is made of two hashes: one of the data file's path, by which older entries for it are
found and removed, and one of its size and modification time, so that an entry never changes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from cachecd_client import _core
from cachecd_client.descriptor import Descriptor, try_lock
from cachecd_client.errors import CorruptSidecarError
from cachecd_client.inflate import Compression

log = logging.getLogger("cachecd")

# Of this file, one byte for each data file, locked by who makes its entry, and behind these one for
# each entry, locked by who reads its inflated copy.
_LOCK = "lock"
_READERS = 1 << 62  # where the latter begin; an offset is signed
_POLL = 0.02  # seconds between two looks at a lock that another process has


@dataclass(frozen=True)
class Source:
    """A data file as it was when it was looked at."""

    path: str  # as the caller gave it
    real: str
    size: int
    mtime_ns: int

    @staticmethod
    def of(path: str) -> Source:
        found = os.stat(path)
        return Source(path, os.path.realpath(path), found.st_size, found.st_mtime_ns)

    @property
    def unchanged(self) -> bool:
        """Whether the file still is as it was then."""
        return Source.of(self.path) == self

    def meta(self) -> dict[str, Any]:
        return {"path": self.real, "size": self.size, "mtime_ns": self.mtime_ns}

    @property
    def prefix(self) -> str:
        """Of the names of all entries for the path."""
        return _hash(self.real)

    @property
    def name(self) -> str:
        return f"{self.prefix}-{_hash(json.dumps(self.meta()))}.tfrecord"


@dataclass(frozen=True)
class Kept:
    """An entry: the records of a data file, and its inflated copy, None if it needs none."""

    copy: str | None
    offsets: NDArray[np.uint64]
    num_bytes: int


class CannotKeep(Exception):  # noqa: N818  # no error: the work goes on without
    """The directory does not take what should be kept; it was said, once."""


class IndexCache:
    """The entries in one directory, which several processes and threads may use at once.

    What is found there is whole and belongs to the data file as it is now: a sidecar is verified,
    and compared with the data file's size and modification time. A directory that cannot be
    written to costs one line in the log, and nothing more is kept.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.readers = Readers(os.path.join(folder, _LOCK))
        self._said = False
        self._guard = threading.Lock()
        self._names: dict[str, list[str]] | None = None

    def find(self, source: Source) -> Kept | None:
        """The entry for the file as it is; None if there is none, or one that is damaged.

        Its copy stays while anything refers to `readers`.
        """
        path = os.path.join(self.folder, source.name)
        try:
            sidecar = _core.Sidecar.read(f"{path}.idx")
            meta = json.loads(sidecar.meta)
            if meta["source"] != source.meta():
                return None
            compressed = meta["compression"] is not None
            if compressed and not (
                self.readers.hold(source.name) and os.path.exists(f"{path}.idx")
            ):
                return None  # somebody removes it
            size = os.path.getsize(path) if compressed else source.size
        except (OSError, CorruptSidecarError, ValueError, KeyError, TypeError):
            return None
        if size != sidecar.data_bytes:
            return None
        return Kept(path if compressed else None, sidecar.offsets, size)

    @contextlib.contextmanager
    def making(self, source: Source, stopped: threading.Event) -> Iterator[Draft | None]:
        """The sole right, among all processes, to make the entry; None if there is no way to.

        Waits while another process has it. CancelledError soon after `stopped` is set.
        """
        try:
            lock = None if self._said else self._lock(source, stopped)
        except CannotKeep:
            lock = None
        if lock is None:
            yield None
            return
        try:
            self._clear(source, lock)
            with contextlib.closing(Draft(self, source)) as draft:
                yield draft
        finally:
            lock.close()

    def refuse(self, error: OSError) -> NoReturn:
        """Says once that nothing can be kept, and why. CannotKeep."""
        with self._guard:
            said, self._said = self._said, True
        if not said:
            log.warning(
                "cache_index=%r: %s; nothing more is kept there, and the next FileSet will look "
                "for these records again",
                self.folder,
                error,
            )
        raise CannotKeep from error

    def _clear(self, source: Source, lock: Descriptor) -> None:
        """Removes what there is for the source's path, is not its entry, and is read by nobody.

        That is of a file that has changed, or of a process that was killed. What came into being
        after the first call stays, as a directory is listed once.
        """
        if not source.unchanged:
            return  # somebody's newer entry is the right one
        with self._guard:
            if self._names is None:
                self._names = defaultdict(list)
                for name in os.listdir(self.folder):
                    self._names[name.partition("-")[0]].append(name)
            names = self._names.get(source.prefix, ())
        try:
            for name in names:
                entry = name.removesuffix(".idx")
                if entry != source.name and try_lock(
                    lock, fcntl.F_WRLCK, _place_of_readers(entry), 1
                ):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(self.folder, name))
        except OSError as error:
            with contextlib.suppress(CannotKeep):
                self.refuse(error)

    def _lock(self, source: Source, stopped: threading.Event) -> Descriptor:
        try:
            os.makedirs(self.folder, exist_ok=True)
            lock = Descriptor.of_file(os.path.join(self.folder, _LOCK), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            self.refuse(error)
        place = int(source.prefix, 16) % _READERS
        try:
            while not try_lock(lock, fcntl.F_WRLCK, place, 1):
                if stopped.wait(_POLL):
                    raise CancelledError
            return lock
        except OSError as error:
            lock.close()
            self.refuse(error)
        except BaseException:
            lock.close()
            raise


class Draft:
    """An entry that is being made: under other names, until it is whole."""

    def __init__(self, cache: IndexCache, source: Source) -> None:
        self._cache = cache
        self._source = source
        self._path = os.path.join(cache.folder, source.name)
        self._temporary = os.path.join(cache.folder, f"{source.prefix}-{secrets.token_hex(8)}.tmp")
        self._copy: int | None = None

    def write(self, piece: bytes) -> None:
        """Appends to the inflated copy. CannotKeep."""
        try:
            if self._copy is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._copy = os.open(self._temporary, flags, 0o666)
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(self._copy, rest) :]
        except OSError as error:
            self._cache.refuse(error)

    def seal(
        self, offsets: NDArray[np.uint64], num_bytes: int, compression: Compression | None
    ) -> None:
        """Gives the entry its name, after which every process finds it. CannotKeep.

        Not if the data file was changed meanwhile: nobody knows what the offsets belong to. The
        copy stays while anything refers to the cache's `readers`.
        """
        meta = json.dumps({"source": self._source.meta(), "compression": compression})
        try:
            if not self._source.unchanged:
                raise CannotKeep
            if compression is not None:
                self.write(b"")  # a copy without records is a file too
                assert self._copy is not None
                os.fsync(self._copy)
                self._cache.readers.hold(self._source.name)
            _core.write_sidecar(f"{self._temporary}.idx", meta, num_bytes, offsets)
            # The small one first: on a disk that refuses the other, it is what stays.
            os.replace(f"{self._temporary}.idx", f"{self._path}.idx")
            if compression is not None:
                os.replace(self._temporary, self._path)
        except OSError as error:
            self._cache.refuse(error)

    @property
    def readers(self) -> Readers:
        """What keeps the inflated copy once it is sealed."""
        return self._cache.readers

    @property
    def path(self) -> str:
        """Where the inflated copy is once it is sealed."""
        return self._path

    def close(self) -> None:
        """Removes what was not sealed. Idempotent."""
        if self._copy is not None:
            os.close(self._copy)
            self._copy = None
        for left in (self._temporary, f"{self._temporary}.idx"):
            with contextlib.suppress(OSError):
                os.unlink(left)


class Readers:
    """Says to other processes, while anything refers to it, which inflated copies are read here.

    By shared locks of one descriptor, that a forked child has too: one that outlives its parent may
    still read. Pickled, it becomes None.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._guard = threading.Lock()
        self._descriptor: int | None = None

    def hold(self, entry: str) -> bool:
        """Whether the entry's copy stays from now on, if it is there; False: somebody removes it.

        True also where it cannot be known: who may not lock may still read.
        """
        try:
            with self._guard:
                if self._descriptor is None:
                    self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                    weakref.finalize(self, os.close, self._descriptor)
                return try_lock(self._descriptor, fcntl.F_RDLCK, _place_of_readers(entry), 1)
        except OSError:
            return True

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return type(None), ()


def _place_of_readers(entry: str) -> int:
    return _READERS + int(_hash(entry), 16) % _READERS


def _hash(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:16]
