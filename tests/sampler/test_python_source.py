"""Format `python`: the user's class lists units and reads them, and may do so badly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachecd.config import DatasetConfig, SourceConfig
from cachecd.errors import ConfigError, RecordError, SourceUnreachableError
from cachecd.model import ObjectInfo, Unit
from cachecd.sampler.formats import open_format
from cachecd.sampler.formats.python import Lockstep
from cachecd.sampler.user_reader import UNSIZED
from cachecd.units.source_units import list_units
from cachecd.units.unit_store import open_unit_store
from cachecd_client._core import decode_example, encode_example
from tests.contracts.format import Bench, FormatContract
from tests.sampler import readers

RNG = np.random.default_rng(11)
TEXTS = [
    b"\n".join(b"%d" % n * int(m) for n, m in enumerate(RNG.integers(1, 900, 40))) for _ in range(5)
]


def source(reader: str, **options: Any) -> dict[str, Any]:
    return {"format": "python", "reader": f"tests.sampler.readers:{reader}", "options": options}


def dataset(reader: str, **options: Any) -> DatasetConfig:
    return DatasetConfig.model_validate({"source": source(reader, **options)})


class TestPython(FormatContract):
    config = {"source": source("Lines")}  # noqa: RUF012

    def objects(self) -> list[bytes]:
        return TEXTS

    def records(self) -> Iterator[tuple[int, int, bytes]]:
        for unit, text in enumerate(TEXTS):
            for number, line in enumerate(text.split(b"\n")):
                yield unit, number, encode_example({"line": line, "number": number})


@pytest.fixture
def bench(tmp_path: Path):
    def make(reader: str, **options: Any) -> Bench:
        (tmp_path / "shards").mkdir()
        return Bench(open_format(dataset(reader, **options), ()), tmp_path / "shards")

    return make


def values(bench: Bench, count: int, size: int = UNSIZED) -> list[dict[str, Any]]:
    """The records of units called 0, 1 ..."""
    units = [Unit(n, str(n), size) for n in range(count)]
    shards = bench.pour_slices(units, [b""] * count)
    return [decode_example(record) for shard in shards for _, _, record in shard.records]


def test_a_unit_that_raises_is_read_once_more_and_then_set_aside_with_the_users_line(bench):
    made = bench("Lines", spoilt="0001")
    shards = made.pour(TEXTS[:3])
    units = [unit for shard in shards for unit, _, _ in shard.records]
    assert units.count(0) == units.count(2) == 40
    assert units.count(1) == 3, "what came before it stays, once"
    place = f"{readers.__file__}:"
    assert made.set_aside[1].startswith(
        f"tests.sampler.readers:Lines.read raised ValueError: a spoilt line ({place}"
    )
    reader = made.source._format._reader._reader  # type: ignore[attr-defined]
    assert reader.tried.count("0001") >= 2


def test_a_second_try_that_succeeds_passes_over_what_the_first_gave(bench, monkeypatch):
    tries = iter((True, False))

    def read(self: Any, unit: str, store: Any) -> Iterator[dict[str, int]]:
        fails = next(tries)
        for number in range(10):
            if number == 5 and fails:
                raise OSError("a licence server that was away")
            yield {"number": number}

    monkeypatch.setattr(readers.Counted, "read", read)
    made = bench("Counted", units=1)
    found = values(made, 1)
    assert [v["number"][1] for v in found] == [[n] for n in range(10)]
    assert made.set_aside == {}


def test_record_error_in_place_of_a_record_costs_that_record_alone(bench, monkeypatch):
    def read(self: Any, unit: str, store: Any) -> Iterator[dict[str, int] | RecordError]:
        for number in range(5):
            yield RecordError("it has no label") if number == 2 else {"number": number}

    monkeypatch.setattr(readers.Counted, "read", read)
    made = bench("Counted", units=1)
    assert [v["number"][1] for v in values(made, 1)] == [[0], [1], [3], [4]]
    assert made.reasons == ["it has no label"]
    assert made.set_aside == {}


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("none", "returned NoneType, expected an iterable of dicts"),
        ("dict", "returned dict, expected an iterable of dicts"),
        ("strings", "gave str, expected dicts"),
    ],
)
def test_what_is_no_record_sets_the_unit_aside(bench, how, reason):
    made = bench("Broken", how=how)
    assert values(made, 1) == []
    assert reason in made.set_aside[0]


def test_a_class_that_is_not_there_or_not_one_stops_the_dataset(bench):
    for reader, reason in (
        ("Nobody", "has no attribute 'Nobody'"),
        ("Lines.__doc__", "found str, expected a class"),
        ("Path", "has no method read"),
    ):
        with pytest.raises(ConfigError, match=reason):
            values(Bench(open_format(dataset(reader), ()), Path("/nowhere")), 1)


def test_a_record_may_be_changed_in_place_to_make_the_next(bench, monkeypatch):
    def read(self: Any, unit: str, store: Any) -> Iterator[dict[str, Any]]:
        record = {"data": np.zeros(3, np.uint8)}
        for number in range(100):
            record["data"][:] = number
            yield record

    monkeypatch.setattr(readers.Counted, "read", read)
    found = values(bench("Counted", units=1), 1)
    assert [bytes(v["data"][1][0]) for v in found] == [bytes([n] * 3) for n in range(100)]


@pytest.mark.timeout(20)
def test_cancelled_step_frees_the_thread_for_the_next():
    """Whatever the code was waiting for, and however often it tries again."""
    steps, tried = Lockstep(), []

    async def never() -> None:
        await asyncio.sleep(1000)

    def code() -> None:
        for attempt in range(3):
            try:
                steps.wait(never)
            except BaseException as error:
                tried.append((attempt, type(error).__name__))

    async def test() -> Any:
        task = asyncio.ensure_future(steps.run(code))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await steps.run(lambda: "next")

    assert asyncio.run(test()) == "next"
    assert tried == [(attempt, "CancelledError") for attempt in range(3)]


# --- listing


def listed(config: dict[str, Any], after: str = "") -> list[ObjectInfo]:
    found = SourceConfig.model_validate(config)
    return [unit for page in list_units(found, open_unit_store(found, 4), after) for unit in page]


def test_units_are_names_dicts_or_a_count():
    unsized = [ObjectInfo(name, UNSIZED) for name in ("a", "b", "7")]
    assert listed(source("Named", names=["a", "b", 7])) == unsized
    assert listed(
        source("Named", names=[{"name": "a", "size": 3}, {"name": "b", "label": "x"}])
    ) == [ObjectInfo("a", 3), ObjectInfo("b", UNSIZED, label="x")]
    assert [u.key for u in listed(source("Counted", units=12))] == [str(n) for n in range(12)]


def test_a_class_that_names_no_units_reads_the_objects_below_the_url(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    [unit] = listed({**source("Lines"), "url": f"file://{tmp_path}"})
    assert (unit.key, unit.size) == ("a", 5)
    with pytest.raises(SourceUnreachableError, match="a source without a url"):
        listed(source("Lines"))


def test_a_listing_goes_on_behind_a_unit_but_misses_none_that_comes_out_of_order():
    config = source("Named", names=["a", "b", "d", "c", "a2", "e"])
    assert [u.key for u in listed(config, "b")] == ["d", "c", "a2", "e"]
    assert [u.key for u in listed(config, "c")] == ["d", "c", "a2", "e"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("x" * 70_000, "name of 70000 bytes"),
        ("a\0b", "contains NUL"),
        ("", "its name is empty"),
        (True, "gave True, expected"),
        ({"size": 1}, "gave {'size': 1}, expected"),
        ({"name": "a", "size": -1}, "-1 bytes"),
    ],
)
def test_what_is_no_unit_stops_the_listing_and_is_named(given, reason):
    with pytest.raises(SourceUnreachableError, match=reason.replace("{", r"\{")):
        listed(source("Named", names=["a", given]))


def test_units_that_raise_are_told_with_the_users_line_after_what_came_before():
    seen = []
    found = SourceConfig.model_validate(source("Broken", how="raise"))
    with pytest.raises(
        SourceUnreachableError, match=r"LookupError: the index is gone \(/.*readers"
    ):
        seen += list_units(found, open_unit_store(found, 4))
    assert [u.key for page in seen for u in page] in ([], ["a", "b"])
