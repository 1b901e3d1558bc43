"""Windows of arrays: which there are, how they are read, and what is refused."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from cachecd.sampler.formats import windows
from cachecd.sampler.formats.windows import TARGET
from cachecd.sampler.origin import MeteredStore
from cachecd_client._core import encode_example
from cachecd_client.schema import Feature
from tests.contracts.format import FormatContract
from tests.sampler.arrays import Place, config_of, npy

RNG = np.random.default_rng(7)


class TestNpy(FormatContract):
    """Whole objects as units: windows that overlap, at both ends of every dtype's order."""

    config = config_of({"window": 100, "stride": 70, "dtype": ">f4", "shape": [3]})
    arrays: ClassVar = [RNG.random((rows, 3)).astype(">f4") for rows in (100, 1000, 1269, 5000)]

    def objects(self) -> list[bytes]:
        return [array.tobytes() for array in self.arrays]

    def records(self) -> Iterator[tuple[int, int, bytes]]:
        for unit, array in enumerate(self.arrays):
            for nth, start in enumerate(range(0, len(array) - 99, 70)):
                data = array[start : start + 100].astype("<f4").tobytes()
                record = {"key": f"{unit:04d}".encode(), "start": start, "array": data}
                yield unit, nth, encode_example(record)


@pytest.fixture
def place(tmp_path: Path) -> Any:
    return lambda **array: Place(tmp_path, **array)


@pytest.mark.parametrize("version", [(1, 0), (3, 0)])
@pytest.mark.parametrize("dtype", ["int64", "bool", ">f8"])
def test_windows_of_a_npy_file_hold_its_rows_in_the_machines_order(place, version, dtype):
    found = place(window=20, stride=15)
    array = (RNG.random((1000, 2)) * 100).astype(dtype)
    found.put(a_npy=npy(array, version))
    records = found.records()
    assert [r["start"] for r in records] == list(range(0, 981, 15))
    assert all(np.array_equal(r["array"], array[r["start"] :][:20]) for r in records)
    assert {r["key"] for r in records} == {b"a.npy"}
    assert found.schema["array"] == Feature("array", "bytes", array.dtype.name, (20, 2), raw=True)


def test_a_large_array_is_many_units_whose_windows_are_all_of_it_once(place):
    found = place(window=1000, stride=600)
    array = np.arange(3 * TARGET // 8 + 77).astype(np.float64)
    found.put(a_npy=array)
    [units] = found.pages()
    assert len(units) == 3
    assert units[0].begin == 0
    assert all(u.size < TARGET + 1000 * 8 + 129 for u in units)
    records = found.records(units)
    assert [r["start"] for r in records] == list(range(0, len(array) - 999, 600))
    assert all(r["array"][0] == r["start"] for r in records)
    assert {r["unit"] for r in records} == {0, 1, 2}
    # What two units share is fetched twice, the header is the first one's, and no more is read.
    assert found.fetched_bytes < len(array) * 8 + 128 + 2 * 400 * 8 + 1
    # Cut by small shards, or each read alone, they are the same.
    again = Place(found.folder.parent, window=1000, stride=600)
    assert [r["start"] for r in again.records(units, 3_000_000)] == [r["start"] for r in records]
    alone = [r["start"] for unit in units for r in found.records([unit])]
    assert alone == [r["start"] for r in records]


def test_windows_far_apart_are_read_alone_and_what_lies_between_is_not(place):
    found = place(window=100, stride=100_000)
    array = np.arange(1_000_000, dtype=np.int32)
    found.put(a_npy=array)
    records = found.records()
    assert [r["start"] for r in records] == list(range(0, 1_000_000, 100_000))
    assert found.fetched_bytes < 10 * 400 + 2000


def test_aligned_arrays_are_read_together_by_their_stem(place):
    found = place(
        window=10, stride=5, arrays={
            "labels": "labels/*.npy",
            "audio": {"match": "audio/*.pcm", "dtype": ">i2", "shape": [2]},
            "scene": "scene/*.npy",
        },
    )  # fmt: skip
    for stem in "xy":
        labels = RNG.integers(0, 9, 100, np.uint8)
        audio = RNG.integers(-9, 9, (1600, 2)).astype(">i2")
        scene = np.arange(20.0)
        found.put(**{f"labels__{stem}_npy": labels, f"scene__{stem}_npy": scene})
        found.put(**{f"audio__{stem}_pcm": audio.tobytes()})
        if stem == "x":
            records = found.records()
            assert [r["start"] for r in records] == list(range(0, 91, 5))
            for r in records:
                at = r["start"]
                assert np.array_equal(r["labels"], labels[at : at + 10])
                assert np.array_equal(r["audio"], audio[16 * at : 16 * at + 160])
                assert r["scene"].tolist() == [at / 5, at / 5 + 1]
    assert {u.key for u in found.units()} == {"labels/x.npy", "labels/y.npy"}
    assert [[u.key for u in page] for page in found.pages("labels/x.npy")] == [["labels/y.npy"]]


@pytest.mark.parametrize("kind", ["npy", "raw"])
def test_an_array_beside_the_first_that_is_replaced_is_never_mixed(place, monkeypatch, kind):
    monkeypatch.setattr("cachecd.sampler.formats.windows.TARGET", 10_000)
    dtype = {"dtype": "int64"} if kind == "raw" else {}
    file = {"npy": "b.npy", "raw": "b.bin"}[kind]
    found = place(window=10, arrays={"a": "*.a.npy", "b": {"match": f"*.{file}", **dtype}})
    found.put(x_a_npy=np.arange(5000))

    def write(values: np.ndarray[Any, Any]) -> None:
        path = found.folder / f"x.{file}"
        path.write_bytes(npy(values) if kind == "npy" else values.tobytes())

    write(np.arange(5000))
    get, reads = MeteredStore.get, itertools.count()

    async def replacing(self: MeteredStore, key: str, *more: Any) -> Any:
        if key == f"x.{file}" and next(reads) == 6:
            write(-np.arange(5000))
        return await get(self, key, *more)

    units = found.units()
    assert len(units) > 5
    monkeypatch.setattr(MeteredStore, "get", replacing)
    records = found.records(units)
    assert 0 < len(records) < 500
    assert all(np.array_equal(r["a"], r["b"]) for r in records)
    reason = found.set_aside["x.a.npy"]
    assert reason.startswith("array.arrays.b: ")
    assert "changed since" in reason


@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_missing_sibling_sets_the_unit_aside_with_its_name(place, lost):
    found = place(window=5, arrays={"a": "*.a.npy", "b": "*.b.npy"})
    found.put(x_a_npy=np.arange(10), x_b_npy=np.arange(10), y_a_npy=np.arange(10))
    found.put(y_b_npy=np.arange(10))
    (found.folder / f"y.{lost}.npy").unlink()
    assert len(found.records()) == 2
    [(key, reason)] = found.set_aside.items()
    if lost == "b":
        assert (key, reason) == ("y.a.npy", "'y.b.npy' of array.arrays.b is missing")
    else:
        assert (key, reason) == ("y.b.npy", "no object '*.a.npy' of array.arrays.a belongs to it")


@pytest.mark.parametrize(
    ("rows", "window", "reason"),
    [
        (37, 4, "b has 37 rows and the first array 100: expected one to be a multiple"),
        (50, 5, "array.window (5) and array.stride (5) must be multiples of 2"),
        (0, 4, "0 rows"),
    ],
)
def test_arrays_whose_rows_do_not_divide_are_refused(place, rows, window, reason):
    found = place(window=window, arrays={"a": "*.a.npy", "b": "*.b.npy"})
    found.put(x_a_npy=np.zeros(100), x_b_npy=np.zeros(rows))
    assert found.records() == []
    assert reason in found.set_aside["x.a.npy"] or "is empty" in found.set_aside["x.a.npy"]


def test_bfloat16_is_kept_where_the_configuration_names_it(place):
    found = place(window=4, dtype="bfloat16")
    bits = np.arange(16, dtype=np.uint16).reshape(8, 2)
    found.put(a_npy=bits.view("V2"), b_bin=bits.tobytes(), c_npy=bits)
    records = found.records()
    assert found.schema["array"].dtype == "bfloat16"
    assert all(np.array_equal(r["array"], bits[r["start"] :][:4]) for r in records)
    assert [r["key"] for r in records] == [b"a.npy", b"a.npy"]
    assert "uint16, but the configuration says bfloat16" in found.set_aside["c.npy"]
    raw = Place(found.folder.parent, window=4, dtype="bfloat16", shape=[2], match="*.bin")
    assert [r["array"].tolist() for r in raw.records()] == [bits[:4].tolist(), bits[4:].tolist()]
    assert raw.schema["array"].dtype == "bfloat16"


# Headers that do not hold


def header(text: str, version: int = 1, length: int | None = None) -> bytes:
    size = struct.pack("<H" if version == 1 else "<I", len(text) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + text.encode()


def described(shape: str = "(8,)", descr: str = "'<f4'", fortran: str = "False") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"
    return header(text) + bytes(64)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"no array", "not a .npy file: it begins with b'no array'"),
        (header("", 2, 2**32 - 1), "its header has 4294967295 bytes, expected at most 10000"),
        (header("", 9), "a .npy file of version 9, expected 1, 2 or 3"),
        (header("", 2, 9000), "truncated: "),
        (header("[" * 9000 + "]" * 900), "its header cannot be read: "),
        (described("()"), "no axis"),
        (described("(8, -1)"), "expected whole numbers"),
        (described("(8, 0)"), "is empty"),
        (described("(3,)"), "the array has 3 rows, fewer than array.window (4)"),
        (described("(17,)"), "its header says 136 (shape (17,), float32)"),
        (described("(8, 2)", fortran="True"), "Fortran order"),
        (described("(4294967296, 4294967296, 4294967296)"), "73786976294838206464 bytes"),
        (described(descr="'|O'"), "it holds Python objects"),
        (described(descr="'<f16'"), "expected one of bfloat16, bool"),
        (described(descr="'<V2'"), "two bytes of unknown type (|V2): if they are bfloat16, set"),
    ],
)  # fmt: skip
def test_a_header_that_does_not_hold_is_refused_with_the_reason_and_the_rest_goes_on(
    place, body, reason
):
    found = place(window=4)
    found.put(a_npy=body, b_npy=np.arange(4))
    assert [r["key"] for r in found.records()] == [b"b.npy"]
    assert reason in found.set_aside["a.npy"]


def test_one_window_that_no_record_can_hold_is_refused(place):
    found = place(window=2**30)
    path = found.folder / "a.npy"
    with path.open("wb") as file:  # sparse: it takes no room
        file.write(header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({2**31},)}}"))
        file.truncate(2**34 + 200)
    assert found.records() == []
    assert "has 8589934592 bytes, expected at most 1073741824" in found.set_aside["a.npy"]


def test_an_array_that_would_make_too_many_units_is_refused(place, monkeypatch):
    monkeypatch.setattr(windows, "_MOST_UNITS", 3)
    found = place(window=100)
    found.put(a_npy=np.zeros(TARGET // 4))
    assert len(found.units()) == 2
    found.put(a_npy=np.zeros(TARGET))
    [unit] = found.units()
    assert unit.begin == 0
