"""What a power failure may leave that a kill does not: writes that were never synced, lost or torn.

Everything is done to a cache without a daemon. Each damage says which shards it spoils, which nobody may
see afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path, set[int], random.Random], set[int]]
"""(cache, shards that leases name, chance) -> shards spoilt."""


def _cut(path: Path, length: int) -> None:
    if path.exists():
        with path.open("r+b") as file:
            file.truncate(length)


def _tear(path: Path, chance: random.Random, page: int = 1, *, zeroed: bool = False) -> set[int]:
    """Cuts off its end at a random `page`, or has it allocated but never written."""
    if path.exists():
        size = path.stat().st_size
        _cut(path, chance.randrange(0, size + 1, page))
        if zeroed:
            _cut(path, size)
    return set()


def catalog_gone(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    for path in cache.glob("catalog.sqlite*"):
        path.unlink()
    return set()


def catalog_gone_but_its_log_is_not(
    cache: Path, leased: set[int], chance: random.Random
) -> set[int]:
    (cache / "catalog.sqlite").unlink(missing_ok=True)
    return set()


def catalog_empty(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    _cut(cache / "catalog.sqlite", 0)
    return set()


def catalog_cut(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    return _tear(cache / "catalog.sqlite", chance)


def catalog_zeroed(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    return _tear(cache / "catalog.sqlite", chance, 4096, zeroed=True)


def log_gone(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    """With it all that was committed since the last checkpoint."""
    for suffix in ("-wal", "-shm"):
        (cache / f"catalog.sqlite{suffix}").unlink(missing_ok=True)
    return set()


def log_cut(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    return _tear(cache / "catalog.sqlite-wal", chance)


def log_zeroed(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    return _tear(cache / "catalog.sqlite-wal", chance, zeroed=True)


def _spoil(cache: Path, leased: set[int], damage: Callable[[Path], object]) -> set[int]:
    """Damages the youngest shard, unless a lease names it."""
    found = sorted((cache / "shards" / "train").glob("*.tfrecord"))
    if not found or int(found[-1].stem) in leased:
        return set()
    damage(found[-1])
    return {int(found[-1].stem)}


def shard_renamed_but_empty(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    return _spoil(cache, leased, lambda path: _cut(path, 0))


def sidecar_renamed_but_empty(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    return _spoil(cache, leased, lambda path: _cut(Path(f"{path}.idx"), 0))


def one_rename_of_two(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    def lose(path: Path) -> None:
        lost = chance.choice([path, Path(f"{path}.idx")])
        lost.rename(cache / "tmp" / f"train.{lost.name}")

    return _spoil(cache, leased, lose)


def manifest_of_no_length(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    if (cache / "leases").exists():
        (cache / "leases" / "train.7.0badcafe.aaaaaa1.json").touch()
        (cache / "leases" / "train.8.0badcafe.aaaaaa1.json.new").write_bytes(b'{"version": 1')
    return set()


DAMAGES: tuple[Damage, ...] = (
    catalog_gone,
    catalog_gone_but_its_log_is_not,
    catalog_empty,
    catalog_cut,
    catalog_zeroed,
    log_gone,
    log_cut,
    log_zeroed,
    shard_renamed_but_empty,
    sidecar_renamed_but_empty,
    one_rename_of_two,
    manifest_of_no_length,
)
