"""Windows of zarr arrays, and what of their metadata is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from cachecd.sampler.fetch import Store
from tests.sampler.arrays import Place

RNG = np.random.default_rng(11)


@pytest.fixture
def place(tmp_path: Path) -> Any:
    return lambda **array: Place(tmp_path, **array)


def save(found: Place, name: str, array: np.ndarray[Any, Any], **options: Any) -> Path:
    path = found.folder / name
    zarr.create_array(str(path), data=array, **options)
    return path


@pytest.mark.parametrize(
    "options",
    [
        {"zarr_format": 3, "chunks": (64, 2)},
        {"zarr_format": 3, "chunks": (16, 3), "shards": (64, 3)},
        {"zarr_format": 2, "chunks": (64, 3)},
        {"zarr_format": 2, "chunks": (64, 3), "order": "F", "compressors": None},
    ],
    ids=["v3", "v3 sharded", "v2", "v2 column-major"],
)
@pytest.mark.parametrize("dtype", [">i2", "float32"])
def test_windows_of_a_zarr_array_hold_its_rows(place, options, dtype):
    array = (RNG.random((1000, 3)) * 100).astype(dtype)
    for way in ({"stride": 30}, {"stride": 200}):
        found = place(window=50, **way)
        if not any(found.folder.iterdir()):
            save(found, "a.zarr", array, **options)
        records = found.records(capacity=10_000)
        starts = [r["start"] for r in records]
        assert starts == list(range(0, 951, way["stride"]))
        assert all(np.array_equal(r["array"], array[r["start"] :][:50]) for r in records)
        assert found.schema["array"].dtype == array.dtype.name
        assert found.set_aside == {}


def test_units_end_with_chunks_so_that_none_is_fetched_twice_but_for_the_last_window(
    place, monkeypatch
):
    monkeypatch.setattr("cachecd.sampler.sources.windows.TARGET", 4000)
    monkeypatch.setattr("cachecd.sampler.sources.npy.PIECE", 1000)
    found = place(window=100)
    array = np.arange(4000, dtype=np.int32)
    path = save(found, "a.zarr", array, chunks=(800,), compressors=None)
    units = found.units()
    assert len(units) == 3  # of two chunks each, but the last
    assert [r["start"] for r in found.records(units)] == list(range(0, 3901, 100))
    asked = [key for key, _, _ in found.asked if "/c/" in key]
    assert sorted(asked) == [f"a.zarr/c/{n}" for n in range(5)]
    assert path.exists()


def test_a_chunk_that_is_not_stored_is_the_fill_value(place):
    found = place(window=10)
    path = save(found, "a.zarr", np.ones(40, np.int32), chunks=(20,), fill_value=7)
    (path / "c" / "1").unlink()
    assert [int(r["array"][0]) for r in found.records()] == [1, 1, 7, 7]


def test_an_array_in_a_group_is_named_by_its_path_and_others_beside_it_are_not_read(place):
    found = place(window=10, path="x/y")
    for name in ("x/y", "z"):
        save(found, f"g.zarr/{name}", np.arange(20), chunks=(5,))
    assert [u.key for u in found.units()] == ["g.zarr/x/y/zarr.json"]
    assert [r["array"][0] for r in found.records()] == [0, 10]
    other = Place(found.folder.parent, window=10)
    zarr.open_group(str(found.folder / "g.zarr"), mode="a")
    assert other.records() == []
    [reason] = other.set_aside.values()
    assert "array.path" in reason


def test_a_folder_of_chunks_is_listed_once_and_passed_over(place, monkeypatch):
    monkeypatch.setattr("cachecd.sampler.stores.local.PAGE", 10)
    found = place(window=10)
    for name in "abc":
        save(found, f"{name}.zarr", np.arange(1000), chunks=(10,))
    listed = []
    pages = Store.list

    def counted(self: Store, after: str = "") -> Any:
        for page in pages(self, after):
            listed.extend(page)
            yield page

    monkeypatch.setattr(Store, "list", counted)
    assert [u.key for u in found.units()] == [f"{name}.zarr/zarr.json" for name in "abc"]
    assert len(listed) <= 4 * 10
    assert [u.key for page in found.pages("a.zarr/zarr.json") for u in page] == [
        "b.zarr/zarr.json",
        "c.zarr/zarr.json",
    ]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shape": [2**62, 2**62]}, "bytes, expected at most"),
        ({"shape": [2**62, 3]}, "units of it"),
        ({"shape": "many"}, "expected whole numbers"),
        ({"shape": [-5, 3]}, "expected whole numbers"),
        ({"shape": [5, 3]}, "5 rows, fewer than array.window (10)"),
        ({"chunks": [2**40, 3]}, "its chunks are [1099511627776, 3]"),
        ({"chunks": [0, 3]}, "its chunks are [0, 3]"),
        ({"chunks": [5]}, "its chunks are [5]"),
        ({"chunks": "all"}, "its chunks are 'all'"),
        ({"shape": [100, 2**17], "chunks": [1, 1]}, "chunks, expected at most"),
        ({"codec": "pickle"}, "its codec is 'pickle'"),
        ({"codec": ["pickle"]}, "its codec is ['pickle']"),
        ({"dtype": "|O"}, "dtype is '|O'"),
        ({"dtype": {"name": "datetime64"}}, "dtype is {"),
    ],
)  # fmt: skip
def test_metadata_that_does_not_hold_is_refused_before_anything_is_allocated(
    place, version, change, reason
):  # fmt: skip
    found = place(window=10)
    path = save(found, "a.zarr", np.ones((100, 3)), chunks=(10, 3), zarr_format=version)
    found.put(b_npy=np.zeros((10, 3)))
    about_at = path / ("zarr.json" if version == 3 else ".zarray")
    about = json.loads(about_at.read_text())
    for key, value in change.items():
        match key, version:
            case "chunks", 3:
                about["chunk_grid"]["configuration"]["chunk_shape"] = value
            case "dtype", 3:
                about["data_type"] = value
            case "codec", 3:
                about["codecs"].append({"name": value})
            case "codec", 2:
                about["filters"] = [{"id": value}]
            case _:
                about[key] = value
    about_at.write_text(json.dumps(about))
    assert [r["key"] for r in found.records()] == [b"b.npy"]
    [said] = found.set_aside.values()
    assert reason in said


@pytest.mark.parametrize(
    "text", [b"{}", b"[" * 100_000, b"\xff", b'{"node_type": "group"}', bytes(2 << 20)]
)
def test_metadata_that_is_none_is_refused(place, text):
    found = place(window=10)
    path = save(found, "a.zarr", np.zeros(100))
    (path / "zarr.json").write_bytes(text)
    assert found.records() == []
    [said] = found.set_aside.values()
    assert "does not describe an array" in said or "group" in said or "expected at most" in said


@pytest.mark.parametrize("damage", ["cut", "flipped", "grown"])
def test_a_damaged_chunk_sets_its_unit_aside_and_no_other(place, damage):
    found = place(window=10)
    path = save(found, "a.zarr", RNG.random(40), chunks=(20,))
    save(found, "b.zarr", RNG.random(40), chunks=(20,))
    chunk = path / "c" / "1"
    body = bytearray(chunk.read_bytes())
    if damage == "flipped":
        body[:8] = bytes(8)
    chunk.write_bytes(
        body[:-5] if damage == "cut" else body + bytes(2 << 20 if damage == "grown" else 0)
    )
    keys = [r["key"] for r in found.records()]
    assert keys.count(b"b.zarr/zarr.json") == 4
    [said] = found.set_aside.values()
    assert "zarr cannot decode" in said or "bytes, expected at most" in said


@pytest.mark.parametrize("version", [2, 3])
def test_a_chunk_costs_one_request_and_what_describes_the_array_one(place, version):
    """Though nobody knows beforehand how large a chunk is."""
    found = place(window=10)
    array = RNG.random((4000, 10)) // 0.1
    options = {"compressors": None} if version == 3 else {}
    save(found, "a.zarr", array, chunks=(1000, 10), zarr_format=version, **options)
    units = found.units()
    assert all(np.array_equal(r["array"], array[r["start"] :][:10]) for r in found.records(units))
    chunks = [key for key, _, _ in found.asked if not key.endswith(("zarr.json", ".zarray"))]
    assert len(chunks) == len(set(chunks)) == 4
    assert len(found.asked) - len(chunks) == 1
    assert found.looked_up == []


def test_of_chunks_larger_than_a_request_each_is_asked_about_and_read_in_pieces(place):
    found = place(window=10)
    array = RNG.random((20, 120_000))
    save(found, "a.zarr", array, chunks=(10, 120_000), compressors=None)
    assert all(np.array_equal(r["array"], array[r["start"] :][:10]) for r in found.records())
    assert sorted(found.looked_up) == ["a.zarr/c/0/0", "a.zarr/c/1/0"]
