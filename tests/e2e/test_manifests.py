"""Manifests by a real daemon: parts of objects with labels, and labels from a table of their own."""

from __future__ import annotations

import io

import pyarrow
from pyarrow import parquet

from tests.e2e.daemons import Daemon
from tests.e2e.reading import rows


def records(served: Daemon, name: str) -> dict[bytes, tuple[str, bytes]]:
    """Of a dataset that is whole: payloads and the names of their classes, by key and payload."""
    served.until_whole(name)
    with served.connect() as cache, cache.acquire(name, timeout=30) as epoch:
        classes = epoch.schema["label"].classes
        found = rows(epoch, "key", "payload", "label")
    return {bytes(k) + bytes(p): (classes[number], bytes(p)) for k, p, number in found}


def test_a_manifest_of_parts_and_a_table_of_labels_are_sources(daemon, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    parts = [b"%d-" % n * (1 + n % 50) for n in range(300)]
    (data / "packed").write_bytes(b"".join(parts))
    ends = [sum(map(len, parts[: n + 1])) for n in range(300)]
    classes = [f"class {n % 7}" for n in range(300)]
    table = {
        "key": ["packed"] * 300,
        "offset": [end - len(part) for end, part in zip(ends, parts, strict=True)],
        "length": [len(part) for part in parts],
        "label": classes,
    }
    table["length"][3] = 10**9  # beyond its object
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(table), file)
    (tmp_path / "parts.parquet").write_bytes(file.getvalue())
    (tmp_path / "labels.csv").write_text("key,label\npacked,one\nother,two\nmissing,three\n")
    (data / "other").write_bytes(b"other")
    (data / "untold").write_bytes(b"untold")

    place = {"url": f"file://{data}", "format": "files"}
    parted = {**place, "manifest": f"file://{tmp_path}/parts.parquet", "label": {"column": True}}
    tagged = {**place, "label": {"manifest": f"file://{tmp_path}/labels.csv"}}
    grow = {"grow": {"first": "64KiB"}}
    served = daemon(
        {
            "parts": {"source": parted, **grow},
            "tagged": {"source": tagged, **grow},
        }
    )
    served.start()

    expected = {b"packed" + p: (c, p) for p, c in zip(parts, classes, strict=True)}
    del expected[b"packed" + parts[3]]
    assert records(served, "parts") == expected
    assert records(served, "tagged") == {
        b"packed" + (data / "packed").read_bytes(): ("one", (data / "packed").read_bytes()),
        b"otherother": ("two", b"other"),
    }
    [(key, reason)] = served.skipped("parts").items()
    assert key == "packed"
    assert "bytes" in reason
    assert served.skipped("tagged") == {
        "untold": f"file://{tmp_path}/labels.csv has no label for it"
    }
    assert "1 units have no row in the table, and 1 rows have no unit" in served.said()
