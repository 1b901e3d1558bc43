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


@pytest.mark.parametrize(
    ("fits", "misfits", "full", "verdict"),
    [
        *((30, 0, True, ""), (600, 400, True, ""), (400, 600, True, "588 of the first 988")),
        *((10, 11, True, None), (10, 11, False, "11 of the first 21"), (1, 60, True, "60 of the")),
    ],
)
def test_the_schema_is_judged_by_the_first_records(path, fits, misfits, full, verdict):
    """At the end of a shard, or of the pass, or after a thousand records. Other failures are no contradictions."""
    told: list[str | None] = []
    one = Draft(path, 1 << 20, None, lambda _, why: told.append(why), {})
    for number in range(max(fits, misfits)):
        if number < fits:
            assert one.add({"x": number}, unit(0), 3 * number)
        if number < misfits:
            with pytest.raises(RecordError) as caught:
                one.add({"y": b""}, unit(0), 3 * number + 1)
            one.pass_over(unit(0), 3 * number + 1, caught.value)
        if number % 50 == 7:
            one.pass_over(unit(0), 3 * number + 2, RecordError("your code failed"))
    one.judge(more=full)
    one.judge(more=full)
    one.abort()
    assert told[0] is None
    if verdict is None:
        assert told == [None]
    else:
        assert told[1].startswith(verdict)
        assert ("'0: record 1'" in told[1]) == bool(verdict)
        assert len(told) == 2
