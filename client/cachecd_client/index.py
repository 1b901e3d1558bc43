"""Writes sidecars for TFRecord files, and inflates compressed ones, so that a FileSet opens without a scan.

    python -m cachecd_client.index /data/*.tfrecord.gz --out /data/plain

For each file NAME, this writes into DIR the sidecar NAME.idx, and a link to the file, or the inflated
file without `.gz` or `.zst`. If DIR is the folder of a plain file, only the sidecar is written. Unchanged
files that were indexed before are skipped.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

import cachecd_client._core as _core
from cachecd_client import resources
from cachecd_client.errors import CallerError, CorruptRecordError, CorruptSidecarError
from cachecd_client.files.inflate import (
    HEAD,
    Compression,
    InflateError,
    Inflater,
    begins_a_record,
    compression_of,
)
from cachecd_client.files.locate import by_sidecar

_ENDINGS = (".gz", ".gzip", ".zlib", ".zz", ".z", ".zst", ".zstd")
_MAGIC = b"CACHECDX"  # the first bytes of a sidecar


class Indexed(NamedTuple):
    """The indexed file in DIR. `is_kept`: it was indexed before."""

    records: int
    num_bytes: int
    is_kept: bool


@dataclass(frozen=True)
class Job:
    """A source file, and the path in DIR that a FileSet reads. `in_place`: both are the same file."""

    source: str
    target: str
    compression: Compression | None
    in_place: bool

    def run(self) -> Indexed:
        """Indexes the file. After CallerError, CorruptRecordError or OSError, DIR is unchanged."""
        known = self._own_sidecar() if self.in_place else self._kept()
        if known is not None:
            return known
        folder, name = os.path.split(self.target)
        temporary = os.path.join(folder, f".{name}.tmp")
        try:
            _remove(temporary, f"{temporary}.idx")  # left by a run that was killed
            return self._make(temporary)
        finally:
            _remove(temporary, f"{temporary}.idx")

    def _own_sidecar(self) -> Indexed | None:
        """Returns the counts of the sidecar next to the file, or None if the sidecar is missing, damaged
        or outdated. CallerError if the sidecar belongs to another tool."""
        sidecar = f"{self.source}.idx"
        try:
            known = by_sidecar(self.source)
            if known is not None:
                origin = json.loads(_core.Sidecar.read(sidecar).meta or "{}").get("source")
                changed = origin is not None and origin != self._origin()
                return None if changed else Indexed(known.num_records, known.num_bytes, True)
        except CorruptSidecarError:
            with open(sidecar, "rb") as file:
                if file.read(len(_MAGIC)) == _MAGIC:
                    return None
        if os.path.lexists(sidecar):
            raise CallerError(
                f"{sidecar} is an index of another tool: choose another directory with --out"
            )
        return None

    def _kept(self) -> Indexed | None:
        """Returns the file in DIR if it is whole and its source has not changed, else None. CallerError if
        DIR has a file with this name from another source."""
        sidecar = f"{self.target}.idx"
        if not os.path.lexists(self.target) and not os.path.lexists(sidecar):
            return None
        try:
            contents = _core.Sidecar.read(sidecar)
            origin = json.loads(contents.meta)["source"]
            is_ours = origin["path"] == os.path.realpath(self.source)
        except (OSError, CorruptSidecarError, ValueError, KeyError, TypeError):
            is_ours = False
        if self.compression is None and os.path.exists(self.target):
            is_ours = is_ours and os.path.islink(self.target)
        if not is_ours:
            raise CallerError(
                f"{self.target} exists, but {sidecar} does not say that it was made from {self.source}: "
                "remove both, or choose another directory with --out"
            )
        if origin != self._origin() or not os.path.exists(self.target):
            return None
        if os.path.getsize(self.target) != contents.data_bytes:
            return None
        return Indexed(len(contents), contents.data_bytes, True)

    def _origin(self) -> dict[str, Any]:
        status = os.stat(self.source)
        path = os.path.realpath(self.source)
        return {"path": path, "size": status.st_size, "mtime_ns": status.st_mtime_ns}

    def _make(self, temporary: str) -> Indexed:
        meta: dict[str, Any] = {"source": self._origin()}
        if self.compression is None:
            offsets, schema = _records(self.source)
            if schema is not None:
                meta["schema"] = schema
            if not self.in_place:
                os.symlink(os.path.abspath(self.source), temporary)
        else:
            with open(temporary, "xb") as file:
                inflate(self.source, self.compression, file)
                file.flush()
                os.fsync(file.fileno())
            try:
                offsets = _core.scan(temporary)
            except CorruptRecordError as error:
                why = f"{error.why} (at this byte of the inflated file)"
                raise CorruptRecordError(self.source, error.offset, why) from None
        size = os.path.getsize(self.source if self.in_place else temporary)
        if meta["source"] != self._origin():
            raise CallerError("the file changed while it was read: index it when it is complete")
        _core.write_sidecar(f"{temporary}.idx", json.dumps(meta), size, offsets)
        # In this order, because a sidecar must never be next to data that it does not describe.
        if not self.in_place:
            _remove(self.target)
        os.replace(f"{temporary}.idx", f"{self.target}.idx")
        if not self.in_place:
            os.replace(temporary, self.target)
        return Indexed(len(offsets), size, False)


def _records(path: str) -> tuple[NDArray[np.uint64], dict[str, Any] | None]:
    """Returns the offsets of the records in a plain file, and the schema in its sidecar, if any."""
    with contextlib.suppress(CorruptSidecarError):
        if (known := by_sidecar(path)) is not None:
            return known.find(), known.schema
    return _core.scan(path), None


def inflate(path: str, compression: Compression, to: BinaryIO) -> None:
    """Inflates the file. CorruptRecordError, with the compressed byte, if the stream is damaged or its
    content is not a TFRecord file."""
    inflater = Inflater(compression)
    head = b""
    try:
        with open(path, "rb", buffering=0) as file:
            for piece in inflater.read(file):
                if len(head) < HEAD:
                    head += piece[: HEAD - len(head)]
                    if len(head) == HEAD and not begins_a_record(head):
                        raise CorruptRecordError(
                            path, 0, "its decompressed content is not a TFRecord file"
                        )
                to.write(piece)
    except InflateError as error:
        raise CorruptRecordError(path, inflater.fed, str(error)) from None


def _remove(*paths: str) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def jobs_of(files: Sequence[str], out: str) -> list[Job]:
    """Returns a job for each file. CallerError if a file is missing, or if two files would have one name in
    DIR."""
    jobs: dict[str, Job] = {}
    for path in dict.fromkeys(files):
        if not os.path.isfile(path):
            raise CallerError(f"{path} is not a file")
        compression = compression_of(path)
        name = os.path.basename(path)
        stem, ending = os.path.splitext(name)
        if compression is not None and ending.lower() in _ENDINGS:
            name = stem
        in_place = os.path.realpath(os.path.dirname(path)) == os.path.realpath(out)
        if compression is not None and in_place and name == os.path.basename(path):
            raise CallerError(f"{path} would replace itself: choose another directory with --out")
        job = Job(path, os.path.join(out, name), compression, in_place and compression is None)
        if (other := jobs.setdefault(name, job)) is not job:
            raise CallerError(
                f"{path} and {other.source} would both be {job.target}: index them into two directories"
            )
    return list(jobs.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 if a file could not be indexed (stderr names it), else 0. Exits with 2 for
    wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m cachecd_client.index",
        description="Write sidecars for TFRecord files into DIR, and inflate compressed files (GZIP, "
        "ZLIB, Zstandard), so that a FileSet over the files in DIR opens without a scan.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--out", required=True, metavar="DIR", help="created if it does not exist")
    options = parser.parse_args(arguments)
    try:
        jobs = jobs_of(options.files, options.out)
        os.makedirs(options.out, exist_ok=True)
        folder = os.open(options.out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (CallerError, OSError) as error:
        parser.error(str(error))
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(folder, fcntl.LOCK_EX)  # other runs wait until this process ends
    indexed, failed = [], 0
    threads = ThreadPoolExecutor(min(len(jobs), resources.processors()), "cachecd-index")
    try:
        for job, each in [(job, threads.submit(job.run)) for job in jobs]:
            try:
                indexed.append(each.result())
            except (CallerError, CorruptRecordError, OSError) as error:
                failed += 1
                sys.stderr.write(f"{job.source}: {error}\n")
    except KeyboardInterrupt:
        os._exit(130)  # does not wait for the threads; the next run removes their temporary files
    threads.shutdown()
    os.close(folder)
    sys.stdout.write(
        f"{options.out}: {len(indexed)} files, {sum(one.records for one in indexed)} records, "
        f"{sum(one.num_bytes for one in indexed)} bytes; {sum(one.is_kept for one in indexed)} up to date"
        f"{f'; {failed} failed' if failed else ''}\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
