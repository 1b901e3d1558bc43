"""How a store's listing is read by several requests at a time: who asks for what next. Pure.

A store that lists in the order of its keys can be asked for what comes after any string, so its keys are
divided into ranges, *lanes*, each of which is read page by page. Nobody knows beforehand where the
keys are: a range is cut where a sibling of what it has shown may begin, or in the middle of what is
left of it, and the first page behind the cut tells whether there was anything.

Answers are taken in the order in which they were asked for, and there are always as many asked for as
there may be. So what is listed, and in which order, follows from the listing's contents alone, however
fast the store was, wherever it was interrupted, and however few requests it was given at a time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from cachecd.model import ObjectInfo

# Requests under way. At 100 ms each, a million keys take seven seconds; alone, they take a hundred.
WINDOW = 16
# What is in no key, and sorts after all that commonly is in one. Where it does not, lanes are only uneven.
_LAST = "\U0010fffd"
_PAGE, _GLANCE = 1000, 100  # keys asked for at a time, and behind a cut, where there may be nothing
# Requests that may find nothing: so many, and one for so many that find something.
_MISSES, _HITS_A_MISS = 3 * WINDOW, 4
# A lane with less than this left is not worth a request that may find nothing.
_LEAST_LEFT = 2000
_DIGITS = (
    12  # of the base of all characters seen: to tell keys apart that have a long part in common
)
_CLASSES = ("0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")


class OutOfOrderError(Exception):
    """The store does not list in the order of its keys, or not what comes after the key asked for."""


class Ask(NamedTuple):
    """A request for the next objects after a key, at most so many."""

    after: str
    most: int


@dataclass(frozen=True, slots=True)
class Page:
    """The answer: as many `objects`, folder markers (empty, the key ends in a slash) included, fewer only
    if there are no `more`."""

    objects: Sequence[ObjectInfo]
    more: bool


@dataclass(slots=True)
class _Lane:
    """The keys after `start` up to `stop` (None: to the end); those up to `after` are listed.

    `fresh`: nothing was answered yet. Then `level` is how many characters of `start` its first key has:
    at that place keys differ. `first` and `count` are of the last page that had any.
    """

    start: str
    stop: str | None
    after: str
    level: int = 0
    first: str = ""
    count: int = 0
    fresh: bool = True


class Lanes:
    """One listing of a store.

    `asks` are oldest first; `answer` takes the page of the oldest and returns what is to be appended to
    what was listed till now. First that is some of all lanes, mixed; after that each page as it is. It is
    over when nothing is asked for.
    """

    def __init__(self) -> None:
        self._mixing: list[list[ObjectInfo]] | None = []
        self._lanes = [_Lane("", None, "")]
        self._asked = deque(self._lanes)  # oldest first
        self._characters = ""
        self._answers = self._misses = 0
        # By the key at which two lanes meet: what the one found first behind it, what the other saw there.
        self._found: dict[str, str | None] = {}
        self._seen: dict[str, str | None] = {}

    @property
    def asks(self) -> list[Ask]:
        return [Ask(o.after, _GLANCE if o.fresh and o.start else _PAGE) for o in self._asked]

    def answer(self, page: Page) -> list[ObjectInfo]:
        """Takes the page that was asked for first. OutOfOrderError, and nothing has changed that was
        returned, if the store cannot be listed so."""
        lane = self._asked.popleft()
        keys = [o.key for o in page.objects]
        first = keys[0] if keys else None
        in_order = all(a < b for a, b in pairwise([lane.after, *keys] if lane.after else keys))
        if not in_order or (page.more and not keys):
            raise OutOfOrderError(f"after {lane.after!r} the store lists {keys[:3]!r} ...")
        self._answers += 1
        own = len(keys) if lane.stop is None else bisect_right(keys, lane.stop)
        if lane.fresh:
            lane.fresh = False
            self._misses += not own
            lane.level = _alike(lane.start, first or "")
            self._meet(self._found, self._seen, lane.start, first)
        if own:
            lane.first, lane.count, lane.after = keys[0], own, keys[own - 1]
            self._learn(keys[0], keys[own - 1])
        if own < len(keys) or not page.more:
            self._lanes.remove(lane)
            if lane.stop is not None:
                self._meet(
                    self._seen, self._found, lane.stop, keys[own] if own < len(keys) else None
                )
        elif self._mixing is None:
            self._asked.append(lane)
        while len(self._lanes) < WINDOW and self._split():
            pass
        return self._returned([o for o in page.objects[:own] if not is_marker(o)])

    def _meet(
        self,
        mine: dict[str, str | None],
        others: dict[str, str | None],
        at: str,
        key: str | None,
    ) -> None:
        """Both lanes that meet at a key must see the same key come next: else the store has an order of
        its own (folder by folder, say), and what it lists in between would be in neither."""
        if at == "" and mine is self._found:
            return
        if at not in others:
            mine[at] = key
        elif others.pop(at) != key:
            raise OutOfOrderError(f"what follows {at!r} is not the same from both sides")

    def _returned(self, objects: list[ObjectInfo]) -> list[ObjectInfo]:
        if self._mixing is None:
            return objects
        # Nothing but glances at first, which come quickly, until there are enough lanes to mix.
        self._mixing.append(objects)
        if any(lane.fresh for lane in self._asked) and sum(map(bool, self._mixing)) < WINDOW:
            return []
        pages, self._mixing = self._mixing, None
        asked = {id(lane) for lane in self._asked}
        self._asked += [lane for lane in self._lanes if id(lane) not in asked]
        rest = [found for page in pages for found in page[_GLANCE:]]
        return _mixed([page[:_GLANCE] for page in pages]) + rest

    # --- where a lane is cut

    def _split(self) -> bool:
        """Cuts the lane that has most left, and asks for what is behind the cut; False if no lane is
        worth it."""
        if self._misses + sum(lane.fresh for lane in self._asked) > (
            _MISSES + self._answers // _HITS_A_MISS
        ):
            return False
        lanes = [(self._left(lane), lane) for lane in self._lanes if lane.count]
        for left, lane in sorted(lanes, key=lambda found: (-found[0], found[1].start)):
            if left < _LEAST_LEFT:
                return False
            if (at := self._cut(lane)) is None:
                continue
            new = _Lane(at, lane.stop, at)
            lane.stop = at
            self._lanes.append(new)
            self._asked.append(new)
            return True
        return False

    def _cut(self, lane: _Lane) -> str | None:
        """A key between what a lane has listed and its end; None if there is none to be found."""
        after, stop = lane.after, lane.stop
        alike = _alike(lane.first, after)
        place = 0 if stop is None else _alike(after, stop)
        while place < len(after):
            end = None if stop is None or place >= len(stop) else stop[place]
            known = place if place >= alike else lane.level
            if place < known < alike:
                place, end = known, None
            elif place < alike and place != known:
                # All keys of the page are alike here: does anything else come behind them at all?
                place, end = place + (alike - place) // 2, None
            between = self._between(after[place], end) if place == known else ""
            # Behind all that begins so: cut off at its name, some stores leave the folder itself out.
            begin = between[(len(between) - 1) // 2] if between else after[place]
            at = after[:place] + begin + _LAST
            if after < at and (stop is None or at < stop):
                return at
            stop = at if stop is None else min(stop, at)
            place += 1
        return None

    def _between(self, begin: str, end: str | None) -> str:
        """The characters between two that keys may have there, as far as is known."""
        characters = self._characters
        upto = len(characters) if end is None else bisect_left(characters, end)
        return characters[bisect_right(characters, begin) : upto]

    def _learn(self, *keys: str) -> None:
        known = set(self._characters)
        if not known.issuperset("".join(keys)):
            known.update(*keys)
            for letters in _CLASSES:
                if not known.isdisjoint(letters):
                    known.update(letters)
            self._characters = "".join(sorted(known))

    def _left(self, lane: _Lane) -> float:
        """About how many keys a lane has left, if they go on as on its last page."""
        begin = _alike(lane.first, lane.stop or "")
        first, after = self._number(lane.first, begin), self._number(lane.after, begin)
        base = len(self._characters) + 2
        stop = base**_DIGITS if lane.stop is None else self._number(lane.stop, begin)
        return lane.count * ((stop - after) / max(after - first, 1))

    def _number(self, key: str, begin: int) -> int:
        """A key as a number: where it lies among those that are alike up to `begin`."""
        characters = self._characters
        found, base = 0, len(characters) + 2
        digits = key[begin : begin + _DIGITS]
        for digit in digits:
            found = found * base + bisect_left(characters, digit) + 1
        return found * int(base ** (_DIGITS - len(digits)))


def _alike(one: str, other: str) -> int:
    """How many characters they begin with alike."""
    for place, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return place
    return min(len(one), len(other))


def _mixed(pages: Iterable[Sequence[ObjectInfo]]) -> list[ObjectInfo]:
    """All of them, such that every beginning has its share of each page."""
    order = [
        ((nth + 0.5) / len(page), place, nth, found)
        for place, page in enumerate(pages)
        for nth, found in enumerate(page)
    ]
    return [found for *_, found in sorted(order, key=lambda each: each[:3])]


def is_marker(found: ObjectInfo) -> bool:
    """Whether it is what consoles put into a store so that it shows a folder."""
    return not found.size and found.key.endswith("/")
