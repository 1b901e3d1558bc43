"""One SQLite file with a write-ahead log, on a disk that may fail. The SQL is the caller's.

What a failed fsync did not write, the kernel may forget while it says that all is well: so no fsync is
asked for twice and believed. docs/decisions/0009 says why what is done here is enough.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cachecd.disk.filesystem import refusing
from cachecd.errors import DiskError

# 64 pages of 4 KiB: with the one transaction that may follow, the log stays below half the ledger's
# metadata slack.
CHECKPOINT_BYTES = 64 * 4096

_NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
_LOST_BY = {sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC}


class Rows(list[tuple[Any, ...]]):
    """What a query found."""

    def fetchone(self) -> tuple[Any, ...] | None:
        return self[0] if self else None


class UnstorableError(ValueError):
    """A value that SQLite does not take; whenever it is tried again, it is the same."""


class Database:
    """The open file. All failures are DiskError, and leave it as it was before the transaction.

    One connection, used by one thread. A transaction is done when its block ends; a power failure may
    take the last ones away, never the file's integrity (synchronous=NORMAL).
    """

    def __init__(self, path: Path, schema: str, version: int) -> None:
        """Opens the file or makes it, with `schema`.

        sqlite3.DatabaseError that is no OperationalError: the file is damaged, or of another version.
        DiskError: it may be sound, but cannot be opened now.
        """
        self._path = path
        self._wal = path.with_name(path.name + "-wal")
        self._schema, self._version = schema, version
        self._statements: list[tuple[str, list[Sequence[Any]]]] | None = (
            None  # of an open transaction
        )
        # The transactions since the last checkpoint that succeeded: what the log alone has.
        self._since: list[list[tuple[str, list[Sequence[Any]]]]] = []
        self._log_lost = False
        self._readonly = False
        self._alone = self._unsynced = False
        # Transactions that only the copy in memory has, beside the connection to the file; None: no copy.
        self._kept: list[list[tuple[str, list[Sequence[Any]]]]] | None = None
        self._lands = False
        # SQLite would open for reading, without a word, what cannot be opened for writing.
        with refusing(f"cannot open {path}"):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        try:
            try:
                self._db = self._open(check=True)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _NO_ROOM:
                    raise
                # A full disk has no room for what connections share, which is memory where there is one.
                self._alone = True
                self._db = self._open(check=True)
        except sqlite3.OperationalError as error:
            raise self._failure(error) from error
        try:
            self._checkpoint()  # what a killed process left in the log is not in `_since`
        except DiskError:
            self._unsynced = True  # it can be read; nothing is written before this is done
        except BaseException:
            self._db.close()
            raise

    def _open(self, *, check: bool = False) -> sqlite3.Connection:
        # The event loop waits here: nobody else has a business in this file.
        db = sqlite3.connect(self._path, isolation_level=None, timeout=0.2)
        try:
            # Before the first look, which after a clean end would make what processes share.
            if self._alone:
                db.execute("PRAGMA locking_mode=EXCLUSIVE")
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.execute("PRAGMA temp_store=MEMORY")
            db.execute("PRAGMA wal_autocheckpoint=0")  # it does not say when it fails
            if check:
                self._check(db)
        except BaseException:
            db.close()
            raise
        return db

    def _check(self, db: sqlite3.Connection) -> None:
        """Makes the tables of a new file. DatabaseError for one that is damaged or of another version."""
        (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables:
            db.executescript(
                f"BEGIN IMMEDIATE; PRAGMA user_version={self._version}; {self._schema}; COMMIT"
            )
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version != self._version:
            raise sqlite3.DatabaseError(f"version {version}, expected {self._version}")

    def keep_writes(self) -> None:
        """Goes on in a copy in memory, which knows what is written from now on; the file does once `settle`
        was called and its disk has room. For a start on a full disk."""
        memory = sqlite3.connect(":memory:", isolation_level=None)
        with self._refusing():
            self._db.backup(memory)
        self._file, self._db, self._kept = self._db, memory, []

    def settle(self) -> None:
        """From now on nothing is written before all that was kept is in the file."""
        self._lands = True

    def _land(self) -> None:
        """Brings into the file what was kept, in order. DiskError if it has no room yet."""
        if self._kept is None:
            return
        memory, self._db = self._db, self._file
        try:
            self._repair()
            self._checkpoint()
            while self._kept:
                if self._log_bytes() >= CHECKPOINT_BYTES:
                    self._checkpoint()
                self._apply(self._kept[0])
                self._since.append(self._kept.pop(0))
        except sqlite3.Error as error:
            self._file, self._db = self._db, memory
            raise self._failure(error) from error
        except DiskError:
            self._file, self._db = self._db, memory
            raise
        memory.close()
        self._kept = None

    def _apply(self, statements: list[tuple[str, list[Sequence[Any]]]]) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for sql, rows in statements:
                self._db.executemany(sql, rows)
            self._db.execute("COMMIT")
        except sqlite3.Error:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise

    def sync(self) -> None:
        """Makes durable what was committed. DiskError."""
        self._land()
        self._repair()
        self._checkpoint()

    def close(self) -> None:
        """Checkpoints the log into the file, if the disk allows it. Idempotent."""
        with contextlib.suppress(DiskError):
            self._land()
            self._repair()
        if self._kept is not None:
            with contextlib.suppress(sqlite3.Error):
                self._file.close()
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        """One statement; all its rows."""
        if self._statements is None:
            if self._kept is None:
                self._repair()
        else:
            self._statements.append((sql, [values]))
        with self._refusing():
            return Rows(self._db.execute(sql, values).fetchall())

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """The same statement for each row, within a transaction."""
        assert self._statements is not None, "only a transaction is kept for a log that is lost"
        kept = list(rows)
        self._statements.append((sql, kept))
        with self._refusing():
            self._db.executemany(sql, kept)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """What is executed within is done wholly, or not at all."""
        if self._lands:
            self._land()
        if self._kept is None:
            self._repair()
            if self._unsynced or self._log_bytes() >= CHECKPOINT_BYTES:
                self._checkpoint()  # one that failed: the log must not grow for ever
        with self._refusing():
            self._db.execute("BEGIN IMMEDIATE")
        statements = self._statements = []
        try:
            yield
            with self._refusing():
                self._db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise
        finally:
            self._statements = None
        if self._kept is not None:
            self._kept.append(statements)
            return
        self._since.append(statements)
        if self._log_bytes() >= CHECKPOINT_BYTES:
            with contextlib.suppress(
                DiskError
            ):  # this transaction is done; the next will be refused
                self._checkpoint()

    # --- the log

    def _log_bytes(self) -> int:
        with refusing(f"cannot look at {self._wal}"):
            try:
                return self._wal.stat().st_size
            except FileNotFoundError:
                return 0

    def _checkpoint(self) -> None:
        """Brings everything into the file, durably, and empties the log."""
        # By ourselves first: SQLite's error does not say which of the two files was not synced. If
        # this one is, it has all that a checkpoint cut off needs to be done again from its beginning.
        with refusing(f"cannot sync {self._wal}"), contextlib.suppress(FileNotFoundError):
            fd = os.open(self._wal, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            except OSError:
                self._log_lost = True
                raise
            finally:
                os.close(fd)
        try:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise self._failure(error) from error
        self._since.clear()
        self._unsynced = False

    def _repair(self) -> None:
        """After a failed fsync of the log: writes what only the log had into a new one."""
        if not (self._log_lost or self._readonly):
            return
        if self._log_lost:
            # Emptied first, so that closing the connection cannot copy anything from it.
            with refusing(f"cannot empty {self._wal}"), contextlib.suppress(FileNotFoundError):
                os.truncate(self._wal, 0)
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        with refusing(f"cannot remove {self._wal}"):
            if self._log_lost:
                self._wal.unlink(missing_ok=True)
        try:
            self._db = self._open()
            if self._log_lost:
                for statements in self._since:
                    self._apply(statements)
        except sqlite3.Error as error:
            raise self._failure(error) from error
        self._readonly = False
        self._log_lost = False
        self._checkpoint()

    # --- errors

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (
            UnicodeError,
            OverflowError,
            sqlite3.InterfaceError,
            sqlite3.ProgrammingError,
        ) as error:
            raise UnstorableError(f"{self._path}: cannot be stored: {error!r}") from error
        except sqlite3.Error as error:
            self._log_lost |= error.sqlite_errorcode in _LOST_BY
            # Opened while the disk was read-only, it stays so.
            self._readonly |= error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_READONLY
            raise self._failure(error) from error

    def _failure(self, error: BaseException) -> DiskError:
        return DiskError(f"{self._path}: cannot use the catalog: {error}")
