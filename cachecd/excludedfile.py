"""The names that a person excluded: excluded.jsonl, the only place that has them.

One JSON object a line, ASCII, so that a person can read it and lone surrogates can be written. Lines are
appended and synced before anybody is answered. The format is in docs/formats.md.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

from cachecd.disk.filesystem import refusing, sync_directory
from cachecd.model import UnitName
from cachecd_client.errors import CallerError

# Dataset, key, and where in the object the unit begins.
Row = tuple[str, str, int]


class ExcludedFile:
    """The exclusions of all datasets.

    Every method that writes may be repeated; it raises DiskError if what it wrote may not outlive a power
    failure.
    """

    def __init__(self, path: Path) -> None:
        """DiskError if the file cannot be read, CallerError if one of its lines is no exclusion: nobody
        would know what is excluded."""
        self._path = path
        with refusing(f"cannot read the exclusions in {path}"):
            try:
                lines = path.read_bytes().splitlines(keepends=True)
            except FileNotFoundError:
                lines = []
        self._rows: set[Row] = set()
        for number, line in enumerate(lines, 1):
            try:
                self._rows.add(_parsed(line))
            except (ValueError, KeyError, TypeError, RecursionError):
                # Nobody was answered because of a last line that was cut off.
                if line.endswith(b"\n") or number < len(lines):
                    raise CallerError(
                        f"{path}:{number}: {line[:80]!r} is no exclusion: mend the line, or remove it to "
                        "let its unit be fetched again"
                    ) from None
        # What the file is known to hold, which may be less than it does: lines are appended again then.
        self._written = set(self._rows)
        self._cut: int | None = None
        """Where a last line begins that has no end: it is written again with what is appended next."""
        if lines and not lines[-1].endswith(b"\n"):
            self._cut = sum(map(len, lines[:-1]))
            self._written = {_parsed(line) for line in lines[:-1]}

    def __call__(self, dataset: str) -> list[UnitName]:
        """A dataset's, sorted."""
        return sorted(row[1:] for row in self._rows if row[0] == dataset)

    def but_for(self, datasets: Collection[str]) -> dict[str, int]:
        """How many there are of each dataset that is none of these."""
        return Counter(name for name, *_ in sorted(self._rows) if name not in datasets)

    def add(self, rows: Collection[Row]) -> None:
        """These are excluded from now on."""
        self._rows.update(rows)
        self._append(sorted(self._rows - self._written))
        self._written |= self._rows

    def _append(self, rows: Collection[Row]) -> None:
        if not rows:
            return
        new = not self._path.exists()
        with refusing(f"cannot write the exclusions in {self._path}"):
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                if self._cut is not None:
                    os.ftruncate(fd, self._cut)
                self._cut = os.fstat(fd).st_size
                _write(fd, _lines(rows))
                self._cut = None
                os.fsync(fd)
            finally:
                os.close(fd)
            if new:
                sync_directory(self._path.parent)


def _write(fd: int, text: bytes) -> None:
    """All of it: a disk that gets full takes a part first."""
    while text:
        text = text[os.write(fd, text) :]


def _lines(rows: Iterable[Row]) -> bytes:
    lines = ({"dataset": dataset, "key": key, "begin": begin} for dataset, key, begin in rows)
    return b"".join(json.dumps(line).encode("ascii") + b"\n" for line in lines)


def _parsed(line: bytes) -> Row:
    """The exclusion in a line. Raises for what is none."""
    told = json.loads(line)
    dataset, key, begin = told["dataset"], told["key"], told["begin"]
    if not (isinstance(dataset, str) and isinstance(key, str)) or type(begin) is not int:
        raise ValueError("another type")
    if not 0 <= begin < 1 << 63:
        raise ValueError("no unit begins there")
    return dataset, key, begin
