"""What a power failure may leave that a kill does not: writes that were never synced, lost or torn.

Everything is done to a cache without a daemon. Each damage says which shards it spoils, which nobody may
see afterwards.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path, set[int], random.Random], set[int]]
"""(cache, shards that leases name, chance) -> shards spoilt."""


def _cut(path: Path, length: int) -> None:
    if path.exists():
        with path.open("r+b") as file:
            file.truncate(length)


def _of_generation(cache: Path, name: str) -> list[Path]:
    return list(cache.glob(f"datasets/train/*/{name}"))


def snapshot_gone(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    for path in _of_generation(cache, "snapshot"):
        path.unlink()
    return set()


def snapshot_cut(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    for path in _of_generation(cache, "snapshot"):
        _cut(path, chance.randrange(path.stat().st_size + 1))
    return set()


def state_that_was_not_replaced(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    """The new file is there, empty, and was never renamed."""
    for path in _of_generation(cache, "generation.json"):
        path.with_name("state.json.new").touch()
    return set()


def egress_gone(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    (cache / "egress.json").unlink(missing_ok=True)
    return set()


def figures_cut(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    for path in cache.glob("datasets/*/rotation.json"):
        _cut(path, chance.randrange(path.stat().st_size + 1))
    return set()


def _spoil(cache: Path, leased: set[int], damage: Callable[[Path], object]) -> set[int]:
    """Damages the youngest shard, unless a lease names it."""
    found = sorted(cache.glob("datasets/train/*/shards/??????????.tfrecord"))
    if not found or int(found[-1].stem) in leased:
        return set()
    damage(found[-1])
    return {int(found[-1].stem)}


def shard_renamed_but_empty(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    return _spoil(cache, leased, lambda path: _cut(path, 0))


def sidecar_renamed_but_empty(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    """With a sidecar the older shards of its stream are lost."""
    spoilt = _spoil(cache, leased, lambda path: _cut(Path(f"{path}.idx"), 0))
    if not spoilt:
        return spoilt
    (number,) = spoilt
    (known,) = _of_generation(cache, "generation.json")
    return set(range(number, -1, -(json.loads(known.read_text())["shape"]["S"] + 1)))


def one_rename_of_two(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    def lose(path: Path) -> None:
        lost = chance.choice([path, Path(f"{path}.idx")])
        lost.rename(path.with_name(lost.name.replace(".tfrecord", ".new")))

    return _spoil(cache, leased, lose)


def manifest_of_no_length(cache: Path, leased: set[int], chance: random.Random) -> set[int]:
    if (cache / "leases").exists():
        (cache / "leases" / "train.7.0badcafe.aaaaaa1.json").touch()
        (cache / "leases" / "train.8.0badcafe.aaaaaa1.json.new").write_bytes(b'{"version": 1')
    return set()


DAMAGES: tuple[Damage, ...] = (
    snapshot_gone,
    snapshot_cut,
    state_that_was_not_replaced,
    egress_gone,
    figures_cut,
    shard_renamed_but_empty,
    sidecar_renamed_but_empty,
    one_rename_of_two,
    manifest_of_no_length,
)
