"""The catalog: what the daemon knows of its shards, in one SQLite file. All SQL is here.

It is a cache of what the sidecars say, plus the plan of each dataset; when it is lost or damaged
it is rebuilt from the shards. One connection, used by the event loop's thread alone (SQLite 3.40
has a WAL bug that needs two), small transactions, a write-ahead log bounded by its checkpoints.

A power failure may lose the last transactions; what is lost is found again on the next start, since a
shard's row follows its fsynced rename.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import zlib
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachecd.database import Database
from cachecd.disk.filesystem import refusing
from cachecd.excludedfile import ExcludedFile
from cachecd.live import flags_of
from cachecd.model import Assignment, SetAside, Shard, ShardId, UnitName
from cachecd.parts import Part, packed, part_of, unpacked
from cachecd.shardtable import ROW, Rows
from cachecd.unittext import decoded, encoded

VERSION = 6
# Rows to a transaction where all must be changed: the write-ahead log stays small.
_ROWS_AT_ONCE = 100
# What a start reads at once, so that it takes little memory however much there is.
_ROWS_READ = 10_000
_UNITS_READ = 256  # shards; one may hold 4,096 units
_UNIT_BYTES_READ = 256 << 10
# Of walks that are not configured now: as many as there are listings that are not.
_PARKED = 2
_FILES = ("", "-wal", "-shm")
_OF_ONE = "WHERE dataset = ? AND number = ?"

_SCHEMA = """
CREATE TABLE shards (
    dataset TEXT NOT NULL, number INTEGER NOT NULL, generation TEXT NOT NULL,
    records INTEGER NOT NULL, data_bytes INTEGER NOT NULL, allocated INTEGER NOT NULL,
    retired INTEGER NOT NULL DEFAULT 0, barred INTEGER NOT NULL DEFAULT 0, units BLOB NOT NULL,
    parts BLOB NOT NULL, digest INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (dataset, number)) WITHOUT ROWID;
CREATE TABLE assignments (
    dataset TEXT NOT NULL, number INTEGER NOT NULL, generation TEXT NOT NULL, units BLOB NOT NULL,
    PRIMARY KEY (dataset, number)) WITHOUT ROWID;
CREATE TABLE set_aside (
    dataset TEXT NOT NULL, unit INTEGER NOT NULL, key TEXT NOT NULL, reason TEXT NOT NULL,
    passing INTEGER NOT NULL, PRIMARY KEY (dataset, unit)) WITHOUT ROWID;
CREATE TABLE plans (
    dataset TEXT PRIMARY KEY, plan BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE schemas (
    dataset TEXT NOT NULL, generation TEXT NOT NULL, schema TEXT NOT NULL,
    PRIMARY KEY (dataset, generation)) WITHOUT ROWID;
CREATE TABLE egress (
    dataset TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE adopted (
    dataset TEXT NOT NULL, number INTEGER NOT NULL, walk TEXT NOT NULL,
    PRIMARY KEY (dataset, number)) WITHOUT ROWID;
"""


class Adopted(NamedTuple):
    """A shard that was found on disk: the units it holds records of, the parts of those that it does not
    hold whole, and what its sidecar says of the `walk`."""

    shard: Shard
    units: Sequence[int] | NDArray[np.uint64]
    parts: Sequence[Part] = ()
    retired: bool = False
    barred: bool = False
    walk: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A dataset's plan as it stands: what is saved of it, the assignments that are open in it, and, if not
    the dataset's own, the name under which exclusions from it are kept."""

    dataset: str
    fields: dict[str, Any]
    open: Sequence[Assignment]
    excluded_as: str = ""


class Catalog:
    """The open catalog. Every writing method is one transaction, done or not; failures are DiskError."""

    def __init__(self, path: Path) -> None:
        """Opens the catalog, or makes an empty one; a file that is damaged or of another version is removed
        first.

        `rebuilt` says whether it starts empty although there may be shards. DiskError if it cannot
        be opened now but may be sound: locked by another program, or on a disk that fails.
        """
        self.rebuilt = not path.exists()
        self.removed = ""
        """Why a catalog was removed, for people; "" if none was."""
        try:
            self._db = Database(path, _SCHEMA, VERSION)
        except sqlite3.DatabaseError as error:
            with refusing(f"cannot remove the unusable catalog {path}"):
                for suffix in reversed(
                    _FILES
                ):  # the file last: as long as it is there, this is not done
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
            self.rebuilt, self.removed = True, str(error)
            self._db = Database(path, _SCHEMA, VERSION)
        self._excluded = ExcludedFile(path.with_name("excluded.jsonl"))
        # What the assignments' rows hold, as far as we wrote them: what is open and has no such
        # row, or another, is saved with its plan.
        self._assigned: dict[tuple[str, int], Assignment] = {}
        self._walks: dict[str, str] = {}

    def save_egress(self, dataset: str, fetched: int) -> None:
        """So many bytes have been fetched by now: the plan is saved when a shard begins or ends, and who is
        killed between has paid for what came meanwhile."""
        with self._db.transaction():
            self._db.execute("INSERT OR REPLACE INTO egress VALUES (?, ?)", (dataset, fetched))

    def egress(self, dataset: str) -> int:
        """Bytes that were fetched, by `save_egress`."""
        row = self._db.execute("SELECT bytes FROM egress WHERE dataset = ?", (dataset,)).fetchone()
        return int(row[0]) if row else 0

    def adopted(self, dataset: str) -> dict[int, tuple[dict[str, Any], list[Part]]]:
        """What the sidecars of shards said of the walk when they were adopted, and those shards' parts, as
        long as no plan has it."""
        rows = self._db.execute(
            "SELECT number, walk, parts FROM adopted JOIN shards USING (dataset, number)"
            " WHERE dataset = ?",
            (dataset,),
        )
        return {number: (_walk(walk), _parts(parts)) for number, walk, parts in rows}

    def forget_adopted(self, dataset: str) -> None:
        """The plan that is saved has all that `adopted` says: it is forgotten. Repeatable: it is not one
        transaction."""
        some = f"SELECT number FROM adopted WHERE dataset = ? LIMIT {_ROWS_READ}"
        while numbers := self._db.execute(some, (dataset,)):
            for start in range(0, len(numbers), _ROWS_AT_ONCE):
                with self._db.transaction():
                    self._db.executemany(
                        f"DELETE FROM adopted {_OF_ONE}",
                        [(dataset, n) for (n,) in numbers[start : start + _ROWS_AT_ONCE]],
                    )

    def keep_writes(self) -> None:
        """What is written from now on is kept in memory, until the start is over (`settle`) and there is
        room for it: for a start on a full disk."""
        self._db.keep_writes()

    def settle(self) -> None:
        """The start is over: from now on nothing counts as saved that is kept in memory alone."""
        self._db.settle()

    def sync(self) -> None:
        """What was saved till now outlives a power failure. DiskError if it may not."""
        self._db.sync()

    def close(self) -> None:
        """Checkpoints the write-ahead log into the file."""
        self._db.close()

    # --- reading, at a start

    def shards(self, dataset: str) -> tuple[list[str], Rows]:
        """All shards of a dataset, by number: the generations that there are, and rows of ROW."""
        places: dict[str, int] = {}
        found = [np.zeros(0, ROW)]
        columns = "records, data_bytes, allocated, digest, retired, barred, generation"
        for some in self._pages(columns, dataset, _ROWS_READ):
            numbers = [(*row[:-1], places.setdefault(row[-1], len(places))) for row in some]
            table, rows = np.array(numbers, np.int64).T, np.zeros(len(some), ROW)
            for name, column in zip(
                ("number", "records", "data_bytes", "allocated", "digest"), table, strict=False
            ):
                rows[name] = column
            rows["flags"], rows["generation"] = flags_of(table[5], table[6]), table[7]
            found.append(rows)
        return list(places), np.concatenate(found)

    def _pages(self, columns: str, dataset: str, rows: int) -> Iterator[list[tuple[Any, ...]]]:
        """The number and these columns of all shards of a dataset, so many rows at a time."""
        last = -1
        while some := self._db.execute(
            f"SELECT number, {columns} FROM shards WHERE dataset = ? AND number > ?"
            " ORDER BY number LIMIT ?",
            (dataset, last, rows),
        ):
            yield some
            last = some[-1][0]

    def held(self, shard: ShardId) -> tuple[NDArray[np.uint64], list[Part]]:
        """The units that a shard holds records of, and the parts of those that it does not hold whole;
        none if it has no row."""
        found = self._db.execute(f"SELECT units, parts FROM shards {_OF_ONE}", _key(shard))
        row = found.fetchone()
        units, parts = row or (zlib.compress(b""), b"")
        return np.frombuffer(zlib.decompress(units), np.uint64), _parts(parts)

    def units_held(
        self, dataset: str, generation: str, without: Container[int]
    ) -> Iterator[NDArray[np.uint64]]:
        """The units of all shards of a generation that are not barred, many at a time; but for those of
        the shards `without`."""
        for some in self._pages("units, generation, barred", dataset, _UNITS_READ):
            found = bytearray()
            for number, units, mine, barred in some:
                if mine == generation and not barred and number not in without:
                    found += zlib.decompress(units)
                    if (
                        len(found) >= _UNIT_BYTES_READ
                    ):  # what is made of them takes ten times as much
                        yield np.frombuffer(found, np.uint64)
                        found = bytearray()
            yield np.frombuffer(found, np.uint64)

    def parts_held(self, dataset: str, generation: str, without: Container[int]) -> list[Part]:
        """The parts of cut units in the same shards as of `units_held`."""
        rows = self._db.execute(
            "SELECT number, parts FROM shards"
            " WHERE dataset = ? AND generation = ? AND NOT barred AND length(parts) > 0",
            (dataset, generation),
        )
        return [part for number, parts in rows if number not in without for part in _parts(parts)]

    def assignments(self, dataset: str) -> list[tuple[int, str, list[Part]]]:
        """The assignments that were open when the daemon last ran: number, generation, and the Part of
        each unit."""
        rows = self._db.execute(
            "SELECT number, generation, units FROM assignments WHERE dataset = ? ORDER BY number",
            (dataset,),
        )
        return [(n, generation, unpacked(units)) for n, generation, units in rows]

    def plan(self, dataset: str) -> dict[str, Any] | None:
        """The plan as last saved."""
        row = self._db.execute("SELECT plan FROM plans WHERE dataset = ?", (dataset,)).fetchone()
        return json.loads(zlib.decompress(row[0])) if row else None

    def parked(self, dataset: str) -> dict[str, dict[str, Any]]:
        """The plans that were parked, by the names of their walks."""
        rows = self._db.execute(
            "SELECT dataset, plan FROM plans WHERE substr(dataset, 1, ?) = ?",
            (len(dataset) + 1, _parked(dataset, "")),
        )
        return {name.partition("@")[2]: json.loads(zlib.decompress(plan)) for name, plan in rows}

    def generations(self, dataset: str) -> list[str]:
        """Those that have shards."""
        rows = self._db.execute(
            "SELECT DISTINCT generation FROM shards WHERE dataset = ?", (dataset,)
        )
        return [generation for (generation,) in rows]

    def set_aside(self, dataset: str) -> list[SetAside]:
        """The units given up, with their reasons."""
        rows = self._db.execute(
            "SELECT unit, key, reason, passing FROM set_aside WHERE dataset = ? ORDER BY unit",
            (self._asides_of(dataset),),
        )
        return [
            SetAside(unit, _text(key), _text(why), bool(passing))
            for unit, key, why, passing in rows
        ]

    def excluded(self, *datasets: str) -> list[UnitName]:
        """The units that a person has taken out under these names; they outlast plans, listings, sources
        and the catalog."""
        return sorted({unit for dataset in datasets for unit in self._excluded(dataset)})

    def excluded_elsewhere(self, datasets: Collection[str]) -> dict[str, int]:
        """How many units are kept as taken out of datasets that are none of these."""
        return self._excluded.but_for(datasets)

    def holders(
        self, dataset: str, units: Iterable[int], generations: Collection[str]
    ) -> Iterator[list[int]]:
        """The shards of these generations that hold records of any of these units and are not barred: of
        some shards at a time, until all have been looked at."""
        wanted = np.array(sorted(units), np.uint64)
        for some in self._pages("units, generation, barred", dataset, _UNITS_READ):
            blobs = [
                (number, zlib.decompress(blob))
                for number, blob, generation, barred in some
                if generation in generations and not barred
            ]
            held = np.frombuffer(b"".join(blob for _, blob in blobs), np.uint64)
            # At once: shard by shard it takes several times as long.
            lengths = np.array([(n, len(blob) // 8) for n, blob in blobs], np.int64).reshape(-1, 2)
            holders = np.repeat(lengths[:, 0], lengths[:, 1])
            yield np.unique(holders[np.isin(held, wanted)]).tolist()

    def schema(self, dataset: str, generation: str) -> dict[str, Any] | None:
        """The schema of a generation's records."""
        row = self._db.execute(
            "SELECT schema FROM schemas WHERE dataset = ? AND generation = ?", (dataset, generation)
        ).fetchone()
        return json.loads(row[0]) if row else None

    # --- writing

    def save_progress(
        self,
        plan: SavedPlan,
        done: int | None = None,
        shard: Shard | None = None,
        units: Sequence[int] | NDArray[np.uint64] = (),
        parts: Sequence[Part] = (),
        set_aside: Iterable[SetAside] = (),
        again: Iterable[int] = (),
        barred: int | None = None,
        excluded: Iterable[UnitName] = (),
        removed: int | None = None,
    ) -> None:
        """The plan has moved on. Assignment `done` is closed: its row goes, and the rows of its shard, if
        one came of it, and of set-aside units come. The rows of units that are tried `again` go. Shard
        `barred` is so from now on, and nothing is left of the one that was `removed`. The names `excluded`
        are kept in their file, and outlive a power failure.

        A plan and all that is open in it are saved together: one that knew of an assignment without
        a row would wait for it for ever.
        """
        name = plan.dataset
        begun = [a for a in plan.open if self._assigned.get(_key(a.shard)) is not a]
        rows = [
            # The index has the rest of each unit.
            (*_key(a.shard), a.generation, packed([part_of(u) for u in a.units]))
            for a in begun
        ]
        kept_as = plan.excluded_as or name
        if taken_out := [(kept_as, *unit) for unit in excluded]:
            self._excluded.add(taken_out)
        with self._db.transaction():
            if shard is not None:
                self._insert(shard, units, parts)
            if done is not None:
                self._db.execute(f"DELETE FROM assignments {_OF_ONE}", (name, done))
            self._db.executemany("INSERT OR REPLACE INTO assignments VALUES (?, ?, ?, ?)", rows)
            if barred is not None:
                self._db.execute(f"UPDATE shards SET barred = 1 {_OF_ONE}", (name, barred))
            if removed is not None:
                self._delete(ShardId(name, removed))
            self._db.executemany(
                "DELETE FROM set_aside WHERE dataset = ? AND unit = ?",
                [(self._asides_of(name), u) for u in again],
            )
            self._insert_asides(name, set_aside)
            self._insert_plan(plan)
        self._assigned.update((_key(a.shard), a) for a in begun)
        self._assigned.pop((name, done or 0), None)

    def adopt(self, shards: Iterable[Adopted]) -> None:
        """Valid shards were found on disk without a row, or with one that may be wrong. One with a `walk`
        need not be read again as long as its files are there: `adopted` has it."""
        todo = list(shards)
        for start in range(0, len(todo), _ROWS_AT_ONCE):
            some = todo[start : start + _ROWS_AT_ONCE]
            with self._db.transaction():
                for one in some:
                    self._insert(one.shard, one.units, one.parts, one.retired, one.barred)
                self._db.executemany(
                    "INSERT OR REPLACE INTO adopted VALUES (?, ?, ?)",
                    [(*_key(one.shard.id), json.dumps(one.walk)) for one in some if one.walk],
                )

    def retire(self, dataset: str, numbers: Sequence[int]) -> None:
        """No later lease names these shards, across restarts too. Repeatable: of many, it is not one
        transaction."""
        self._mark("retired", dataset, numbers)

    def _mark(self, column: str, dataset: str, numbers: Sequence[int]) -> None:
        for start in range(0, len(numbers), _ROWS_AT_ONCE):
            with self._db.transaction():
                self._db.executemany(
                    f"UPDATE shards SET {column} = 1 {_OF_ONE}",
                    [(dataset, number) for number in numbers[start : start + _ROWS_AT_ONCE]],
                )

    def remove(self, shard: ShardId) -> None:
        """The shard's files are gone."""
        with self._db.transaction():
            self._delete(shard)

    def _delete(self, shard: ShardId) -> None:
        for table in ("shards", "adopted"):
            self._db.execute(f"DELETE FROM {table} {_OF_ONE}", _key(shard))

    def save_schema(self, dataset: str, generation: str, schema: dict[str, Any]) -> None:
        with self._db.transaction():
            self._db.execute(
                "INSERT OR REPLACE INTO schemas VALUES (?, ?, ?)",
                (dataset, generation, json.dumps(schema)),
            )

    def start_over(self, plan: SavedPlan, asides: Iterable[SetAside] | None = ()) -> None:
        """This plan and what is open in it are all that there is, as where a walk begins; and these units
        set aside, unless None is given."""
        with self._db.transaction():
            for table in ("assignments", "egress"):
                self._db.execute(f"DELETE FROM {table} WHERE dataset = ?", (plan.dataset,))
            if asides is not None:
                self._db.execute(
                    "DELETE FROM set_aside WHERE dataset = ?", (self._asides_of(plan.dataset),)
                )
                self._insert_asides(plan.dataset, asides)
            self._insert_plan(plan)
        self._assigned = {k: a for k, a in self._assigned.items() if k[0] != plan.dataset}

    def bar(self, dataset: str, numbers: Sequence[int]) -> None:
        """No later lease names these shards, and their units count for none. Repeatable, as `retire`."""
        self._mark("barred", dataset, numbers)

    def on_walk(self, dataset: str, walk: str) -> None:
        """Of which walk the plan is that is saved: units set aside are kept by walk, and never move when
        another is turned to. Repeatable."""
        self._walks[dataset] = _parked(dataset, walk)
        self._move_asides(dataset, self._walks[dataset])  # of a plan whose walk nobody had named

    def turn(self, dataset: str, before: str | None, to: str) -> None:
        """Sets the plan that is saved apart, with its open assignments, under the name of its walk
        `before`, and takes up again what was parked as walk `to`, if anything was: all of it or nothing.
        Of what is parked then only the latest plans stay, and another if it alone knows the highest number
        of a shard, as after starts that were killed here."""
        order = [each.get("parked", 0) for each in self.parked(dataset).values()]
        plan = self.plan(dataset) if before is not None else None
        with self._db.transaction():
            if before is not None and plan is not None:
                plan["parked"] = 1 + max(order, default=0)
                self._insert_plan(SavedPlan(_parked(dataset, before), plan, ()))
                self._db.execute("DELETE FROM plans WHERE dataset = ?", (dataset,))
                self._rename(("assignments",), dataset, _parked(dataset, before))
            self._rename(("assignments", "plans"), _parked(dataset, to), dataset)
        self._walks[dataset] = _parked(dataset, to)
        self._assigned = {k: a for k, a in self._assigned.items() if k[0] != dataset}
        plans = self.parked(dataset)
        in_order = sorted(plans, key=lambda name: plans[name].get("parked", 0))
        came = {walk: saved["plan"]["next_number"] for walk, saved in plans.items()}
        known = [came[walk] for walk in in_order[-_PARKED:]]
        if now := self.plan(dataset):
            known.append(now["plan"]["next_number"])
        for old in in_order[:-_PARKED]:
            if came[old] == max(came.values()) > max(known):
                continue
            with self._db.transaction():
                for table in ("assignments", "plans"):
                    self._db.execute(
                        f"DELETE FROM {table} WHERE dataset = ?", (_parked(dataset, old),)
                    )
        walks = {_parked(dataset, walk) for walk in self.parked(dataset)} | {self._walks[dataset]}
        rows = self._db.execute(
            "SELECT DISTINCT dataset FROM set_aside WHERE substr(dataset, 1, ?) = ?",
            (len(dataset) + 1, _parked(dataset, "")),
        )
        for (old,) in list(rows):
            if old not in walks:
                self._move_asides(old, None)

    def _rename(self, tables: Sequence[str], old: str, new: str) -> None:
        for table in tables:
            self._db.execute(
                f"UPDATE OR REPLACE {table} SET dataset = ? WHERE dataset = ?", (new, old)
            )

    def _asides_of(self, dataset: str) -> str:
        """Under which name the rows of units set aside are kept."""
        return self._walks.get(dataset, dataset)

    def _move_asides(self, dataset: str, to: str | None) -> None:
        """To another name, or none. Repeatable: it is not one transaction."""
        some = (
            "WHERE dataset = ? AND unit IN"
            f" (SELECT unit FROM set_aside WHERE dataset = ? LIMIT {_ROWS_AT_ONCE})"
        )
        while self._db.execute("SELECT 1 FROM set_aside WHERE dataset = ? LIMIT 1", (dataset,)):
            with self._db.transaction():
                if to is None:
                    self._db.execute(f"DELETE FROM set_aside {some}", (dataset, dataset))
                else:
                    self._db.execute(
                        f"UPDATE OR REPLACE set_aside SET dataset = ? {some}",
                        (to, dataset, dataset),
                    )

    def _insert_plan(self, plan: SavedPlan) -> None:
        fields = _packed(plan.fields)
        self._db.execute("INSERT OR REPLACE INTO plans VALUES (?, ?)", (plan.dataset, fields))

    def _insert_asides(self, dataset: str, asides: Iterable[SetAside]) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO set_aside VALUES (?, ?, ?, ?, ?)",
            [
                (self._asides_of(dataset), a.unit, _stored(a.key), _stored(a.reason), a.passing)
                for a in asides
            ],
        )

    def _insert(
        self,
        shard: Shard,
        units: Sequence[int] | NDArray[np.uint64],
        parts: Sequence[Part] = (),
        retired: bool = False,
        barred: bool = False,
    ) -> None:
        blob = zlib.compress(np.sort(np.asarray(units, np.uint64)).tobytes(), 1)
        self._db.execute(
            "INSERT OR REPLACE INTO shards VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*_key(shard.id), shard.generation, shard.records, shard.data_bytes, shard.allocated,
             retired, barred, blob, np.array(parts, np.int64).tobytes(), shard.digest),
        )  # fmt: skip


def _stored(text: str) -> str | bytes:
    """SQLite's texts are Unicode, and a name need not be: its bytes are stored then, as no text is."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return encoded(text)
    return text


def _text(stored: str | bytes) -> str:
    return stored if isinstance(stored, str) else decoded(stored)


def _packed(value: Any) -> bytes:
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 1)


def _walk(text: str) -> dict[str, Any]:
    walk: dict[str, Any] = json.loads(text)
    walk["index"] = sys.intern(walk.get("index", ""))  # a string of its own in each, otherwise
    return walk


def _parts(blob: bytes) -> list[Part]:
    return [Part(*numbers) for numbers in np.frombuffer(blob, np.int64).reshape(-1, 4).tolist()]


def _key(shard: ShardId) -> tuple[str, int]:
    return shard.dataset, shard.number


def _parked(dataset: str, walk: str) -> str:
    """Under which name the rows of a parked walk are kept: no dataset can have it."""
    return f"{dataset}@{walk}"
