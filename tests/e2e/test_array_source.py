"""Windows of arrays, through a real daemon, as batches."""

from __future__ import annotations

import numpy as np

from tests.e2e.reading import rows


def test_windows_of_every_kind_of_array_arrive_and_what_has_none_costs_itself(daemon, tmp_path):
    rng = np.random.default_rng(4)
    folder = tmp_path / "source"
    folder.mkdir()
    arrays = {n: rng.integers(0, 99, (5000, 2)).astype(">i2") for n in ("npy", "pcm")}
    np.save(folder / "a.npy", arrays["npy"])
    (folder / "d.pcm").write_bytes(arrays["pcm"].tobytes())
    np.save(folder / "short.npy", arrays["npy"][:99])
    (folder / "cut.npy").write_bytes((folder / "a.npy").read_bytes()[:-1])
    array = {"window": 100, "stride": 50, "dtype": ">i2", "shape": [2]}
    source = {"url": f"file://{folder}", "format": "npy", "array": array}
    served = daemon({"train": {"source": source, "grow": {"first": "64KiB"}}}).start()
    served.until_whole()
    reasons = served.skipped()
    assert reasons.keys() == {"short.npy", "cut.npy"}
    assert "99 rows, fewer than array.window (100)" in reasons["short.npy"]
    assert "truncated" in reasons["cut.npy"]

    with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
        assert epoch.schema["array"].dtype == "int16"
        windows = rows(epoch, "key", "start", "array")
        found = {(bytes(key), int(start)): window for key, start, window in windows}
    names = {"npy": b"a.npy", "pcm": b"d.pcm"}
    assert found.keys() == {(key, at) for key in names.values() for at in range(0, 4901, 50)}
    for kind, key in names.items():
        for at in range(0, 4901, 50):
            assert np.array_equal(found[key, at], arrays[kind][at : at + 100])
