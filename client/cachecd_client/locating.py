"""Where the records of each file of a set are: by its sidecar, or found once, many files at a time."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd_client import _core
from cachecd_client.errors import CorruptSidecarError, NoSpaceError, WorldError
from cachecd_client.index_cache import CannotKeep, Draft, IndexCache, Readers, Source
from cachecd_client.inflate import Compression, compression_of, inflate
from cachecd_client.scratch import Scratch

log = logging.getLogger("cachecd")

_THREADS = 16  # walking waits for the disk, inflating for a processor
_SAY_EVERY = 10.0  # seconds between two lines in the log
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Indexes that other tools (NVIDIA DALI, the tfrecord package) put under the same name have lines of
# an offset and a length.
_INDEX_OF_OTHERS = re.compile(rb"\d+ \d+\s")


@dataclass(frozen=True)
class Located:
    """A file, and where its records are.

    `data` is what is read: the file itself, or its inflated copy. `offsets`: of each record's frame
    in `data`; None if the sidecar, `data + ".idx"`, has them. `num_bytes`: of `data`. `schema`: what
    the file's own sidecar says, as JSON values. A copy stays while anything refers to `keep`.
    """

    path: str
    data: str
    offsets: NDArray[np.uint64] | None
    num_records: int
    num_bytes: int
    schema: dict[str, Any] | None = None
    keep: Scratch | Readers | None = None

    def find(self) -> NDArray[np.uint64]:
        """The offsets, wherever they are."""
        if self.offsets is not None:
            return self.offsets
        return _core.Sidecar.read(f"{self.data}.idx").offsets

    @property
    def gone(self) -> bool:
        """Whether the inflated copy was removed by somebody."""
        return self.data != self.path and not os.path.exists(self.data)


class Whereabouts:
    """Where the records of a set's files are: looked for once, by the first thread that asks.

    Again only if inflated copies are gone: those of a set that came from another process.
    """

    def __init__(self, paths: Sequence[str], cache_index: str | None = None) -> None:
        """As of `locate`, which is not called yet."""
        self._paths = paths
        self._cache_index = cache_index
        self._found: list[Located] | None = None
        self._guard = threading.Lock()

    def get(self) -> list[Located]:
        """The files in their order, with their copies, if any, in place. Errors: those of `locate`."""
        with self._guard:
            if self._found is None or any(file.gone for file in self._found):
                self._found = locate(self._paths, self._cache_index)
            return self._found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_guard"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _guard=threading.Lock())


def check(files: Sequence[Located]) -> None:
    """WorldError if an inflated copy is gone: whoever reads it cannot begin another pass."""
    for file in files:
        if file.gone:
            raise WorldError(
                f"the inflated copy of {file.path}, {file.data}, was removed by somebody: make "
                "the loader anew"
            )


def locate(paths: Sequence[str], cache_index: str | None = None) -> list[Located]:
    """The files in their order; one that is named twice is looked at once.

    A file without a sidecar is walked, a compressed one inflated into `cache_index`, the directory
    that keeps what is found, or else into a Scratch. An error is that of the first file that has
    one, or, if some are compressed, of one that was met first: CorruptRecordError,
    CorruptSidecarError, OSError, or NoSpaceError for an inflated copy. Then, and if interrupted, no
    Scratch stays.
    """
    different = list(dict.fromkeys(paths))
    search = _Search(None if cache_index is None else IndexCache(cache_index))
    try:
        found = search.all(different)
        for each in found:
            error = None if each.cancelled() else each.exception()
            if error is not None and not isinstance(error, CancelledError):
                raise error
    except BaseException:
        search.undo()
        raise
    located = {each.path: each for each in (one.result() for one in found)}
    return [located[path] for path in paths]


def _wait(found: Sequence[Future[Located]]) -> None:
    """Until all are done, or one has failed."""
    pending: set[Future[Located]] = set(found)
    while pending:
        done, pending = wait(pending, _SAY_EVERY, FIRST_EXCEPTION)
        if any(each.exception() for each in done):
            return
        if pending:
            # A warning for the reason given in waiting.py: it would seem to hang.
            log.warning(
                "looking for the records of %d files, %d done; cache_index=DIRECTORY keeps them",
                len(found),
                len(found) - len(pending),
            )


class _Search:
    """What the threads that locate the files of one set share."""

    def __init__(self, cache: IndexCache | None) -> None:
        self.stopped = threading.Event()
        self._cache = cache
        self._guard = threading.Lock()
        self._scratch: Scratch | None = None
        self._copies = 0

    def all(self, paths: Sequence[str]) -> list[Future[Located]]:
        """All files, or those up to the first error; no thread is left when it returns or raises."""
        threads = ThreadPoolExecutor(min(_THREADS, len(paths)), "cachecd-locate")
        try:
            found = [threads.submit(self.locate, path) for path in paths]
            _wait(found)
            return found
        finally:
            self.stopped.set()
            threads.shutdown(cancel_futures=True)

    def locate(self, path: str) -> Located:
        """One file. CancelledError soon after `stopped` is set."""
        found = _by_sidecar(path)
        if found is not None:
            return found
        if self._cache is None:
            return self._look(path, None)
        source = Source.of(path)
        found = self._kept(source)
        if found is not None:
            return found
        with self._cache.making(source, self.stopped) as draft:
            # Another process may have made it while this one waited.
            return self._kept(source) or self._look(path, draft)

    def undo(self) -> None:
        """Removes the copies made so far."""
        if self._scratch is not None:
            self._scratch.remove()

    def _kept(self, source: Source) -> Located | None:
        assert self._cache is not None
        kept = self._cache.find(source)
        if kept is None:
            return None
        records = len(kept.offsets)
        if kept.copy is None:
            return Located(source.path, source.path, kept.offsets, records, kept.num_bytes)
        return Located(
            source.path, kept.copy, None, records, kept.num_bytes, keep=self._cache.readers
        )

    def _look(self, path: str, draft: Draft | None) -> Located:
        compression = compression_of(path)
        if compression is None:
            offsets = _core.scan(path)
            size = os.path.getsize(path)
            if draft is not None:
                with contextlib.suppress(CannotKeep):
                    draft.seal(offsets, size, None)
            return Located(path, path, offsets, len(offsets), size)
        if draft is not None:
            try:
                return self._inflate_into(draft, path, compression)
            except CannotKeep:
                draft.close()  # before there is another copy: the disk may be the same
        return self._inflate_into_scratch(path, compression)

    def _inflate_into(self, draft: Draft, path: str, compression: Compression) -> Located:
        offsets, size = inflate(path, compression, draft.write, self.stopped)
        draft.seal(offsets, size, compression)
        return Located(path, draft.path, None, len(offsets), size, keep=draft.readers)

    def _inflate_into_scratch(self, path: str, compression: Compression) -> Located:
        scratch, copy = self._new_copy()
        try:
            # It takes at least as much; so a hopeless attempt does not fill the disk first.
            if shutil.disk_usage(scratch.path).free < os.path.getsize(path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with open(copy, "xb") as file:
                offsets, size = inflate(path, compression, file.write, self.stopped)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise NoSpaceError(
                error.errno,
                f"{error.strerror}: {os.path.dirname(scratch.path)} has no room for the inflated "
                f"copy of {path}: let $TMPDIR, or the FileSet's cache_index=, be a directory on a "
                "larger disk",
            ) from error
        return Located(path, copy, offsets, len(offsets), size, keep=scratch)

    def _new_copy(self) -> tuple[Scratch, str]:
        with self._guard:
            if self._scratch is None:
                self._scratch = Scratch()
            self._copies += 1
            return self._scratch, os.path.join(self._scratch.path, f"{self._copies}.tfrecord")


def _by_sidecar(path: str) -> Located | None:
    """None if the file has no sidecar of ours."""
    name = f"{path}.idx"
    try:
        sidecar = _core.Sidecar.read(name)
    except FileNotFoundError:
        return None
    except CorruptSidecarError:
        with open(name, "rb") as file:
            if _INDEX_OF_OTHERS.match(file.read(64)):
                return None
        raise
    size = os.path.getsize(path)
    if size != sidecar.data_bytes:
        # Whatever `on_corrupt` says: that is about records, and what lies behind the sidecar's end
        # would not even be missed.
        raise CorruptSidecarError(
            name,
            f"it describes {sidecar.data_bytes} bytes, {path} has {size}: delete or rebuild it",
        )
    try:
        schema = json.loads(sidecar.meta or "{}").get("schema")
    except (ValueError, AttributeError):
        raise CorruptSidecarError(name, "its meta is not a JSON object") from None
    return Located(path, path, None, len(sidecar), size, schema)
