"""The shard being written: its bounds, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cachecd.errors import RecordError, UnitError
from cachecd.model import MOST_LANES, Cursor, Lane, Skipped, Unit
from cachecd.sampler.draft import Draft, discard, end_text, skipped_bytes
from cachecd_client._core import Sidecar
from cachecd_client.schema import Feature, Schema

CAPACITY = 64 << 10


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "shard.tfrecord")


def draft(path: str, schema: Schema | None = None, capacity: int = CAPACITY, **more) -> Draft:
    return Draft(path, capacity, schema, lambda _: None, {"dataset": "train", "number": 3}, **more)


def unit(number: int) -> Unit:
    return Unit(number, f"{number}", 1000)


def test_both_files_never_take_more_than_the_capacity_however_long_the_schema(path: str):
    classes = tuple(f"n{number:08d}" for number in range(1000))
    schema = Schema((Feature("label", "int64", "int64", (), classes=classes),))
    one = draft(path, schema)
    count = 0
    while one.add({"label": 5}, unit(count), 0):
        count += 1
    sealed = one.seal({})
    assert sealed.allocated <= CAPACITY
    assert sealed.records == count
    assert CAPACITY - sealed.allocated <= 3 * 4096, "hardly any room is wasted"
    assert Schema.from_json(json.loads(Sidecar.read(path + ".idx").meta)["schema"]) == schema


@pytest.mark.parametrize("value", [None, object(), {"a": 1}, [], 1 << 70, [1, "a"]])
def test_a_value_that_cannot_be_stored_is_the_units_fault(path: str, value: object):
    with pytest.raises(UnitError):
        draft(path).add({"x": value}, unit(0), 0)
    with pytest.raises(UnitError):
        draft(path, Schema((Feature("x", "int64", "int64", ()),))).add({"x": value}, unit(0), 0)
    assert not Path(path).exists()


def some_cursor(wide: bool) -> Cursor:
    """With as many lanes as there may be, or none."""
    most = 2**31
    lanes = [Lane(most, place, 2**63, 2**64 - 1, 2**62, most, 2**62) for place in range(MOST_LANES)]
    return Cursor(most, most, most, tuple(lanes)) if wide else Cursor()


def skips(path: str, reason: str, key: str = "key") -> list[Skipped]:
    """As many as a shard of CAPACITY skips before it ends."""
    limit, skipped = CAPACITY // 128, 0
    found = []
    while skipped < limit:
        found.append(Skipped(2**60, key, 2**64 - 1, 2**31, reason, True))
        skipped += skipped_bytes(key)
    return found


@pytest.mark.parametrize("key", ["k", "k" * 900, "\udcff" * 500, '"' * 2000])
def test_fullness_depends_on_no_cursor_number_or_reason(path: str, key: str):
    """However long the text is that is known only at the end, as many records fit, and it fits too."""
    schema = Schema((Feature("x", "bytes", "bytes", ()),))
    counts = set()
    for wide, number in ((False, 3), (True, 2**62)):
        meta = {"dataset": "train", "number": number}
        one = Draft(path, CAPACITY, schema, lambda _: None, meta, skips=CAPACITY // 128)
        count = 0
        while one.add({"x": b"x" * 500}, unit(count % 7), count):
            count += 1
        counts.add(count)
        cursor = some_cursor(wide)
        skipped = skips(path, "\N{BLACK STAR} went wrong " * 99, key) if wide else []
        sealed = one.seal(end_text(cursor, cursor, number, number, skipped))
        assert sealed.allocated <= CAPACITY
        discard(path)
    assert len(counts) == 1


def test_misfits_are_told_from_other_failures(path):
    one = Draft(path, 1 << 20, None, lambda _: None, {})
    assert one.add({"x": 1}, unit(0), 0)
    for number in range(1, 4):
        with pytest.raises(RecordError) as caught:
            one.add({"y": b""}, unit(0), number)
        one.pass_over(unit(0), number, caught.value)
    one.pass_over(unit(0), 4, RecordError("your code failed"))
    assert (one.records, one.num_passed, one.misfits) == (1, 4, 3)
    assert one.misfit.startswith("'0: record 1': record does not fit the schema")
    assert [each.records for each in one.passed] == [3, 1]
    one.abort()
