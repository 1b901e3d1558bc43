"""Which records of a set that grows and rotates come next, where an epoch is not one pass of it. Pure."""

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
# uint64 [slices, 3], as the core takes it: index into the files, first record, records.
Stage = NDArray[np.uint64]


def _none() -> Numbers:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Sweep:
    """A way through all records of a set whose files come and go: each is read once before any is again.

    Of each file, records are taken in its order (the sampler has mixed them; what is taken at a time is
    shuffled), so all that is known is how many of them were. `number` counts the sweeps before. `seed`, of
    whoever took first: where whole files are taken, each sweep has an order of them by it. Another
    `generation` has other records under the same numbers.
    """

    number: int = 0
    files: Numbers = field(default_factory=_none)  # by number, ascending: those that were begun
    read: Numbers = field(default_factory=_none)  # how many records of each
    seed: int | None = None
    generation: str = ""

    def of(self, generation: str) -> Sweep:
        """This sweep of the files of a generation; nothing is read yet of another than before."""
        if generation == self.generation:
            return self
        return Sweep(self.number, seed=self.seed, generation=generation)

    def take(
        self,
        files: Numbers,
        records: Numbers,
        wanted: int,
        *,
        whole_files: bool = False,
        seed: int = 0,
    ) -> tuple[list[Stage], Sweep]:
        """Slices of `wanted` records in stages, each of one sweep, and where the way is after them.

        What was not read comes first, as much of each file as of all; when it is used up, all comes
        again. `whole_files`: file after file in a random order, for a set that is too large to be read
        from all of it at a time. Files are `files`, ascending numbers, each of so many `records`, which
        are not all 0.
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
        """Slices of `wanted` records, fewer if the sweep has no more, and where it is after them."""
        seed = seed if self.seed is None else self.seed
        number, read = self.number, self._read_of(files)
        if not (records > read).any():
            number, read = number + 1, np.zeros_like(read)
        rest = np.maximum(records - read, 0)
        total = int(rest.sum())
        assert total, "no records"
        order = _order(len(rest), number, seed) if whole_files else None
        share = _some(rest, min(wanted, total), order)
        at = np.flatnonzero(share)
        stage = np.stack([at, read[at], share[at]], axis=1).astype(np.uint64)
        read = read + share
        if number == self.number:
            # A file among the others may come back, made again. Not a file before them, as the oldest are
            # retired first; and behind them numbers begin again where a cache is lost.
            gone = (self.files > files[0]) & (self.files < files[-1]) & ~np.isin(self.files, files)
            if gone.any():
                files, read = np.append(files, self.files[gone]), np.append(read, self.read[gone])
                ascending = np.argsort(files)
                files, read = files[ascending], read[ascending]
        begun = np.flatnonzero(read)
        return stage, Sweep(number, files[begun], read[begun], seed, self.generation)

    def state(self) -> dict[str, Any]:
        """It as plain values, for `of_state`."""
        table = np.stack([self.files, self.read]).astype("<i8")
        text = base64.b64encode(zlib.compress(table.tobytes())).decode()
        told = {"number": self.number, "read": text, "seed": self.seed}
        return {**told, "generation": self.generation}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Sweep:
        """ValueError, or another error that means it, for what is no state."""
        table = np.frombuffer(zlib.decompress(base64.b64decode(state["read"])), "<i8")
        files, read = table.reshape(2, -1).astype(np.int64)
        seed, generation = state["seed"], state["generation"]
        if not isinstance(generation, str):
            raise ValueError(f"{generation!r} names no generation")
        seed = None if seed is None else int(seed)
        return cls(int(state["number"]), files, read, seed, generation)

    def _read_of(self, files: Numbers) -> Numbers:
        """How many records of each file it has read."""
        found = np.zeros(len(files), np.int64)
        if len(self.files):
            at = np.minimum(np.searchsorted(self.files, files), len(self.files) - 1)
            found = np.where(self.files[at] == files, self.read[at], 0)
        return found


class Selection(NamedTuple):
    """The records that an epoch reads of its sets."""

    stages: list[Stage]  # their slices
    after: Mapping[str, Sweep]  # of each dataset
    mixture: Mixture | None = None  # how they are drawn of several datasets


class Part(NamedTuple):
    """The steps that an epoch reads of its sets, and which records they have."""

    steps: int
    selection: Selection

    @property
    def fingerprint(self) -> str:
        """Names the part."""
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
    """In which a sweep takes whole files."""
    digest = hashlib.sha256(f"cachecd sweep {seed} {sweep}".encode()).digest()
    key = int.from_bytes(digest[:8], "little")
    return np.asarray(Permutation(files, key).take(0, files)).astype(np.int64)


def _some(rest: Numbers, wanted: int, order: Numbers | None) -> Numbers:
    """Of each file's `rest` so many that they are `wanted` in all; file after file, if in an order."""
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
