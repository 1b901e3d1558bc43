"""What lies on disk under `cache.dir`, judged from outside."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cachecd_client._core import Sidecar, scan

_SHARD = re.compile(r"(\d{10})(?:\.(\d+))?\.tfrecord")


@dataclass(frozen=True)
class Found:
    """One sealed shard, every CRC of it verified."""

    path: Path
    inode: int
    sha256: str
    units: NDArray[np.uint64]
    ordinals: NDArray[np.uint32]

    @property
    def same(self) -> tuple[int, str]:
        """What stays the same as long as nobody touches the file."""
        return self.inode, self.sha256


def generation(cache: Path, dataset: str = "train") -> Path:
    """The directory of the dataset's newest generation."""
    made = {
        path.parent: json.loads(path.read_text())["made"]
        for path in (cache / "datasets" / dataset).glob("*/generation.json")
    }
    return max(made, key=made.__getitem__)


def inventory(
    cache: Path, dataset: str = "train", without: Set[int] = frozenset()
) -> dict[int, Found]:
    """The shards of the newest generation by number, each in its newest version, but for `without`; fails
    on one that is not whole. A sidecar alone is none."""
    found: dict[int, tuple[int, Found]] = {}
    with os.scandir(generation(cache, dataset) / "shards") as entries:
        files = list(entries)
    for entry in files:
        if not (match := _SHARD.fullmatch(entry.name)) or int(match[1]) in without:
            continue
        number, version = int(match[1]), int(match[2] or 0)
        try:
            if number not in found or version > found[number][0]:
                found[number] = version, _whole(entry)
        except FileNotFoundError:  # unlinked meanwhile, and a shard is before its sidecar
            assert not os.path.exists(entry.path), f"{entry.path} has no sidecar"
    return {number: shard for number, (_, shard) in sorted(found.items())}


def _whole(entry: os.DirEntry[str]) -> Found:
    sidecar = Sidecar.read(entry.path + ".idx")
    data = Path(entry.path).read_bytes()
    assert len(data) == sidecar.data_bytes, f"{entry.path} is {len(data)} bytes long"
    assert np.array_equal(scan(entry.path, verify=True), sidecar.offsets), entry.path
    return Found(
        Path(entry.path), entry.inode(), hashlib.sha256(data).hexdigest(),
        sidecar.units, sidecar.ordinals,
    )  # fmt: skip


def repeated(shards: dict[int, Found]) -> list[tuple[int, int]]:
    """The records, as (unit, ordinal), that are there more than once."""
    seen = Counter(
        pair
        for shard in shards.values()
        for pair in zip(shard.units.tolist(), shard.ordinals.tolist(), strict=True)
    )
    return [pair for pair, times in seen.items() if times > 1]


class Watch:
    """`look` is called every `every` seconds, in a thread, while this is open."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=type(self).__name__)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def look(self) -> None:
        raise NotImplementedError

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            self.look()


class Peak(Watch):
    """The most that a directory ever occupied while this was open, polled every `every` seconds.

    Counted are the allocated blocks of everything in it, directories included. Walking a tree takes
    a moment in which files come, go and get new names; so what counts is what two walks in a row
    both find, at its smaller size: that much was surely there between the two. It is never more than
    the truth, and falls short of it by what lived for less than a walk.
    """

    def __init__(self, root: Path, every: float = 0.001) -> None:
        super().__init__(every)
        self.root = root
        self.bytes = 0
        self.walks = 0
        self._before: dict[tuple[int, str], int] = {}

    def look(self) -> None:
        before, now = self._before, dict(blocks(os.fspath(self.root)))
        both = sum(min(size, before[key]) for key, size in now.items() if key in before)
        self.bytes = max(self.bytes, both)
        self.walks += 1
        self._before = now


def blocks(path: str) -> Iterator[tuple[tuple[int, str], int]]:
    """Identity and allocated bytes of everything at and under `path`.

    The identity outlives the rename of a finished shard, and tells a file from a later one that got
    the same inode.
    """
    try:
        found = os.lstat(path)
        entries = list(os.scandir(path))
    except FileNotFoundError:
        return
    yield (found.st_ino, ""), found.st_blocks * 512
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from blocks(entry.path)
            continue
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        name = entry.name.replace(".new", ".tfrecord")
        yield (found.st_ino, name), found.st_blocks * 512
