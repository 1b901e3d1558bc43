"""excluded.jsonl: the keys that a person excluded.

Each line is a JSON object in ASCII. The first line of an exclusion has the dataset and the keys. If samples
are excluded, the line also has the samples, and the one key is the key of their object. The second line is
added when no live shard has an excluded record. A start searches shards only for exclusions without the
second line.
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
    """Keys of one dataset that are excluded together, or samples of one key."""

    name: str
    dataset: str
    keys: tuple[str, ...]
    samples: tuple[str, ...] = ()

    @property
    def excluded(self) -> Excluded:
        return dict.fromkeys(self.keys, frozenset(self.samples))


class ExcludedFile:
    """The exclusions of all datasets, in the order in which they were made.

    A change takes effect only after the file is synced. After DiskError nothing has changed, and the caller
    may repeat the call.
    """

    def __init__(self, path: Path) -> None:
        """Reads the file. A last line without a line end is ignored: the daemon was killed before it
        replied. DamagedError: a line is not an exclusion, so a key may be missing. DiskError."""
        self._path = path
        self._end = 0
        self._names: set[str] = set()
        self._unfinished: dict[str, Exclusion] = {}
        self._excluded: defaultdict[str, dict[str, frozenset[str]]] = defaultdict(dict)
        for number, line in enumerate((read(path) or b"").splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                break
            try:
                self._apply(line)
            except (ValueError, KeyError, TypeError, RecursionError):
                raise DamagedError(
                    f"{path}:{number}: found {line[:80]!r}, expected an exclusion: correct the line, or "
                    "remove it, so that its keys are fetched again"
                ) from None
            self._end += len(line)

    def excluded_from(self, dataset: str) -> Excluded:
        """Returns the excluded keys and samples of a dataset. Any thread may call this."""
        return self._excluded.get(dataset, {}).copy()

    @property
    def unfinished(self) -> tuple[Exclusion, ...]:
        """The exclusions without a second line. Any thread may read this."""
        return tuple(self._unfinished.values())

    def are_done(self, dataset: str, wanted: Excluded, handled: Collection[str] = ()) -> bool:
        """Returns whether all of `wanted` is excluded, and each exclusion of these keys is finished or in
        `handled`. Then no new set has its shards."""
        known = self.excluded_from(dataset)
        return all(is_excluded(known, key, samples) for key, samples in wanted.items()) and all(
            each.name in handled or wanted.keys().isdisjoint(each.keys)
            for each in self.unfinished
            if each.dataset == dataset
        )

    def add(self, exclusion: Exclusion) -> None:
        """Appends an exclusion, unless the file already has it. DiskError."""
        name, dataset, keys = exclusion.name, exclusion.dataset, exclusion.keys
        if name not in self._names:
            samples = {"samples": exclusion.samples} if exclusion.samples else {}
            self._append({"exclusion": name, "dataset": dataset, "keys": keys, **samples})

    def finish(self, name: str) -> None:
        """Appends the second line of an exclusion, because no live shard has its records. DiskError."""
        if name in self._unfinished:
            self._append({"exclusion": name, "done": True})

    def _append(self, fields: dict[str, object]) -> None:
        fields = {**fields, "check": check_of(fields)}
        line = json.dumps(fields).encode("ascii") + b"\n"
        self._end = append(self._path, line, self._end)
        self._apply(line)

    def _apply(self, line: bytes) -> None:
        content = json.loads(line)
        if not (isinstance(content, dict) and is_sound(content)):
            raise ValueError("the checksum is wrong")
        match content:
            case {"exclusion": str(name), "done": True}:
                self._unfinished.pop(name, None)
            case {"exclusion": str(name), "dataset": str(dataset), "keys": [*keys]}:
                samples = content.get("samples", [])
                if not all(isinstance(text, str) for text in [*keys, *samples]):
                    raise ValueError("a key is not text")
                self._names.add(name)
                self._unfinished[name] = Exclusion(name, dataset, tuple(keys), tuple(samples))
                known = self._excluded[dataset]
                for key in keys:
                    is_whole = not samples or is_excluded(known, key, ())
                    before = known.get(key, frozenset[str]())
                    known[key] = frozenset() if is_whole else before.union(samples)
            case _:
                raise ValueError("no exclusion")


def is_excluded(excluded: Excluded, key: str, samples: Collection[str]) -> bool:
    """Returns whether these samples of an object are excluded, or without samples, the whole object."""
    known = excluded.get(key)
    return known is not None and (not known or (bool(samples) and known.issuperset(samples)))
