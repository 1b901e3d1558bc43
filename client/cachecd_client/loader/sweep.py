"""Chooses the records of an epoch that is not one pass, although its set grows and rotates. Pure."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachecd_client._core import Permutation

if TYPE_CHECKING:
    from cachecd_client._core import Mixture

Numbers = NDArray[np.int64]
# uint64 [slices, 3], as for the core: index into the files, first record, number of records.
Stage = NDArray[np.uint64]


def _none() -> Numbers:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Sweep:
    """The progress through a set whose files change: each record is read once before a record is repeated.

    The records of a file are read in order (the sampler has mixed them, and each part is shuffled), so a
    count for each file is enough. `number`: the number of earlier sweeps. `seed`: the seed of the first
    loader; it orders whole files, differently in each sweep. In another `generation`, the same file numbers
    name other records.
    """

    number: int = 0
    files: Numbers = field(default_factory=_none)  # ascending numbers of the files that were begun
    read: Numbers = field(default_factory=_none)  # the number of records read in each file
    seed: int | None = None
    generation: str = ""

    def of(self, generation: str) -> Sweep:
        """Returns this sweep for a generation; in another generation, no file was begun."""
        if generation == self.generation:
            return self
        return Sweep(self.number, seed=self.seed, generation=generation)

    def take(
        self, files: Numbers, records: Numbers, wanted: int, *, whole_files: bool = False, seed: int = 0,
    ) -> tuple[list[Stage], Sweep]:  # fmt: skip
        """Returns slices of `wanted` records in stages, one for each sweep, and the sweep after them.

        Unread records are first, the same share of each file; after the last unread record, all records
        follow again. `whole_files`: take file after file in a random order, for a set that is too large to
        be read everywhere at once. `files`: ascending numbers; `records`: the count of each file, not all
        0.
        """
        sweep = self
        stages: list[Stage] = []
        while wanted > 0:
            stage, sweep = sweep._stage(files, records, wanted, whole_files, seed)
            stages.append(stage)
            wanted -= int(stage[:, 2].sum())
        return stages, sweep

    def _stage(
        self, files: Numbers, records: Numbers, wanted: int, whole_files: bool, seed: int
    ) -> tuple[Stage, Sweep]:
        """Returns slices of at most `wanted` records of one sweep, and the sweep after them."""
        seed = seed if self.seed is None else self.seed
        number, read = self.number, self._read_of(files)
        if not (records > read).any():
            number, read = number + 1, np.zeros_like(read)
        rest = np.maximum(records - read, 0)
        total = int(rest.sum())
        assert total, "no records"
        order = _order(len(rest), number, seed) if whole_files else None
        share = _divided(rest, min(wanted, total), order)
        at = np.flatnonzero(share)
        stage = np.stack([at, read[at], share[at]], axis=1).astype(np.uint64)
        read = read + share
        if number == self.number:
            # A file that is missing between others may be made again. A file before all others was retired,
            # because the oldest files are retired first. After a cache is lost, numbers start again.
            between = (self.files > files[0]) & (self.files < files[-1])
            missing = between & ~np.isin(self.files, files)
            files = np.append(files, self.files[missing])
            ascending = np.argsort(files, kind="stable")
            files, read = files[ascending], np.append(read, self.read[missing])[ascending]
        begun = np.flatnonzero(read)
        return stage, Sweep(number, files[begun], read[begun], seed, self.generation)

    def state(self) -> dict[str, Any]:
        """Returns plain values for `of_state`."""
        table = np.stack([self.files, self.read]).astype("<i8")
        text = base64.b64encode(zlib.compress(table.tobytes())).decode()
        values = {"number": self.number, "read": text, "seed": self.seed}
        return {**values, "generation": self.generation}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Sweep:
        """The inverse of `state`. ValueError, or another exception, for damaged values."""
        table = np.frombuffer(zlib.decompress(base64.b64decode(state["read"])), "<i8")
        files, read = table.reshape(2, -1).astype(np.int64)
        seed, generation = state["seed"], state["generation"]
        if not isinstance(generation, str):
            raise ValueError(f"{generation!r} is not the name of a generation")
        seed = None if seed is None else int(seed)
        return cls(int(state["number"]), files, read, seed, generation)

    def _read_of(self, files: Numbers) -> Numbers:
        counts = np.zeros(len(files), np.int64)
        if len(self.files):
            at = np.minimum(np.searchsorted(self.files, files), len(self.files) - 1)
            counts = np.where(self.files[at] == files, self.read[at], 0)
        return counts


class Selection(NamedTuple):
    """The records that an epoch reads."""

    stages: list[Stage]  # their slices
    after: Mapping[str, Sweep]  # by dataset
    mixture: Mixture | None = None  # how records are drawn from several datasets


class Part(NamedTuple):
    """The steps of an epoch that is not one pass of its set, and their records."""

    steps: int
    selection: Selection

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        if self.selection.mixture is not None:
            bounds, key, positions, parts = self.selection.mixture
            windows = [window for window, _ in parts]
            digest.update(f"{bounds} {key} {positions} {windows}".encode())
        for stage in self.selection.stages:
            digest.update(b"%d\0" % len(stage))
            digest.update(stage.astype("<u8").tobytes())
        return digest.hexdigest()[:32]


@lru_cache(maxsize=4)
def _order(files: int, sweep: int, seed: int) -> Numbers:
    digest = hashlib.sha256(f"cachecd sweep {seed} {sweep}".encode()).digest()
    key = int.from_bytes(digest[:8], "little")
    return np.asarray(Permutation(files, key).take(0, files)).astype(np.int64)


def _divided(rest: Numbers, wanted: int, order: Numbers | None) -> Numbers:
    """Divides `wanted` records among files: the same share of each file's `rest`, or file after file in
    `order`."""
    if order is not None:
        before = np.concatenate([[0], np.cumsum(rest[order])[:-1]])
        share = np.zeros_like(rest)
        share[order] = np.clip(wanted - before, 0, rest[order])
        return share
    total = int(rest.sum())
    share, odd = np.divmod(rest * wanted, total)
    missing = wanted - int(share.sum())
    share[np.argsort(-odd, kind="stable")[:missing]] += 1
    return share
