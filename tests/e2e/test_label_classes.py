"""Real daemons of a labelled source whose listing has no end, or comes to none for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cachecd.cli.status import command as show_status
from cachecd_client import Epoch
from cachecd_client.errors import AcquireTimeoutError
from tests.e2e.daemons import Daemon, wait_until
from tests.e2e.inventory import inventory, repeated
from tests.e2e.listing_bucket import ListingBucket, content, listing_bucket
from tests.e2e.reading import by_numpy

UNITS = 1300
FOREVER = 1 << 62
PATTERN = r"^\d{6}(\d)"  # the last digit of its number is an object's class
CLASSES = [9, 1, "8", 2, 7, 3, 6, 4, 5]  # all but 0, and in an order of nobody's


@pytest.fixture
def bucket() -> Iterator[ListingBucket]:
    with listing_bucket(UNITS) as found:
        yield found


@pytest.fixture
def served(bucket: ListingBucket, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """A daemon of this bucket with this label; `first` is a shard of some hundred objects."""

    with Daemon(tmp_path, {}) as one:

        def configured(**label: Any) -> Daemon:
            source = {**bucket.source(), "label": {"pattern": PATTERN, **label}}
            one.document["datasets"]["train"] = {"source": source, "grow": {"first": "200KiB"}}
            return one

        yield configured


def assert_labels(epoch: Epoch, classes: list[str]) -> set[int]:
    """Every record is its object, and its label the place of its class; the units' numbers."""
    assert epoch.schema["label"].classes == tuple(classes)
    found = by_numpy(epoch)
    for key, (label, payload) in found.items():
        assert classes[label] == key.decode()[6]
        assert payload == content(int(key))
    return {int(key) for key in found}


@pytest.mark.long
def test_with_classes_it_trains_before_the_listing_ends_is_killed_there_and_repeats_nothing(
    served, bucket
):
    bucket.held_at = 1000
    one, names = served(classes=CLASSES).start(), [str(name) for name in CLASSES]
    with one.connect() as cache, cache.acquire("train", epoch=0, job="a") as epoch:
        assert assert_labels(epoch, names)
    assert not one.train["listed"]
    assert one.train["waits_for"] == ""
    one.kill()

    bucket.held_at = FOREVER
    one.start()
    one.until_whole()
    assert bucket.listed_after.count(-1) == 3  # the look at the start, and two listings
    with one.connect() as cache, cache.acquire("train", epoch=1, job="a") as epoch:
        assert assert_labels(epoch, names) == {n for n in range(UNITS) if n % 10}
    assert not repeated(inventory(one.cache))

    # What is not in the list costs no fetch, and is told by its class.
    assert not [key for key in bucket.fetched if key[len("train/") :][6] == "0"]
    why = (
        "class '0' is not in label.classes: add it to the list (which makes a new generation), or move "
        "its objects to another prefix"
    )
    assert set(one.skipped().values()) == {why[:128]}


def test_a_wait_for_the_listings_end_is_told_and_ended_by_naming_the_classes(
    served, bucket, capsys
):
    bucket.held_at = 1000
    one = served().start()
    wait_until(
        lambda: one.train["listing"]["objects"] == 1100, what="what the store gives is listed"
    )
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
    one = served(classes=names).start()
    with one.connect() as cache, cache.acquire("train", epoch=0, job="a") as epoch:
        assert assert_labels(epoch, names)
    assert set(bucket.fetched) < {f"train/{n:07d}" for n in range(1100)}
