"""The paths of everything under `cache.dir`. No other module joins these paths."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

DATA, SIDECAR = ".tfrecord", ".idx"
MARKS = (".bad", ".old")
MOST_NUMBER, MOST_VERSION = (1 << 62) - 1, (1 << 32) - 1
NEW = ".new"  # the suffix of a temporary file

_NAME, _HASH = r"[A-Za-z0-9][A-Za-z0-9_-]*", r"[0-9a-f]{16}(-[1-9][0-9]*)?"
_DATASET, _GENERATION = re.compile(_NAME), re.compile(_HASH)
_SMALL_FILE = re.compile(
    r"(lock|history|egress\.json|excluded\.jsonl|leases/[^/]+\.(json|held)"
    rf"|datasets/{_NAME}/((rotation|classes-[0-9a-f]+)\.json"
    rf"|{_HASH}/(generation\.json|listing\.sqlite(-journal)?|state\.json|snapshot)))(\.new)?"
)
_SHARDS = re.compile(rf"datasets/{_NAME}/{_HASH}/shards")
_SHARD_FILE = re.compile(
    r"(?P<number>[0-9]{10,19})(\.(?P<version>[1-9][0-9]{0,9}))?"
    r"(?P<kind>\.tfrecord|\.tfrecord\.idx|\.bad|\.old|\.new|\.new\.idx)"
)


class ShardFile(NamedTuple):
    """A parsed file name in `shards/`. `kind`: the suffix after number and version."""

    number: int
    version: int
    kind: str


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one cache directory.

        lock   egress.json   excluded.jsonl   history   leases/LEASE.json
        datasets/NAME/rotation.json   datasets/NAME/classes-RULE.json
        datasets/NAME/GENERATION/                 see GenerationLayout

    Names consist of hashes, numbers and dataset names, which the configuration validates. Keys of a
    remote store are never part of a path.
    """

    root: Path

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def egress(self) -> Path:
        return self.root / "egress.json"

    @property
    def excluded(self) -> Path:
        return self.root / "excluded.jsonl"

    @property
    def history(self) -> Path:
        return self.root / "history"

    @property
    def leases(self) -> Path:
        return self.root / "leases"

    @property
    def datasets(self) -> Path:
        return self.root / "datasets"

    def manifest(self, lease: str) -> Path:
        return self.leases / f"{lease}.json"

    def dataset(self, name: str) -> Path:
        return self.datasets / name

    def classes(self, dataset: str, rule: str) -> Path:
        """`rule`: a hash of URL and label rule."""
        return self.dataset(dataset) / f"classes-{rule}.json"

    def rotation(self, dataset: str) -> Path:
        return self.dataset(dataset) / "rotation.json"

    def generation(self, dataset: str, name: str) -> GenerationLayout:
        return GenerationLayout(self.dataset(dataset) / name)

    def directories(self) -> list[Path]:
        """Returns every directory that the daemon makes, except `shards/`. OSError."""
        generations = [self.generation(*name).root for name in self.generations()]
        datasets = sorted({generation.parent for generation in generations})
        return [self.root, self.leases, self.datasets, *datasets, *generations]

    def generations(self) -> Iterator[tuple[str, str]]:
        """Yields (dataset, generation) of every generation directory, configured or not, in name order.
        OSError."""
        if not self.datasets.exists():
            return
        for dataset in sorted(self.datasets.iterdir()):
            if _DATASET.fullmatch(dataset.name) and _is_directory(dataset):
                for directory in sorted(dataset.iterdir()):
                    if _GENERATION.fullmatch(directory.name) and _is_directory(directory):
                        yield dataset.name, directory.name


@dataclass(frozen=True, slots=True)
class GenerationLayout:
    """The paths of one generation.

    generation.json  listing.sqlite  state.json  snapshot
    shards/0000000042.tfrecord[.idx]      version 0 of shard 42
    shards/0000000042.1.tfrecord[.idx]    version 1 replaces version 0
    shards/0000000042[.1].bad             a mark: this version is quarantined
    shards/0000000042.old                 a mark: all versions of shard 42 are retired
    shards/0000000042[.1].new[.idx]       a worker is writing this version
    """

    root: Path

    @property
    def identity(self) -> Path:
        return self.root / "generation.json"

    @property
    def listing(self) -> Path:
        return self.root / "listing.sqlite"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def snapshot(self) -> Path:
        return self.root / "snapshot"

    @property
    def shards(self) -> Path:
        return self.root / "shards"

    def shard(self, number: int, version: int = 0) -> Path:
        return self.shards / (_name(number, version) + DATA)

    def sidecar(self, number: int, version: int = 0) -> Path:
        return self.shards / (_name(number, version) + DATA + SIDECAR)

    def temporary(self, number: int, version: int = 0) -> Path:
        """The path at which a worker writes a shard."""
        return self.shards / (_name(number, version) + NEW)

    def temporary_sidecar(self, number: int, version: int = 0) -> Path:
        return self.shards / (_name(number, version) + NEW + SIDECAR)

    def bad(self, number: int, version: int = 0) -> Path:
        return self.shards / (_name(number, version) + ".bad")

    def old(self, number: int) -> Path:
        return self.shards / (_name(number, 0) + ".old")


def _is_directory(path: Path) -> bool:
    """Returns False for a link to a directory, because the daemon must not remove files there."""
    return path.is_dir() and not path.is_symlink()


def is_known(path: str) -> bool:
    """Returns whether the daemon writes a file with this path, relative to cache.dir. Ignores files of
    shards."""
    return bool(_SMALL_FILE.fullmatch(path))


def shard_file(path: str) -> ShardFile | None:
    """Parses a path relative to cache.dir. Returns None if the file does not belong to a shard."""
    folder, _, name = path.rpartition("/")
    return parse(name) if _SHARDS.fullmatch(folder) else None


def parse(name: str) -> ShardFile | None:
    """Parses a file name in `shards/`. Returns None if the daemon never writes such a name: for example,
    if the number is above MOST_NUMBER, or the version above MOST_VERSION."""
    match = _SHARD_FILE.fullmatch(name)
    if match is None:
        return None
    number, version, kind = int(match["number"]), int(match["version"] or 0), match["kind"]
    if number > MOST_NUMBER or version > MOST_VERSION or (version and kind == ".old"):
        return None
    return ShardFile(number, version, kind) if _name(number, version) + kind == name else None


def _name(number: int, version: int) -> str:
    return f"{number:010d}.{version}" if version else f"{number:010d}"
