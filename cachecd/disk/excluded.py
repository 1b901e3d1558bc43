"""excluded.jsonl: the keys that a person excluded.

Each line is a JSON object in ASCII. The first line of an exclusion has its dataset and keys. A second line
says that its shards are done; a start searches shards only for the other exclusions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cachecd.disk.durable import append, read
from cachecd.errors import DamagedError


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Keys of one dataset that are excluded together."""

    name: str
    dataset: str
    keys: tuple[str, ...]


class ExcludedFile:
    """The exclusions of all datasets, in the order in which they were made.

    A change counts only after it was synced. On DiskError nothing changed, and the caller may repeat the
    call.
    """

    def __init__(self, path: Path) -> None:
        """Reads the file. DiskError. DamagedError: a line is not an exclusion, so a key might be missing. A
        last line without its end is ignored: the daemon was killed before it replied."""
        self._path = path
        self._end = 0
        self._made: dict[str, Exclusion] = {}
        self._done: set[str] = set()
        for number, line in enumerate((read(path) or b"").splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                break
            try:
                self._take(line)
            except (ValueError, KeyError, TypeError, RecursionError):
                raise DamagedError(
                    f"{path}:{number}: found {line[:80]!r}, expected an exclusion: mend the line, or "
                    "remove it to let its keys be fetched again"
                ) from None
            self._end += len(line)

    def keys(self, dataset: str) -> frozenset[str]:
        """Returns all excluded keys of a dataset."""
        every = (made.keys for made in self._made.values() if made.dataset == dataset)
        return frozenset(key for keys in every for key in keys)

    @property
    def unfinished(self) -> tuple[Exclusion, ...]:
        """The exclusions whose shards may not be done."""
        return tuple(made for name, made in self._made.items() if name not in self._done)

    def add(self, exclusion: Exclusion) -> None:
        """Appends an exclusion, unless the file has it already. DiskError."""
        name, dataset, keys = exclusion.name, exclusion.dataset, exclusion.keys
        if name not in self._made:
            self._append({"exclusion": name, "dataset": dataset, "keys": keys})

    def finish(self, name: str) -> None:
        """Appends that all shards of this exclusion are done. DiskError."""
        if name not in self._done:
            self._append({"exclusion": name, "done": True})

    def _append(self, fields: dict[str, object]) -> None:
        line = json.dumps(fields).encode("ascii") + b"\n"
        self._end = append(self._path, line, self._end)
        self._take(line)

    def _take(self, line: bytes) -> None:
        match json.loads(line):
            case {"exclusion": str(name), "done": True}:
                self._done.add(name)
            case {"exclusion": str(name), "dataset": str(dataset), "keys": [*keys]}:
                if not all(isinstance(key, str) for key in keys):
                    raise ValueError("a key is no text")
                self._made[name] = Exclusion(name, dataset, tuple(keys))
            case _:
                raise ValueError("no exclusion")
