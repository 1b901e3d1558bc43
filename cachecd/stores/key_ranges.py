"""Divides a store's listing into key ranges, so that several requests can read it at a time. Pure.

A store that lists in key order can list the keys after any string. So its keys are divided into ranges,
*lanes*, and each lane is read page by page. The distribution of keys is not known in advance. A range is
cut where a sibling of a listed key may begin, or in the middle of its rest. The first page behind the cut
shows whether keys exist there.

Replies are handled in the order of their requests, and the number of requests in flight is always the
maximum. So the listing and its order depend only on the contents of the store, not on its speed or on
interruptions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from cachecd.model import ObjectInfo

# Requests in flight. At 100 ms per request, a million keys take 7 s instead of 100 s.
WINDOW = 16
# A character that sorts after all usual characters. If a key has a greater character, lanes are uneven.
_LAST = "\U0010fffd"
_PAGE, _GLANCE = (
    1000,
    100,
)  # keys per request, and per request behind a cut, where there may be none
# At most this many requests may find nothing, plus one for each of this many that find something.
_MISSES, _HITS_A_MISS = 3 * WINDOW, 4
# A lane with fewer keys left is not worth a request that may find nothing.
_LEAST_LEFT = 2000
_DIGITS = 12  # in the base of all seen characters: distinguishes keys with a long common part
_CLASSES = ("0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")


class OutOfOrderError(Exception):
    """The store does not list in key order, or does not list the keys after the requested key."""


class Ask(NamedTuple):
    """A request for the next objects after a key, at most `most`."""

    after: str
    most: int


@dataclass(frozen=True, slots=True)
class KeyPage:
    """The reply: the requested number of `objects`, or fewer if there are no `more`."""

    objects: Sequence[ObjectInfo]
    more: bool


@dataclass(slots=True)
class _Range:
    """The keys after `start` up to `stop` (None: to the end). Keys up to `after` are listed.

    `fresh`: no reply arrived yet. Then `level` is the number of characters that the lane's first key
    shares with `start`. `first` and `count` belong to the last page with keys.
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

    `asks`: the requests, oldest first. `answer` takes the page of the oldest request, and returns the
    objects to append to the listing: first a mix of all lanes, later each page unchanged. The listing
    ends when `asks` is empty.
    """

    def __init__(self) -> None:
        self._mixing: list[list[ObjectInfo]] | None = []
        self._lanes = [_Range("", None, "")]
        self._queue = deque(self._lanes)  # oldest first
        self._characters = ""
        self._answers = self._misses = 0
        # For each key at which two lanes meet: the first key that the later lane listed, and the first
        # key that the earlier lane listed behind its own end.
        self._firsts: dict[str, str | None] = {}
        self._ends: dict[str, str | None] = {}

    @property
    def asks(self) -> list[Ask]:
        return [Ask(o.after, _GLANCE if o.fresh and o.start else _PAGE) for o in self._queue]

    def answer(self, page: KeyPage) -> list[ObjectInfo]:
        """Takes the page of the oldest request. OutOfOrderError if the store cannot be listed in this
        way. After this error, the objects that were returned earlier still belong to the
        listing."""
        lane = self._queue.popleft()
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
            self._meet(self._firsts, self._ends, lane.start, first)
        if own:
            lane.first, lane.count, lane.after = keys[0], own, keys[own - 1]
            self._learn(keys[0], keys[own - 1])
        if own < len(keys) or not page.more:
            self._lanes.remove(lane)
            if lane.stop is not None:
                self._meet(
                    self._ends, self._firsts, lane.stop, keys[own] if own < len(keys) else None
                )
        elif self._mixing is None:
            self._queue.append(lane)
        while len(self._lanes) < WINDOW and self._split():
            pass
        return self._returned(list(page.objects[:own]))

    def _meet(
        self,
        own: dict[str, str | None],
        others: dict[str, str | None],
        at: str,
        key: str | None,
    ) -> None:
        """Checks that two lanes that meet at a key list the same key next. Otherwise the store has
        another order, such as folder by folder, and the lanes would miss keys."""
        if at == "" and own is self._firsts:
            return
        if at not in others:
            own[at] = key
        elif others.pop(at) != key:
            raise OutOfOrderError(f"two listing requests disagree about the keys after {at!r}")

    def _returned(self, objects: list[ObjectInfo]) -> list[ObjectInfo]:
        if self._mixing is None:
            return objects
        # At first the requests are short, until there are enough lanes to mix.
        self._mixing.append(objects)
        if any(lane.fresh for lane in self._queue) and sum(map(bool, self._mixing)) < WINDOW:
            return []
        pages, self._mixing = self._mixing, None
        queued = {id(lane) for lane in self._queue}
        self._queue += [lane for lane in self._lanes if id(lane) not in queued]
        rest = [object_info for page in pages for object_info in page[_GLANCE:]]
        return _mixed([page[:_GLANCE] for page in pages]) + rest

    # --- where a lane is cut

    def _split(self) -> bool:
        """Cuts the lane with the most remaining keys, and requests the keys behind the cut. Returns False
        if no lane is worth a cut."""
        if self._misses + sum(lane.fresh for lane in self._queue) > (
            _MISSES + self._answers // _HITS_A_MISS
        ):
            return False
        lanes = [(self._remaining(lane), lane) for lane in self._lanes if lane.count]
        for left, lane in sorted(lanes, key=lambda each: (-each[0], each[1].start)):
            if left < _LEAST_LEFT:
                return False
            if (at := self._cut(lane)) is None:
                continue
            new = _Range(at, lane.stop, at)
            lane.stop = at
            self._lanes.append(new)
            self._queue.append(new)
            return True
        return False

    def _cut(self, lane: _Range) -> str | None:
        """Returns a key between the lane's last listed key and its end, or None."""
        after, stop = lane.after, lane.stop
        alike = _alike(lane.first, after)
        place = 0 if stop is None else _alike(after, stop)
        while place < len(after):
            end = None if stop is None or place >= len(stop) else stop[place]
            known = place if place >= alike else lane.level
            if place < known < alike:
                place, end = known, None
            elif place < alike and place != known:
                # All keys of the page are equal up to here, so perhaps no other keys follow.
                place, end = place + (alike - place) // 2, None
            between = self._between(after[place], end) if place == known else ""
            # Cut after all keys with this beginning, because after a folder's bare name, some stores omit
            # the folder.
            begin = between[(len(between) - 1) // 2] if between else after[place]
            at = after[:place] + begin + _LAST
            if after < at and (stop is None or at < stop):
                return at
            stop = at if stop is None else min(stop, at)
            place += 1
        return None

    def _between(self, begin: str, end: str | None) -> str:
        """Returns the known characters of keys between two others."""
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

    def _remaining(self, lane: _Range) -> float:
        """Estimates the number of remaining keys of a lane, from its last page."""
        begin = _alike(lane.first, lane.stop or "")
        first, after = self._number(lane.first, begin), self._number(lane.after, begin)
        base = len(self._characters) + 2
        stop = base**_DIGITS if lane.stop is None else self._number(lane.stop, begin)
        return lane.count * ((stop - after) / max(after - first, 1))

    def _number(self, key: str, begin: int) -> int:
        """Returns the position of a key, as a number, among keys with the same first `begin`
        characters."""
        characters = self._characters
        number, base = 0, len(characters) + 2
        digits = key[begin : begin + _DIGITS]
        for digit in digits:
            number = number * base + bisect_left(characters, digit) + 1
        return number * int(base ** (_DIGITS - len(digits)))


def _alike(one: str, other: str) -> int:
    """Returns the number of characters at the beginning that both texts share."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))


def _mixed(pages: Iterable[Sequence[ObjectInfo]]) -> list[ObjectInfo]:
    """Mixes all objects, so that each page has objects of all key prefixes in proportion."""
    order = [
        ((nth + 0.5) / len(page), place, nth, info)
        for place, page in enumerate(pages)
        for nth, info in enumerate(page)
    ]
    return [info for *_, info in sorted(order, key=lambda each: each[:3])]
