"""The shard that is being written: which records fit, which are passed over, and their schema."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from typing_extensions import Buffer

from cachecd.config.source import FeatureConfig
from cachecd.errors import DiskError, RecordError
from cachecd.model import MISFIT, Cursor, Skipped, SkippedRecords, Unit, encoded, kind_of
from cachecd.sampler.encoding import declared, encode, explain, infer
from cachecd_client._core import ShardWriter, write_sidecar
from cachecd_client.errors import CorruptRecordError, SchemaError
from cachecd_client.schema import Schema

# Of the capacity, bytes that are kept for the part of the meta text that is known only at the end: two
# cursors and two counts, and one skipped unit more than fit into `skips`.
_END, _LAST_SKIP = 2048 + 128, 2048
# A skipped unit in the meta text takes the JSON of its key, which is left out if it is longer than that,
# and this. Reasons differ from run to run, and which units a shard skips must not depend on them.
_LONGEST_KEY, _SKIPPED, _LONGEST_REASON = 1024, 256, 128
_SIDECAR = ".idx"  # behind the name of a shard's file
_MOST_KINDS, _MOST_EXAMPLES = 20, 10  # of the reasons for which records are passed over
_WIDE = 1 << 62  # as wide as any number in the meta text
Examples = tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class FinishedDraft:
    """A finished shard: the length of its file, the allocated bytes of both files, the digest."""

    records: int = 0
    data_bytes: int = 0
    allocated: int = 0
    digest: int = 0


class Draft:
    """The shard that is being written: `path` and its sidecar, at most `capacity` bytes together. After it
    is sealed or aborted, `go_on` begins the next shard in the same draft.

    The files are created with the first record, and removed by `abort`. `schema` is the dataset's schema;
    if it is None, the first record decides, and `described` is called once. All failures of the disk are
    DiskError with the OSError as cause.

    The records that fit follow from the records, the keys and ETags of their units, `meta` less its
    numbers, and the schema, and never from facts that are known only at the end. `skips`: bytes of the
    capacity that are kept for skipped units; None: the end adds nothing. `failed` is called for each record
    that is passed over. `features`: those that the configuration declares.
    """

    def __init__(
        self,
        path: str,
        capacity: int,
        schema: Schema | None,
        described: Callable[[Schema], None],
        meta: Mapping[str, Any],
        classes: tuple[str, ...] = (),
        skips: int | None = None,
        failed: Callable[[Exception], None] = lambda error: None,
        features: Mapping[str, FeatureConfig] = {},
    ) -> None:
        self.path = path
        self.capacity = capacity
        self.schema = schema
        self.full = False
        """Whether a record has been refused because it did not fit any more."""
        self._described = described
        self._meta = dict(meta)
        self._classes = classes
        self._kept = 0 if skips is None else _END + skips + _LAST_SKIP
        self._writer: ShardWriter | None = None
        self._named: set[int] = set()  # units that the writer knows
        self._passed: dict[int, list[SkippedRecords]] = {}  # by unit; a reason of each kind
        self.num_passed = 0
        """How many records were passed over."""
        self.features = features
        self._failed_with = failed
        self.misfits = 0
        """How many of these contradict the schema."""
        self.misfit = ""
        """The first of them, with the reason."""

    def go_on(self, path: str, meta: Mapping[str, Any]) -> None:
        """Begins the next shard. The last shard must be sealed or aborted."""
        assert self._writer is None, f"{self.path} is neither sealed nor aborted"
        self.path = path
        self._meta = dict(meta)
        self.full = False
        self._passed, self.num_passed = {}, 0
        self.misfits, self.misfit = 0, ""

    @property
    def records(self) -> int:
        return self._writer.num_records if self._writer else 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the TFRecord file so far."""
        return self._writer.num_bytes if self._writer else 0

    @property
    def room(self) -> int:
        """Bytes that are left for records. A record that fits takes at most this many, with its frame."""
        sidecar = self._writer.sidecar_bytes if self._writer else 0
        return max(0, self.capacity - self.num_bytes - sidecar)

    # --- the schema

    def describe(self, schema: Schema) -> None:
        """Fixes the schema, with the declared features, unless the dataset has one already."""
        if self.schema is None:
            self.schema = declared(schema, self.features)
            self._described(self.schema)

    def _schema_of(self, record: Mapping[str, Any]) -> Schema:
        schema = infer(record, self.features)
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

    def add(self, record: Mapping[str, Any], unit: Unit, ordinal: int) -> bool:
        """Appends a record. Returns False if it does not fit any more.

        RecordError if the record does not match the schema, or would not fit into an empty shard either.
        """
        try:
            if self.schema is None:
                self.describe(self._schema_of(record))
            assert self.schema is not None
            body = encode(self.schema, record)
        except (SchemaError, TypeError, ValueError, OverflowError) as error:
            reason = str(error)
            if self.schema is not None and not reason.startswith(MISFIT):
                reason = f"{MISFIT}: {reason}"
            raise RecordError(reason) from error
        with self._disk():
            fits = self._open(unit).append(body, unit.number, ordinal)
        if not fits:
            self.refuse(len(body))
        return fits

    def pass_over(self, unit: Unit, ordinal: int, error: RecordError) -> None:
        """Counts a record that cannot be used."""
        self._failed_with(error)
        sample = error.sample or f"record {ordinal}"
        self._pass_over(unit, str(error), 1, (f"{unit.key}: {sample}",))

    def _pass_over(self, unit: Unit, reason: str, records: int, examples: Examples = ()) -> None:
        _count(self._passed.setdefault(unit.number, []), reason, records, examples)
        self.num_passed += records
        if reason.startswith(MISFIT):
            self.misfits += records
            self.misfit = self.misfit or f"{examples[0]!r}: {reason}"

    def passed_of(self, unit: Unit) -> list[SkippedRecords]:
        """Returns which records of the unit were passed over. They are not in `passed` any more."""
        return self._passed.pop(unit.number, [])

    @property
    def passed(self) -> tuple[SkippedRecords, ...]:
        """The records that were passed over, by kind of reason."""
        merged: list[SkippedRecords] = []
        for of_unit in self._passed.values():
            for each in of_unit:
                _count(merged, each.reason, each.records, each.examples)
        return tuple(merged)

    @property
    def ordinals(self) -> int:
        """How many records were added or passed over."""
        return self.records + self.num_passed

    def add_frames(
        self, frames: Buffer, unit: Unit, ordinal: int, base: int
    ) -> tuple[int, int, bool]:
        """Appends whole TFRecord frames unchanged, until one does not fit. Records that do not match the
        schema are passed over. Returns (records, bytes consumed, whether a frame did not fit).

        An incomplete or corrupt frame is left. CorruptRecordError if the first one is corrupt.
        """
        assert self.schema is not None, "it was described"
        with self._disk():
            writer, specs = self._open(unit), self.schema.for_writer()
            added, consumed, full, passed, misfits = writer.append_frames(
                frames, unit.number, ordinal, self.path, base, specs
            )
        for misfit in misfits:
            reason = f"{MISFIT}: {explain(self.schema, misfit)}"
            self.pass_over(unit, misfit[0], RecordError(reason))
            self._pass_over(unit, reason, misfit[-1])
        return added + passed, consumed, full

    def refuse(self, length: int) -> None:
        """Notes that a record of this length does not fit, so that the shard is full. RecordError if the
        record would not fit into an empty shard either."""
        if not self.records or length > self.capacity:
            raise self.too_large(length)
        self.full = True

    def too_large(self, length: int) -> RecordError:
        """Returns the error for a record that fits into no shard."""
        return RecordError(
            f"a record of {length} bytes does not fit into a shard of {self.capacity}: "
            "raise cache.shard_size"
        )

    def _open(self, unit: Unit) -> ShardWriter:
        """Returns the writer, which knows the unit."""
        if self._writer is None:
            discard(self.path)  # of a process that was killed: the name is ours alone
            self._named = set()
            numbers = [key for key, value in self._meta.items() if isinstance(value, int)]
            meta = len(self._text(dict.fromkeys(numbers, _WIDE)))
            self._writer = ShardWriter(self.path, self.capacity, meta + self._kept)
        if unit.number not in self._named:
            self._named.add(unit.number)
            self._writer.describe(unit.number, encoded(unit.key), unit.begin, encoded(unit.etag))
        return self._writer

    # --- the end

    def seal(self, end: Mapping[str, Any]) -> FinishedDraft:
        """Finishes both files durably. Without a record there is only a sidecar.

        `end`: entries of the meta text besides `meta` and the schema, within the bytes that are kept for
        them.
        """
        records, text = self.records, self._text(end)
        with self._disk():
            if self._writer is None or not records:
                self.abort()  # no record fitted
                discard(self.path)
                write_sidecar(self.path + _SIDECAR, text, 0, np.zeros(0, np.uint64))
                data = digest = 0
            else:
                data, _ = self._writer.finish(text)
                digest, self._writer = self._writer.digest, None
            files = _files(self.path)[0 if records else 1 :]
            allocated = sum(os.stat(file).st_blocks * 512 for file in files)
        return FinishedDraft(records, data, allocated, digest)

    def _text(self, end: Mapping[str, Any]) -> str:
        schema = {} if self.schema is None else {"schema": self.schema.to_json()}
        return json.dumps({**self._meta, **end, **schema})

    def abort(self) -> None:
        """Removes the files. Idempotent; no effect after seal."""
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
            why = error.strerror or error
            if isinstance(error, FileExistsError):
                why = "it exists, but the daemon did not write it: move it out of this directory"
            raise DiskError(f"cannot write {self.path}: {why}") from error


def _count(counts: list[SkippedRecords], reason: str, records: int, examples: Examples) -> None:
    """Adds records to those of the same kind; beyond the most kinds, to the last one."""
    kind = kind_of(reason)
    for at, known in enumerate(counts):
        if kind_of(known.reason) == kind or at == _MOST_KINDS - 1:
            named = (known.examples + examples)[:_MOST_EXAMPLES]
            counts[at] = SkippedRecords(known.reason, known.records + records, named)
            return
    counts.append(SkippedRecords(reason, records, examples))


def end_text(
    before: Cursor, after: Cursor, ended: int, passed: int, skipped: Sequence[Skipped]
) -> dict[str, Any]:
    """Returns for the meta text the stream's cursors, `before` and `after`; how many units `ended` here and
    how many records were `passed` over; and "skipped": [[unit, key, etag, record, reason, passing], ...].
    """
    return {
        "before": before.pack(),
        "after": after.pack(),
        "ended": ended,
        "passed": passed,
        "skipped": [
            [
                one.unit,
                one.key if len(json.dumps(one.key)) <= _LONGEST_KEY else "",
                one.etag,
                one.record,
                _cut(one.reason),
                one.passing,
            ]
            for one in skipped
        ],
    }


def skipped_bytes(key: str) -> int:
    """Returns the part of the capacity that a skipped unit takes. It does not depend on the reason."""
    length = len(json.dumps(key))
    return _SKIPPED + (length if length <= _LONGEST_KEY else 2)


def _cut(reason: str) -> str:
    while len(json.dumps(reason)) > _LONGEST_REASON:
        reason = reason[: len(reason) * 7 // 8]
    return reason


def discard(path: str) -> None:
    """Removes both files of a shard that is not needed, if they exist.

    Never fails: if the disk refuses, the daemon's next start removes the files.
    """
    for file in _files(path):
        with contextlib.suppress(OSError):
            os.unlink(file)


def _files(path: str) -> tuple[str, str]:
    return path, path + _SIDECAR
