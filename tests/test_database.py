"""The catalog's file on a disk whose fsync fails: what was committed stays, whatever the kernel forgot."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachecd.database import CHECKPOINT_BYTES, Database
from cachecd.errors import DiskError
from tests.faults.disk import FaultyDisk

# Takes one command a line: a number of rows to add, each in a transaction of its own, or `close`.
PROGRAM = """
import json, sys
from pathlib import Path
from cachecd.database import Database
from cachecd.errors import DiskError
db = Database(Path(sys.argv[1]), "CREATE TABLE IF NOT EXISTS t (n INTEGER, pad BLOB)", 1)
done = 0
print(json.dumps([done, ""]), flush=True)
for line in sys.stdin:
    try:
        if line == "close\\n":
            db.close()
            break
        for _ in range(int(line)):
            with db.transaction():
                db.execute("INSERT INTO t VALUES (?, ?)", (done, bytes(5000)))
            done += 1
        print(json.dumps([done, ""]), flush=True)
    except DiskError as error:
        print(json.dumps([done, str(error)]), flush=True)
"""


class Writer:
    """A process that writes; how many rows it has committed, and what it was refused with."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.path = disk.root / "catalog.sqlite"
        self.log = disk.root / "catalog.sqlite-wal"
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **disk.environ},
        )
        self.rows, self.refused = self._said()

    def add(self, rows: int) -> str:
        self._say(str(rows))
        self.rows, self.refused = self._said()
        return self.refused

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        self._process.communicate("close\n")

    def kept(self) -> list[int]:
        """The rows that its successor finds. Fails if the file is damaged."""
        db = sqlite3.connect(self.path)
        try:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            return [n for (n,) in db.execute("SELECT n FROM t ORDER BY n")]
        finally:
            db.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _said(self) -> tuple[int, str]:
        assert self._process.stdout is not None
        rows, refused = json.loads(self._process.stdout.readline())
        return rows, refused


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    (tmp_path / "root").mkdir()
    return FaultyDisk(tmp_path / "control", tmp_path / "root")


@pytest.fixture
def writer(disk: FaultyDisk) -> Iterator[Writer]:
    writer = Writer(disk)
    yield writer
    writer.kill()


def test_what_the_log_alone_had_outlives_a_log_that_could_not_be_synced(disk, writer):
    writer.add(20)
    with writer.log.open("rb") as first:
        with disk.failing("sync", f"{writer.log}", errno.EIO):
            assert "I/O error" in writer.add(1000)
            assert writer.rows >= 20
        # What a kernel does that could not write these pages: it forgets them, and syncs well from then on.
        writer.log.write_bytes(os.urandom(writer.log.stat().st_size))
        assert writer.add(5) == ""
        assert os.fstat(first.fileno()).st_nlink == 0, "a log that was not synced once is given up"
    writer.kill()
    assert writer.kept() == list(range(writer.rows))


def test_what_could_not_be_synced_in_the_file_itself_is_written_again(disk, writer):
    writer.add(20)
    before = writer.path.read_bytes()
    with disk.failing("sync", f"{writer.path}", errno.EIO):
        assert "cannot use the catalog" in writer.add(1000)
    with writer.path.open("r+b") as file:  # the kernel has forgotten the pages
        file.write(before)
        file.truncate(len(before))
    assert writer.add(5) == ""
    writer.close()
    assert writer.kept() == list(range(writer.rows))


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_log_that_cannot_be_brought_into_the_file_grows_no_further(disk, writer, operation):
    with disk.failing(operation, f"{writer.path}", errno.EIO):
        for _ in range(5):
            assert "cannot use the catalog" in writer.add(1000)
        assert writer.log.stat().st_size < 1.2 * CHECKPOINT_BYTES
    rows = writer.rows
    assert writer.add(1000) == ""
    writer.kill()
    assert writer.kept() == list(range(rows + 1000))


def test_a_full_disk_undoes_the_transaction_and_nothing_else(disk, writer):
    writer.add(10)
    with disk.failing("write", f"{writer.log}", errno.ENOSPC):
        assert "full" in writer.add(1)
    assert writer.add(10) == ""
    writer.kill()
    assert writer.kept() == list(range(20))


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(tmp_path / "a.sqlite", isolation_level=None)) as other:
        yield other


def opened(tmp_path: Path) -> Database:
    return Database(tmp_path / "a.sqlite", "CREATE TABLE IF NOT EXISTS t (n INTEGER)", 1)


def add(db: Database, number: int) -> None:
    with db.transaction():
        db.execute("INSERT INTO t VALUES (?)", (number,))


def numbers(db: Database | sqlite3.Connection) -> list[int]:
    return [n for (n,) in db.execute("SELECT n FROM t")]


def test_what_is_kept_in_memory_is_read_at_once_and_reaches_the_file_before_anything_later(
    tmp_path, beside
):
    db = opened(tmp_path)
    add(db, 1)
    db.keep_writes()
    add(db, 2)
    assert (numbers(db), numbers(beside)) == ([1, 2], [1])
    db.settle()
    add(db, 3)
    assert numbers(db) == numbers(beside) == [1, 2, 3]
    db.close()


@pytest.mark.parametrize("ends", ["is written", "is synced", "is closed"])
def test_what_is_kept_in_memory_waits_for_a_file_that_refuses(tmp_path, beside, ends):
    db = opened(tmp_path)
    db.keep_writes()
    for number in (1, 2):
        add(db, number)
    db.settle()
    beside.execute("BEGIN IMMEDIATE")
    for refused in (lambda: add(db, 3), db.sync):
        with pytest.raises(DiskError, match="locked"):
            refused()
        assert (numbers(db), numbers(beside)) == ([1, 2], [])
    beside.execute("ROLLBACK")
    {"is written": lambda: add(db, 3), "is synced": db.sync, "is closed": db.close}[ends]()
    assert numbers(beside) == [1, 2] + [3] * (ends == "is written")
    db.close()
