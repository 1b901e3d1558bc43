"""Manifests by a real daemon: parts of objects with labels, and labels from a table of their own."""

from __future__ import annotations

import io
import json

import pyarrow
from pyarrow import parquet

from cachecd_client._core import encode_example
from tests.client.records import write
from tests.e2e.daemons import Daemon
from tests.e2e.reading import column, rows


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
    whole = []
    for part in (0, 10, 20):
        records_of = [encode_example({"id": part + n}) for n in range(9)]
        whole.append(write(tmp_path / f"part-{part}", records_of).read_bytes())
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "joined").write_bytes(b"".join(whole))
    lines = [
        {"key": "joined", "offset": len(whole[0]), "length": len(whole[1])},
        {"key": "joined", "offset": len(whole[0] + whole[1])},
    ]
    (tmp_path / "joined.jsonl").write_text("\n".join(map(json.dumps, lines)))
    joined = {"url": f"file://{tmp_path}/files", "format": "tfrecord"}
    joined["manifest"] = f"file://{tmp_path}/joined.jsonl"
    served = daemon(
        {
            "parts": {"source": parted, **grow},
            "tagged": {"source": tagged, **grow},
            "joined": {"source": joined, **grow},
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
    served.until_whole("joined")
    with served.connect() as cache, cache.acquire("joined", timeout=30) as epoch:
        found = [int(i) for i in column(epoch, "id")]
    assert sorted(found) == [*range(10, 19), *range(20, 29)]
    [(key, reason)] = served.skipped("parts").items()
    assert key == "packed"
    assert "bytes" in reason
    assert served.skipped("tagged") == {
        "untold": f"file://{tmp_path}/labels.csv has no label for it"
    }
    assert "1 units have no row in it, and 1 of its rows have no unit" in served.said()
