"""Windows of HDF5 datasets, and what of a file is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.sampler.arrays import Fetched, Place

RNG = np.random.default_rng(13)


@pytest.fixture
def place(tmp_path: Path) -> Any:
    return lambda **array: Place(tmp_path, **array)


def save(found: Place, name: str, array: np.ndarray[Any, Any], at: str = "data", **options: Any):
    path = found.folder / name
    with h5py.File(path, "a") as file:
        file.create_dataset(at, data=array, **options)
    return path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": (64, 2)},
        {"chunks": (64, 3), "compression": "gzip", "shuffle": True, "fletcher32": True},
    ],
    ids=["contiguous", "chunked", "compressed"],
)
@pytest.mark.parametrize("dtype", [">i2", "float32", "bool"])
def test_windows_of_a_dataset_hold_its_rows(place, options, dtype):
    array = (RNG.random((1000, 3)) * 100).astype(dtype)
    for way in ({"stride": 30}, {"stride": 200}):
        found = place(window=50, **way)
        if not any(found.folder.iterdir()):
            save(found, "a.h5", array, **options)
        records = found.records(capacity=10_000)
        starts = [r["start"] for r in records]
        assert starts == list(range(0, 951, way["stride"]))
        assert all(np.array_equal(r["array"], array[r["start"] :][:50]) for r in records)
        assert found.schema["array"].dtype == array.dtype.name


def test_a_large_file_is_read_by_its_chunks_and_never_whole(place, monkeypatch):
    monkeypatch.setattr("cachecd.sampler.sources.windows.TARGET", 1 << 20)
    found = place(window=1000, path="b/x")
    noise = RNG.integers(0, 2**31, 1_000_000, np.int32)
    path = save(found, "a.h5", noise, "a/other", chunks=(50_000,))
    save(found, "a.h5", np.arange(1_000_000, dtype=np.int32), "b/x", chunks=(50_000,))
    save(found, "a.h5", noise, "c/other")
    units = found.units()
    assert len(units) == 4
    records = found.records(units)
    assert [r["array"][0] for r in records] == [r["start"] for r in records]
    assert len(records) == 1000
    assert sum(stop - start for _, start, stop in found.asked) < 4_000_000 + (1 << 20)
    assert path.stat().st_size > 12_000_000


def test_a_transform_may_use_h5py_while_bytes_are_fetched(place, monkeypatch):
    """h5py's lock is not held meanwhile: both are in one process, and one of them would wait for ever."""
    found = place(window=10)
    path = save(found, "a.h5", np.arange(1000), chunks=(10,))
    read = Fetched.read
    used = []

    async def reading(self: Fetched, *wanted: Any) -> Any:
        with h5py.File(path) as file:
            used.append(file["data"][0])
        return await read(self, *wanted)

    monkeypatch.setattr(Fetched, "read", reading)
    assert len(found.records()) == 100
    assert used


def test_a_dataset_of_several_is_named_by_its_path(place):
    found = place(window=10)
    path = save(found, "a.nwb", np.arange(20), "x/y")
    save(found, "a.nwb", np.arange(100, 120), "z")
    assert found.records() == []
    assert "the file has 2 datasets: 'x/y, z'" in found.set_aside["a.nwb"]
    with h5py.File(path, "a") as file:
        file["soft"] = h5py.SoftLink("/x/y")
        file["x/loop"] = h5py.SoftLink("loop")
    for name, first in (("x/y", 0), ("/z", 100), ("soft", 0)):
        one = Place(found.folder.parent, window=10, path=name)
        assert [r["array"][0] for r in one.records()] == [first, first + 10]
    for name, reason in (
        ("w", "there is no 'w'"),
        ("x", "no dataset"),
        ("z/y", "there is no"),
        ("x/loop", "more than 16 links"),
    ):
        one = Place(found.folder.parent, window=10, path=name)
        assert one.records() == []
        assert reason in one.set_aside["a.nwb"]


def test_nothing_outside_the_object_is_read_whatever_the_file_links_to(place, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(np.arange(100.0).tobytes())
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["data"] = np.arange(100.0)
    found = place(window=10, path="link")
    with h5py.File(found.folder / "a.h5", "w") as file:
        file["link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "data")
    with h5py.File(found.folder / "b.h5", "w") as file:
        file.create_dataset("link", (100,), "f8", external=[(str(secret), 0, 800)])
    layout = h5py.VirtualLayout(shape=(100,), dtype="f8")
    layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "data", shape=(100,))
    with h5py.File(found.folder / "c.h5", "w") as file:
        file.create_virtual_dataset("link", layout)
    with h5py.File(found.folder / "d.h5", "w") as file:
        file["link"] = np.arange(10.0)
    assert len(found.records()) == 1
    assert "leads into another file" in found.set_aside["a.h5"]
    assert "lies in other files" in found.set_aside["b.h5"]
    assert "lies in other files" in found.set_aside["c.h5"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shape": (2**30, 2**30), "chunks": (1, 1), "dtype": "f8"}, "one row of "),
        ({"shape": (2**62,), "chunks": (100,), "dtype": "i1"}, "units of it"),
        ({"shape": (100, 2**17), "chunks": (1, 1), "dtype": "i1"}, "chunks, expected at most"),
        ({"shape": (), "dtype": "f8"}, "no axis"),
        ({"shape": None, "dtype": "f8"}, "is empty"),
        ({"shape": (100,), "dtype": h5py.string_dtype()}, "Python objects"),
        ({"shape": (100,), "dtype": [("x", "f8"), ("y", "i1")]}, "a compound"),
        ({"shape": (5,), "dtype": "f8"}, "5 rows, fewer than array.window (10)"),
    ],
)
def test_a_dataset_that_cannot_be_windowed_is_refused(place, options, reason):
    found = place(window=10)
    with h5py.File(found.folder / "a.h5", "w") as file:
        if options["shape"] is None:
            file["data"] = h5py.Empty("f8")
        else:
            file.create_dataset("data", **options)
    found.put(b_npy=np.zeros(10))
    assert [r["key"] for r in found.records()] == [b"b.npy"]
    assert reason in found.set_aside["a.h5"]


@pytest.mark.parametrize("chunks", [None, (50,)])
def test_a_truncated_or_damaged_file_is_set_aside_and_the_rest_goes_on(place, chunks):
    found = place(window=10)
    path = save(found, "good.h5", np.arange(5000.0), chunks=chunks)
    body = path.read_bytes()
    found.put(a_h5=b"", b_h5=b"no HDF5 at all", c_h5=body[:100], d_h5=body[:9000])
    rng = np.random.default_rng(1)
    for number in range(20):
        damaged = bytearray(body)
        for place_ in rng.integers(0, 3000, 5):
            damaged[place_] ^= 1 << int(rng.integers(8))
        found.put(**{f"x{number}_h5": bytes(damaged)})
    keys = [r["key"] for r in found.records()]
    assert keys.count(b"good.h5") == 500
    assert {"a.h5", "b.h5", "c.h5", "d.h5"} <= found.set_aside.keys()
