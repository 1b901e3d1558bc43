"""The shard being written: its bounds, its schema, its end."""

from __future__ import annotations

import errno
import json
import resource
from pathlib import Path

import pytest

from cachecd.errors import DiskError, UnitError
from cachecd.model import MOST_LANES, Cursor, Lane, Skipped, Unit
from cachecd.sampler.draft import (
    Draft,
    cursors_text,
    discard,
    skipped_bytes,
)
from cachecd_client._core import Sidecar, read_record
from cachecd_client.schema import Feature, Schema

CAPACITY = 64 << 10


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "shard.tfrecord")


def draft(path: str, schema: Schema | None = None, capacity: int = CAPACITY, **more) -> Draft:
    return Draft(path, capacity, schema, lambda _: None, {"dataset": "train", "number": 3}, **more)


def unit(number: int) -> Unit:
    return Unit(number, f"{number}", 1000)


def test_nothing_is_on_disk_before_the_first_record_nor_after_an_abort(path: str, tmp_path: Path):
    one = draft(path)
    assert list(tmp_path.iterdir()) == []
    assert one.room == CAPACITY
    one.add({"x": 1}, unit(0), 0)
    assert Path(path).exists()
    one.abort()
    one.abort()
    assert list(tmp_path.iterdir()) == []


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


def test_the_first_record_describes_the_dataset_and_only_where_it_is_unknown(path: str):
    told: list[Schema] = []
    one = Draft(path, CAPACITY, None, told.append, {})
    one.add({"x": 1}, unit(0), 0)
    one.add({"x": 2}, unit(1), 0)
    one.describe(Schema(()))
    assert told == [Schema((Feature("x", "int64", "int64", ()),))]
    one.abort()
    known = Draft(path, CAPACITY, told[0], told.append, {})
    known.add({"x": 1}, unit(0), 0)
    known.abort()
    assert len(told) == 1


def test_files_left_by_a_killed_process_are_replaced(path: str):
    for name in (path, path + ".idx"):
        Path(name).write_bytes(b"left over")
    one = draft(path)
    one.add({"x": 1}, unit(0), 0)
    one.seal({})
    assert len(read_record(path, 0)) > 0
    discard(path)
    discard(path)
    assert not Path(path).exists()


def test_a_disk_that_refuses_leaves_nothing(path: str, tmp_path: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (CAPACITY // 2, hard))
    try:
        with pytest.raises(DiskError) as caught:
            draft(path).add({"x": 1}, unit(0), 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


def test_the_classes_of_a_label_survive_a_transform(path: str):
    told: list[Schema] = []
    one = Draft(path, CAPACITY, None, told.append, {}, classes=("cat", "dog"))
    one.add({"label": 1, "weight": 3, "image": b"..."}, unit(0), 0)
    one.abort()
    assert told[0]["label"].classes == ("cat", "dog")
    assert told[0]["weight"].classes == told[0]["image"].classes == ()


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
        sealed = one.seal(cursors_text(cursor, cursor, skipped))
        assert sealed.allocated <= CAPACITY
        discard(path)
    assert len(counts) == 1


def test_sidecar_of_a_stream_says_where_the_stream_was(path: str):
    one = draft(path, skips=1 << 10)
    one.add({"x": 1}, Unit(7, "a/\udcff.tar", 1000, "etag", begin=512), 0)
    before, after = Cursor(1, 2, 3), some_cursor(True)
    sealed = one.seal(cursors_text(before, after, [Skipped(9, "b", 5, 2, "gone", False)]))
    sidecar = Sidecar.read(path + ".idx")
    meta = json.loads(sidecar.meta)
    assert list(meta) == ["dataset", "number", "before", "after", "skipped", "schema"]
    assert (Cursor.unpack(meta["before"]), Cursor.unpack(meta["after"])) == (before, after)
    assert meta["skipped"] == [[9, "b", 5, 2, "gone", False]]
    assert sidecar.table == [(7, b"a/\xed\xb3\xbf.tar", 512, b"etag")]
    assert sealed.digest == sidecar.digest


def test_shard_without_records_is_a_sidecar_alone(path: str, tmp_path: Path):
    one = draft(path)
    with pytest.raises(UnitError, match="does not fit"):
        one.add({"x": bytes(CAPACITY)}, unit(0), 0)
    sealed = one.seal(cursors_text(Cursor(), Cursor(1), []))
    assert [file.name for file in tmp_path.iterdir()] == ["shard.tfrecord.idx"]
    assert (sealed.records, sealed.data_bytes, sealed.digest) == (0, 0, 0)
    assert len(Sidecar.read(path + ".idx")) == 0


def test_sealed_draft_goes_on_with_the_next_shard(path: str, tmp_path: Path):
    one = draft(path)
    first = 0
    while one.add({"x": first}, unit(first), 0):
        first += 1
    assert one.full
    one.seal({})
    one.go_on(str(tmp_path / "next"), {"dataset": "train", "number": 4})
    assert (one.full, one.records, one.num_bytes) == (False, 0, 0)
    second = 0
    while one.add({"x": second}, unit(second), 0):
        second += 1
    one.seal({})
    assert (second, json.loads(Sidecar.read(str(tmp_path / "next.idx")).meta)["number"]) == (
        first,
        4,
    )
    assert (tmp_path / "next").read_bytes() == Path(path).read_bytes()
