"""MDS sets by format `python`: each value as it was written, or its record or its shard is skipped."""

from __future__ import annotations

import contextlib
import json
import pickle
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachecd.config import DatasetConfig, SourceConfig
from cachecd.errors import SourceUnreachableError
from cachecd.readers.mds import Shards
from cachecd.sampler.view import Direct
from cachecd.stores.fetch import open_store
from tests.readers.mds_sets import PACK, MdsSet, sample, shard
from tests.sampler.arrays import Place

PIXELS = bytes(range(24))
TEXT = {"text": ("str", None), "number": ("int", 8)}
ROWS = [[b"a" * n, struct.pack("<q", n)] for n in range(10)]


class Source(Place):
    """A folder with an MDS set, and what a worker makes of it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, window=1)
        reader = {"reader": "cachecd.readers.mds:Shards", "options": options}
        source = {"url": f"file://{self.folder}", "format": "python", **reader}
        self.config = DatasetConfig.model_validate({"source": source})


@pytest.fixture
def source(tmp_path):
    return Source(tmp_path)


@pytest.fixture
def view(source):
    store = open_store(SourceConfig(url=f"file://{source.folder}", format="files"), 8)
    with contextlib.closing(Direct()) as direct:
        yield direct.view(store)


def of(dtype, *values):
    return np.array(values, dtype).tobytes()


ENCODINGS: dict[str, tuple[bytes, Any]] = {
    "bytes": (b"\0\xff", b"\0\xff"),
    "str": ("dög\n".encode(), "dög\n".encode()),
    "json": (b'{"a": [1]}', b'{"a": [1]}'),
    "jpeg": (b"\xff\xd8 and so on", b"\xff\xd8 and so on"),
    "png": (b"\x89PNG and so on", b"\x89PNG and so on"),
    "pil": (PIXELS, PIXELS),
    "str_decimal": (b"0.10000000000000000001", b"0.10000000000000000001"),
    "str_int": (b"-9223372036854775808", -(2**63)),
    "str_float": (b"0.1", np.float64(0.1)),
    "int": (of("int64", 2**53 + 1), np.int64(2**53 + 1)),
    **{
        dtype: (of(dtype, value), np.dtype(dtype).type(value))
        for dtype, value in {
            "uint8": 255, "uint16": 65535, "uint32": 2**32 - 1, "uint64": 2**64 - 1, "int8": -128,
            "int16": -(2**15), "int32": -(2**31), "int64": -(2**63), "float16": 0.1, "float32": 0.1,
            "float64": 0.1,
        }.items()
    },
    "ndarray:int16:2,3": (of("int16", *range(6)), np.arange(6, dtype="int16").reshape(2, 3)),
    "ndarray:float32": (
        bytes([2 << 2 | 0, 2, 3]) + of("float32", *range(6)),
        np.arange(6, dtype="float32").reshape(2, 3),
    ),
    "ndarray": (
        bytes([65, 1 << 2 | 1]) + of("uint16", 300) + of("int64", *range(300)),
        np.arange(300, dtype="int64"),
    ),
    "ndarray::4": (bytes([18]) + of("float16", 1, 2, 3, 4), np.array([1, 2, 3, 4], "float16")),
}  # fmt: skip


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_value_of_each_encoding_is_the_written_value(encoding, source, view):
    stored, value = ENCODINGS[encoding]
    fixed = len(stored) if isinstance(value, np.generic | np.ndarray) else None
    fixed = None if encoding in ("ndarray", "ndarray:float32", "ndarray::4", "str_float") else fixed
    columns = {"before": ("str", None), "value": (encoding, fixed), "behind": ("int", 8)}
    MdsSet(source.folder, columns).add([[b"text", stored, of("int64", 7)]] * 3)
    reader = Shards()
    [unit] = reader.units(view)
    records = list(reader.read(unit["name"], view))
    assert len(records) == 3
    for record in records:
        assert (record["before"], record["behind"]) == (b"text", 7)
        assert type(record["value"]) is type(value)
        assert getattr(record["value"], "dtype", None) == getattr(value, "dtype", None)
        np.testing.assert_array_equal(record["value"], value, strict=isinstance(value, np.ndarray))


def test_set_becomes_records_with_a_unit_for_each_shard(source):
    numbers = {"text": ("str", None), "half": ("float16", 2), "ids": ("ndarray:uint16:3", 6)}
    made = MdsSet(source.folder, numbers)
    rows = [[b"x" * n, of("float16", n / 2), of("uint16", n, n, n)] for n in range(50)]
    for at in (0, 20, 40):
        made.add(rows[at : at + 20])
    units = source.units()
    assert [u.key for u in units] == [f"shard.0000{n}.mds" for n in range(3)]
    assert [u.size for u in units] == [(source.folder / u.key).stat().st_size for u in units]
    records = source.records()
    assert source.set_aside == {}
    assert [r["text"] for r in records] == [b"x" * n for n in range(50)]
    assert [float(r["half"]) for r in records] == [n / 2 for n in range(50)]
    assert [r["ids"].tolist() for r in records] == [[n] * 3 for n in range(50)]


@pytest.mark.parametrize("compression", [*PACK, "zstd:7"])
@pytest.mark.parametrize("hashes", [(), ("md5", "sha1", "sha3_256", "blake2b")])
def test_compressed_shard_gives_its_samples(source, compression, hashes):
    made = MdsSet(source.folder, TEXT, compression, hashes)
    made.add(ROWS)
    made.add(ROWS)
    assert [r["number"] for r in source.records()] == 2 * list(range(10))
    assert source.set_aside == {}


def test_hash_that_no_library_has_is_not_verified(source, monkeypatch):
    monkeypatch.setitem(sys.modules, "xxhash", None)
    made = MdsSet(source.folder, TEXT)
    made.add(ROWS)
    made.entries[0]["raw_data"]["hashes"] = {"xxh3_64": "00", "of_tomorrow": "00"}
    made.write_index()
    assert len(source.records()) == 10


# --- damage to a shard


def cut(made, path):
    path.write_bytes(path.read_bytes()[:-1])


def longer(made, path):
    path.write_bytes(path.read_bytes() + b"\0")


def count(made, path):
    path.write_bytes(struct.pack("<I", 9) + path.read_bytes()[4:])


def offset(at, value):
    def change(made, path):
        body = bytearray(path.read_bytes())
        struct.pack_into("<I", body, 4 + 4 * at, value)
        path.write_bytes(body)

    return change


def stated(samples):
    def change(made, path):
        made.entries[0]["samples"] = samples
        made.write_index()
        path.write_bytes(struct.pack("<I", samples) + path.read_bytes()[4:])

    return change


def missing(made, path):
    path.unlink()


SAYS = "bytes, but index.json says "
DAMAGE: dict[str, tuple[Callable[[MdsSet, Path], None], str]] = {
    "cut": (cut, SAYS),
    "longer": (longer, SAYS),
    "another count": (count, "it has 9 samples in "),
    "more samples than bytes": (stated(1 << 30), "it has 1073741824 samples in "),
    "offsets within the table": (offset(0, 12), "its offsets run backwards"),
    "offsets backwards": (offset(4, 70), "its offsets run backwards"),
    "offsets beyond the end": (offset(5, 1 << 31), "its offsets run backwards"),
    "an end before the end": (
        offset(10, 200),
        "its offsets run backwards, or do not end at its end",
    ),
    "no object": (missing, "No such file"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_shard_is_skipped_whole_and_the_others_are_read(damage, source):
    change, why = DAMAGE[damage]
    made = MdsSet(source.folder, TEXT)
    path = made.add(ROWS)
    made.add(ROWS)
    change(made, path)
    records = source.records()
    assert [(r["unit"], r["number"]) for r in records] == [(1, n) for n in range(10)]
    [reason] = source.set_aside.values()
    assert why in reason


def test_altered_shard_is_skipped_by_its_hash(source):
    made = MdsSet(source.folder, TEXT, hashes=["sha1"])
    path = made.add(ROWS)
    made.add(ROWS)
    body = path.read_bytes()
    path.write_bytes(body[:-1] + b"\1")
    assert {r["unit"] for r in source.records()} == {1}
    assert "shard.00000.mds is damaged: index.json has another sha1" in source.set_aside[path.name]


@pytest.mark.parametrize("compression", PACK)
@pytest.mark.parametrize("change", [-1, 1])
def test_compressed_shard_of_another_size_is_skipped(compression, change, source):
    made = MdsSet(source.folder, TEXT, compression)
    made.add(ROWS)
    made.add(ROWS)
    made.entries[0]["raw_data"]["bytes"] += change
    made.write_index()
    assert {r["unit"] for r in source.records()} == {1}
    assert set(source.set_aside) == {"shard.00000.mds"}


@pytest.mark.parametrize("compression", PACK)
def test_compressed_shard_that_is_cut_is_skipped(compression, source):
    made = MdsSet(source.folder, TEXT, compression)
    path = made.add(ROWS)
    made.add(ROWS)
    body = path.read_bytes()
    for length in (0, 1, len(body) // 2, len(body) - 1):
        path.write_bytes(body[:length])
        made.entries[0]["zip_data"]["bytes"] = length
        made.write_index()
        source.set_aside = {}
        assert {r["unit"] for r in source.records()} == {1}
        assert set(source.set_aside) == {"shard.00000.mds"}


# --- damage to a sample


SEVEN = bytes([33, 1 << 2, 1]) + of("int32", 7)  # dtype 33, one dimension of one


@pytest.mark.parametrize(
    ("encoding", "good", "bad", "why"),
    [
        ("ndarray", SEVEN, b"", "column 'value'"),
        ("ndarray", SEVEN, b"\x28" + SEVEN[1:], "column 'value'"),
        ("ndarray", SEVEN, SEVEN[:2] + b"\2" + SEVEN[3:], "4 bytes, expected 8 for int32 [2]"),
        ("ndarray", SEVEN, bytes([33, 3 << 2 | 3, 1]), "column 'value'"),
        ("ndarray:int32:2", of("int32", 1, 2), of("int32", 1), "4 bytes, expected 8 for int32"),
        ("int16", of("int16", 1), b"\1", "1 bytes, expected 2 for int16"),
        ("str_int", b"12", b"1x", "column 'value'"),
        ("str_int", b"12", b"9223372036854775808", "value"),
        ("str_float", b"1.5", b"one", "column 'value'"),
    ],
    ids=range(9),
)
def test_damaged_sample_is_skipped_alone(encoding, good, bad, why, source):
    made = MdsSet(source.folder, {"number": ("int", 8), "value": (encoding, None)})
    values = [good, good, bad, good]
    made.add([[struct.pack("<q", n), value] for n, value in enumerate(values)])
    assert [r["number"] for r in source.records()] == [0, 1, 3]
    assert source.set_aside == {}
    [reason] = source.passed
    assert why in reason


def test_sample_whose_columns_have_another_length_is_skipped_alone(source):
    made = MdsSet(source.folder, TEXT)
    rows = [sample([None, 8], row) for row in ROWS[:4]]
    rows[1] += b"\0"
    rows[2] = b"\xff\xff\xff\xff" + rows[2][4:]
    rows[3] = b"\0"
    made.put(shard(rows), 4)
    assert [r["number"] for r in source.records()] == [0]
    assert source.set_aside == {}
    assert "the sample is damaged: 14 bytes, but its columns have 13" in source.passed


# --- columns


class Exploding:
    def __reduce__(self) -> Any:
        return pytest.fail, ("something was unpickled",)


def test_pickle_is_refused_and_read_around(tmp_path, source):
    made = MdsSet(source.folder, {"a": ("pkl", None), **TEXT})
    made.add([[pickle.dumps(Exploding()), *row] for row in ROWS])
    with pytest.raises(SourceUnreachableError, match="'a' has encoding pkl, which can run code"):
        source.units()
    source = Source(tmp_path, columns=["number", "text"])
    assert [(r["number"], "a" in r) for r in source.records()] == [(n, False) for n in range(10)]


@pytest.mark.parametrize(
    "encoding", ["list[jpeg]", "jpeg_array", "of_tomorrow", "ndarray:object", "ndarray:O:2"]
)
def test_unknown_encoding_is_refused_by_name(encoding, source):
    MdsSet(source.folder, {"a": (encoding, None)}).add([[b""]])
    with pytest.raises(
        SourceUnreachableError, match=r"has encoding .*, which is not supported"
    ) as e:
        source.units()
    assert encoding in str(e.value)


def test_column_that_the_set_lacks_is_refused(tmp_path):
    source = Source(tmp_path, columns=["text", "label"])
    MdsSet(source.folder, TEXT).add(ROWS)
    why = r"columns: found \['label'\], expected some of \['text', 'number'\]"
    with pytest.raises(SourceUnreachableError, match=why):
        source.units()


# --- index.json


def other(**changed):
    return lambda entries: {"version": 2, "shards": [entries[0] | changed]}


INDEXES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another format": (other(format="csv"), "shards.0.format: Input should be 'mds'"),
    "another version": (other(version=1), "shards.0.version: Input should be 2"),
    "no list": (lambda entries: [], "index.json does not describe an MDS set: "),
    "no shards": (lambda entries: {"version": 2}, "shards: Field required"),
    "no columns": (
        other(column_names=None),
        "shards.0.column_names: Input should be a valid array",
    ),
    "no size": (other(column_sizes=[0, 8]), "shards.0.column_sizes.0: Input should be greater"),
    "too few sizes": (other(column_sizes=[8]), "has not one encoding and one size for each of"),
    "twice": (lambda entries: {"shards": entries * 2}, "index.json names a shard twice"),
}


@pytest.mark.parametrize("index", INDEXES)
def test_index_that_is_none_stops_the_listing(index, source):
    made = MdsSet(source.folder, TEXT)
    made.add(ROWS)
    change, why = INDEXES[index]
    (source.folder / "index.json").write_text(json.dumps(change(made.entries)))
    with pytest.raises(SourceUnreachableError) as caught:
        source.units()
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folder_above_the_set_stops_the_listing(source):
    (source.folder / "train").mkdir()
    MdsSet(source.folder / "train", TEXT).add(ROWS)
    with pytest.raises(
        SourceUnreachableError, match=r"url has no index\.json, expected the folder"
    ):
        source.units()


def test_reader_sees_shards_that_are_added_later(source, view):
    made = MdsSet(source.folder, TEXT)
    made.add(ROWS)
    reader = Shards()
    assert len(list(reader.units(view))) == 1
    made.add(ROWS)
    assert len(list(reader.read("shard.00001.mds", view))) == 10
    assert len(list(reader.units(view))) == 2
    made.entries.pop()
    made.write_index()
    with pytest.raises(ValueError, match="the set changed since it was listed"):
        list(reader.read("shard.00001.mds", view))
