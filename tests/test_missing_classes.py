"""What is said of classes that no record of the leases has: once, truly, and at a bounded cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from cachecd import missing_classes
from cachecd.catalog import Catalog, SavedPlan
from cachecd.config import DatasetConfig
from cachecd.errors import DiskError
from cachecd.index import Index
from cachecd.missing_classes import MissingClasses
from cachecd.model import Lease, ObjectInfo, Shard, ShardId

OBJECTS, CLASSES = 100, 10
PER_CLASS = OBJECTS // CLASSES


class Saver:
    behind = False


class Watched:
    """100 objects of ten classes, sorted; shards and leases of them as asked for; what was logged."""

    def __init__(self, folder: Path, **label: Any) -> None:
        source = {
            "url": "file:///d/",
            "format": "files",
            "label": {"pattern": "^([^/]+)/", **label},
        }
        plain = {"url": "file:///d/", "format": "files"}
        self.config = {"source": source, "stratify": bool(label.pop("stratify", False))}
        datasets = {
            "train": DatasetConfig.model_validate(self.config),
            "plain": DatasetConfig.model_validate({"source": plain}),
        }
        self.index = Index.open(folder, "train", "s")
        self.index.append([ObjectInfo(f"c{n // PER_CLASS}/{n:03d}", 1) for n in range(OBJECTS)])
        self.index.finish(() if "classes" in label else [f"c{n}" for n in range(CLASSES)])
        self.catalog, self.saver = Catalog(folder / "catalog.sqlite"), Saver()
        self.tasks: list[asyncio.Future[None]] = []
        self.watch = MissingClasses(
            datasets,
            self.catalog,
            self.saver,  # type: ignore[arg-type]
            {"train": self.index},
            lambda work: self.tasks.append(asyncio.ensure_future(work)),
        )
        self.looked_at: list[int] = []
        unit = self.index.unit
        self.index.unit = lambda n: (self.looked_at.append(n), unit(n))[1]  # type: ignore[method-assign]

    def shard(self, number: int, units: list[int]) -> None:
        made = Shard(ShardId("train", number), "g", len(units), 1, 1)
        self.catalog.save_progress(SavedPlan("train", {}, ()), shard=made, units=units)

    def lease(
        self, *shards: tuple[int, int], dataset: str = "train", alike: bool = True
    ) -> list[dict[str, Any]]:
        """Grants a lease of these shards; what is logged of it."""

        async def granted() -> None:
            lease = Lease("l", dataset, "job", 0, "g", shards, 1, 1, 0, False, "")
            self.watch.granted(lease, alike)
            await asyncio.wait_for(asyncio.gather(*self.tasks), 30)
            self.tasks.clear()

        with structlog.testing.capture_logs() as said:
            asyncio.run(granted())
        return said

    def status(self) -> dict[str, Any] | None:
        return self.watch.status("train")


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    one = Watched(tmp_path)
    yield one
    one.catalog.close()
    one.index.close()


def units_of(*classes: int) -> list[int]:
    return [n * PER_CLASS for n in classes]


def test_classes_that_the_first_lease_lacks_are_told_once_and_shown_until_a_later_one_has_them(
    watched,
):
    watched.shard(1, units_of(0, 1, 2))
    watched.shard(2, units_of(3, 9))
    assert watched.status() is None
    (said,) = watched.lease((1, 2))
    assert (said["event"], said["log_level"]) == ("leased records lack classes", "warning")
    assert (said["dataset"], said["missing"], said["of"]) == ("train", 5, 10)
    assert said["examples"] == ["c4", "c5", "c6", "c7", "c8"]
    assert said["do"] == "raise grow.first, or set stratify: true"
    expected = {"missing": 5, "of": 10, "examples": ["c4", "c5", "c6", "c7", "c8"]}
    assert watched.status() == {**expected, "units_looked_at": 5}

    watched.shard(3, units_of(4, 5, 6))
    assert watched.lease((1, 3)) == []
    assert watched.status() == {
        "missing": 2, "of": 10, "examples": ["c7", "c8"], "units_looked_at": 8,
    }  # fmt: skip

    watched.shard(4, units_of(7, 8))
    (said,) = watched.lease((2, 4))
    assert (said["event"], said["log_level"]) == ("leased records have all classes", "info")
    assert watched.status() is None
    looked_at = len(watched.looked_at)
    watched.shard(5, units_of(0))
    assert watched.lease((5, 5)) == []  # it is never looked into again
    assert len(watched.looked_at) == looked_at
    assert watched.status() is None


def test_a_first_lease_that_has_all_classes_is_not_spoken_of_and_read_no_further_than_that(watched):
    watched.shard(1, list(range(0, OBJECTS, 2)))
    watched.shard(2, list(range(1, OBJECTS, 2)))
    assert watched.lease((1, 2)) == []
    assert watched.status() is None
    assert watched.looked_at == list(range(0, 91, 2))  # class 9 begins with unit 90


def test_no_shard_is_looked_into_twice(watched):
    watched.shard(1, units_of(0, 1))
    watched.shard(2, units_of(2))
    watched.lease((1, 1))
    watched.lease((1, 2))
    watched.lease((1, 2))
    assert watched.looked_at == units_of(0, 1, 2)


def test_of_a_great_lease_so_many_units_are_looked_at_and_it_says_how_many(watched, monkeypatch):
    monkeypatch.setattr(missing_classes, "_MOST_UNITS", 3)
    for number in range(1, 6):
        watched.shard(number, [*units_of(number - 1), (number - 1) * PER_CLASS + 1])
    (said,) = watched.lease((1, 5))
    assert (said["missing"], said["units_looked_at"]) == (8, 4)
    assert watched.lease((1, 5)) == []  # goes on with the next lease
    assert watched.status()["missing"] == 6


def test_nothing_is_said_of_shards_whose_units_are_not_known(watched):
    watched.shard(1, units_of(0))
    watched.shard(2, [])  # its row is lost
    assert watched.lease((1, 2)) == []
    assert watched.status() is None
    watched.shard(3, units_of(1))
    (said,) = watched.lease((3, 3))
    assert said["missing"] == 8


def test_shards_that_name_their_units_by_another_listing_are_not_looked_into(watched):
    watched.shard(1, [OBJECTS + 5])
    assert watched.lease((1, 1), alike=False) == []
    assert watched.looked_at == []


def test_while_no_class_is_known_nothing_is_said_and_then_it_is(watched):
    """A new listing runs, and the old generation is leased."""
    watched.shard(1, units_of(0, 1, 2))
    known, watched.index.classes = watched.index.classes, ()
    assert watched.lease((1, 1)) == []
    assert watched.status() is None
    watched.index.classes = known
    (said,) = watched.lease((1, 1))
    assert said["missing"] == 7


def test_a_catalog_that_is_behind_is_waited_for(watched, monkeypatch):
    monkeypatch.setattr(missing_classes, "_POLL", 0.001)
    watched.saver.behind = True

    async def late() -> None:
        watched.watch.granted(
            Lease("l", "train", "job", 0, "g", ((1, 1),), 1, 1, 0, False, ""), True
        )
        await asyncio.sleep(0.01)
        assert watched.status() is None
        watched.shard(1, [n for n in range(OBJECTS) if n // PER_CLASS != 4])
        watched.saver.behind = False
        await asyncio.wait_for(asyncio.gather(*watched.tasks), 30)

    asyncio.run(late())
    assert watched.status()["examples"] == ["c4"]


def test_a_disk_that_refuses_costs_one_look(watched):
    def refuse(number: int) -> None:
        raise DiskError("cannot read the index")

    watched.shard(1, units_of(0, 1))
    unit, watched.index.unit = watched.index.unit, refuse
    (said,) = watched.lease((1, 1))
    assert (said["event"], said["why"]) == ("classes not looked for", "cannot read the index")
    assert watched.status() is None
    watched.index.unit = unit
    (said,) = watched.lease((1, 1))
    assert said["missing"] == 8


def test_a_search_that_fails_as_nobody_thought_is_logged_and_begun_again_with_the_next_lease(
    watched,
):
    def fail(number: int) -> None:
        raise RuntimeError("nobody thought of this")

    watched.shard(1, units_of(0, 1))
    unit, watched.index.unit = watched.index.unit, fail
    (said,) = watched.lease((1, 1))
    assert (said["event"], said["log_level"]) == ("classes not looked for", "error")
    watched.index.unit = unit
    (said,) = watched.lease((1, 1))
    assert said["missing"] == 8


def test_with_given_classes_these_are_the_known_ones_in_their_order(tmp_path):
    one = Watched(tmp_path, classes=["c3", "nowhere", "c0", "c9"])
    one.shard(1, units_of(0, 1, 2))
    (said,) = one.lease((1, 1))
    assert (said["of"], said["examples"]) == (4, ["c3", "nowhere", "c9"])
    one.catalog.close()
    one.index.close()


def test_of_a_dataset_without_labels_nothing_is_asked(watched):
    assert watched.lease((1, 1), dataset="plain") == []
    assert watched.watch.status("plain") is None


@pytest.mark.parametrize(
    ("listed", "stratify", "expected"),
    [
        (True, False, "raise grow.first, or set stratify: true"),
        (True, True, "raise grow.first"),
        (
            False,
            False,
            "raise grow.first, or set stratify: true, or begin when the listing has come to its end",
        ),
    ],
)
def test_what_to_do_fits_the_dataset(listed, stratify, expected):
    assert missing_classes._advice(listed, stratify) == expected
