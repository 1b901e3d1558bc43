"""Windows of HDF5 and zarr arrays by format `python`, over files that h5py and zarr wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

from cachecd.config import DatasetConfig
from cachecd.errors import SourceUnreachableError
from cachecd.readers import hdf5, windows
from cachecd.sampler.origin import MeteredStore
from tests.sampler.arrays import Place

RNG = np.random.default_rng(5)
KINDS = ["hdf5", "zarr"]


class Source(Place):
    def __init__(self, folder: Path, kind: str, **options: Any) -> None:
        super().__init__(folder, window=1)
        reader = f"cachecd.readers.{kind}:Windows"
        source = {"url": f"file://{self.folder}", "format": "python", "reader": reader}
        self.config = DatasetConfig.model_validate({"source": {**source, "options": options}})


def save(folder: Path, kind: str, name: str, array: Any, path: str = "data", **how: Any) -> Path:
    if kind == "zarr":
        file = folder / f"{name}.zarr"
        zarr.create_array(str(file), name=path, data=array, **how)
        return file
    with h5py.File(folder / f"{name}.h5", "a") as file:
        file.create_dataset(path, data=array, **how)
    return folder / f"{name}.h5"


HDF5 = {"kind": "hdf5", "chunks": (64, 2)}
ZARR = {"kind": "zarr", "zarr_format": 3, "chunks": (64, 2)}


@pytest.mark.parametrize(
    ("how", "dtype", "stride"),
    [
        ({"kind": "hdf5"}, ">i2", 50),
        (HDF5, "float32", 30),
        (HDF5 | {"compression": "gzip", "shuffle": True, "fletcher32": True}, "bool", 200),
        (ZARR, ">i2", 200),
        (ZARR | {"chunks": (16, 3), "shards": (64, 3)}, "float32", 50),
        (ZARR | {"zarr_format": 2, "chunks": (64, 3)}, "bool", 30),
        (ZARR | {"zarr_format": 2, "order": "F", "compressors": None}, "float32", 200),
    ],
)
def test_windows_of_a_file_hold_its_rows(how, dtype, stride, tmp_path, monkeypatch):
    monkeypatch.setattr(windows, "UNIT", 1000)
    array = (RNG.random((1000, 3)) * 100).astype(dtype)
    source = Source(tmp_path, how["kind"], window=50, stride=stride, path="data")
    save(source.folder, name="a", array=array, **how)
    assert len(source.units()) >= 3
    records = source.records(capacity=20_000)
    assert [r["start"] for r in records] == list(range(0, 951, stride))
    assert all(np.array_equal(r["array"], array[r["start"] :][:50]) for r in records)
    assert source.schema["array"].dtype == array.dtype.name
    assert source.set_aside == {}


@pytest.mark.parametrize("kind", KINDS)
def test_several_arrays_of_a_file_are_read_together(kind, tmp_path):
    source = Source(tmp_path, kind, window=10, path={"image": "x/pixels", "label": "y"})
    pixels, labels = RNG.integers(0, 255, (95, 4, 4), np.uint8), np.arange(95, dtype=np.int32)
    for name in "ab":
        save(source.folder, kind, name, pixels, "x/pixels", chunks=(20, 4, 4))
        save(source.folder, kind, name, labels, "y", chunks=(30,))
    records = source.records()
    assert [r["start"] for r in records] == 2 * list(range(0, 81, 10)), "the ragged end is left out"
    assert len({r["key"] for r in records}) == 2
    for record in records:
        at = record["start"]
        assert np.array_equal(record["image"], pixels[at : at + 10])
        assert record["label"].tolist() == list(range(at, at + 10))


@pytest.mark.parametrize("kind", KINDS)
def test_units_of_a_large_array_are_read_by_their_chunks(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(windows, "UNIT", 1 << 20)
    monkeypatch.setattr("cachecd.sampler.view._MOST", 1 << 20)
    source = Source(tmp_path, kind, window=1000, path="b")
    save(source.folder, kind, "a", RNG.integers(0, 99, 1_000_000, np.int32), "a", chunks=(50_000,))
    save(source.folder, kind, "a", np.arange(1_000_000, dtype=np.int32), "b", chunks=(50_000,))
    units = source.units()
    assert len(units) == 4
    assert all(unit.size < 1_300_000 for unit in units)
    records = source.records(units[1:2])
    assert source.set_aside == {}
    assert [r["array"][0] for r in records] == [r["start"] for r in records]
    assert records[0]["start"] == 300_000
    assert source.fetched_bytes < 4_000_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("array", "path", "reason"),
    [
        (np.zeros(9), "data", "the array has 9 rows, fewer than window (10)"),
        (np.zeros(20, np.complex64), "data", "is of dtype complex64, expected numbers"),
        (np.float64(3), "data", "is a scalar"),
        (np.zeros(20), "other", "other"),
        (np.zeros(20), {"a": "data", "b": "short"}, "expected the same number in each"),
    ],
)
def test_a_file_that_cannot_be_windowed_is_set_aside(kind, array, path, reason, tmp_path):
    source = Source(tmp_path, kind, window=10, path=path, match="*")
    save(source.folder, kind, "bad", array)
    save(source.folder, kind, "bad", np.zeros(10), "short")
    for name in ("data", "short", "other"):
        save(source.folder, kind, "good", np.zeros(10), name)
    found = {r["key"] for r in source.records()}
    assert {key[:4] for key in found} == {b"good"}
    [why] = source.set_aside.values()
    assert reason in why


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_cost_their_units_alone(kind, tmp_path):
    source = Source(tmp_path, kind, window=10, path="data")
    save(source.folder, kind, "good", np.arange(500.0), chunks=(50,))
    for number in range(10):
        path = save(source.folder, kind, f"x{number}", np.arange(500.0), chunks=(50,))
        files = [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file()]
        for file in files[:: max(1, len(files) // 4)]:
            body = bytearray(file.read_bytes())
            for at in RNG.integers(0, min(3000, len(body)), 5):
                body[at] ^= 1 << int(RNG.integers(8))
            file.write_bytes(bytes(body[: int(RNG.integers(1, len(body)))]))
    keys = [r["key"][:4] for r in source.records()]
    assert keys.count(b"good") == 50
    assert source.set_aside


def test_a_transform_may_use_h5py_while_bytes_are_fetched(tmp_path, monkeypatch):
    """h5py's lock is not held meanwhile: both are in one process, and one of them would wait for ever."""
    source = Source(tmp_path, "hdf5", window=10, path="data")
    path = save(source.folder, "hdf5", "a", np.arange(1000), chunks=(10,))
    get = MeteredStore.get
    used = []

    async def reading(self: MeteredStore, *wanted: Any) -> Any:
        with h5py.File(path) as file:
            used.append(file["data"][0])
        return await get(self, *wanted)

    monkeypatch.setattr(MeteredStore, "get", reading)
    assert len(source.records()) == 100
    assert used


def test_nothing_outside_an_hdf5_file_is_read(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(np.arange(100.0).tobytes())
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["data"] = np.arange(100.0)
    source = Source(tmp_path, "hdf5", window=10, path="link")
    with h5py.File(source.folder / "a.h5", "w") as file:
        file["link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "data")
    with h5py.File(source.folder / "b.h5", "w") as file:
        file.create_dataset("link", (100,), "f8", external=[(str(secret), 0, 800)])
    layout = h5py.VirtualLayout(shape=(100,), dtype="f8")
    layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "data", shape=(100,))
    with h5py.File(source.folder / "c.h5", "w") as file:
        file.create_virtual_dataset("link", layout)
    with h5py.File(source.folder / "d.h5", "w") as file:
        file["link"] = np.arange(10.0)
    assert len(source.records()) == 1
    assert "is a link" in source.set_aside["a.h5"]
    assert "stored in other files" in source.set_aside["b.h5"]
    assert "stored in other files" in source.set_aside["c.h5"]


def test_a_zarr_array_that_would_be_unpickled_is_set_aside(tmp_path):
    source = Source(tmp_path, "zarr", window=10)
    path = source.folder / "a.zarr"
    zarr.create_array(str(path), data=np.arange(20), zarr_format=2)
    about = (path / ".zarray").read_text()
    (path / ".zarray").write_text(about.replace('"filters": null', '"filters": [{"id": "pickle"}]'))
    assert source.records() == []
    assert "the codec pickle" in source.set_aside["a.zarr"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"window": 0, "path": "data"}, "expected whole numbers above 0"),
        ({"window": 3}, "path is missing: set it to the path of a dataset"),
    ],
)
def test_options_that_make_no_windows_are_refused(options, why):
    with pytest.raises(ValueError, match=why):
        hdf5.Windows(**options)


def test_url_of_a_zarr_folder_itself_is_refused_with_the_url_to_write(tmp_path):
    source = Source(tmp_path, "zarr", window=4)
    zarr.create_array(str(source.folder), name="data", data=np.zeros((8, 2)), overwrite=True)
    with pytest.raises(
        SourceUnreachableError, match="a zarr folder itself, expected the folder above"
    ):
        source.units()
