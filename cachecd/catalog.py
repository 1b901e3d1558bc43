"""The catalog: what the daemon knows of its shards, in one SQLite file. All SQL is here.

It is a cache of what the sidecars say, plus the plan of each dataset; when it is lost or damaged
it is rebuilt from the shards. One connection, used by the event loop's thread alone (SQLite 3.40
has a WAL bug that needs two), small transactions, a write-ahead log bounded by its checkpoints.

synchronous=NORMAL: a power failure may lose the last transactions, never the file's integrity;
what is lost is found again on the next start, since a shard's row follows its fsynced rename.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.errors import DiskError
from cachecd.model import Assignment, SetAside, Shard, ShardId

VERSION = 1
# 64 pages of 4 KiB: with the one transaction that may follow it keeps the WAL below half the
# ledger's metadata slack.
_CHECKPOINT_PAGES = 64

_SCHEMA = """
CREATE TABLE IF NOT EXISTS shards (
    dataset TEXT NOT NULL, number INTEGER NOT NULL, generation TEXT NOT NULL,
    records INTEGER NOT NULL, data_bytes INTEGER NOT NULL, allocated INTEGER NOT NULL,
    retired INTEGER NOT NULL DEFAULT 0, barred INTEGER NOT NULL DEFAULT 0, units BLOB NOT NULL,
    PRIMARY KEY (dataset, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS assignments (
    dataset TEXT NOT NULL, number INTEGER NOT NULL, generation TEXT NOT NULL, units BLOB NOT NULL,
    PRIMARY KEY (dataset, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS set_aside (
    dataset TEXT NOT NULL, unit INTEGER NOT NULL, key TEXT NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (dataset, unit)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS plans (
    dataset TEXT PRIMARY KEY, plan BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS schemas (
    dataset TEXT NOT NULL, generation TEXT NOT NULL, schema TEXT NOT NULL,
    PRIMARY KEY (dataset, generation)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class ShardRow:
    """A shard as the catalog has it."""

    shard: Shard
    retired: bool
    barred: bool


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A dataset's plan as it stands: what is saved of it, and the assignments that are open in it."""

    dataset: str
    fields: dict[str, Any]
    open: Sequence[Assignment]


class Catalog:
    """The open catalog. Every writing method is one transaction, done or not; failures are DiskError."""

    def __init__(self, path: Path) -> None:
        """Opens the catalog, or makes an empty one; a damaged file is set apart as *.damaged first.

        `rebuilt` says whether it starts empty although there may be shards. DiskError if it cannot
        be opened now but may be sound: locked by another program, or on a disk that fails.
        """
        self._path = path
        self.rebuilt = not path.exists()
        try:
            try:
                self._db = self._open()
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError:
                path.replace(path.with_name(path.name + ".damaged"))
                for suffix in ("-wal", "-shm"):  # they belong to the damaged file
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
                self.rebuilt = True
                self._db = self._open()
            # What the assignments' rows hold, as far as we wrote them: what is open and has no such
            # row, or another, is saved with its plan.
            self._assigned: dict[tuple[str, int], Assignment] = {}
        except sqlite3.Error as error:
            raise DiskError(f"{path}: cannot open the catalog: {error}") from error

    def _open(self) -> sqlite3.Connection:
        # The event loop waits here: nobody else has a business in this file.
        db = sqlite3.connect(self._path, isolation_level=None, timeout=0.2)
        try:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version not in (0, VERSION):
                raise sqlite3.DatabaseError(f"catalog version {version}")
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.execute("PRAGMA temp_store=MEMORY")
            db.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
            db.execute(f"PRAGMA journal_size_limit={_CHECKPOINT_PAGES * 4096}")
            db.executescript(_SCHEMA)
            db.execute(f"PRAGMA user_version={VERSION}")
            (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError(found)
        except BaseException:
            db.close()
            raise
        return db

    def close(self) -> None:
        """Checkpoints the write-ahead log into the file."""
        self._db.close()

    # --- reading, at a start

    def shards(self, dataset: str) -> list[ShardRow]:
        """All rows of a dataset, by number."""
        rows = self._db.execute(
            "SELECT number, generation, records, data_bytes, allocated, retired, barred"
            " FROM shards WHERE dataset = ? ORDER BY number",
            (dataset,),
        )
        return [
            ShardRow(Shard(ShardId(dataset, number), *shard), bool(retired), bool(barred))
            for number, *shard, retired, barred in rows
        ]

    def units(self, shard: ShardId) -> NDArray[np.uint64]:
        """The units that a shard holds records of; empty if it has no row."""
        try:
            row = self._db.execute(
                "SELECT units FROM shards WHERE dataset = ? AND number = ?", _key(shard)
            ).fetchone()
        except sqlite3.Error as error:
            raise DiskError(f"{self._path}: cannot read the catalog: {error}") from error
        return np.frombuffer(zlib.decompress(row[0]) if row else b"", np.uint64)

    def assignments(self, dataset: str) -> list[tuple[int, str, list[list[int]]]]:
        """The assignments that were open when the daemon last ran: number, generation, and for each
        unit [unit, ordinal, offset]."""
        rows = self._db.execute(
            "SELECT number, generation, units FROM assignments WHERE dataset = ? ORDER BY number",
            (dataset,),
        )
        return [
            (n, generation, json.loads(zlib.decompress(units))) for n, generation, units in rows
        ]

    def plan(self, dataset: str) -> dict[str, Any] | None:
        """The plan as last saved."""
        row = self._db.execute("SELECT plan FROM plans WHERE dataset = ?", (dataset,)).fetchone()
        return json.loads(zlib.decompress(row[0])) if row else None

    def set_aside(self, dataset: str) -> list[SetAside]:
        """The units given up, with their reasons."""
        rows = self._db.execute(
            "SELECT unit, key, reason FROM set_aside WHERE dataset = ? ORDER BY unit", (dataset,)
        )
        return [SetAside(*row) for row in rows]

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
        set_aside: Iterable[SetAside] = (),
    ) -> None:
        """The plan has moved on. If assignment `done` is: its row goes, its shard's and its set-aside
        units' come.

        A plan and all that is open in it are saved together: one that knew of an assignment without
        a row would wait for it for ever.
        """
        name = plan.dataset
        begun = [a for a in plan.open if self._assigned.get(_key(a.shard)) is not a]
        rows = [
            # The index has the rest of each unit.
            (
                *_key(a.shard),
                a.generation,
                _packed([[u.unit, u.ordinal, u.offset] for u in a.units]),
            )
            for a in begun
        ]
        with self._transaction():
            if done is not None:
                self._db.execute(
                    "DELETE FROM assignments WHERE dataset = ? AND number = ?", (name, done)
                )
            self._db.executemany("INSERT OR REPLACE INTO assignments VALUES (?, ?, ?, ?)", rows)
            if shard is not None:
                self._insert(shard, units)
            self._db.executemany(
                "INSERT OR REPLACE INTO set_aside VALUES (?, ?, ?, ?)",
                [(name, a.unit, a.key, a.reason) for a in set_aside],
            )
            self._db.execute(
                "INSERT OR REPLACE INTO plans VALUES (?, ?)", (name, _packed(plan.fields))
            )
        self._assigned.update((_key(a.shard), a) for a in begun)
        self._assigned.pop((name, done or 0), None)

    def adopt(
        self,
        shard: Shard,
        units: Sequence[int] | NDArray[np.uint64],
        retired: bool = False,
        barred: bool = False,
    ) -> None:
        """A valid shard was found on disk without a row, or with one that may be wrong."""
        with self._transaction():
            self._insert(shard, units, retired, barred)

    def mark(self, shard: ShardId, *, barred: bool) -> None:
        """No later lease names the shard, across restarts too: it is retired, or barred."""
        column = "barred" if barred else "retired"
        with self._transaction():
            self._db.execute(
                f"UPDATE shards SET {column} = 1 WHERE dataset = ? AND number = ?", _key(shard)
            )

    def remove(self, shard: ShardId) -> None:
        """The shard's files are gone."""
        with self._transaction():
            self._db.execute("DELETE FROM shards WHERE dataset = ? AND number = ?", _key(shard))

    def save_schema(self, dataset: str, generation: str, schema: dict[str, Any]) -> None:
        with self._transaction():
            self._db.execute(
                "INSERT OR REPLACE INTO schemas VALUES (?, ?, ?)",
                (dataset, generation, json.dumps(schema)),
            )

    def forget_plan(self, dataset: str) -> None:
        """A new listing, seed or generation starts the walk over."""
        with self._transaction():
            for table in ("assignments", "set_aside", "plans"):
                self._db.execute(f"DELETE FROM {table} WHERE dataset = ?", (dataset,))
        self._assigned = {k: a for k, a in self._assigned.items() if k[0] != dataset}

    def forget_units(self, dataset: str, number: int | None = None) -> None:
        """The unit numbers of one shard, or of all, are those of another listing."""
        with self._transaction():
            self._db.execute(
                "UPDATE shards SET units = ? WHERE dataset = ? AND (? IS NULL OR number = ?)",
                (zlib.compress(b""), dataset, number, number),
            )

    def _insert(
        self,
        shard: Shard,
        units: Sequence[int] | NDArray[np.uint64],
        retired: bool = False,
        barred: bool = False,
    ) -> None:
        blob = zlib.compress(np.sort(np.asarray(units, np.uint64)).tobytes(), 1)
        self._db.execute(
            "INSERT OR REPLACE INTO shards VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*_key(shard.id), shard.generation, shard.records, shard.data_bytes, shard.allocated,
             retired, barred, blob),
        )  # fmt: skip

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db, self._path)


class _Transaction:
    """BEGIN ... COMMIT; whatever SQLite says becomes a DiskError and leaves the catalog as it was."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db, self._path = db, path

    def __enter__(self) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        try:
            self._db.execute("ROLLBACK" if kind else "COMMIT")
        except sqlite3.Error as failure:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise self._failure(error or failure) from failure
        if isinstance(error, sqlite3.Error):
            raise self._failure(error) from error

    def _failure(self, error: BaseException) -> DiskError:
        return DiskError(f"{self._path}: cannot write the catalog: {error}")


def _packed(value: Any) -> bytes:
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 1)


def _key(shard: ShardId) -> tuple[str, int]:
    return shard.dataset, shard.number
