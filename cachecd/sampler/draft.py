"""The shard being written: what fits into it, and what its records look like."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import Buffer

from cachecd.errors import DiskError, UnitError
from cachecd.layout import SIDECAR_SUFFIX
from cachecd.model import MISFIT, UnitSlice
from cachecd.parts import part_of
from cachecd_client._core import ShardWriter
from cachecd_client.errors import CorruptRecordError, SchemaError
from cachecd_client.schema import Schema, infer

# Of the sidecar's meta text, what is kept for the list of what did not fit.
_REMAINDER = 2048


@dataclasses.dataclass(frozen=True, slots=True)
class Sealed:
    """A finished shard: lengths of its two files, and the bytes both occupy on disk."""

    records: int = 0
    data_bytes: int = 0
    sidecar_bytes: int = 0
    allocated: int = 0


class Draft:
    """One shard on its way: `path` and its sidecar, at most `capacity` bytes together.

    The files come into being with the first record, and are gone after `abort`. `schema` is the
    dataset's; if it is None the first record decides, and `described` is told, once. All failures of
    the disk are DiskError, its cause the OSError.
    """

    def __init__(
        self,
        path: str,
        capacity: int,
        schema: Schema | None,
        described: Callable[[Schema], None],
        meta: Mapping[str, Any],
        classes: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        self.capacity = capacity
        self.schema = schema
        self.full = False
        """Whether a record has been refused because it did not fit any more."""
        self._described = described
        self._meta = dict(meta)
        self._classes = classes
        self._writer: ShardWriter | None = None
        if schema is not None:
            self._meta["schema"] = schema.to_json()

    @property
    def records(self) -> int:
        return self._writer.num_records if self._writer else 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the TFRecord file so far."""
        return self._writer.num_bytes if self._writer else 0

    @property
    def room(self) -> int:
        """At least what every record that still fits takes, in bytes of its frame."""
        sidecar = self._writer.sidecar_bytes if self._writer else 0
        return max(0, self.capacity - self.num_bytes - sidecar)

    # --- the schema

    def describe(self, schema: Schema) -> None:
        """Fixes the schema, unless the dataset has one already."""
        if self.schema is None:
            self.schema = schema
            self._meta["schema"] = schema.to_json()
            self._described(schema)

    def _schema_of(self, record: Mapping[str, Any]) -> Schema:
        schema = infer(record)
        if not self._classes:
            return schema
        return Schema(
            tuple(
                dataclasses.replace(f, classes=self._classes)
                if (f.name, f.kind, f.shape) == ("label", "int64", ())
                else f
                for f in schema.features
            )
        )

    # --- records

    def add(self, record: Mapping[str, Any], unit: int, ordinal: int) -> bool:
        """Appends a record; False if it does not fit any more.

        UnitError if it does not fit the schema, or would not fit into an empty shard either.
        """
        try:
            if self.schema is None:
                self.describe(self._schema_of(record))
            assert self.schema is not None
            encoded = self.schema.encode(record)
        except (SchemaError, TypeError, ValueError, OverflowError) as error:
            reason = str(error)
            if self.schema is not None and not reason.startswith(MISFIT):
                reason = f"{MISFIT}: {reason}"
            raise UnitError(reason) from error
        with self._disk():
            fits = self._open().append(encoded, unit, ordinal)
        if not fits:
            self.refuse(len(encoded))
        return fits

    def add_frames(
        self, frames: Buffer, unit: int, ordinal: int, base: int
    ) -> tuple[int, int, bool]:
        """Appends whole TFRecord frames as they are, till one does not fit: (records, bytes consumed,
        whether one did not).

        An incomplete last frame is left. CorruptRecordError at base + offset; the records before it
        stay.
        """
        with self._disk():
            return self._open().append_frames(frames, unit, ordinal, self.path, base)

    def refuse(self, length: int) -> None:
        """A record of this length does not fit: the shard is full. UnitError if it would not fit into an
        empty one either."""
        if not self.records or length > self.capacity:
            raise self.too_large(length)
        self.full = True

    def too_large(self, length: int) -> UnitError:
        """The error for a record that fits into no shard."""
        return UnitError(
            f"a record of {length} bytes does not fit into a shard of {self.capacity}: "
            "raise cache.shard_size"
        )

    def _open(self) -> ShardWriter:
        if self._writer is None:
            discard(self.path)  # of a process that was killed: the name is ours alone
            meta = len(json.dumps(_widest(self._meta))) + _REMAINDER
            self._writer = ShardWriter(self.path, self.capacity, meta)
        return self._writer

    # --- the end

    def seal(self, remainder: Sequence[UnitSlice]) -> Sealed:
        """Finishes both files, on disk for good. At least one record must have been added.

        The sidecar's meta gets "remainder": [[unit, ordinal, offset, stop], ...] of what is left, as far
        as the text stays short: if not of all units, then of those that were begun, in the order given.
        Whoever rebuilds the catalog from the sidecars can tell those not begun from their absence.
        """
        assert self._writer is not None
        left = [part_of(u) for u in remainder]
        if len(json.dumps(left)) >= _REMAINDER:
            left = [part for part in left if part.ordinal]
        while len(json.dumps(left)) >= _REMAINDER:  # the last were begun by earlier shards
            left.pop()
        records = self.records
        with self._disk():
            data, sidecar = self._writer.finish(json.dumps({**self._meta, "remainder": left}))
            self._writer = None
            allocated = sum(os.stat(p).st_blocks * 512 for p in _files(self.path))
        return Sealed(records, data, sidecar, allocated)

    def abort(self) -> None:
        """Removes what there is. Idempotent; nothing after seal."""
        if self._writer is not None:
            self._writer.abort()
            self._writer = None

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except CorruptRecordError:
            raise
        except OSError as error:
            self.abort()
            raise DiskError(f"cannot write {self.path}: {error.strerror or error}") from error


def _widest(meta: Mapping[str, Any]) -> dict[str, Any]:
    """As long as it is wherever the walk was: where a shard is full must not depend on that, or it would
    be another one when it is made again."""
    return {**meta, "cursor": 1 << 62} if "cursor" in meta else dict(meta)


def discard(path: str) -> None:
    """Removes both files of a shard that nobody needs, if they are there.

    Never fails: what a disk that refuses even this leaves behind, the daemon's next start removes.
    """
    for file in _files(path):
        with contextlib.suppress(OSError):
            os.unlink(file)


def _files(path: str) -> tuple[str, str]:
    return path, path + SIDECAR_SUFFIX
