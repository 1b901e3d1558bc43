"""What a killed daemon leaves on disk, and what its successor must make of it; judged from outside."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachecd.disk.filesystem import walk
from cachecd.model import Cursor
from cachecd_client import Epoch
from cachecd_client._core import Sidecar
from tests.e2e.inventory import Found, generation, inventory, repeated
from tests.faults.settings import Records


@dataclass(frozen=True)
class Remains:
    """A cache directory at one moment. Making it fails if a shard that is there is not whole."""

    shards: dict[int, Found]
    manifests: dict[str, tuple[int, bytes]]  # name -> inode, content
    temporaries: dict[str, int]  # name -> when last written
    unwanted: frozenset[int]  # shards that are marked as retired or quarantined
    marked: frozenset[str]  # manifests that somebody has held, as the daemon noted

    @staticmethod
    def of(cache: Path, spoilt: Set[int] = frozenset()) -> Remains:
        """`spoilt`: shards that need not be whole, and do not count."""
        manifests = {}
        for path in (cache / "leases").glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # the lease ends at this moment
                manifests[path.name] = (path.stat().st_ino, path.read_bytes())
        marked = frozenset(p.stem + ".json" for p in (cache / "leases").glob("*.held"))
        folder = shards_of(cache)
        if folder is None:
            return Remains({}, manifests, {}, frozenset(), marked)
        marks = [path for suffix in ("old", "bad") for path in folder.glob(f"*.{suffix}")]
        return Remains(
            inventory(cache, without=spoilt),
            manifests,
            _written(folder),
            frozenset(int(path.name[:10]) for path in marks),
            marked,
        )

    def leased(self, manifests: Set[str] | None = None) -> set[int]:
        """The shards that leases on disk name, or these of them."""
        found: set[int] = set()
        for name, (_, text) in self.manifests.items():
            if text and (manifests is None or name in manifests):
                lease = json.loads(text)
                for stream, first, last in lease["intervals"]:
                    found |= {j * (lease["streams"] + 1) + stream for j in range(first, last + 1)}
        return found


def shards_of(cache: Path) -> Path | None:
    """The folder of the shards, if there is a generation yet."""
    if not any(cache.glob("datasets/train/*/generation.json")):
        return None
    return generation(cache) / "shards"


def _written(folder: Path) -> dict[str, int]:
    found = {}
    for path in folder.glob("*.new*"):
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.stat().st_mtime_ns
    return found


def check_start(before: Remains, after: Remains, held: Set[str], soon: bool) -> None:
    """What a start must keep and must clear away, no epoch having begun since. `held`: the manifests
    that somebody holds; `soon`: those that nobody has held yet have not outlived their grace."""
    kept = held | (before.manifests.keys() - before.marked if soon else set())
    leased = before.leased(kept)
    for number, shard in before.shards.items():
        if number in after.shards:
            assert after.shards[number].same == shard.same, f"shard {number} was changed"
        else:
            assert number in before.unwanted, f"valid shard {number} was lost"
            assert number not in leased, f"shard {number} was unlinked, though a lease names it"
    for name, manifest in before.manifests.items():
        if not manifest[1] or name not in kept:
            continue  # of no length: nobody could read it, and it goes
        assert after.manifests.get(name) == manifest, f"lease {name} was lost or changed"
    left = before.temporaries.items() & after.temporaries.items()
    assert not left, f"temporary files stayed: {left}"


def check_records(left: Remains) -> None:
    """No record is twice among shards that a lease may name. A shard that is retired, and kept by a lease
    alone, may hold what the next pass has read again: a stream of few units soon begins one."""
    twice = repeated({n: shard for n, shard in left.shards.items() if n not in left.unwanted})
    assert not twice, f"records that are in two shards (unit, ordinal): {twice[:5]}"


def check_limit(cache: Path, limit: int) -> None:
    """All blocks under the directory, its own included, are below the limit."""
    taken = sum(walk(cache))
    assert taken <= limit, f"the cache occupies {taken}, its limit is {limit}"


def check_bytes(cache: Path, status: dict[str, Any]) -> str:
    """What `status` counts otherwise than the blocks on disk, or "". Not while something is made."""
    train = status["datasets"]["train"]
    folder = shards_of(cache)
    assert folder is not None
    try:
        shards = sum(e.stat().st_blocks * 512 for e in os.scandir(folder))
    except FileNotFoundError as gone:
        return f"{gone.filename} went meanwhile"
    if shards != train["allocated"]:
        return f"shards occupy {shards}, status says {train['allocated']}"
    real = sum(walk(cache))
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
        self._records: dict[int, list[tuple[int, int]]] = {}
        self._digests: dict[int, str] = {}
        self._passes = 1

    def see(self, shards: dict[int, Found]) -> None:
        """Takes note; fails if a number has come to mean another shard."""
        for number, shard in shards.items():
            known = self._digests.setdefault(number, shard.sha256)
            assert known == shard.sha256, f"number {number} was given to two shards"
            if number not in self._records:
                pairs = zip(shard.units.tolist(), shard.ordinals.tolist(), strict=True)
                self._records[number] = list(pairs)
                meta = json.loads(Sidecar.read(f"{shard.path}.idx").meta)
                before = Cursor.unpack(meta["before"])
                self._passes = max(self._passes, before.pass_ + 1)

    def check(self) -> None:
        """No record came more often than there were passes."""
        times = Counter(pair for records in self._records.values() for pair in records)
        often = [pair for pair, number in times.items() if number > self._passes]
        assert not often, f"more often than {self._passes} passes: {often[:5]}"

    def copy(self) -> History:
        other = History()
        other._records, other._digests = dict(self._records), dict(self._digests)
        other._passes = self._passes
        return other
