"""Windows of arrays in a real store, through a real daemon, as batches."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import zarr

from tests.e2e.conftest import upload


def test_windows_of_every_kind_of_array_arrive_and_what_has_none_costs_itself(daemon, s3, tmp_path):
    rng = np.random.default_rng(4)
    arrays = {n: rng.integers(0, 99, (5000, 2)).astype(">i2") for n in ("npy", "pcm")}
    np.save(tmp_path / "a.npy", arrays["npy"])
    (tmp_path / "d.pcm").write_bytes(arrays["pcm"].tobytes())
    np.save(tmp_path / "short.npy", arrays["npy"][:99])
    (tmp_path / "cut.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    s3.bucket("arrays")
    upload(s3, "arrays", {f"x/{p.relative_to(tmp_path)}": p.read_bytes() for p in files})

    array = {"window": 100, "stride": 50, "dtype": ">i2", "shape": [2]}
    source = {"url": "s3://arrays/x", "format": "npy", "array": array}
    served = daemon({"train": {"source": source, "grow": {"first": "64KiB"}}}).start()
    served.until_whole()
    reasons = served.skipped()
    assert reasons.keys() == {"short.npy", "cut.npy"}
    assert "99 rows, fewer than array.window (100)" in reasons["short.npy"]
    assert "truncated" in reasons["cut.npy"]

    found = {}
    with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
        assert epoch.schema["array"].dtype == "int16"
        for batch in epoch.numpy(batch_size=4, drop_last=False):
            rows = zip(batch["key"], batch["start"], batch["array"], strict=True)
            found |= {(bytes(key), int(start)): window.copy() for key, start, window in rows}
    names = {"npy": b"a.npy", "pcm": b"d.pcm"}
    assert found.keys() == {(key, at) for key in names.values() for at in range(0, 4901, 50)}
    for kind, key in names.items():
        for at in range(0, 4901, 50):
            assert np.array_equal(found[key, at], arrays[kind][at : at + 100])


@pytest.mark.parametrize("kind", ["hdf5", pytest.param("zarr", marks=pytest.mark.long)])
def test_windows_by_an_imported_reader_arrive_whole(kind, daemon, s3, tmp_path):
    array = np.random.default_rng(6).integers(0, 99, (5000, 2)).astype(">i2")
    if kind == "zarr":
        file = str(tmp_path / "a.zarr")
        zarr.create_array(file, name="data", data=array, chunks=(700, 2), zarr_format=2)
    else:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("data", data=array, chunks=(700, 2), compression="gzip")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    s3.bucket(f"reader-{kind}")
    upload(s3, f"reader-{kind}", {str(p.relative_to(tmp_path)): p.read_bytes() for p in files})
    source = {
        "url": f"s3://reader-{kind}/",
        "format": "python",
        "reader": f"cachecd.readers.{kind}:Windows",
        "options": {"window": 100, "stride": 50, "path": "data"},
    }
    served = daemon({"train": {"source": source, "grow": {"first": "64KiB"}}}).start()
    served.until_whole()
    found = {}
    with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
        for batch in epoch.numpy(batch_size=4, drop_last=False):
            for start, window in zip(batch["start"], batch["array"], strict=True):
                found[int(start)] = window.copy()
    assert found.keys() == set(range(0, 4901, 50))
    assert all(np.array_equal(window, array[at : at + 100]) for at, window in found.items())
