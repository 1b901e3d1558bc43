"""Real daemons whose source is listed slowly, fails in the middle, or has no end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cachecd.cli.status import command as show_status
from cachecd_client import Epoch
from cachecd_client.errors import AcquireTimeoutError
from tests.e2e.daemons import Daemon, file_source, wait_until
from tests.e2e.inventory import inventory, repeated
from tests.e2e.listing_bucket import ListingBucket, content, listing_bucket
from tests.e2e.reading import by_numpy, rows

UNITS = 1300  # two blocks that may be walked while the listing runs, and the rest
HELD = 1000  # the first unit of the pages that are held
GIVEN = 1100  # units listed by then: the glances are answered
RELEASED = 1 << 62
PATTERN = r"^\d{6}(\d)"  # the last digit of its number is an object's class
CLASSES = [9, 1, "8", 2, 7, 3, 6, 4, 5]  # all but 0, in no natural order


@pytest.fixture
def bucket() -> Iterator[ListingBucket]:
    with listing_bucket(UNITS) as found:
        yield found


@pytest.fixture
def served(bucket: ListingBucket, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Makes daemons of this bucket: some 100 objects a shard, and `first` is four shards."""
    with ExitStack() as running:

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


def payloads(epoch: Epoch) -> dict[str, bytes]:
    return {bytes(key).decode(): bytes(p) for key, p in rows(epoch, "key", "payload")}


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


def test_a_wait_for_the_listings_end_is_told_and_ended_by_naming_the_classes(
    served, bucket, capsys
):
    bucket.held_at = HELD
    one = served(label={"pattern": PATTERN}).start()
    wait_until(lambda: listed(one) == GIVEN, what="what the store gives is listed")
    found = one.train
    assert (found["open_streams"], found["listed"], found["stopped"]) == (0, False, "")
    assert "label.classes" in found["waits_for"]
    show_status(one.endpoint)
    told = capsys.readouterr().out
    assert "still listing" in told
    assert found["waits_for"] in told
    with one.connect() as cache, pytest.raises(AcquireTimeoutError, match=r"label\.classes"):
        cache.acquire("train", epoch=0, job="a", timeout=0.3)
    assert one.terminate() == 0

    names = [str(digit) for digit in range(10)]
    one.document["datasets"]["train"]["source"]["label"]["classes"] = names
    one.start()
    with one.connect() as cache, cache.acquire("train", epoch=0, job="a") as epoch:
        assert read(epoch, names)
    assert set(bucket.fetched) <= {f"train/{n:07d}" for n in range(GIVEN)}


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


@pytest.mark.long
def test_a_listing_without_end_is_told_and_sampling_goes_on(served, bucket):
    bucket.units, bucket.suffix = 10**7, 300 * "x"
    one = served(limit="24MiB").start()
    # Either shards have all room till then, or the index has all that it may have.
    wait_until(lambda: "room" in str(one.train["stopped"]), what="told")
    with one.connect() as cache:
        for epoch in range(20):
            with cache.acquire("train", epoch=epoch, job="a", timeout=30) as leased:
                assert leased.num_records >= 300
            one.settle()
            assert one.status()["cache"]["used"] <= 24 << 20
            if one.train["evicted_shards"] >= 2:
                return
    raise AssertionError("nothing is evicted for what is listed")


def test_while_it_runs_new_and_rewritten_objects_are_taken_up(tmp_path):
    source = tmp_path / "source"
    names = [f"{n:03d}" for n in range(400)]
    dataset = {
        "source": file_source(source, {name: content(int(name)) for name in names}),
        "grow": {"first": "16KiB", "per_epoch": 0},
        "relist": "200ms",
    }
    with Daemon(tmp_path, {"train": dataset}, shard_size="64KiB", limit="16MiB").start() as one:
        wait_until(lambda: one.train["shards"] and one.train["listed"], what="the first shard")
        one.settle()
        assert not one.train["whole"]
        cached = {int(unit) for shard in inventory(one.cache).values() for unit in shard.units}
        gone, *rewritten = sorted(set(range(400)) - cached)[-40:]
        (source / names[gone]).unlink()
        for n in rewritten:
            (source / names[n]).write_bytes(content(1000 + n))
        (source / "new").write_bytes(content(100))
        wait_until(lambda: one.train["units"] == 401, what="what is new is listed")
        before = one.train["listings"]
        wait_until(lambda: one.train["listings"] > before, what="it is listed again and again")
        assert one.train["listing"]["ended_ago_s"] < 60
        assert one.train["listing"]["failed"] == ""
        one.document["datasets"]["train"]["grow"] = {"first": "16KiB"}
        one.write_config()
        os.kill(one.pid, signal.SIGHUP)
        one.until_whole()

        def found() -> dict[str, bytes]:
            with one.connect() as cache, cache.acquire("train", epoch=0, timeout=20) as leased:
                return payloads(leased)

        original = {names[n]: content(n) for n in {*range(400)} - {gone}} | {"new": content(100)}
        wait_until(lambda: found().keys() == original.keys(), what="the supplement has the rest")
        now = found()
        others = {key for key in now if now[key] != original[key]}
        assert len(others) > 30, "a shard that was made meanwhile may have some old versions"
        assert {key: now[key] for key in others} == {
            key: content(1000 + int(key)) for key in others
        }
        assert others <= {names[n] for n in rewritten}
        assert names[gone] in one.skipped()
