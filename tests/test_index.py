"""The index: numbers that stay, memory that does not grow, crashes that lose nothing."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd.errors import DiskError
from cachecd.index import Index, drop_unused
from cachecd.model import ObjectInfo, UnitSlice

SOURCE = "s3://bucket/train/ files"
HOSTILE_KEYS = [
    "",
    "..",
    "../../etc/passwd",
    "/absolute",
    "a\nb",
    "nul\0inside",
    "ends in nul\0",
    "\u202eright to left",
    "e\u0301",
    "\u00e9",
    "\udcff not UTF-8 on a local disk",
    "\U0001f600" * 256,
    "k" * 1024,
    " ",
]


@pytest.fixture
def index(tmp_path):
    opened = Index.open(tmp_path, "train", SOURCE)
    yield opened
    opened.close()


def objects(start: int, stop: int) -> list[ObjectInfo]:
    return [
        ObjectInfo(f"class-{n % 7}/image-{n}.jpg", n * n, f"etag-{n}") for n in range(start, stop)
    ]


def listed(index: Index) -> list[ObjectInfo]:
    units = [index.unit(n) for n in range(len(index))]
    assert [(u.unit, u.ordinal, u.offset) for u in units] == [(n, 0, 0) for n in range(len(index))]
    assert index.sizes(np.arange(len(index), dtype=np.uint64)).tolist() == [u.size for u in units]
    assert index.num_bytes == sum(u.size for u in units)
    return [ObjectInfo(u.key, u.size, u.etag, u.begin, u.label) for u in units]


def reopened(index: Index, source: str = SOURCE) -> Index:
    index.close()
    return Index.open(index.path.parent, "train", source)


def test_units_are_numbered_in_listing_order_and_survive_a_restart(index):
    assert index.append(objects(0, 3)) == 3
    assert index.append(objects(3, 10)) == 7
    again = reopened(index)
    assert listed(again) == objects(0, 10)
    assert (again.id, again.complete, again.discarded) == (index.id, False, "")
    assert again.unit(4) == UnitSlice(4, "class-4/image-4.jpg", 16, "etag-4")
    again.close()


def test_a_relisting_in_another_order_appends_only_what_is_new(index):
    index.append(objects(0, 50))
    again = reopened(index)
    assert again.append(list(reversed(objects(20, 60)))) == 10
    assert listed(again)[:50] == objects(0, 50)
    assert sorted(listed(again)[50:], key=lambda o: o.size) == objects(50, 60)
    again.close()


def test_a_key_listed_twice_counts_once_and_keeps_its_first_size(index):
    assert index.append([ObjectInfo("a", 1), ObjectInfo("a", 2), ObjectInfo("b", 3)]) == 2
    assert index.append([ObjectInfo("b", 4, "new")]) == 0
    assert listed(index) == [ObjectInfo("a", 1), ObjectInfo("b", 3)]


@pytest.mark.parametrize("pages", [1, len(HOSTILE_KEYS)])
def test_hostile_keys_come_back_as_they_were(index, pages):
    given_objects = [ObjectInfo(key, n, key[::-1]) for n, key in enumerate(HOSTILE_KEYS)]
    for page in np.array_split(np.arange(len(given_objects)), pages):
        index.append([given_objects[n] for n in page])
    again = reopened(index)
    assert listed(again) == given_objects
    assert sorted(p.name for p in again.path.parent.iterdir()) == [index.path.name]
    again.close()


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40)


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.builds(ObjectInfo, ANY_TEXT, st.integers(0, 2**63 - 1), ANY_TEXT), max_size=6)
    )
)
def test_an_index_is_the_first_of_each_key_in_order(tmp_path_factory, pages):
    directory = tmp_path_factory.mktemp("index")
    expected: dict[str, ObjectInfo] = {}
    for page in pages:
        index = Index.open(directory, "train", SOURCE)
        new = {o.key for o in page} - expected.keys()
        assert index.append(page) == len(new)
        for o in page:
            expected.setdefault(o.key, o)
        assert [index.unit(n).key for n in range(len(index))] == list(expected)
        index.close()
    index = Index.open(directory, "train", SOURCE)
    assert [ObjectInfo(u.key, u.size, u.etag) for u in map(index.unit, range(len(index)))] == list(
        expected.values()
    )
    index.close()
    shutil.rmtree(directory)


def test_more_units_than_fit_a_block_are_spread_over_several(index):
    count = 40_000
    assert index.append([ObjectInfo(f"{n:06d}", n) for n in range(count)]) == count
    again = reopened(index)
    for n in (0, 1, 16_383, 16_384, 16_385, 32_767, 32_768, count - 1):
        assert again.unit(n) == UnitSlice(n, f"{n:06d}", n)
    numbers = np.array([39_999, 0, 16_384], np.uint64)
    assert again.sizes(numbers).tolist() == [39_999, 0, 16_384]
    assert again.append([ObjectInfo(f"{n:06d}", n) for n in range(count)]) == 0
    again.close()


def test_a_number_outside_is_an_index_error(index):
    index.append(objects(0, 2))
    for number in (-1, 2):
        with pytest.raises(IndexError, match=rf"unit {number}, the index of train\..* has 2"):
            index.unit(number)
    with pytest.raises(IndexError):
        index.sizes(np.array([2], np.uint64))


@pytest.mark.parametrize(
    "bad", [ObjectInfo("a", -1), ObjectInfo("k" * 65_536, 1), ObjectInfo("a", 1, "e" * 65_536)]
)
def test_an_impossible_object_is_refused_and_its_page_with_it(index, bad):
    with pytest.raises(
        ValueError, match="expected a size of at least 0, and key and etag below 65536"
    ):
        index.append([*objects(0, 3), bad])
    assert len(index) == 0
    assert index.append(objects(0, 3)) == 3


def test_finish_keeps_known_classes_in_place_and_appends_new_ones(index):
    index.append(objects(0, 3))
    assert not index.complete
    index.finish(["cat", "dog"])
    again = reopened(index)
    assert (again.complete, again.classes) == (True, ("cat", "dog"))
    again.finish(["ant", "dog", "\udcff"])
    again = reopened(again)
    assert again.classes == ("cat", "dog", "ant", "\udcff")
    assert again.append(objects(0, 4)) == 1
    assert reopened(again).complete


def test_a_finish_that_says_nothing_new_writes_nothing(index):
    index.append(objects(0, 3))
    index.finish(["cat"])
    before = index.path.read_bytes()
    index.finish(["cat"])
    assert index.path.read_bytes() == before


def test_another_source_is_listed_beside_under_another_id_and_the_first_is_found_again(index):
    index.append(objects(0, 3))
    other = reopened(index, "s3://other/ files")
    assert (len(other), other.discarded) == (0, "")
    assert other.id != index.id
    back = reopened(other)
    assert (back.id, listed(back)) == (index.id, objects(0, 3))
    back.close()


def test_of_a_datasets_listings_the_three_that_were_used_last_are_kept(tmp_path):
    def used(dataset: str, source: str) -> str:
        opened = Index.open(tmp_path, dataset, source)
        opened.append(objects(0, 3))
        opened.close()
        return opened.id

    neighbour, first, second = used("train-b", "a"), used("train", "a"), used("train", "b")
    assert used("train", "a") == first
    third, fourth = used("train", "c"), used("train", "d")
    kept = [name for name in (first, second, third, fourth) if Index.by_id(tmp_path, "train", name)]
    assert kept == [first, third, fourth]
    assert Index.by_id(tmp_path, "train-b", neighbour), (
        "another dataset's listings count for themselves"
    )


def test_unused_listings_go_when_room_is_needed_the_oldest_first(tmp_path):
    opened = [Index.open(tmp_path, name, "s") for name in ("a", "b", "c")]
    for age, index in enumerate(opened):
        index.close()
        os.utime(index.path, (1000 - age, 1000 - age))
    used = {opened[1].path}
    (tmp_path / "notes.txt").write_text("mine")
    assert [drop_unused(tmp_path, used) for _ in range(3)] == [opened[2].path, opened[0].path, None]
    assert sorted(p.name for p in tmp_path.iterdir()) == [opened[1].path.name, "notes.txt"]


def test_a_file_that_is_no_index_is_replaced(tmp_path):
    index = Index.open(tmp_path, "train", SOURCE)
    index.close()
    index.path.write_bytes(b"hello" * 100)
    index = Index.open(tmp_path, "train", SOURCE)
    assert (len(index), index.discarded) == (0, "it is not an index")
    index.append(objects(0, 3))
    assert listed(reopened(index)) == objects(0, 3)


def test_an_index_of_a_later_version_is_replaced(index):
    data = bytearray(index.path.read_bytes())
    data[8] = 3
    index.path.write_bytes(data)
    assert reopened(index).discarded == "it has version 3, expected 2"


def test_an_append_cut_off_at_any_byte_is_forgotten_and_can_be_repeated(index):
    index.append(objects(0, 3))
    before = index.path.stat().st_size
    index.append(objects(3, 5))
    whole = index.path.read_bytes()
    body = before + 40
    # In the order of writing: space is allocated, then the body is written, then the header.
    no_header = whole[:before] + bytes(40)
    states = [whole[:before] + bytes(length) for length in range(1, len(whole) - before + 1)]
    states += [
        no_header + whole[body:at] + bytes(len(whole) - at) for at in range(body, len(whole) + 1)
    ]
    states += [whole[:at] + bytes(body - at) + whole[body:] for at in range(before, body)]
    for state in states[::3]:
        index.path.write_bytes(state)
        again = reopened(index)
        assert (again.id, listed(again), again.discarded) == (index.id, objects(0, 3), "")
        assert again.path.stat().st_size == before
        assert again.append(objects(0, 5)) == 2
        again = reopened(again)
        assert (again.id, listed(again)) == (index.id, objects(0, 5))
        again.close()


def test_a_header_without_its_whole_body_is_damage(index):
    index.append(objects(0, 3))
    before = index.path.stat().st_size
    index.append(objects(3, 5))
    whole = index.path.read_bytes()
    for length in range(before + 40, len(whole), 5):
        index.path.write_bytes(whole[:length])
        again = reopened(index)
        assert (listed(again), again.discarded) == ([], f"the block at byte {before} is damaged")
        assert again.id != index.id
        again.close()


def test_a_flipped_bit_anywhere_never_gives_a_wrong_unit(index):
    index.append(objects(0, 2))
    index.append(objects(2, 4))
    index.finish(["cat"])
    whole = index.path.read_bytes()
    last_header = whole.rindex(bytes.fromhex(index.id))
    for at in range(0, len(whole), 3):  # every field has at least four bytes
        data = bytearray(whole)
        data[at] ^= 0x10
        index.path.write_bytes(data)
        again = reopened(index)
        if last_header <= at < last_header + 40:
            # Nothing tells a damaged last header from one that was being written.
            assert (again.id, listed(again), again.complete) == (index.id, objects(0, 4), False)
        else:
            assert again.id != index.id
            assert len(again) == 0
            assert again.discarded
        again.close()


def test_a_full_disk_leaves_the_index_as_it_was_and_the_append_can_be_repeated(index):
    index.append(objects(0, 100))
    size = index.path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
    try:
        with pytest.raises(DiskError, match=r"cannot extend .*train.*units: File too large"):
            index.append(objects(100, 200))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert index.path.stat().st_size == size
    assert listed(index) == objects(0, 100)
    assert index.append(objects(0, 200)) == 100
    assert listed(reopened(index)) == objects(0, 200)


def test_cost_bounds_what_an_append_and_a_finish_allocate(index):
    for page in range(20):
        new = [
            ObjectInfo(f"{'é' * (page * 13)}/{page}/{n}", n, "e" * page) for n in range(page * 97)
        ]
        classes = [f"class {page} {n} \U0001f600" for n in range(page * 10)]
        cost, before = index.cost(new, classes), index.allocated
        index.append(new)
        index.finish(classes)
        assert before <= index.allocated <= before + cost


def test_a_source_listed_again_unchanged_costs_nothing(index):
    listing = objects(0, 500)
    assert (index.look(listing)[0] == -1).all()
    index.append(listing)
    index.finish(["cat", "dog"])
    again = reopened(index)
    assert again.look(listing)[0].tolist() == list(range(len(listing)))
    assert again.cost((), ["dog", "cat"]) == 0
    assert again.cost((), ["dog", "emu"]) > 0
    assert (again.look(objects(400, 600))[0] >= 0).tolist() == [True] * 100 + [False] * 100


APPENDER = """
import sys
from pathlib import Path
from cachecd.index import Index
from cachecd.model import ObjectInfo

index = Index.open(Path(sys.argv[1]), "train", sys.argv[2])
n = len(index)
while True:
    index.append([ObjectInfo(f"key-{i}", i, f"etag-{i}") for i in range(n, n + 500)])
    n += 500
    print(n, flush=True)
"""


def test_kill_9_in_the_middle_of_appends_loses_no_append_that_returned(tmp_path):
    ids = set()
    for kills in range(1, 6):
        appender = subprocess.Popen(
            [sys.executable, "-c", APPENDER, str(tmp_path), SOURCE],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert appender.stdout is not None
        for _ in range(kills):
            returned = int(appender.stdout.readline())
        appender.send_signal(signal.SIGKILL)
        returned = int(([str(returned), *appender.stdout.read().split()])[-1])
        appender.wait()
        appender.stdout.close()
        index = Index.open(tmp_path, "train", SOURCE)
        assert len(index) - returned in (0, 500)
        assert listed(index) == [ObjectInfo(f"key-{i}", i, f"etag-{i}") for i in range(len(index))]
        ids.add(index.id)
        index.close()
    assert len(ids) == 1


def test_units_can_be_read_while_another_thread_appends(index):
    index.append(objects(0, 10))
    wrong: list[object] = []
    done = threading.Event()

    def read():
        while not done.is_set():
            for n in (0, len(index) - 1):
                expected = objects(n, n + 1)[0]
                if (index.unit(n).key, int(index.sizes(np.array([n], np.uint64))[0])) != (
                    expected.key,
                    expected.size,
                ):
                    wrong.append(n)

    reader = threading.Thread(target=read)
    reader.start()
    for start in range(10, 3000, 10):
        index.append(objects(start, start + 10))
    done.set()
    reader.join()
    assert wrong == []
    assert len(index) == 3000


def test_a_unit_costs_no_memory(tmp_path):
    def memory(units: int) -> int:
        index = Index.open(tmp_path, str(units), SOURCE)
        tracemalloc.start()
        try:
            for start in range(0, units, 4000):
                page = range(start, start + 4000)
                index.append([ObjectInfo(f"prefix/{n:09d}", n, f"{n:032x}") for n in page])
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
            index.close()

    assert memory(84_000) - memory(4000) < 80_000 * 0.5


def test_damage_met_while_reading_is_a_disk_error(index):
    index.append(objects(0, 3))
    os.truncate(index.path, index.path.stat().st_size - 1)
    with pytest.raises(DiskError, match="ends in the middle"):
        index.unit(2)
