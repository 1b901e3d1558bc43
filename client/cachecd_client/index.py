"""Writes sidecars for TFRecord files, and inflates compressed ones, so that a FileSet opens without a scan.

    python -m cachecd_client.index /data/*.tfrecord.gz --out /data/plain

For each file NAME, DIR gets a link to the file, or the inflated file without `.gz`, and its sidecar
NAME.idx. If DIR is the file's own folder, a plain file gets the sidecar alone. A file that was indexed
before, and has not changed since, is left alone.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Iterator, Sequence
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

_ENDINGS = (".gz", ".gzip", ".zlib", ".zz", ".z")
_READ = 1 << 20
_MAGIC = b"CACHECDX"  # how a sidecar begins


class Indexed(NamedTuple):
    """The file in DIR, and whether it was there before."""

    records: int
    num_bytes: int
    was_there: bool


@dataclass(frozen=True)
class Job:
    """A file, and the path in DIR at which a FileSet reads it; `in_place`: the path is the file itself."""

    source: str
    target: str
    compression: Compression | None
    in_place: bool

    def run(self) -> Indexed:
        """Indexes the file, or raises CallerError, CorruptRecordError or OSError and changes nothing."""
        known = self._own_sidecar() if self.in_place else self._kept()
        if known is not None:
            return known
        folder, name = os.path.split(self.target)
        temporary = os.path.join(folder, f".{name}.tmp")
        try:
            _remove(temporary, f"{temporary}.idx")  # of a run that was killed
            return self._make(temporary)
        finally:
            _remove(temporary, f"{temporary}.idx")

    def _own_sidecar(self) -> Indexed | None:
        """The records by the sidecar beside the file; None if there is no sidecar, or if it is damaged or
        outdated. CallerError if it belongs to another tool."""
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
                f"{sidecar} is an index of another tool: give --out another directory"
            )
        return None

    def _kept(self) -> Indexed | None:
        """The file in DIR, if it is whole and its source has not changed. CallerError if DIR has another
        file of this name."""
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
                f"{self.target} exists, but by {sidecar} it was not made from {self.source}: remove "
                "both, or give --out another directory"
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
                why = f"{error.why} (the byte counts in the inflated file)"
                raise CorruptRecordError(self.source, error.offset, why) from None
        size = os.path.getsize(self.source if self.in_place else temporary)
        if meta["source"] != self._origin():
            raise CallerError("the file changed while it was read: index it once it is complete")
        _core.write_sidecar(f"{temporary}.idx", json.dumps(meta), size, offsets)
        # A sidecar never stands beside data that it does not describe, whenever this process ends.
        if not self.in_place:
            _remove(self.target)
        os.replace(f"{temporary}.idx", f"{self.target}.idx")
        if not self.in_place:
            os.replace(temporary, self.target)
        return Indexed(len(offsets), size, False)


def _records(path: str) -> tuple[NDArray[np.uint64], dict[str, Any] | None]:
    """The places of the records in a plain file, and the schema of its sidecar, if any."""
    with contextlib.suppress(CorruptSidecarError):
        if (known := by_sidecar(path)) is not None:
            return known.find(), known.schema
    return _core.scan(path), None


def inflate(path: str, compression: Compression, to: BinaryIO) -> None:
    """Inflates the file. CorruptRecordError for a damaged stream, with the compressed byte at which it
    fails, and for a stream that is no TFRecord file."""
    inflater = Inflater(compression)
    head = b""
    try:
        for piece in _pieces(path, inflater):
            if len(head) < HEAD:
                head += piece[: HEAD - len(head)]
                if len(head) == HEAD and not begins_a_record(head):
                    raise CorruptRecordError(path, 0, "it does not inflate to a TFRecord file")
            to.write(piece)
    except InflateError as error:
        raise CorruptRecordError(path, inflater.fed, str(error)) from None


def _pieces(path: str, inflater: Inflater) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        while data := file.read(_READ):
            yield from inflater.feed(data)
    yield from inflater.finish()


def _remove(*paths: str) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def jobs_of(files: Sequence[str], out: str) -> list[Job]:
    """A job for each file. CallerError for a missing file, or for two files with one name in DIR."""
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
            raise CallerError(
                f"{path} would replace itself: give --out another directory than its own"
            )
        job = Job(path, os.path.join(out, name), compression, in_place and compression is None)
        if (other := jobs.setdefault(name, job)) is not job:
            raise CallerError(
                f"{path} and {other.source} would both be {job.target}: index them into two directories"
            )
    return list(jobs.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0; 1 if a file could not be indexed, which stderr names. Exits with 2 for a
    bad call."""
    parser = argparse.ArgumentParser(
        prog="python -m cachecd_client.index",
        description="Write sidecars for TFRecord files into DIR, and inflate compressed files (GZIP, "
        "ZLIB), so that a FileSet over the files in DIR opens without a scan.",
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
        fcntl.flock(folder, fcntl.LOCK_EX)  # until the process ends: another run waits
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
        os._exit(130)  # threads would inflate to the ends of their files; the next run cleans up
    threads.shutdown()
    os.close(folder)
    sys.stdout.write(
        f"{options.out}: {len(indexed)} files, {sum(one.records for one in indexed)} records, "
        f"{sum(one.num_bytes for one in indexed)} bytes; {sum(one.was_there for one in indexed)} were there"
        f"{f'; {failed} failed' if failed else ''}\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
