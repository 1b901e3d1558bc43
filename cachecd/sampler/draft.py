"""Writes one shard: appends records that fit, counts skipped records, and fixes the schema."""

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
from cachecd.sampler.meter import METER
from cachecd_client._core import ShardWriter, write_sidecar
from cachecd_client.errors import CorruptRecordError, SchemaError
from cachecd_client.schema import TOKENS, Feature, Schema

# Part of the meta text is known only at the end: two cursors, two counts, and one skipped unit more than
# fits into `skips`. These bytes of the capacity are kept for it.
_END, _LAST_SKIP = 2048 + 128, 2048
# A skipped unit takes _SKIPPED bytes of the meta text, and the JSON of its key; a longer key is omitted.
# Reasons differ between runs, but which units a shard skips must not depend on reasons.
_LONGEST_KEY, _SKIPPED, _LONGEST_REASON = 1024, 256, 128
_SIDECAR = ".idx"  # follows the name of the shard's file
_MOST_KINDS, _MOST_EXAMPLES = 20, 10  # kinds of reasons, and examples of each kind
_WIDE = 1 << 62  # has as many digits as any number in the meta text
Examples = tuple[str, ...]
# The features that a transform makes of tokens, with their shapes; None for a list of any length.
TokenShapes = Mapping[str, tuple[int, ...] | None]


@dataclasses.dataclass(frozen=True, slots=True)
class FinishedDraft:
    """A finished shard. `data_bytes`: the length of the data file. `allocated`: bytes on disk, with the
    sidecar."""

    records: int = 0
    data_bytes: int = 0
    allocated: int = 0
    digest: int = 0


class Draft:
    """The shard that is being written: `path` and its sidecar, together at most `capacity` bytes. After
    `seal` or `abort`, `begin_shard` begins the next shard in the same draft.

    The first record creates the files, and `abort` removes them. A failure of the disk is a DiskError,
    whose cause is the OSError. `schema`: the dataset's schema. If it is None, the first records determine
    it, and `described` is called once.

    Which records fit depends only on the records, the keys and ETags of their units, the schema, and
    `meta` without its numbers. It does not depend on facts that are known only at the end. `skips`: bytes
    of the capacity that are kept for skipped units; None if the end adds nothing to the meta text.
    `failed` is called for each skipped record. `features`: the features that the configuration declares.
    `tokens`: features that hold tokens.
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
        tokens: Mapping[str, tuple[int, ...] | None] = {},
    ) -> None:
        self.path = path
        self.capacity = capacity
        self.schema = schema
        self.full = False
        """Whether a record did not fit."""
        self._described = described
        self._meta = dict(meta)
        self._classes = classes
        self._kept = 0 if skips is None else _END + skips + _LAST_SKIP
        self._writer: ShardWriter | None = None
        self._described_units: set[int] = set()  # units that the writer knows
        self._passed: dict[int, list[SkippedRecords]] = {}  # by unit
        self.num_passed = 0
        """The number of skipped records."""
        self.features = features
        self._tokens = tokens
        self._failed = failed
        self.misfits = 0
        """The number of skipped records that contradict the schema."""
        self.misfit = ""
        """The first record that contradicts the schema, with the reason."""

    def begin_shard(self, path: str, meta: Mapping[str, Any]) -> None:
        """Begins the next shard. The previous shard must be sealed or aborted."""
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
        """The present length of the data file."""
        return self._writer.num_bytes if self._writer else 0

    @property
    def room(self) -> int:
        """Free bytes for records. A record that fits takes at most this many bytes, with its frame."""
        sidecar = self._writer.sidecar_bytes if self._writer else 0
        return max(0, self.capacity - self.num_bytes - sidecar)

    # --- the schema

    def describe(self, schema: Schema) -> None:
        """Sets the schema, with the declared features, unless the dataset already has one."""
        if self.schema is None:
            described = declared(schema, self.features)
            self.schema = Schema(tuple(map(self._with_unit, described.features)))
            self._described(self.schema)

    def _with_unit(self, feature: Feature) -> Feature:
        """Notes that a feature holds tokens. A function of the user may have changed its shape."""
        if (name := feature.name) not in self._tokens:
            return feature
        shape = self._tokens[name]
        if name in self.features or feature.shape == shape:
            return dataclasses.replace(feature, unit=TOKENS)
        return feature if shape else dataclasses.replace(feature, shape=None, unit=TOKENS)

    def _schema_of(self, record: Mapping[str, Any]) -> Schema:
        features = infer(record, self.features).features
        return Schema(
            tuple(
                dataclasses.replace(f, classes=self._classes)
                if (f.name, f.kind, f.shape) == ("label", "int64", ())
                else f
                for f in features
            )
        )

    # --- records

    def add(self, record: Mapping[str, Any], unit: Unit, ordinal: int) -> bool:
        """Appends a record. Returns False if the record does not fit. RecordError if it does not match the
        schema, or does not fit into an empty shard either."""
        try:
            if self.schema is None:
                self.describe(self._schema_of(record))
            assert self.schema is not None
            if METER.on:
                METER.enter("encode", 1)
            body = encode(self.schema, record)
        except (SchemaError, TypeError, ValueError, OverflowError) as error:
            reason = str(error)
            if self.schema is not None and not reason.startswith(MISFIT):
                reason = f"{MISFIT}: {reason}"
            raise RecordError(reason) from error
        with self._disk():
            if METER.on:
                METER.enter("write", 1)
            fits = self._writer_for(unit).append(body, unit.number, ordinal)
        if not fits:
            self.refuse(len(body))
        return fits

    def pass_over(self, unit: Unit, ordinal: int, error: RecordError) -> None:
        """Counts a record that cannot be used."""
        self._failed(error)
        sample = error.sample or f"record {ordinal}"
        self._pass_over(unit, str(error), 1, (f"{unit.key}: {sample}",))

    def _pass_over(self, unit: Unit, reason: str, records: int, examples: Examples = ()) -> None:
        _count(self._passed.setdefault(unit.number, []), reason, records, examples)
        self.num_passed += records
        if reason.startswith(MISFIT):
            self.misfits += records
            self.misfit = self.misfit or f"{examples[0]!r}: {reason}"

    def pop_passed(self, unit: Unit) -> list[SkippedRecords]:
        """Returns the unit's skipped records, and removes them from `passed`."""
        return self._passed.pop(unit.number, [])

    @property
    def passed(self) -> tuple[SkippedRecords, ...]:
        """The skipped records, one entry for each kind of reason."""
        merged: list[SkippedRecords] = []
        for of_unit in self._passed.values():
            for each in of_unit:
                _count(merged, each.reason, each.records, each.examples)
        return tuple(merged)

    @property
    def ordinals(self) -> int:
        """The number of records that were added or skipped."""
        return self.records + self.num_passed

    def add_frames(
        self, frames: Buffer, unit: Unit, ordinal: int, base: int
    ) -> tuple[int, int, bool]:
        """Appends whole TFRecord frames unchanged, until one does not fit, or is incomplete or corrupt.
        Skips records that do not match the schema. Returns (records, bytes consumed, whether a frame
        did not fit). CorruptRecordError if the first frame is corrupt."""
        assert self.schema is not None, "it was described"
        with self._disk():
            writer, specs = self._writer_for(unit), self.schema.for_writer()
            before = METER.enter("write") if METER.on else ""
            added, consumed, full, passed, misfits = writer.append_frames(
                frames, unit.number, ordinal, self.path, base, specs
            )
            if METER.on:
                METER.enter(before, added + passed)
                METER.passed("write", added + passed)
        for misfit in misfits:
            reason = f"{MISFIT}: {explain(self.schema, misfit)}"
            self.pass_over(unit, misfit[0], RecordError(reason))
            self._pass_over(unit, reason, misfit[-1])
        return added + passed, consumed, full

    def refuse(self, length: int) -> None:
        """Marks the shard as full, because a record of this length does not fit. RecordError if the record
        does not fit into an empty shard either."""
        if not self.records or length > self.capacity:
            raise RecordError(
                f"a record of {length} bytes does not fit into a shard of {self.capacity}: "
                "raise cache.shard_size"
            )
        self.full = True

    def _writer_for(self, unit: Unit) -> ShardWriter:
        """Returns the writer, after the unit was described to it."""
        if self._writer is None:
            discard(self.path)  # a killed process left it: no other process uses this name
            self._described_units = set()
            numbers = [key for key, value in self._meta.items() if isinstance(value, int)]
            meta = len(self._text(dict.fromkeys(numbers, _WIDE)))
            self._writer = ShardWriter(self.path, self.capacity, meta + self._kept)
        if unit.number not in self._described_units:
            self._described_units.add(unit.number)
            self._writer.describe(unit.number, encoded(unit.key), unit.begin, encoded(unit.etag))
        return self._writer

    # --- the end

    def seal(self, end: Mapping[str, Any]) -> FinishedDraft:
        """Finishes and syncs both files; a shard without records is only a sidecar. `end`: further entries
        of the meta text, besides `meta` and the schema, within the bytes that are kept for them."""
        records, text = self.records, self._text(end)
        with self._disk():
            if self._writer is None or not records:
                self.abort()
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
        """Removes the files. Idempotent. No effect after `seal`."""
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
            reason = error.strerror or error
            if isinstance(error, FileExistsError):
                reason = "it exists, but the daemon did not write it: move it out of this directory"
            raise DiskError(f"cannot write {self.path}: {reason}") from error


def _count(counts: list[SkippedRecords], reason: str, records: int, examples: Examples) -> None:
    """Adds records to the entry of this kind of reason; if there are too many kinds, to the last entry."""
    kind = kind_of(reason)
    for at, known in enumerate(counts):
        if kind_of(known.reason) == kind or at == _MOST_KINDS - 1:
            merged = (known.examples + examples)[:_MOST_EXAMPLES]
            counts[at] = SkippedRecords(known.reason, known.records + records, merged)
            return
    counts.append(SkippedRecords(reason, records, examples))


def end_text(
    before: Cursor, after: Cursor, ended: int, passed: int, skipped: Sequence[Skipped]
) -> dict[str, Any]:
    """Returns the last entries of the meta text: the cursors before and after the shard, the counts of
    ended units and of skipped records, and the skipped units."""
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
    """Returns the bytes of the capacity that a skipped unit takes. They do not depend on the reason."""
    length = len(json.dumps(key))
    return _SKIPPED + (length if length <= _LONGEST_KEY else 2)


def _cut(reason: str) -> str:
    while len(json.dumps(reason)) > _LONGEST_REASON:
        reason = reason[: len(reason) * 7 // 8]
    return reason


def discard(path: str) -> None:
    """Removes both files of a shard, if they exist. Never fails: if the disk refuses, the daemon's next
    start removes the files."""
    for file in _files(path):
        with contextlib.suppress(OSError):
            os.unlink(file)


def _files(path: str) -> tuple[str, str]:
    return path, path + _SIDECAR
