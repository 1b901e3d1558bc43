"""The shards of one dataset that are on disk, and what is to become of them. Pure.

A cache has a hundred thousand of them and its policy asks for the same sums at every event. So the
sums are kept where a shard changes instead of being made when they are asked for; and what takes a
look at all shards is remembered until one of them changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cachecd.deliveries import packed, unpacked
from cachecd.model import Ranges, Shard, ShardId
from cachecd.shardtable import (
    ALL,
    ROW,
    Numbers,
    Places,
    Rows,
    ShardSet,
    ShardTable,
    Tally,
)
from cachecd.walk import Walk

_RETIRED, _BARRED, _VERIFYING, _UNLINKING, _READ, _RELEASED = (1 << bit for bit in range(6))
# What a shard is follows from its flags: tables over all their combinations.
_ALL = np.arange(1 << 6)
_IS_SERVED = _ALL & (_RETIRED | _BARRED | _VERIFYING) == 0
_IS_DOOMED = (_ALL & (_RETIRED | _BARRED) != 0) & (_ALL & (_VERIFYING | _UNLINKING) == 0)

_T = TypeVar("_T")


class _Flag:
    """A property of one shard that its collection keeps, and counts."""

    def __init__(self, bit: int) -> None:
        self._bit = bit

    def __get__(self, shard: LiveShard, _: object = None) -> bool:
        return bool(shard.flags & self._bit)

    def __set__(self, shard: LiveShard, value: bool) -> None:
        shard.set(self._bit, value)


class LiveShard:
    """One shard of a LiveShards: *served* until it is retired or barred, kept while a lease names it.

    `read`: as many of its records as it has were delivered to trainers, so it was not fetched in vain.
    `released`: the plan no longer counts its units as held. KeyError once it is removed.
    """

    __slots__ = ("_shards", "number")

    retired = _Flag(_RETIRED)
    barred = _Flag(_BARRED)
    verifying = _Flag(_VERIFYING)
    unlinking = _Flag(_UNLINKING)
    read = _Flag(_READ)
    released = _Flag(_RELEASED)

    def __init__(self, shards: LiveShards, number: int) -> None:
        self._shards, self.number = shards, number

    @property
    def shard(self) -> Shard:
        return self._shards.shard(self.number)

    @property
    def flags(self) -> int:
        return self._shards.flags(self.number)

    @property
    def served(self) -> bool:
        return bool(_IS_SERVED[self.flags])

    @property
    def doomed(self) -> bool:
        """Whether it is to go as soon as no lease names it."""
        return bool(_IS_DOOMED[self.flags])

    def set(self, bit: int, value: bool) -> None:
        self._shards.mark(np.array([self.number]), bit, value)


class LiveShards(Mapping[int, LiveShard]):
    """All shards of a dataset by number, ascending.

    What `add`, `remove`, `retire`, `hold` and the like change is counted there and then: figures
    cost nothing, however many shards there are. A list or a set of shards costs a look at all of
    them, once after each change.
    """

    def __init__(self, dataset: str) -> None:
        self._dataset = dataset
        self._table = ShardTable()
        self._leases: dict[str, Ranges] = {}
        self._generations: list[str] = []
        self._served: list[Tally] = []  # by generation
        self._data_bytes: list[int] = []  # by generation, of all
        self._counts = np.zeros(len(_ALL), np.int64)  # of shards, by all their flags
        self._known: dict[object, Any] = {}
        self._delivered: dict[str, Any] | None = None  # as it is saved, until it changes

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[int]:
        return iter(self._table)

    def __getitem__(self, number: int) -> LiveShard:
        self._table.place(number)
        return LiveShard(self, number)

    # --- changes

    def add(self, shard: Shard, retired: bool = False, barred: bool = False) -> None:
        """A shard is on disk; leases that name its number hold it from now on."""
        flags = flags_of(retired, barred)
        row = (
            shard.id.number, shard.records, shard.data_bytes, shard.allocated, 0, 0, flags, shard.digest, 0,
        )  # fmt: skip
        self.add_all([shard.generation], np.array([row], ROW))

    def add_all(self, generations: Sequence[str], rows: Rows) -> None:
        """Many at once, ascending and all new. A row's `generation` is a place in `generations`, its
        `flags` are `flags_of` it."""
        rows = rows.copy()
        places = np.array([self._generation(name) for name in generations], np.int32)
        rows["generation"] = places[rows["generation"]]
        rows["holders"] = 0
        at = self._table.insert(rows)
        if self._delivered and len(rows):
            _, last = self._delivered["shards"][-1]
            if rows["number"][0] <= last:  # the number was another shard's
                self._delivered = None
        for named in self._leases.values():
            self._table["holders"][at] += self._table.within(named)[at]
        self._count(at, 1)

    def remove(self, number: int) -> None:
        """Its files are gone. KeyError."""
        self._count(np.array([self._table.place(number)]), -1)
        self._table.remove(number)

    def mark(self, numbers: Numbers, flag: int, value: bool = True) -> None:
        """Sets a flag of shards that are there, or takes it away; for LiveShard and what follows."""
        at, flags = self._table.places(numbers), self._table["flags"]
        self._count(at, -1)
        flags[at] = flags[at] | flag if value else flags[at] & (len(_ALL) - 1 - flag)
        self._count(at, 1)

    def retire(self, numbers: Numbers) -> int:
        """No later lease names these shards; the bytes that they occupy."""
        self.mark(numbers, _RETIRED)
        return int(self._table["allocated"][self._table.places(numbers)].sum())

    def unlink(self) -> list[int]:
        """The doomed shards that no lease names, ascending; from now on they are being unlinked."""
        loose = self._once("loose", self._loose)
        if len(loose):
            self.mark(loose, _UNLINKING)
        numbers: list[int] = loose.tolist()
        return numbers

    def hold(self, lease: str, named: Ranges) -> None:
        """A lease names these numbers, until `let_go`."""
        self._leases[lease] = named
        self._hold(named, 1)

    def deliver(self, named: Ranges, shares: Iterable[int]) -> None:
        """Trainers were given so many thousandths more of the records of each range's shards, in ascending
        order. What that adds up to is what counts: a pass of which half is read, twice, may have left out
        some records, and given others twice."""
        more = np.minimum(np.fromiter(shares, np.int64), ALL)
        steps = np.zeros(len(self) + 1, np.int64)
        for at, by in zip(self._table.bounds(named), (more, -more), strict=True):
            np.add.at(steps, at, by)
        self._deliver(steps.cumsum()[:-1])

    def _deliver(self, more: NDArray[np.int64]) -> None:
        """Of each shard so many thousandths more."""
        delivered = self._table["delivered"]
        delivered[:] = np.minimum(delivered + more, ALL)
        self._delivered = None
        read = (delivered >= ALL) & (self._table["flags"] & _READ == 0)
        if read.any():
            self.mark(self._table.numbers[read], _READ)

    @property
    def delivered(self) -> dict[str, Any]:
        """For `deliver_again`, at the next start; the same until it changes."""
        if self._delivered is None:
            self._delivered = packed(self._table.numbers, self._table["delivered"])
        return self._delivered

    def deliver_again(self, saved: Mapping[str, Any]) -> None:
        """What `delivered` gave, of the shards that are still there: at least so much was delivered."""
        numbers, thousandths = unpacked(saved)
        here = np.isin(numbers, self._table.numbers)
        least = np.zeros(len(self), np.int64)
        least[self._table.places(numbers[here])] = thousandths[here]
        self._deliver(np.maximum(least - self._table["delivered"], 0))

    def let_go(self, lease: str) -> None:
        """The lease has ended."""
        if (named := self._leases.pop(lease, None)) is not None:
            self._hold(named, -1)

    # --- one shard

    def shard(self, number: int) -> Shard:
        table, at = self._table, self._table.place(number)
        return Shard(
            ShardId(self._dataset, number), self._generations[table["generation"][at]],
            int(table["records"][at]), int(table["data_bytes"][at]), int(table["allocated"][at]),
            int(table["digest"][at]),
        )  # fmt: skip

    def flags(self, number: int) -> int:
        return int(self._table["flags"][self._table.place(number)])

    # --- figures

    def served(self, generation: str | None = None) -> Tally:
        """The served shards of a generation, or of all."""
        if generation is not None:
            known = generation in self._generations
            return self._served[self._generations.index(generation)] if known else Tally()
        all_of_them = self._served
        return Tally(
            sum(t.shards for t in all_of_them),
            sum(t.records for t in all_of_them),
            sum(t.data_bytes for t in all_of_them),
        )

    @property
    def num_retired(self) -> int:
        return self._with(_RETIRED)

    @property
    def num_barred(self) -> int:
        return self._with(_BARRED)

    @property
    def unsettled(self) -> bool:
        """Whether any shard is being unlinked or looked into."""
        return self._with(_UNLINKING | _VERIFYING) > 0

    @property
    def any_doomed(self) -> bool:
        return bool(self._counts[_IS_DOOMED].any())

    @property
    def first(self) -> int | None:
        """The lowest number."""
        return int(self._table.numbers[0]) if len(self) else None

    def data_bytes(self, generation: str) -> int:
        """Of all shards of a generation, served or not."""
        known = generation in self._generations
        return self._data_bytes[self._generations.index(generation)] if known else 0

    @property
    def generations(self) -> list[str]:
        """Those that have served shards."""
        return [
            name
            for name, served in zip(self._generations, self._served, strict=True)
            if served.shards
        ]

    def verifying(self, generation: str) -> int | None:
        """The first shard of a generation that is out of service while it is looked into."""
        if not self._with(_VERIFYING):
            return None
        suspect = self._table["flags"] & _VERIFYING != 0
        found = self._table.numbers[suspect & self._of(generation)]
        return int(found[0]) if len(found) else None

    # --- sets

    def served_set(self, generation: str) -> ShardSet:
        """The served shards of a generation."""
        return self._once(
            ("set", generation), lambda: self._table.set_at(self._served_of(generation))
        )

    def set_of(self, numbers: Numbers) -> ShardSet:
        """These shards."""
        return self._table.set_at(self._table.places(numbers))

    def walk(self, generation: str, gaps: Mapping[int, int], end: int | None, before: int) -> Walk:
        """The shards of a generation, and gaps (number -> data bytes) between them, before `end`."""
        table, at = self._table, np.flatnonzero(self._of(generation))
        numbers = np.append(table.numbers[at], np.array([*gaps], np.int64))
        sizes = np.append(table["data_bytes"][at], np.array([*gaps.values()], np.int64))
        served = np.append(_IS_SERVED[table["flags"][at]], np.zeros(len(gaps), np.bool_))
        order = np.argsort(numbers, kind="stable")
        if end is not None:
            order = order[: np.searchsorted(numbers[order], end)]
        return Walk(numbers[order], sizes[order], served[order], before)

    def superseded(self, *lasting: str) -> Numbers:
        """The served shards of other generations than these, oldest first."""
        if self.served().shards == sum(self.served(name).shards for name in {*lasting}):
            return np.zeros(0, np.int64)
        others = self._all_served()
        for generation in lasting:
            others &= ~self._of(generation)
        return self._table.numbers[others]

    def oldest(self, generation: str, most: int, keep: int, must: int = 0) -> Numbers:
        """The oldest served shards of a generation, up to the first that nobody has read, that together
        occupy at most `most`; at least `keep` data bytes and one shard stay. `must`: so much goes whether
        or not anybody has read it."""
        table, at = self._table, self._served_of(generation)[:-1]
        stays = self.served(generation).data_bytes - table["data_bytes"][at].cumsum()
        so_far = table["allocated"][at].cumsum()
        may = (so_far <= most) & (stays >= keep)
        may &= (table["flags"][at] & _READ != 0) | (so_far - table["allocated"][at] < must)
        found: Numbers = table.numbers[at[np.logical_and.accumulate(may)]]
        return found

    def first_of(self, numbers: Numbers, least: int) -> Numbers:
        """The first of these that together occupy at least so much; all, if that is less."""
        so_far = self._table["allocated"][self._table.places(numbers)].cumsum()
        return numbers[: int(np.searchsorted(so_far, least)) + 1]

    def unheld(self, numbers: Numbers) -> Numbers:
        """Those of these shards that no lease names."""
        found: Numbers = numbers[self._table["holders"][self._table.places(numbers)] == 0]
        return found

    @property
    def going_allocated(self) -> int:
        """What the shards occupy that are being unlinked, or will be at once: no lease names them."""
        return self._doomed_allocated(held=False)

    @property
    def held_allocated(self) -> int:
        """What the shards occupy that are to go, and that leases still name."""
        return self._doomed_allocated(held=True)

    def oldest_allocated(self, generation: str) -> int:
        """What the oldest served shard of a generation occupies; 0 if there is none."""
        return int(self._table["allocated"][self._served_of(generation)[:1]].sum())

    def most_allocated(self, generation: str) -> int:
        """The most that one served shard of a generation occupies; 0 if there is none."""
        return int(self._table["allocated"][self._served_of(generation)].max(initial=0))

    def retired_allocated(self, generation: str | None, *, but_barred: bool = False) -> int:
        """What the retired shards occupy, of a generation or all; `but_barred`: without barred ones."""
        if not self._with(_RETIRED):
            return 0
        flags = self._table["flags"] & (_RETIRED | _BARRED * but_barred)
        mine = flags == _RETIRED
        if generation is not None:
            mine &= self._of(generation)
        return int(self._table["allocated"][mine].sum())

    def any_doomed_in(self, named: Ranges) -> bool:
        """Whether any shard of these numbers is doomed."""
        doomed = _IS_DOOMED[self._table["flags"]]
        return self.any_doomed and bool((doomed & self._table.within(named)).any())

    def any_barred_in(self, named: Ranges) -> bool:
        """Whether any shard of these numbers is barred."""
        if not self.num_barred:
            return False
        barred = self._table["flags"] & _BARRED != 0
        return bool((barred & self._table.within(named)).any())

    def has_all(self, named: Ranges) -> bool:
        """Whether every one of these numbers is a shard's."""
        first, end = self._table.bounds(named)
        return int((end - first).sum()) == sum(last - begin + 1 for begin, last in named)

    def retired_bytes(self, named: Ranges) -> int:
        """What the retired shards among these numbers occupy."""
        if not self._with(_RETIRED):
            return 0
        so_far = self._once("retired", self._retired_so_far)
        first, end = self._table.bounds(named)
        return int((so_far[end] - so_far[first]).sum())

    # --- within

    def _generation(self, name: str) -> int:
        if name not in self._generations:
            self._generations.append(name)
            self._served.append(Tally())
            self._data_bytes.append(0)
        return self._generations.index(name)

    def _of(self, generation: str) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self._table["generation"] == self._generation(generation)
        return found

    def _all_served(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = _IS_SERVED[self._table["flags"]]
        return found

    def _hold(self, named: Ranges, by: int) -> None:
        holders = self._table["holders"]
        for first, end in zip(*map(np.ndarray.tolist, self._table.bounds(named)), strict=True):
            holders[first:end] += by
        self._known.pop("loose", None)

    def _with(self, flags: int) -> int:
        """How many shards have any of these flags."""
        return int(self._counts[_ALL & flags != 0].sum())

    def _count(self, at: Places, by: int) -> None:
        """These rows are from now on (1), or are no longer (-1), as they are."""
        self._known.clear()
        table, flags = self._table, self._table["flags"][at]
        self._counts += by * np.bincount(flags, minlength=len(_ALL))
        for generation in set(table["generation"][at].tolist()):
            these = at[table["generation"][at] == generation]
            self._data_bytes[generation] += by * int(table["data_bytes"][these].sum())
            these = these[_IS_SERVED[table["flags"][these]]]
            tally = self._served[generation]
            tally.shards += by * len(these)
            tally.records += by * int(table["records"][these].sum())
            tally.data_bytes += by * int(table["data_bytes"][these].sum())

    def _once(self, key: object, make: Callable[[], _T]) -> _T:
        """What `make` finds, remembered until a shard changes."""
        if key not in self._known:
            self._known[key] = make()
        found: _T = self._known[key]
        return found

    def _loose(self) -> Numbers:
        if not self._counts[_IS_DOOMED].any():
            return np.zeros(0, np.int64)
        table = self._table
        found: Numbers = table.numbers[_IS_DOOMED[table["flags"]] & (table["holders"] == 0)]
        return found

    def _retired_so_far(self) -> Numbers:
        total: Numbers = np.zeros(len(self._table) + 1, np.int64)
        retired = self._table["flags"] & _RETIRED != 0
        np.cumsum(np.where(retired, self._table["allocated"], 0), out=total[1:])
        return total

    def _doomed_allocated(self, held: bool) -> int:
        if not (self.any_doomed or self._with(_UNLINKING)):
            return 0
        flags = self._table["flags"]
        mine = (_IS_DOOMED[flags] | (flags & _UNLINKING != 0)) & (
            (self._table["holders"] > 0) == held
        )
        return int(self._table["allocated"][mine].sum())

    def _served_of(self, generation: str) -> Places:
        return self._once(
            ("served", generation),
            lambda: np.flatnonzero(self._all_served() & self._of(generation)),
        )


def flags_of(retired: Any, barred: Any) -> Any:
    """A row's flags when it is added; of single shards, or arrays of them. What is barred is released."""
    return retired * np.uint8(_RETIRED) | barred * np.uint8(_BARRED | _RELEASED)


def marks_of(flags: NDArray[np.uint8]) -> list[tuple[bool, bool]]:
    """Of rows, whether each is retired, and barred."""
    return [(bool(f & _RETIRED), bool(f & _BARRED)) for f in flags.tolist()]
