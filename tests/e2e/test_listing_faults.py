"""Real daemons whose source is listed slowly, or fails in the middle."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from cachecd_client import Epoch
from tests import scripted
from tests.e2e.daemons import Daemon, wait_until
from tests.e2e.inventory import inventory, repeated
from tests.e2e.reading import by_numpy
from tests.scripted import ScriptedServer, scripted_server

UNITS = 1300  # two blocks that may be walked while the listing runs, and the rest
HELD = 1000  # the first unit of the pages that are held
GIVEN = 1100  # units listed by then: the glances are answered
RELEASED = 1 << 62
PAGE = 1000
PATTERN = r"^\d{6}(\d)"  # the last digit of its number is an object's class
CLASSES = [9, 1, "8", 2, 7, 3, 6, 4, 5]  # all but 0, in no natural order


class ListingBucket:
    """UNITS objects below train/, by number. An Answer to every request.

    No whole page of the listing is given that begins at unit `held_at` or beyond: such a request hangs,
    or with `failing`, is refused. `listed_after` are the units after which pages were asked for (-1: the
    first), and `fetched` the keys of all reads.
    """

    def __init__(self, server: ScriptedServer) -> None:
        self.held_at = 1 << 62
        self.failing = False
        self.listed_after: list[int] = []
        self.fetched: list[str] = []
        self._server = server
        server.down = self._answer

    def source(self) -> dict[str, object]:
        place = {"url": "s3://bucket/train/", "endpoint": self._server.endpoint}
        return {**place, "format": "files", "anonymous": True}

    def key(self, unit: int) -> str:
        return f"train/{unit:07d}"

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        with contextlib.suppress(ConnectionError):  # of a daemon that was killed
            if "list-type" in asked:
                return self._list(handler, asked)
            wanted = unquote(url.path).removeprefix("/bucket/")
            self.fetched.append(wanted)
            scripted.body(content(int(wanted[6:13])), '"e"')(handler)
        return None

    def _list(self, handler: BaseHTTPRequestHandler, asked: dict[str, str]) -> None:
        after, most = asked.get("start-after", ""), min(int(asked["max-keys"]), PAGE)
        begin = int(asked.get("continuation-token", 0))
        if not begin:
            begin = bisect_right(range(UNITS), after, key=self.key)
            self.listed_after.append(begin - 1)
        while begin >= self.held_at and most == PAGE:
            if self.failing:
                return scripted.refusal(403, "AccessDenied")(handler)
            if self._server.over.wait(0.02):
                return scripted.hang_up(handler)
        end = min(begin + most, UNITS)
        rows = [
            f'<Contents><Key>{self.key(n)}</Key><Size>{len(content(n))}</Size><ETag>"e"</ETag></Contents>'
            for n in range(begin, end)
        ]
        more = end < UNITS
        rows += [f"<IsTruncated>{str(more).lower()}</IsTruncated>"]
        rows += [f"<NextContinuationToken>{end}</NextContinuationToken>"] if more else []
        scripted.body(f"<ListBucketResult>{''.join(rows)}</ListBucketResult>".encode())(handler)
        return None


def content(number: int) -> bytes:
    return f"object {number} ".encode() * 200


@pytest.fixture
def bucket() -> Iterator[ListingBucket]:
    with scripted_server() as server:
        yield ListingBucket(server)


@pytest.fixture
def served(bucket: ListingBucket, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Makes daemons of this bucket: some 100 objects a shard, and `first` is four shards."""
    with contextlib.ExitStack() as running:

        def make(name: str = "d", label: Any = None, **settings: Any) -> Daemon:
            (tmp_path / name).mkdir()
            source = bucket.source() | ({"label": label} if label else {})
            dataset = {"source": source, "grow": {"first": "1MiB"}}
            settings = {"shard_size": "256KiB", **settings}
            return running.enter_context(Daemon(tmp_path / name, {"train": dataset}, **settings))

        yield make


def units(one: Daemon) -> dict[int, list[int]]:
    return {n: [int(u) for u in shard.units] for n, shard in inventory(one.cache).items()}


def read(epoch: Epoch, classes: list[str]) -> set[int]:
    """The units' numbers: every record is its object, and its label the place of its class."""
    assert epoch.schema["label"].classes == tuple(classes)
    found = by_numpy(epoch)
    for key, (label, payload) in found.items():
        assert classes[label] == key.decode()[6]
        assert payload == content(int(key))
    return {int(key) for key in found}


def listed(one: Daemon) -> int:
    found: int = one.train["listing"]["objects"]
    return found


def test_killed_in_the_middle_of_a_listing_it_trains_before_and_goes_on_after(served, bucket):
    """The classes are given, so that nothing waits for the listing's end."""
    label, names = {"pattern": PATTERN, "classes": CLASSES}, [str(name) for name in CLASSES]
    bucket.held_at = HELD
    one = served(label=label).start()
    wait_until(lambda: listed(one) == GIVEN, what="what the store gives is listed")
    with one.connect() as cache, cache.acquire("train", epoch=0, job="a") as epoch:
        assert read(epoch, names)
    assert not one.train["listed"]
    assert one.train["waits_for"] == ""
    one.kill()

    asked = len(bucket.listed_after)
    one.start()
    wait_until(lambda: len(bucket.listed_after) > asked, what="it is listed again")
    assert one.terminate() == 0  # however long the store takes for its answer

    bucket.held_at = RELEASED
    one.start()
    one.until_whole()
    assert not repeated(inventory(one.cache))
    with one.connect() as cache, cache.acquire("train", epoch=1, job="a") as epoch:
        assert read(epoch, names) == {n for n in range(UNITS) if n % 10}
    # An object of another class is not fetched, and its skip reason names the class.
    assert not [key for key in bucket.fetched if key[len("train/") :][6] == "0"]
    why = (
        "class '0' is not in label.classes: add it to the list (which makes a new generation), or move "
        "its objects to another prefix"
    )
    assert set(one.skipped().values()) == {why[:128]}

    other = served("other", label).start()
    other.until_whole()
    assert units(other) == units(one)


def test_a_listing_that_fails_in_the_middle_is_told_and_sampling_goes_on(served, bucket):
    bucket.held_at, bucket.failing = HELD, True
    one = served().start()
    wait_until(lambda: "access denied" in str(one.train["stopped"]), what="it is told")
    wait_until(lambda: len(bucket.fetched) >= 700, what="what is listed is sampled")
    assert not one.train["listed"]
    bucket.held_at = RELEASED
    wait_until(lambda: one.train["whole"], 40.0, "it goes on by itself")
    wait_until(lambda: one.train["stopped"] == "", what="it is told")
    assert bucket.listed_after.count(-1) == 2  # the look at the start, and one listing
