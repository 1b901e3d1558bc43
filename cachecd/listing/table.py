"""listing.sqlite: the units of one source by number, and the ends of their blocks. All SQL is here."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cachecd.config.keypattern import other_forms
from cachecd.errors import DamagedError, DiskError, SourceError
from cachecd.model import ObjectInfo, Unit

VERSION = 1
FIRST_BLOCK = 256  # units; each later block is twice as large as the previous block
MOST_AT_ONCE = 1024  # units of a page, and of a look-up


def _crc(row: tuple[Any, ...]) -> int:
    """Returns the CRC-32 of a row as ASCII text. The repr of other text depends on the version of
    Python."""
    return zlib.crc32(ascii(row).encode())


_PAGE = 4096  # bytes
_CACHE = 8 << 10  # KiB of the file that SQLite keeps in memory
# `crc` covers the other values of the row. In `rewritten` it covers the row after the change; in `totals`
# also the number of units and the ends. `rewritten`: changes that wait for the end of a listing. `totals`:
# one row; `bytes` is text, because it may exceed 64 bits.
_SCHEMA = f"""
BEGIN IMMEDIATE;
PRAGMA user_version={VERSION};
CREATE TABLE units (
    number INTEGER PRIMARY KEY, key TEXT NOT NULL, begin INTEGER NOT NULL, size INTEGER NOT NULL,
    etag TEXT NOT NULL, label TEXT NOT NULL, crc INTEGER NOT NULL, UNIQUE (key, begin));
CREATE TABLE blocks (end INTEGER PRIMARY KEY);
CREATE TABLE rewritten (
    number INTEGER PRIMARY KEY, size INTEGER NOT NULL, etag TEXT NOT NULL, label TEXT NOT NULL,
    crc INTEGER NOT NULL);
CREATE TABLE totals (completed INTEGER NOT NULL, bytes TEXT NOT NULL, crc INTEGER NOT NULL);
INSERT INTO totals VALUES (0, '0', {_crc((0, 0, 0, ()))});
COMMIT;
"""
_TABLES = 4
_COLUMNS = "number, key, begin, size, etag, label"
_UPDATE = "UPDATE units SET size = ?, etag = ?, label = ?, crc = ? WHERE number = ?"
_DEFER = "INSERT OR REPLACE INTO rewritten (size, etag, label, crc, number) VALUES (?, ?, ?, ?, ?)"
# Constraints fail only if the table and its index differ; SQL fails only if the schema or a text is
# damaged.
_DAMAGE = {
    *(sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB),
    *(sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_ERROR),
}

Row = tuple[Any, ...]


class _Totals(NamedTuple):
    """The number of complete listings, units and bytes, and the ends of the blocks."""

    completed: int = 0
    units: int = 0
    bytes: int = 0
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes that a page makes to a table. Valid until the table changes.

    `numbers`: the numbers of the page's units, in page order. `new`: rows of units that are not in the
    table. `rewritten`: new values of units whose ETag, size or label changed. `grown`: bytes by which the
    source grew. `cost`: the maximum of bytes by which file and journal grow while the page is added.
    """

    numbers: tuple[int, ...]
    new: tuple[Row, ...]
    rewritten: tuple[Row, ...]
    grown: int
    cost: int


class Table:
    """The units of one source, numbered from 0 in the order in which they were first listed.

    The number of a unit never changes. A block is visible only after the transaction that ended the block
    was synced. Only the thread that made the table may use it, because the table has one connection.

    Every method raises DiskError if the disk refuses. The table is then unchanged, and the caller may
    repeat the call. If the file is damaged, this call and every later call raise DamagedError, and the next
    start lists the source again. `damage`: the message of that error, or "".
    """

    def __init__(self, path: Path, blocks: int = 0) -> None:
        """Opens or creates the file. DamagedError also if the file has fewer than `blocks` blocks."""
        self._path = path
        self._journal = path.with_name(path.name + "-journal")
        self._db: sqlite3.Connection | None = None
        self._totals = _Totals()
        self.damage = ""
        with self._refusing():
            self._connection()
        if len(self.ends) < blocks:
            self.close()
            raise DamagedError(
                f"{path}: it has {len(self.ends)} blocks, expected at least {blocks}"
            )

    def __len__(self) -> int:
        """The number of units."""
        return self._totals.units

    @property
    def ends(self) -> tuple[int, ...]:
        """The ends of the blocks, ascending."""
        return self._totals.ends

    @property
    def completed(self) -> int:
        """The number of listings that reached their end."""
        return self._totals.completed

    @property
    def num_bytes(self) -> int:
        """The bytes of all units. A unit of unknown size counts as 0."""
        return self._totals.bytes

    @property
    def allocated(self) -> int:
        """The bytes that file and journal occupy on disk."""
        total = 0
        with self._refusing():
            for path in (self._path, self._journal):
                with contextlib.suppress(FileNotFoundError):
                    total += os.stat(path).st_blocks * 512
        return total

    def close(self) -> None:
        """Closes the file. Idempotent; the next call of another method opens it again."""
        db, self._db = self._db, None
        if db is not None:
            db.close()

    # --- reading

    def units(self, numbers: Sequence[int]) -> list[Unit]:
        """Returns the units with these numbers, in the same order. At most MOST_AT_ONCE numbers.
        IndexError: a number is not listed."""
        if numbers and not 0 <= min(numbers) <= max(numbers) < len(self):
            raise IndexError(f"a number is outside the {len(self)} listed units")
        marks = ",".join("?" * len(numbers))
        units = {unit.number: unit for unit in self._units(f"number IN ({marks})", numbers)}
        try:
            return [units[number] for number in numbers]
        except KeyError as error:
            raise self._damaged(f"unit {error} is missing") from None

    def has_keys(self, keys: Iterable[str]) -> set[str]:
        """Returns the listed keys among these."""
        return {key for key in keys if self._units("key = ? LIMIT 1", (_stored(key),))}

    def neighbours(self, key: str) -> list[str]:
        """Returns this key's other Unicode normalizations that are listed, and the listed keys next to
        the key: at most one before and two after."""
        before = "SELECT DISTINCT key FROM units WHERE key < ? ORDER BY key DESC LIMIT 1"
        after = "SELECT DISTINCT key FROM units WHERE key > ? ORDER BY key LIMIT 2"
        rows = (row for sql in (before, after) for row in self._rows(sql, (_stored(key),)))
        return [*self.has_keys(other_forms(key)), *(_text(row[0]) for row in rows)]

    # --- listing

    def check_index(self, numbers: Sequence[int]) -> None:
        """DamagedError if the index does not find these units by key: `compare` would treat them as new
        units."""
        for at in range(0, len(numbers), MOST_AT_ONCE):
            part = numbers[at : at + MOST_AT_ONCE]
            units = self.units(part)
            known = self._rows_of([ObjectInfo(u.key, 0, begin=u.begin) for u in units])
            if [row[0] for row in known.values()] != list(part):
                raise self._damaged("its index lacks a unit")

    def compare(self, page: Sequence[ObjectInfo]) -> Difference:
        """Compares a page of at most MOST_AT_ONCE units with the table. If a page names a unit twice, the
        first entry counts. SourceError: a unit has an impossible size or `begin`."""
        known = self._rows_of(page)
        numbers, new, rewritten = [], list[Row](), dict[int, Row]()
        looked_at = set[int]()
        grown, length = 0, len(self)
        for unit in page:
            if not (0 <= unit.size < 1 << 63 and 0 <= unit.begin < 1 << 63):
                raise SourceError(
                    f"a unit of {unit.key[:200]!r} has {unit.size} bytes and begins at byte {unit.begin}, "
                    "expected both at least 0 and below 2**63"
                )
            name = (_stored(unit.key), unit.begin)
            about = (unit.size, _stored(unit.etag), _stored(unit.label))
            number, *before = known.get(name) or (length, None)
            row = (number, *name, *about)
            numbers.append(number)
            if number == length:
                new.append((*row, _crc(row)))
                known[name] = (number, *about)  # ignores a second unit with this name
                length, grown = length + 1, grown + unit.size
            elif about != tuple(before) and number < len(self) and number not in looked_at:
                rewritten[number] = (*about, _crc(row), number)
                grown += unit.size - before[0]
            looked_at.add(number)
        rows = (tuple(new), tuple(rewritten.values()))
        cost = self._cost(*rows) if new or rewritten else 0
        return Difference(tuple(numbers), *rows, grown, cost)

    def add(self, page: Difference, *, defer: bool = False) -> None:
        """Writes the changes of a page in one synced transaction. Ends blocks that are full.

        New ETags, sizes and labels replace the old values: now, or with `defer` in `finish`.
        """
        if not page.new and not page.rewritten:
            return
        length = len(self) + len(page.new)
        ends = (*self.ends, *_ends_within(self.ends, length))
        grown = sum(row[3] for row in page.new) if defer else page.grown
        totals = _Totals(self.completed, length, self.num_bytes + grown, ends)
        with self._transaction(totals) as db:
            db.executemany("INSERT INTO units VALUES (?, ?, ?, ?, ?, ?, ?)", page.new)
            db.executemany(_DEFER if defer else _UPDATE, page.rewritten)

    def close_block(self) -> None:
        """Ends the open block if it has units, so that streams can read them after a failed listing."""
        if len(self) > (self.ends[-1] if self.ends else 0):
            with self._transaction(self._totals._replace(ends=(*self.ends, len(self)))):
                pass

    def finish(self) -> None:
        """Ends a complete listing: writes the deferred changes, and ends the open block."""
        while rows := self._rows(
            "SELECT size, etag, label, crc, number FROM rewritten ORDER BY number LIMIT ?",
            (MOST_AT_ONCE,),
        ):
            before = self.units([row[-1] for row in rows])
            grown = sum(row[0] - unit.size for row, unit in zip(rows, before, strict=True))
            with self._transaction(self._totals._replace(bytes=self.num_bytes + grown)) as db:
                db.executemany(_UPDATE, rows)
                db.execute("DELETE FROM rewritten WHERE number <= ?", (rows[-1][-1],))
        self.close_block()
        with self._transaction(self._totals._replace(completed=self.completed + 1)):
            pass

    def closing_cost(self) -> int:
        """Returns the maximum of bytes that `finish` adds to file and journal. The few pages that every
        listing changes at its end do not count: they fit into the caller's room for small files."""
        ((deferred,),) = self._rows(
            "SELECT count(*) FROM (SELECT 1 FROM rewritten LIMIT ?)", (MOST_AT_ONCE,)
        )
        return self._cost((), ((0, "", "", 0, 0),) * deferred) if deferred else 0

    def forget_deferred(self) -> None:
        """Drops deferred changes, because their listing will not end."""
        if self._rows("SELECT 1 FROM rewritten LIMIT 1"):
            with self._transaction(self._totals) as db:
                db.execute("DELETE FROM rewritten")

    # --- the file

    def _cost(self, new: Sequence[Row], rewritten: Sequence[Row]) -> int:
        with self._refusing():
            pages = os.stat(self._path).st_size // _PAGE
        text = sum(4 * (2 * len(row[1]) + len(row[4]) + len(row[5])) for row in new)
        text += sum(4 * (len(row[1]) + len(row[2])) for row in rewritten)
        changed = len(new) + len(rewritten)
        # In the worst case each unit changes one page of the table and one page of the index, and the
        # journal holds both. A few more pages are inner nodes of the B-trees, and the totals.
        journaled = min(pages, 3 * changed + 16)
        grown = min(64, 2 * changed + 8)
        return text + 128 * changed + grown * _PAGE + journaled * (_PAGE + 8)

    def _rows_of(
        self, page: Sequence[ObjectInfo]
    ) -> dict[tuple[str | bytes, int], tuple[Any, ...]]:
        """Returns (number, size, ETag, label) by (key, begin) for the page's units that are listed."""
        if not page or not len(self):
            return {}
        names = [value for unit in page for value in (_stored(unit.key), unit.begin)]
        marks = ",".join(["(?,?)"] * len(page))
        rows = self._rows(
            # CROSS JOIN keeps this order: one look-up in the index for each unit of the page.
            f"WITH page (k, b) AS (VALUES {marks}) SELECT {_COLUMNS} FROM page CROSS JOIN units "
            "ON key = k AND begin = b",
            names,
        )
        return {(key, begin): (number, *about) for number, key, begin, *about in rows}

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._refusing():
            return self._connection().execute(sql, values).fetchall()

    def _units(self, where: str, values: Sequence[Any]) -> list[Unit]:
        """Returns the units that meet the SQL condition. DamagedError if a unit has another CRC."""
        rows = self._rows(f"SELECT {_COLUMNS}, crc FROM units WHERE {where}", values)
        for row in rows:
            if row[-1] != _crc(row[:-1]):
                raise self._damaged(f"unit {row[0]} has a wrong CRC")
        return [_unit(row[:-1]) for row in rows]

    @contextlib.contextmanager
    def _transaction(self, totals: _Totals) -> Iterator[sqlite3.Connection]:
        """Commits and syncs when the `with` block ends; then the table has these totals. After an error
        the file is unchanged."""
        with self._refusing():
            db = self._connection()
            db.execute("BEGIN IMMEDIATE")
            yield db
            ends = [(end,) for end in totals.ends[len(self.ends) :]]
            db.executemany("INSERT INTO blocks VALUES (?)", ends)
            row = (totals.completed, str(totals.bytes), _crc(tuple(totals)))
            db.execute("UPDATE totals SET completed = ?, bytes = ?, crc = ?", row)
            db.execute("COMMIT")
            self._totals = totals

    def _connection(self) -> sqlite3.Connection:
        if self._db is not None:
            return self._db
        if self.damage:
            raise DamagedError(self.damage)
        self._db = db = sqlite3.connect(self._path, isolation_level=None)
        # SQLite syncs a truncated journal. An unlinked journal may exist again after a power failure, and
        # would roll back a committed transaction.
        db.execute("PRAGMA journal_mode=TRUNCATE")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA temp_store=MEMORY")
        db.execute(f"PRAGMA cache_size=-{_CACHE}")
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            db.executescript(_SCHEMA)
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()
        if (version, tables) != (VERSION, _TABLES):
            raise DamagedError(
                f"{self._path}: version {version} with {tables} tables, expected version {VERSION} with "
                f"{_TABLES}"
            )
        rows = db.execute("SELECT completed, bytes, crc FROM totals").fetchall()
        ((units,),) = db.execute("SELECT coalesce(max(number) + 1, 0) FROM units")
        ends = tuple(end for (end,) in db.execute("SELECT end FROM blocks ORDER BY end"))
        try:
            ((completed, size, crc),) = rows
            totals = _Totals(completed, units, int(size), ends)
        except (TypeError, ValueError):
            totals, crc = _Totals(), None
        if _crc(tuple(totals)) != crc or units < len(self):
            raise self._damaged("its totals do not match its units, or have a wrong CRC")
        # A killed process may have left a transaction that is not synced yet.
        for path in (self._path, self._journal):
            with contextlib.suppress(FileNotFoundError):
                _sync(path)
        self._totals = totals
        return db

    def _damaged(self, why: str) -> DamagedError:
        """Renames the file, so that the next start does not use it. Returns the error to raise."""
        self.close()
        with contextlib.suppress(OSError):
            os.replace(self._path, self._path.with_name(self._path.name + ".damaged"))
        self.damage = (
            f"{self._path} is damaged: {why}. Restart the daemon: it lists the source again, and fetches "
            "the dataset into a new directory"
        )
        return DamagedError(self.damage)

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Turns an error into a DiskError. The next call opens the file again and rolls back."""
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                self.close()
            if isinstance(error, OSError):
                raise DiskError(f"{self._path}: {error.strerror or error}") from error
            if not isinstance(error, sqlite3.DatabaseError):
                raise
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code in _DAMAGE:
                raise self._damaged(str(error)) from error
            raise DiskError(f"{self._path}: {error}") from error


def _ends_within(ends: Sequence[int], length: int) -> list[int]:
    """Returns the ends of the additional blocks that `length` units fill."""
    more: list[int] = []
    end = ends[-1] if ends else 0
    while (end := end + (FIRST_BLOCK << (len(ends) + len(more)))) <= length:
        more.append(end)
    return more


def _stored(text: str) -> str | bytes:
    """Returns a value that SQLite can store: the text, or its bytes if the text is not Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _unit(row: Sequence[Any]) -> Unit:
    number, key, begin, size, etag, label = row
    return Unit(number, _text(key), size, _text(etag), begin, _text(label))


def _text(stored: str | bytes) -> str:
    return stored if isinstance(stored, str) else stored.decode("utf-8", "surrogatepass")


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
