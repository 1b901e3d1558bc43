"""What a killed daemon leaves on disk, and what its successor must make of it; judged from outside."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
import zlib
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachecd.parts import unpacked

from cachecd.disk.filesystem import allocated
from cachecd_client import Epoch
from cachecd_client._core import Sidecar
from tests.e2e.inventory import Found, inventory, repeated
from tests.faults.settings import Records


@dataclass(frozen=True)
class Remains:
    """A cache directory at one moment. Making it fails if a shard that is there is not whole."""

    shards: dict[int, Found]
    manifests: dict[str, tuple[int, bytes]]  # name -> inode, content
    temporaries: dict[str, int]  # name -> when last written
    unwanted: frozenset[int]  # shards that the catalog knows as retired or barred

    @staticmethod
    def of(cache: Path, spoilt: Set[int] = frozenset()) -> Remains:
        """`spoilt`: shards that need not be whole, and do not count."""
        folder = cache / "shards" / "train"
        manifests = {
            path.name: (path.stat().st_ino, path.read_bytes())
            for path in (cache / "leases").glob("*.json")
        }
        return Remains(
            inventory(cache, without=spoilt) if folder.exists() else {},
            manifests,
            _written(cache / "tmp"),
            _unwanted(cache),
        )

    def leased(self, manifests: Set[str] | None = None) -> set[int]:
        """The shards that leases on disk name, or these of them."""
        found: set[int] = set()
        for name, (_, text) in self.manifests.items():
            if text and (manifests is None or name in manifests):
                for first, last in json.loads(text)["shards"]:
                    found |= set(range(first, last + 1))
        return found


def _written(folder: Path) -> dict[str, int]:
    found = {}
    for path in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.stat().st_mtime_ns
    return found


def _unwanted(cache: Path) -> frozenset[int]:
    rows = _asked(cache, "SELECT number FROM shards WHERE retired OR barred")
    return frozenset(number for (number,) in rows)


def _asked(cache: Path, query: str) -> list[tuple[Any, ...]]:
    """As SQLite finds it in a copy: the catalog itself is the daemon's alone."""
    with tempfile.TemporaryDirectory() as folder:
        for path in cache.glob("catalog.sqlite*"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(path, folder)
        db = sqlite3.connect(Path(folder) / "catalog.sqlite")
        try:
            return db.execute(query).fetchall()
        except sqlite3.DatabaseError:
            return []  # there is none yet, or none any more
        finally:
            db.close()


def rows(cache: Path) -> set[int]:
    return {number for (number,) in _asked(cache, "SELECT number FROM shards")}


def units_to_come(cache: Path) -> set[int]:
    """Those that the saved plan remembers: of open assignments, and what did not fit."""
    found: set[int] = set()
    for (packed,) in _asked(cache, "SELECT units FROM assignments"):
        found |= {part.unit for part in unpacked(packed)}
    for (packed,) in _asked(cache, "SELECT plan FROM plans"):
        plan = json.loads(zlib.decompress(packed))["plan"]
        parts = [plan["remainder"], *(outcome[-1] for outcome in plan["outcomes"].values())]
        found |= {unit for part in parts for unit, *_ in part}
    return found


def check_start(before: Remains, after: Remains, held: Set[str], soon: bool) -> None:
    """What a start must keep and must clear away, no epoch having begun since. `held`: the manifests
    that somebody holds; `soon`: the others have not outlived their grace yet."""
    leased = before.leased(None if soon else held)
    for number, shard in before.shards.items():
        if number in after.shards:
            assert after.shards[number].same == shard.same, f"shard {number} was changed"
        else:
            assert number in before.unwanted, f"valid shard {number} was lost"
            assert number not in leased, f"shard {number} was unlinked, though a lease names it"
    for name, manifest in before.manifests.items():
        if not manifest[1] or not (soon or name in held):
            continue  # of no length: nobody could read it, and it goes
        assert after.manifests.get(name) == manifest, f"lease {name} was lost or changed"
    left = before.temporaries.items() & after.temporaries.items()
    assert not left, f"temporary files stayed: {left}"


def check_records(shards: dict[int, Found]) -> None:
    """No record is twice among shards that are there together."""
    twice = repeated(shards)
    assert not twice, f"records that are in two shards (unit, ordinal): {twice[:5]}"


def check_limit(cache: Path, limit: int) -> None:
    """All blocks under the directory, its own included, are below the limit."""
    taken = allocated(cache)
    assert taken <= limit, f"the cache occupies {taken}, its limit is {limit}"


def check_bytes(cache: Path, status: dict[str, Any]) -> str:
    """What `status` counts otherwise than the blocks on disk, or "". Not while something is made."""
    train = status["datasets"]["train"]
    shards = sum(e.stat().st_blocks * 512 for e in os.scandir(cache / "shards" / "train"))
    if shards != train["allocated"]:
        return f"shards occupy {shards}, status says {train['allocated']}"
    real = allocated(cache)
    if real != status["cache"]["used"]:
        return f"the cache occupies {real}, status says {status['cache']['used']}"
    return ""


def read(epoch: Epoch) -> Records:
    """All records of an epoch, by the core, every CRC verified."""
    found: Records = {}
    for batch in epoch.numpy(64, pad_last=True):
        for key, payload, valid in zip(
            batch["key"], batch["payload"], batch["_valid"], strict=True
        ):
            if valid:
                assert bytes(key) not in found, f"{key!r} came twice"
                found[bytes(key)] = bytes(payload)
    return found


class History:
    """Every shard that was ever there, and so what each pass over the source gave."""

    def __init__(self) -> None:
        self._units: dict[int, list[tuple[int, int]]] = {}
        self._digests: dict[int, str] = {}
        self._cursor = 0

    def see(self, shards: dict[int, Found]) -> None:
        """Takes note; fails if a number has come to mean another shard."""
        for number, shard in shards.items():
            known = self._digests.setdefault(number, shard.sha256)
            assert known == shard.sha256, f"number {number} was given to two shards"
            if number not in self._units:
                pairs = zip(shard.units.tolist(), shard.ordinals.tolist(), strict=True)
                self._units[number] = list(pairs)
                meta = json.loads(Sidecar.read(f"{shard.path}.idx").meta)
                self._cursor = max(self._cursor, meta["cursor"])

    def check(self, units: int, to_come: Set[int]) -> None:
        """No record came more often than there were passes; the first pass forgot no unit."""
        times = Counter(pair for shard in self._units.values() for pair in shard)
        passes = -(-self._cursor // units)
        often = [pair for pair, number in times.items() if number > passes]
        assert not often, f"more often than {passes} passes: {often[:5]}"
        if passes > 1:
            forgotten = set(range(units)) - {unit for unit, _ in times} - to_come
            assert not forgotten, f"never came in {passes - 1} passes: {sorted(forgotten)[:5]}"

    def copy(self) -> History:
        other = History()
        other._units, other._digests = dict(self._units), dict(self._digests)
        other._cursor = self._cursor
        return other
