"""The names that a person excluded, in a file of their own, which a lost catalog does not take with it.

One JSON object a line, ASCII, so that a person can read it and lone surrogates can be written. Lines are
appended and synced before anybody is answered. The format is in docs/formats.md.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from cachecd.disk import refusing, sync_directory
from cachecd.errors import DiskError

# Dataset, source, key, and where in the object the unit begins.
Row = tuple[str, str, str, int]


class ExcludedFile:
    """The exclusions of all datasets. What cannot be read is in `damaged`, a text for each line of it.

    Every method that writes may be repeated; it raises DiskError if what it wrote may not outlive a power
    failure.
    """

    def __init__(self, path: Path) -> None:
        """DiskError if the file is there and cannot be read: nobody would know what is excluded."""
        self._path = path
        self.damaged: list[str] = []
        with refusing(f"cannot read the exclusions in {path}"):
            try:
                lines = path.read_bytes().splitlines(keepends=True)
            except FileNotFoundError:
                lines = []
        # What the file is known to hold, which may be less than it does: lines are appended again then.
        self._written: set[Row] = set()
        for number, line in enumerate(lines, 1):
            try:
                row, lifted = _parsed(line)
            except (ValueError, KeyError, TypeError, RecursionError):
                # Nobody was answered because of a last line that was cut off.
                if line.endswith(b"\n") or number < len(lines):
                    self.damaged.append(f"{path}, line {number}: {line[:80]!r} is no exclusion")
                continue
            (self._written.discard if lifted else self._written.add)(row)
        self._whole = not lines or lines[-1].endswith(b"\n")
        self._rows = set(self._written)

    def __call__(self, dataset: str) -> list[tuple[str, str, int]]:
        """A dataset's, sorted."""
        return sorted(row[1:] for row in self._rows if row[0] == dataset)

    def but_for(self, datasets: Collection[str]) -> dict[str, int]:
        """How many there are of each dataset that is none of these."""
        return Counter(name for name, *_ in sorted(self._rows) if name not in datasets)

    def unite(self, rows: Iterable[Row]) -> None:
        """These are excluded too, by the catalog. They are written now, or with the next that is."""
        self._rows.update(rows)
        with suppress(DiskError):  # a full disk, on which a daemon starts all the same
            self.add(())

    def add(self, rows: Collection[Row]) -> None:
        """These are excluded from now on."""
        self._rows.update(rows)
        self._append(sorted(self._rows - self._written))
        self._written |= self._rows

    def remove(self, rows: Collection[Row]) -> None:
        """These are not excluded any more: the file is written anew without them, or, where the disk has
        no room for a second, says so in a line more."""
        gone = self._rows.intersection(rows)
        if not gone:
            return
        left = self._rows - gone
        try:
            self._rewrite(sorted(left))
        except DiskError:
            self._append(sorted(gone), lifted=True)
            left = self._written - gone
        self._written = left
        self._rows -= gone

    def _append(self, rows: Collection[Row], lifted: bool = False) -> None:
        if not rows:
            return
        new = not self._path.exists()
        with refusing(f"cannot write the exclusions in {self._path}"):
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                # The line that was cut off stays by itself, and what comes is not part of it.
                text = (b"" if self._whole else b"\n") + _lines(rows, lifted)
                self._whole = False
                _write(fd, text)
                self._whole = True
                os.fsync(fd)
            finally:
                os.close(fd)
            if new:
                sync_directory(self._path.parent)

    def _rewrite(self, rows: Collection[Row]) -> None:
        other = self._path.with_name(self._path.name + ".new")
        with refusing(f"cannot write the exclusions in {other}"):
            try:
                with other.open("wb") as file:
                    file.write(_lines(rows))
                    file.flush()
                    os.fsync(file.fileno())
                other.replace(self._path)
            except OSError:
                other.unlink(missing_ok=True)
                raise
            self._whole = True
            sync_directory(self._path.parent)


def _write(fd: int, text: bytes) -> None:
    """All of it: a disk that gets full takes a part first."""
    while text:
        text = text[os.write(fd, text) :]


def _lines(rows: Iterable[Row], lifted: bool = False) -> bytes:
    told: list[dict[str, object]] = [
        {"dataset": dataset, "source": source, "key": key, "begin": begin}
        | dict.fromkeys(["lifted"] if lifted else [], True)
        for dataset, source, key, begin in rows
    ]
    return b"".join(json.dumps(one).encode("ascii") + b"\n" for one in told)


def _parsed(line: bytes) -> tuple[Row, bool]:
    """The exclusion in a line, and whether it was lifted. Raises for what is none."""
    told = json.loads(line)
    row = told["dataset"], told["source"], told["key"], told["begin"]
    begin = row[3]
    if not all(isinstance(text, str) for text in row[:3]) or type(begin) is not int:
        raise ValueError("another type")
    if not 0 <= begin < 1 << 63:
        raise ValueError("no unit begins there")
    return row, bool(told.get("lifted", False))
