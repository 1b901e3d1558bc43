"""excluded.jsonl: the keys that a person excluded.

Each line is a JSON object in ASCII. The first line of an exclusion has its dataset and keys. A second line
says that no live shard has a record of it. A start searches shards only for exclusions without the second
line.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from cachecd.disk.durable import append, check_of, is_sound, read
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
        self._created: set[str] = set()
        self._open: dict[str, Exclusion] = {}  # whose shards may not be done
        self._keys: defaultdict[str, set[str]] = defaultdict(set)
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
        """Returns all excluded keys of a dataset; any thread may ask."""
        return frozenset(self._keys.get(dataset, ()))

    @property
    def unfinished(self) -> tuple[Exclusion, ...]:
        """The exclusions without a second line; any thread may call this."""
        return tuple(self._open.values())

    def are_done(self, dataset: str, keys: frozenset[str], handled: Collection[str] = ()) -> bool:
        """Whether keys are excluded, and their shards are in no new set: the exclusion is finished, or is
        one of `handled`."""
        open_ = (each for each in self.unfinished if each.name not in handled)
        under_way = (each.keys for each in open_ if each.dataset == dataset)
        return keys <= self.keys(dataset) and all(map(keys.isdisjoint, under_way))

    def add(self, exclusion: Exclusion) -> None:
        """Appends an exclusion, unless the file has it already. DiskError."""
        name, dataset, keys = exclusion.name, exclusion.dataset, exclusion.keys
        if name not in self._created:
            self._append({"exclusion": name, "dataset": dataset, "keys": keys})

    def finish(self, name: str) -> None:
        """Appends the second line of an exclusion: all of its shards were handled. DiskError."""
        if name in self._open:
            self._append({"exclusion": name, "done": True})

    def _append(self, fields: dict[str, object]) -> None:
        fields = {**fields, "check": check_of(fields)}
        line = json.dumps(fields).encode("ascii") + b"\n"
        self._end = append(self._path, line, self._end)
        self._take(line)

    def _take(self, line: bytes) -> None:
        content = json.loads(line)
        if not (isinstance(content, dict) and is_sound(content)):
            raise ValueError("the check is wrong")
        match content:
            case {"exclusion": str(name), "done": True}:
                self._open.pop(name, None)
            case {"exclusion": str(name), "dataset": str(dataset), "keys": [*keys]}:
                if not all(isinstance(key, str) for key in keys):
                    raise ValueError("a key is not text")
                self._created.add(name)
                self._open[name] = Exclusion(name, dataset, tuple(keys))
                self._keys[dataset].update(keys)
            case _:
                raise ValueError("no exclusion")
