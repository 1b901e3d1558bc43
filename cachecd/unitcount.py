"""Which units of a source are held by shards, set aside, or gone, and which were in a shard. Pure.

Four bits a unit, so that tens of millions fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Units = Sequence[int] | NDArray[np.uint64] | NDArray[np.int64]
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1)  # of each byte


class UnitCount:
    """For each unit how many hold it (live shards, open assignments, what is left over), and whether
    it was set aside, or is gone from the source. A unit is *free* if it is none of these.

    How many are free is kept, not counted: a source may have tens of millions. Units that there are
    not yet may be held and set aside in advance.

    `num_here` are the units that are neither set aside nor gone, `num_covered` those of them that were in
    a shard at least once.
    """

    def __init__(self) -> None:
        self.num_free = 0
        self.num_aside = 0
        self.num_gone = 0
        self.num_here = 0
        self.num_covered = 0
        self.missed: set[int] = set()
        """Units that are here again, and were never in a shard: the walk may have passed them by."""
        self._length = 0
        self._held = np.zeros(0, np.uint8)  # bit 8 * i + k of the units is bit k of byte i
        self._aside = np.zeros(0, np.uint8)
        self._gone = np.zeros(0, np.uint8)
        self._covered = np.zeros(0, np.uint8)
        # Of units held more than once, how often more. They are few: a unit in several shards is
        # so large that there are few units.
        self._more: dict[int, int] = {}

    def extend(self, count: int) -> None:
        """There are `count` more, free unless they were marked in advance."""
        begin, end = self._length, self._length + count
        self._make_room(end)
        barred = self._aside | self._gone
        self._length = end
        self.num_free += count - _ones(self._held | barred, begin, end)
        self.num_here += count - _ones(barred, begin, end)
        self.num_covered += _ones(self._covered & ~barred, begin, end)

    def free(self, units: Units) -> NDArray[np.bool_]:
        """Which of these are free."""
        numbers = np.asarray(units)
        return ~(_bits(self._held, numbers) | self._barred(numbers))

    def held(self, units: Units) -> NDArray[np.bool_]:
        """Which of these somebody holds."""
        return _bits(self._held, np.asarray(units, np.int64))

    @property
    def several(self) -> NDArray[np.int64]:
        """Those that are held more than once."""
        return np.fromiter(self._more, np.int64, len(self._more))

    def shared(self, units: Units) -> NDArray[np.bool_]:
        """Which of these are held more than once."""
        numbers = np.asarray(units, np.int64)
        return np.isin(numbers, self.several)

    def aside(self, units: Units) -> NDArray[np.bool_]:
        """Which of these are set aside."""
        return _bits(self._aside, np.asarray(units, np.int64))

    def hold(self, units: Units) -> None:
        """Each of these is held once more; one that is named twice, twice."""
        numbers, times = _counted(units)
        if not len(numbers):
            return
        self._make_room(int(numbers[-1]) + 1)
        known = _bits(self._held, numbers)
        extra = times - ~known
        for place in np.flatnonzero(extra).tolist():
            number = int(numbers[place])
            self._more[number] = self._more.get(number, 0) + int(extra[place])
        self._mark(numbers[~known])

    def cover(self, units: Units) -> None:
        """These are in a shard."""
        numbers, _ = _counted(units)
        if not len(numbers):
            return
        self._make_room(int(numbers[-1]) + 1)
        self.missed.difference_update(numbers.tolist() if self.missed else ())
        numbers = numbers[~_bits(self._covered, numbers)]
        np.bitwise_or.at(self._covered, numbers >> 3, _mask(numbers))
        here = numbers[numbers < self._length]
        self.num_covered += int((~self._barred(here)).sum())

    def recount(self, walked: Iterable[NDArray[np.uint64]], coming: Units) -> None:
        """After a restart, which units were in a shard: those that are held, but for the `coming` ones, and
        what was `walked` over and is free again, as it left the cache. What is made again counts when it is
        made. By whole bytes: a source may have tens of millions."""
        self._make_room(max(self.missed, default=-1) + 1)
        passed = np.zeros(len(self._held), np.uint8)
        for units in walked:
            _set(passed, units.astype(np.int64))
        left_out = np.zeros(len(self._held), np.uint8)
        _set(left_out, np.fromiter(self.missed, np.int64, len(self.missed)))
        spoken_for = self._held | self._aside | self._gone
        covered = passed & ~spoken_for & ~left_out
        left_out[:] = 0
        _set(left_out, np.asarray(coming, np.int64))
        self._covered |= covered | self._held & ~left_out
        known = np.fromiter(self.missed, np.int64, len(self.missed))
        self.missed.difference_update(known[_bits(self._covered, known)].tolist())
        here = self._covered & ~(self._aside | self._gone)
        self.num_covered = _ones(here, 0, self._length)

    def release(self, units: Units) -> None:
        """Each of these is held once less."""
        numbers, times = _counted(units)
        if self._more:
            for place, number in enumerate(numbers.tolist()):
                if extra := self._more.pop(number, 0):
                    if extra > times[place]:
                        self._more[number] = extra - int(times[place])
                    times[place] -= extra
        gone = numbers[times > 0]
        gone = gone[_bits(self._held, gone)]
        np.bitwise_and.at(self._held, gone >> 3, ~_mask(gone))
        self.num_free += int((~self._barred(gone[gone < self._length])).sum())

    def set_aside(self, units: Iterable[int]) -> None:
        """These are not free until they are taken back."""
        for unit in units:
            self._make_room(unit + 1)
            self._put_aside(np.array([unit], np.int64), True)

    def take_back(self, units: Iterable[int]) -> None:
        """These are set aside no longer."""
        for unit in units:
            self._put_aside(np.array([unit], np.int64), False)

    def gone(self, units: Units) -> None:
        """These are not in the source any more, and not free until they are back."""
        self._set_gone(units, True)

    def back(self, units: Units) -> None:
        """These are gone no longer."""
        self._set_gone(units, False)

    def _set_gone(self, units: Units, gone: bool) -> None:
        numbers, _ = _counted(units)
        if not len(numbers):
            return
        self._make_room(int(numbers[-1]) + 1)
        numbers = numbers[_bits(self._gone, numbers) != gone]
        spoken_for = _bits(self._held, numbers) | _bits(self._aside, numbers)
        by = 1 if gone else -1
        self.num_gone += by * len(numbers)
        self.num_free -= by * int((~spoken_for & (numbers < self._length)).sum())
        self._comes_and_goes(numbers[~_bits(self._aside, numbers)], -by)
        np.bitwise_xor.at(self._gone, numbers >> 3, _mask(numbers))

    def _barred(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these are set aside or gone."""
        return _bits(self._aside, numbers) | _bits(self._gone, numbers)

    def _put_aside(self, one: NDArray[np.int64], aside: bool) -> None:
        if bool(_bits(self._aside, one)[0]) != aside:
            by = 1 if aside else -1
            self.num_aside += by
            spoken_for = _bits(self._held, one) | _bits(self._gone, one)
            self.num_free -= by * int(one[0] < self._length and not spoken_for[0])
            self._comes_and_goes(one[~_bits(self._gone, one)], -by)
            np.bitwise_xor.at(self._aside, one >> 3, _mask(one))

    def _comes_and_goes(self, numbers: NDArray[np.int64], by: int) -> None:
        """These are here from now on (1), or no longer (-1)."""
        covered = _bits(self._covered, numbers)
        within = numbers < self._length
        self.num_here += by * int(within.sum())
        self.num_covered += by * int((covered & within).sum())
        if by > 0:
            self.missed.update(numbers[~covered].tolist())
        elif self.missed:
            self.missed.difference_update(numbers.tolist())

    def _mark(self, numbers: NDArray[np.int64]) -> None:
        np.bitwise_or.at(self._held, numbers >> 3, _mask(numbers))
        within = numbers[numbers < self._length]
        self.num_free -= int((~self._barred(within)).sum())

    def _make_room(self, length: int) -> None:
        missing = -(-length // 8) - len(self._held)
        if missing > 0:
            missing = max(missing, len(self._held) // 4)  # to grow cheaply
            self._held = np.append(self._held, np.zeros(missing, np.uint8))
            self._aside = np.append(self._aside, np.zeros(missing, np.uint8))
            self._gone = np.append(self._gone, np.zeros(missing, np.uint8))
            self._covered = np.append(self._covered, np.zeros(missing, np.uint8))


def _ones(marks: NDArray[np.uint8], begin: int, end: int) -> int:
    """How many of these units are marked: by whole bytes but for the two at the ends, as a block may have
    millions of units."""
    inner = range(-(-begin // 8) * 8, end // 8 * 8)
    if len(inner) > 0:
        ends = np.r_[begin : inner.start, inner.stop : end]
        marked = int(_ONES[marks[inner.start // 8 : inner.stop // 8]].sum())
    else:
        ends, marked = np.arange(begin, end), 0
    return marked + int(_bits(marks, ends).sum())


def _counted(units: Units) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct numbers, ascending, and how often each is named."""
    numbers, times = np.unique(np.asarray(units, np.int64), return_counts=True)
    return numbers, times.astype(np.int64)


def _set(marks: NDArray[np.uint8], numbers: NDArray[np.int64]) -> None:
    """Marks these units, of which there are marks."""
    np.bitwise_or.at(marks, numbers >> 3, _mask(numbers))


def _mask(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    return np.uint8(1) << (numbers & 7).astype(np.uint8)


def _bits(
    marks: NDArray[np.uint8], numbers: NDArray[np.int64] | NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Of each unit; of those that there are not yet, and of which nothing was marked, False."""
    shift = numbers.dtype.type(3)
    seven = numbers.dtype.type(7)
    places = numbers >> shift
    if len(places) and int(places.max()) >= len(marks):
        known = places < len(marks)
        told = np.zeros(len(numbers), np.bool_)
        told[known] = _bits(marks, numbers[known])
        return told
    found: NDArray[np.uint8] = marks[places] >> (numbers & seven).astype(np.uint8)
    return (found & np.uint8(1)).view(np.bool_)
