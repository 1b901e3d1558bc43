"""excluded.jsonl: the keys that a person excluded.

Each line is a JSON object in ASCII. The first line of an exclusion has its dataset and keys; if it is of
samples, also these, and the key of their object. A second line says that no live shard has a record of it.
A start searches shards only for exclusions without the second line.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from cachecd.disk.durable import append, read
from cachecd.errors import DamagedError
from cachecd.model import Excluded
from cachecd_client.protocol import check_of, is_sound


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Keys of one dataset that are excluded together; or some samples of one key."""

    name: str
    dataset: str
    keys: tuple[str, ...]
    samples: tuple[str, ...] = ()

    @property
    def excluded(self) -> Excluded:
        return dict.fromkeys(self.keys, frozenset(self.samples))


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
        self._excluded: defaultdict[str, dict[str, frozenset[str]]] = defaultdict(dict)
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

    def of(self, dataset: str) -> Excluded:
        """Returns all that is excluded from a dataset; any thread may ask."""
        return self._excluded.get(dataset, {}).copy()

    @property
    def unfinished(self) -> tuple[Exclusion, ...]:
        """The exclusions without a second line; any thread may call this."""
        return tuple(self._open.values())

    def are_done(self, dataset: str, wanted: Excluded, handled: Collection[str] = ()) -> bool:
        """Whether all of `wanted` is excluded, and its shards are in no new set: the exclusion is finished,
        or is one of `handled`."""
        open_ = (each for each in self.unfinished if each.name not in handled)
        under_way = (each.keys for each in open_ if each.dataset == dataset)
        known = self.of(dataset)
        is_excluded = all(has(known, key, samples) for key, samples in wanted.items())
        return is_excluded and all(map(wanted.keys().isdisjoint, under_way))

    def add(self, exclusion: Exclusion) -> None:
        """Appends an exclusion, unless the file has it already. DiskError."""
        name, dataset, keys = exclusion.name, exclusion.dataset, exclusion.keys
        if name not in self._created:
            samples = {"samples": exclusion.samples} if exclusion.samples else {}
            self._append({"exclusion": name, "dataset": dataset, "keys": keys, **samples})

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
                samples = content.get("samples", [])
                if not all(isinstance(text, str) for text in [*keys, *samples]):
                    raise ValueError("a key is not text")
                self._created.add(name)
                self._open[name] = Exclusion(name, dataset, tuple(keys), tuple(samples))
                known = self._excluded[dataset]
                for key in keys:
                    is_whole = not samples or has(known, key, ())
                    before = known.get(key, frozenset[str]())
                    known[key] = frozenset() if is_whole else before.union(samples)
            case _:
                raise ValueError("no exclusion")


def has(excluded: Excluded, key: str, samples: Collection[str]) -> bool:
    """Whether these samples of an object are excluded; no samples: the whole object."""
    known = excluded.get(key)
    return known is not None and (not known or (bool(samples) and known.issuperset(samples)))
