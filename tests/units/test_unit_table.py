"""Tables in place of a listing, and of labels: every kind, every column, and rows of no use."""

from __future__ import annotations

import csv
import gzip
import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from cachecd.config import SourceConfig
from cachecd.errors import ConfigError, SourceUnreachableError
from cachecd.model import ObjectInfo, Unit
from cachecd.sampler.formats.files import Files
from cachecd.units.source_units import list_units
from cachecd.units.unit_store import open_unit_store
from tests import zstandard
from tests.stores import S3Server


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def as_json(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    names = dict.fromkeys(name for row in rows for name in row)
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    file = io.BytesIO()
    parquet.write_table(table, file, row_group_size=2)
    return file.getvalue()


KINDS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "t.csv": as_csv,
    "t.CSV.gz": lambda rows: gzip.compress(as_csv(rows)),
    "t.jsonl": as_json,
    "t.ndjson.gz": lambda rows: gzip.compress(as_json(rows)),
    "t.csv.zst": lambda rows: zstandard.frames(as_csv(rows)),
    "t.jsonl.zst": lambda rows: zstandard.compress(as_json(rows)),
    "t.parquet": as_parquet,
}


class Place:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.data.mkdir()

    def put(self, **objects: bytes) -> None:
        for name, body in objects.items():
            (self.data / name).write_bytes(body)

    def source(self, table: bytes, name: str = "t.csv", **keys: Any) -> SourceConfig:
        (self.folder / name).write_bytes(table)
        told = {"manifest": f"file://{self.folder}/{name}"}
        if keys.pop("labels", False):
            told = {"label": told}
        plain = {"url": f"file://{self.data}", "format": "files"}
        return SourceConfig.model_validate({**plain, **told, **keys})

    def list(self, table: bytes, name: str = "t.csv", **keys: Any) -> list[ObjectInfo]:
        return listed(self.source(table, name, **keys))


def listed(source: SourceConfig, after: str = "") -> list[ObjectInfo]:
    return [unit for page in list_units(source, open_unit_store(source, 8), after) for unit in page]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("name", KINDS)
def test_a_table_of_each_kind_is_the_listing(place, name):
    place.put(looked_up=b"12345")
    url = f"file://{place.data}/sub/b.bin"
    rows = [
        {"key": "a, with\na line", "size": 7, "label": "cat"},
        {"url": url, "offset": 100, "length": 50, "label": "dög"},
        {"key": "c", "offset": 10, "size": 30},
        {"key": "looked_up", "offset": 2},
        {"key": "looked_up"},
    ]
    found = place.list(KINDS[name](rows), name)
    [*given, part, whole] = found
    assert given == [
        ObjectInfo("a, with\na line", 7, label="cat"),
        ObjectInfo("sub/b.bin", 50, begin=100, label="dög"),
        ObjectInfo("c", 20, begin=10),
    ]
    assert (part.key, part.begin, part.size) == ("looked_up", 2, 3)
    assert (whole.begin, whole.size) == (0, 5)
    assert part.etag == whole.etag != "", "what was looked up is the version that is read"


BAD = {
    "no key": ({"size": "3"}, "the row has neither key nor url"),
    "elsewhere": ({"url": "s3://bucket/a", "size": "3"}, "'s3://bucket/a' is not below file://"),
    "upwards": ({"key": "a/../../etc/passwd", "size": "3"}, "is not a path below file://"),
    "size": ({"key": "a", "size": "large"}, "size is 'large', expected a whole number"),
    "beyond": (
        {"key": "a", "length": "6", "size": "5"},
        "the row ends at byte 6, but the object has 5 bytes",
    ),
    "gone": ({"key": "gone"}, "No such file"),
    "a URL as key": ({"key": "s3://bucket/a", "size": "3"}, "is a URL: rename the column to url"),
    "NUL": ({"key": "a\0b", "size": "3"}, "the name 'a\\x00b' contains NUL"),
    "empty": ({"key": "a", "length": "0"}, "length is 0, expected at least 1"),
    "behind": ({"key": "a", "offset": "5", "size": "5"}, "offset is 5, but the object has 5 bytes"),
}


@pytest.mark.parametrize(("row", "why"), BAD.values(), ids=BAD.keys())
def test_a_row_of_no_use_is_passed_over_and_told_with_its_line(place, caplog, row, why):
    place.put(there=b"1234")
    good = {"key": "good", "size": "3"}
    [unit] = place.list(as_json([good, row]), "t.jsonl")
    assert unit == ObjectInfo("good", 3)
    [record] = caplog.records
    assert record.getMessage().startswith(f"file://{place.folder}/t.jsonl, line 2: row ignored: ")
    assert why in record.getMessage()


def test_what_is_no_row_is_passed_over_too(place, caplog):
    text = b'\xef\xbb\xbfKey , SIZE\na,1\n\nb,2,3\n"c" x,3\nd\xff,4\n"e\xc3\xbc",5\nf,\n'
    place.put(f=b"123456")
    found = place.list(text)
    assert [(u.key, u.size) for u in found] == [("a", 1), ("eü", 5), ("f", 6)]
    said = [record.getMessage().partition("t.csv, ")[2] for record in caplog.records]
    assert said == [
        "line 4: row ignored: 3 fields, expected 2",
        "line 5: row ignored: ',' expected after '\"'",
        "line 6: row ignored: the row is not UTF-8",
    ]
    caplog.clear()
    lines = b'{"key": "a", "size": 1}\n[1]\n{"key"\n\xff\n' + b"1\n" * 9
    assert [u.key for u in place.list(lines, "t.jsonl")] == ["a"]
    assert len(caplog.records) == 5 + 1, "the first five, and how many"
    assert caplog.records[-1].getMessage().endswith("t.jsonl: ignored 12 of 13 rows")


HOPELESS: dict[str, tuple[str, bytes, type[Exception], str]] = {
    "no header": ("t.csv", b"a,1\nb,2\n", ConfigError,
        "its first line is 'a', '1', expected column names"),
    "no CSV": ("t.csv", b'"key,size\na,1\n', ConfigError, "its first line is not CSV"),
    "no text": ("t.jsonl", b"x" * (3 << 20), ConfigError, "line 1 has more than 1048576 bytes"),
    "no inventory": ("manifest.json", b'{"files": 1}', ConfigError,
        "not a manifest of an S3 Inventory"),
    "no row of use": ("t.csv", b"key,size\na,x\nb,y\n", ConfigError,
        "none of the 2 rows can be used; the first: line 2"),
    "cut off": ("t.csv.gz",
        gzip.compress(as_csv([{"key": str(n), "size": n} for n in range(9999)]))[:9000],
        SourceUnreachableError, "it is damaged: the GZIP stream is incomplete: the file ends after 9000"),
    "cut off within a frame": ("t.jsonl.zst",
        zstandard.compress(as_json([{"key": str(n), "size": n} for n in range(9999)]))[:9000],
        SourceUnreachableError, "it is damaged: the ZSTD stream is incomplete: the file ends after 9000"),
    "altered": ("t.csv.zst",
        zstandard.compress(as_csv([{"key": "a", "size": 1}]))[:-1] + b"\0",
        SourceUnreachableError, "it is damaged: ZSTD stream: Restored data doesn't match checksum"),
    "no parquet": ("t.parquet", b"PAR1 and so on PAR1", SourceUnreachableError, "it is damaged"),
    "other columns": ("t.parquet", as_parquet([{"name": "a"}]), ConfigError,
        "none of these columns: key"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "body", "kind", "why"), HOPELESS.values(), ids=HOPELESS.keys())
def test_a_table_of_no_use_stops_the_listing_and_says_why(place, name, body, kind, why):
    with pytest.raises(kind, match=why) as caught:
        place.list(body, name)
    assert str(caught.value).startswith(f"file://{place.folder}/{name}: ")


def test_parts_of_objects_are_not_for_formats_that_look_into_whole_ones(place, caplog):
    source = place.source(as_csv([{"key": "a", "offset": 1, "length": 2}, {"key": "b", "size": 3}]))
    source = source.model_copy(update={"format": "parquet"})
    assert [u.key for page in open_unit_store(source, 1).list() for u in page] == ["b"]
    assert "names a part of an object, but format parquet reads whole objects" in caplog.text


# --- labels


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_table_of_labels_is_joined_to_the_listing(place, caplog, name):
    place.put(a=b"1", b=b"22", c=b"333", d=b"4444")
    rows = [
        {"key": "b", "label": "dog"},
        {"url": f"file://{place.data}/a", "label": "cat"},
        {"key": "x", "label": "dog"},
        {"key": "b", "label": "second, which does not count"},
        {"key": "d", "label": "cat"},
    ]
    source = place.source(KINDS[name](rows), name, labels=True)
    found = listed(source)
    labels = {"a": "cat", "b": "dog", "c": "", "d": "cat"}
    assert [(u.key, u.label) for u in found] == list(labels.items())
    [record] = caplog.records
    assert record.getMessage() == (
        f"file://{place.folder}/{name}: 1 units have no row in the table, and 2 rows have no unit"
    )
    caplog.clear()
    assert [(u.key, u.label) for u in listed(source, "b")] == [("c", ""), ("d", "cat")]
    assert not caplog.records, "of a part of the listing nothing can be told"

    files = Files(source, ("cat", "dog"))
    assert files.refusal(Unit(0, "a", 1, label="cat")) is None
    assert files.refusal(Unit(2, "c", 3)) == f"file://{place.folder}/{name} has no label for it"


def test_names_that_a_manifest_gives_are_never_left_out(place):
    found = place.list(as_csv([{"key": ".a", "size": 1}, {"key": "_SUCCESS", "size": 0}]))
    assert [(u.key, u.size) for u in found] == [(".a", 1), ("_SUCCESS", 0)]


# --- a real S3 server


def test_objects_of_s3_are_looked_up_and_keep_their_version(s3: S3Server, place, monkeypatch):
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    bucket = s3.bucket("manifested")
    s3.put(bucket, {"in/a": b"12345", "in/a..b//c": b"123", "in/e": b""})
    rows = [{"key": "a"}, {"url": "s3://manifested/in/a..b//c"}, {"key": "e"}, {"key": "gone"}]
    s3.put(bucket, {"lists/of it.csv": as_csv([*rows, {"key": "a", "size": 5, "etag": "abc"}])})
    source = SourceConfig(
        url="s3://manifested/in", format="files", manifest="s3://manifested/lists/of it.csv"
    )
    [a, c, e, other] = listed(source)  # an empty object that a manifest names is a unit
    assert [(u.key, u.size) for u in (a, c, e)] == [("a", 5), ("a..b//c", 3), ("e", 0)]
    assert a.etag == s3.client.head_object(Bucket=bucket, Key="in/a")["ETag"]
    assert other.etag == '"abc"'


def test_an_inventory_lists_the_current_objects_below_the_url(s3: S3Server, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    bucket = s3.bucket("inventory")
    # As Amazon writes it: all in quotes, keys as in a URL.
    lines = [
        ("of", "in/plain", "true", "false", "5", "abc"),
        ("of", "in/with+space%2B%C3%BC", "true", "false", "6", "abd"),
        ("of", "in/old", "false", "false", "5", "abc"),
        ("of", "in/deleted", "true", "true", "", ""),
        ("of", "other/x", "true", "false", "5", "abc"),
        ("of", "in/folder/", "true", "false", "0", "abc"),
        ("of", "in/_SUCCESS", "true", "false", "9", "abc"),
        ("of", "in/", "true", "false", "0", "abc"),
    ]
    body = gzip.compress(
        "".join(",".join(f'"{v}"' for v in line) + "\n" for line in lines).encode()
    )
    manifest = {
        "sourceBucket": "of",
        "destinationBucket": f"arn:aws:s3:::{bucket}",
        "version": "2016-11-30",
        "fileFormat": "CSV",
        "fileSchema": "Bucket, Key, IsLatest, IsDeleteMarker, Size, ETag",
        "files": [{"key": "inv/data/1", "size": len(body), "MD5checksum": "-"}],
    }
    s3.put(bucket, {"inv/data/1": body, "inv/manifest.json": json.dumps(manifest).encode()})
    url = f"s3://{bucket}/inv/manifest.json"
    source = SourceConfig(url="s3://of/in/", format="files", manifest=url)
    assert listed(source) == [
        ObjectInfo("plain", 5, '"abc"'),
        ObjectInfo("with space+ü", 6, '"abd"'),
    ]
    assert not caplog.records
    with pytest.raises(
        ConfigError, match="the inventory lists the bucket of, expected the bucket of s3://another/"
    ):
        listed(source.model_copy(update={"url": "s3://another/"}))
