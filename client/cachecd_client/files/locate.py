"""The places of the records in each file: from its sidecar, or by a scan, many files at a time."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import cachecd_client._core as _core
from cachecd_client.errors import CallerError, CorruptSidecarError
from cachecd_client.files.inflate import compression_of

log = logging.getLogger("cachecd")

_THREADS = 16  # a scan waits for the disk
_SAY_EVERY = 10.0  # seconds between two lines in the log
# The index files of other tools (NVIDIA DALI, the tfrecord package) have the same name, and lines of an
# offset and a length.
_INDEX_OF_OTHERS = re.compile(rb"\d+ \d+\s")


@dataclass(frozen=True)
class Located:
    """A file, and the places of its records.

    `offsets`: of each record's frame; None if the sidecar has them. `schema`: the JSON values in the
    sidecar.
    """

    path: str
    offsets: NDArray[np.uint64] | None
    num_records: int
    num_bytes: int
    schema: dict[str, Any] | None = None

    def find(self) -> NDArray[np.uint64]:
        """The offsets, from the sidecar if necessary."""
        if self.offsets is not None:
            return self.offsets
        return _core.Sidecar.read(f"{self.path}.idx").offsets


def locate(paths: Sequence[str]) -> list[Located]:
    """The files in their order; a file that is named twice is scanned once.

    Raises the error of the first file with an error: CorruptRecordError, CorruptSidecarError, OSError, or
    CallerError for a compressed file.
    """
    different = list(dict.fromkeys(paths))
    threads = ThreadPoolExecutor(min(_THREADS, len(different)), "cachecd-locate")
    try:
        futures = [threads.submit(_locate, path, different) for path in different]
        _wait(futures)
    finally:
        threads.shutdown(cancel_futures=True)
    for each in futures:
        if not each.cancelled() and (error := each.exception()) is not None:
            raise error
    located = {each.path: each for each in (one.result() for one in futures)}
    return [located[path] for path in paths]


def _wait(futures: Sequence[Future[Located]]) -> None:
    """Returns when all are done, or one has failed."""
    pending: set[Future[Located]] = set(futures)
    while pending:
        done, pending = wait(pending, _SAY_EVERY, FIRST_EXCEPTION)
        if any(each.exception() for each in done):
            return
        if pending:
            # A warning: a trainer that set up no logging shows nothing less, and should not seem to hang.
            log.warning(
                "scanning %d files for their records, %d done; python -m cachecd_client.index does it once",
                len(futures), len(futures) - len(pending),
            )  # fmt: skip


def _locate(path: str, paths: Sequence[str]) -> Located:
    if (located := by_sidecar(path)) is not None:
        return located
    if (compression := compression_of(path)) is not None:
        raise CallerError(
            f"{path} is compressed ({compression}), and a FileSet reads plain TFRecord files. Inflate "
            f"compressed files once, and give the FileSet the files in DIR:\n{_command(path, paths)}"
        )
    offsets = _core.scan(path)
    return Located(path, offsets, len(offsets), os.path.getsize(path))


def _command(path: str, paths: Sequence[str]) -> str:
    """The command that inflates the file, and the files of its folder with the same ending."""
    folder, ending = os.path.dirname(path), os.path.splitext(path)[1]
    alike = [one for one in paths if os.path.splitext(one)[1] == ending]
    files = shlex.join(alike)
    if len(alike) > 8 and all(os.path.dirname(one) == folder for one in alike):
        files = f"{shlex.quote(os.path.join(folder, ''))}*{shlex.quote(ending)}"
    return f"python -m cachecd_client.index {files} --out DIR"


def by_sidecar(path: str) -> Located | None:
    """None if the file has no sidecar of ours. CorruptSidecarError if the sidecar does not fit the file."""
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
        # Whatever `on_corrupt` is: it concerns records, and records behind the end of the sidecar would be
        # missing silently.
        raise CorruptSidecarError(
            name,
            f"it describes {sidecar.data_bytes} bytes, {path} has {size}: delete or rebuild it",
        )
    try:
        schema = json.loads(sidecar.meta or "{}").get("schema")
    except (ValueError, AttributeError):
        raise CorruptSidecarError(name, "its meta is not a JSON object") from None
    return Located(path, None, len(sidecar), size, schema)
