"""JSON lines become records: their values, their types, and what costs a line or an object."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd.config import DatasetConfig
from cachecd.errors import RecordError
from cachecd.sampler.formats import open_format
from cachecd.sampler.formats.jsonl.values import LineParser
from cachecd_client._core import decode_example, encode_example
from cachecd_client.schema import Feature
from tests import zstandard
from tests.contracts.format import Bench, FormatContract, TwiceContract

RNG = np.random.default_rng(11)
SOURCE = {"url": "file:///nowhere", "format": "jsonl"}
CONFIG = {"source": SOURCE}

ROWS = [
    [
        {"id": 1000 * unit + row, "text": "ä" + RNG.bytes(int(size)).hex(), "meta": {"n": [row, 2]}}
        for row, size in enumerate(RNG.integers(0, 2000, 30))
    ]
    for unit in range(4)
]


def json_lines(rows: list[Any]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def bench_of(folder: Path, form: str = "jsonl", transform: Any = (), **source: Any) -> Bench:
    config = {"source": {**SOURCE, "format": form, **source}, "transform": transform}
    folder.mkdir(exist_ok=True)
    return Bench(open_format(DatasetConfig.model_validate(config), ()), folder, capacity=1 << 24)


def decoded(bench: Bench, *bodies: bytes) -> list[dict[str, Any]]:
    """The records of these objects, as an Example has them."""
    shards = bench.pour(list(bodies))
    examples = [decode_example(record) for shard in shards for _, _, record in shard.records]
    return [{n: v for n, v in each.items() if v[1]} for each in examples]  # a missing list is empty


class TestJsonLines(FormatContract):
    config = CONFIG

    def objects(self) -> list[bytes]:
        return [json_lines(rows) for rows in ROWS]

    def records(self) -> Iterator[tuple[int, int, bytes]]:
        for unit, rows in enumerate(ROWS):
            for ordinal, row in enumerate(rows):
                flat = {"id": row["id"], "meta.n": np.array(row["meta"]["n"])}
                yield unit, ordinal, encode_example({**flat, "text": row["text"].encode()})


class TestJsonLinesThroughATransform(TwiceContract):
    plain = TestJsonLines()

    def records(self) -> Iterator[tuple[int, int, bytes]]:
        for unit, ordinal, record in self.plain.records():
            values = {name: value for name, (_, value) in decode_example(record).items()}
            flat = {"id": values["id"][0], "meta.n": np.array(values["meta.n"])}
            for variant in range(2):
                example = {**flat, "text": values["text"][0], "variant": variant}
                yield unit, 2 * ordinal + variant, encode_example(example)


class TestJsonLinesInGzip(TestJsonLines):
    suffix = ".json.gz"

    def objects(self) -> list[bytes]:
        return [gzip.compress(b[:999]) + gzip.compress(b[999:]) for b in super().objects()]


class TestJsonLinesInZstandard(TestJsonLines):
    suffix = ".jsonl.zst"

    def objects(self) -> list[bytes]:
        return [zstandard.frames(body) for body in super().objects()]


class TestPlainLinesNamedAsGzip(TestJsonLines):
    suffix = ".gz"


# --- values: as Parquet has them

SAME: dict[str, list[Any]] = {
    "integers": [1, -(2**63), 2**63 - 1],
    "unsigned": [2**64 - 1, 0, 2**63],
    "floats": [0.1, -0.0, 1e300],
    "truth": [True, False, True],
    "texts": ["ä\0", "", "\U0001f600"],
    "nulls": [None, 3, None],
    "null texts": [None, "x", None],
    "null floats": [0.5, None, 2.0],
    "vectors": [[1, 2], [3, 4], [5, 6]],
    "lists": [[1], [], [2, 3]],
    "float lists": [[0.1, 1e300], [], [16777217.0]],
    "gaps": [[0.5, None], [None, 1.5], [0.25, 2.0]],
    "words": [["a", "ä"], [], ["b"]],
    "no lists": [None, ["a"], None],
    "truths": [[True], [False, True], []],
    "matrices": [[[1, 2], [3, 4]]] * 3,
    "float matrices": [[[0.5, 0.25]], [[1.5, 2.5]], [[0.0, -1.0]]],
    "objects": [{"a": 1, "b": {"c": "x"}}, {"a": 2, "b": {"c": "y"}}, {"a": 3, "b": {"c": "z"}}],
    "some objects": [{"a": 1}, None, {"a": 3}],
    "object lists": [[{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], [], [{"a": 3, "b": "z"}]],
    "deep lists": [[{"p": {"x": [1.5, 2.0]}}], [{"p": {"x": [0.5, 0.0]}}], [{"p": {"x": [1.0, 2.5]}}]],
    "dots": [{"a.b": 1}, {"a.b": 2}, {"a.b": 3}],
}  # fmt: skip


@pytest.mark.parametrize("values", SAME.values(), ids=SAME)
def test_values_have_the_features_that_parquet_gives_them(values, tmp_path: Path):
    rows = [{"id": n, "x": value} for n, value in enumerate(values)]
    unsigned = {"type": pa.uint64()} if values[0] == 2**64 - 1 else {}
    table = pa.table({"id": range(len(rows)), "x": pa.array(values, **unsigned)})
    file = io.BytesIO()
    pq.write_table(table, file)
    parquet = bench_of(tmp_path / "parquet", "parquet")
    expected = decoded(parquet, file.getvalue())
    bench = bench_of(tmp_path / "jsonl")
    assert decoded(bench, json_lines(rows)) == expected
    assert bench.schema == parquet.schema
    assert len(expected) == 3
    assert bench.set_aside == parquet.set_aside == {}


def test_a_transform_gets_the_values_that_parquet_gives():
    line = (
        b'{"i":1,"f":1.0,"e":1e2,"t":true,"s":"\\u00e4","n":null,"o":{},"z":-0,"l":[],"v":[1,2.5]}'
    )
    record = LineParser().record(line)
    vector = record.pop("v")
    assert record == {"i": 1, "f": 1.0, "e": 100.0, "t": 1, "s": "ä".encode(), "z": 0, "l": []}
    kinds = [int, np.float64, np.float64, int, bytes, int, list]
    assert list(map(type, record.values())) == kinds
    assert (vector.dtype, vector.tolist()) == (np.float64, [1.0, 2.5])


def test_lists_of_different_lengths_in_a_list_reach_a_transform_as_arrays():
    record = LineParser().record(b'{"x":[[1],[2,3]],"w":[["a"],[]],"o":[{"v":[1]},{"v":[]}]}')
    assert [each.tolist() for each in record["x"]] == [[1], [2, 3]]
    assert record["w"] == [[b"a"], []]
    assert [each.tolist() for each in record["o.v"]] == [[1], []]


# --- what costs a line

BAD = {
    "cut": (b'{"a":1', "the line is not JSON: "),
    "array": (b'[{"a":1}]', "the line is JSON, but not an object"),
    "text": (b'"a"', "the line is JSON, but not an object"),
    "two": (b'{"a":1}{"a":2}', "the line is not JSON: "),
    "blank": (b" \t\r", "the line is blank"),
    "empty": (b"", "the line is blank"),
    "NaN": (b'{"a":NaN}', "the line is not JSON: "),
    "Infinity": (b'{"a":-Infinity}', "the line is not JSON: "),
    "too large": (b'{"a":1e400}', "the line is not JSON: "),
    "NUL": (b'{"a":"\0"}', "the line is not JSON: "),
    "NULs": (bytes(9), "the line is not JSON: "),
    "Latin-1": (b'{"a":"\xe4"}', "the line is not JSON: "),
    "surrogate": (b'{"a":"\\ud800"}', "the line is not JSON: "),
    "surrogate in a key": (b'{"\\udfff":1}', "the line is not JSON: "),
    "surrogate as bytes": (b'{"a":"\xed\xa0\x80"}', "the line is not JSON: "),
    "BOM": (b'\xef\xbb\xbf{"a":1}', "the line is not JSON: "),
    "key twice": (b'{"a":1,"a":1}', "it has the key 'a' twice"),
    "key twice, deep": (b'{"a":[{"b":{"c":1,"d":2,"c":3}}]}', "it has the key 'c' twice"),
    "key twice and an escaped colon": (b'{"a":1,"a":"\\u003a"}', "it has the key 'a' twice"),
    "key twice and a colon as \\u003A": (b'{"a":1,"a":"\\u003A"}', "it has the key 'a' twice"),
    "key twice, once escaped": (b'{"\\u0061":1,"a":2}', "it has the key 'a' twice"),
    "key twice, with a colon": (b'{"\\u003a":1,":":2}', "it has the key ':' twice"),
    "key twice among 100,000": (
        b"{" + b",".join(b'"%d":0' % n for n in range(10**5)) + b',"7":1}', "it has the key '7' twice"
    ),
    "a long key twice": (b'{"%s":1,"%s":2}' % (b"k" * 10**6, b"k" * 10**6), "it has the key 'kkk"),
    "name twice": (b'{"a.b":1,"a":{"b":2}}', "it has the name 'a.b' twice"),
    "name twice, the other way": (b'{"a":{"b":2},"a.b":1}', "it has the name 'a.b' twice"),
    "above 64 bits": (b'{"a":18446744073709551616}', "it has the integer 18446744073709551616, "),
    "below 64 bits": (b'{"a":[0.5,-9223372036854775809]}', "it has the integer -9223372036854775809"),
    "many digits": (b'{"a":' + b"9" * 300 + b"}", "it has the integer 9999"),
    "a list of both signs": (b'{"a":[-1,9223372036854775808]}', "'a': neither int64 nor uint64"),
    "rounded in a list": (b'{"a":[0.5,9007199254740993]}', "'a': float64 cannot hold all"),
    "null in a list": (b'{"a":[1,null]}', "'a': a null within a list cannot be stored"),
    "null in words": (b'{"a":["x",null]}', "'a': a null within a list cannot be stored"),
    "null object": (b'{"a":[{"b":1},null]}', "'a': a null within a list cannot be stored"),
    "kinds": (b'{"a":[1,"x"]}', "'a': the values of a list have several kinds"),
    "truth and number": (b'{"a":[1,true]}', "'a': the values of a list have several kinds"),
    "fields": (b'{"a":[{"b":1},{"c":1}]}', "'a.b': an object of the list lacks it"),
    "10,000 keys": (json.dumps({f"k{n}": n for n in range(10_000)}).encode(), "it has 10000 values"),
    "1,000 lists": (b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}", "its values are nested more than 254"),
    "100 lists": (b'{"a":' + b"[" * 100 + b"1" + b"]" * 100 + b"}", "'a': its lists are nested more"),
    "1,000 objects": (b'{"a":' * 1000 + b"1" + b"}" * 1000, "its values are nested more than 254"),
    "1,000,000 objects": (b'{"a":' * 10**6 + b"1" + b"}" * 10**6, "the line is not JSON: depth limit"),
    "1,000,000 lists": (b'{"a":' + b"[" * 10**6, "the line is not JSON: depth limit"),
}  # fmt: skip


@pytest.mark.parametrize(("line", "why"), BAD.values(), ids=BAD)
def test_a_line_that_is_no_record_costs_itself_and_is_counted(line, why, tmp_path: Path):
    with pytest.raises(RecordError) as refused:
        LineParser().record(line)
    assert str(refused.value).startswith(why)
    assert len(str(refused.value)) < 300
    bench = bench_of(tmp_path)
    assert len(decoded(bench, b"\n".join([b'{"a":1}', line, b'{"a":2}']))) == 2
    assert bench.passed == ["0000: record 1"]
    assert bench.reasons[0].startswith(why)
    assert bench.set_aside == {}


@pytest.mark.parametrize(
    "line",
    [
        b'{"a": 1 , "b" :"\\u003a:\\\\u003a","c":[{"x":1},{"x":2}]}',
        b'{"a":1.8446744073709552e19,"b":-1e300}',
        b'{"":1,"a":18446744073709551615}\r',
        b'{"\\u003a":1,"b":":"}',
    ],
)
def test_a_line_that_only_looks_doubtful_is_a_record(line):
    assert len(LineParser().record(line)) == len(json.loads(line))


def test_windows_ends_and_an_order_mark_at_the_start_change_nothing(tmp_path: Path):
    plain = decoded(bench_of(tmp_path / "plain"), b'{"a":1}\n{"a":2}\n')
    for name, body in {
        "CRLF": b'{"a":1}\r\n{"a":2}\r\n',
        "BOM": b'\xef\xbb\xbf{"a":1}\n{"a":2}',
    }.items():
        bench = bench_of(tmp_path / name)
        assert decoded(bench, body) == plain
        assert bench.passed == []


SPACES = st.text(" \t\r", max_size=2)
KEYS = st.sampled_from(["a", "b", ":", "a:b", "ä", '"'])
TEXTS = st.text(st.sampled_from('a:"\\\n ä\u2028\U0001f600\0'), max_size=6)


@st.composite
def written(draw: st.DrawFn, value: st.SearchStrategy[str]) -> str:
    """An object as any program may write it: spaces, escapes, and keys that it writes twice."""

    def text(plain: str) -> str:
        escape = draw(st.sampled_from([0, 1, 2, 3]))
        codes = (f"{n:04x}" for n in memoryview(plain.encode("utf-16-le")).cast("H"))
        escaped = "".join(f"\\u{code.upper() if escape == 3 else code}" for code in codes)
        return f'"{escaped}"' if escape > 1 else json.dumps(plain, ensure_ascii=bool(escape))

    def space() -> str:
        return draw(SPACES)

    values = value | TEXTS.map(text)
    fields = [
        f"{space()}{text(draw(KEYS))}{space()}:{space()}{draw(values)}{space()}"
        for _ in range(draw(st.integers(0, 4)))
    ]
    return f"{{{','.join(fields)}}}"


@given(written(written(st.sampled_from(["1", "2.5", "null", "true", "[1,2]", "1e2", '["x"]']))))
def test_whatever_writes_a_line_its_values_are_those_of_another_parser_or_it_is_refused(line: str):
    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(found)) < len(found):
            raise KeyError
        return dict(found)

    def flat(fields: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
        for key, value in fields.items():
            if isinstance(value, dict):
                yield from flat(value, f"{above}{key}.")
            elif value is not None:
                yield above + key, value.encode() if isinstance(value, str) else value

    try:
        expected = dict(flat(json.loads(line, object_pairs_hook=pairs)))
    except KeyError:
        with pytest.raises(RecordError, match="twice"):
            LineParser().record(line.encode())
        return
    record = LineParser().record(line.encode())
    assert record.keys() == expected.keys()
    for name, value in expected.items():
        is_array = isinstance(record[name], np.ndarray)
        assert (record[name].tolist() if is_array else record[name]) == (
            [each.encode() if isinstance(each, str) else each for each in value]
            if isinstance(value, list)
            else value
        )


# --- types


@pytest.mark.parametrize(
    ("first", "later", "stored", "why"),
    [
        ([1], [2, 2.0, 3], [[1], [2], [3]], "feature 'a': record has float64[], the schema says int64[]"),
        ([1], [True, "x"], [[1], [1]], "the schema says int64[]"),
        ([0.5, 1], [2**53, 2**53 + 1], [0.5, 1.0, 2.0**53], "9007199254740993, which float64 cannot hold"),
        ([1], [2**63], [[1]], "an int beyond 64 bits"),
        (["x"], [["y"]], [[b"x"]], "feature 'a': record has bytes[ragged], the schema says bytes[]"),
        ([1], [None, 2], [[1], [2]], "missing ['a']"),
        ([1, None], [None, 2], [[1], [], [], [2]], None),
        ([[0.5], []], [[1, None], [None]], [[0.5], [], [1, "nan"], ["nan"]], None),
        ([[], [1]], [[], [2, 3]], [[], [1], [], [2, 3]], None),
        ([1, "x", 2], ["x"], [[1], [2]], "the schema says int64[]"),
    ],
)  # fmt: skip
def test_the_first_lines_decide_and_later_lines_fit_exactly_or_are_counted(
    first, later, stored, why, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr("cachecd.sampler.formats.jsonl.reader._SAMPLE", len(first))
    bench = bench_of(tmp_path)
    records = decoded(bench, json_lines([{"a": value} for value in (*first, *later)]))
    assert bench.schema is not None
    feature = bench.schema["a"]
    expected = [
        [np.atleast_1d(np.array(value, "float64")).tobytes()] if feature.raw else value
        for value in stored
    ]
    assert [record["a"][1] if "a" in record else [] for record in records] == expected
    assert bool(bench.reasons) == (why is not None)
    assert all(why in reason for reason in bench.reasons)


def test_features_of_the_configuration_precede_those_of_the_first_lines(tmp_path: Path):
    features = {
        "id": {"dtype": "uint64"},
        "score": {"dtype": "float64", "optional": True},
        "tags": {"dtype": "bytes", "shape": [None]},
    }
    bench = bench_of(tmp_path, features=features)
    rows = [{"id": 1}, {"id": 2**64 - 1, "score": 2, "tags": ["a"]}, {"id": -1}]
    records = decoded(bench, json_lines(rows))
    assert bench.schema is not None
    assert {f.name: f for f in bench.schema.features} == {
        "id": Feature("id", "bytes", "uint64", (), raw=True),
        "score": Feature("score", "bytes", "float64", (), raw=True, optional=True),
        "tags": Feature("tags", "bytes", "bytes", None),
    }
    assert records[1]["score"] == ("bytes", [np.float64(2).tobytes()])
    assert bench.passed == ["0000: record 2"]


def test_an_empty_list_of_unknown_kind_is_a_missing_feature(tmp_path: Path):
    bench = bench_of(tmp_path)
    rows = [{"a": 1, "boxes": [], "new": []}, {"a": 2, "boxes": [{"x": 1}, {"x": 2}]}, {"a": 3}]
    records = decoded(bench, json_lines(rows))
    assert [sorted(record) for record in records] == [["a"], ["a", "boxes.x"], ["a"]]
    assert str(bench.schema) == "a int64[], boxes.x int64[ragged]"


def test_lists_of_lists_that_no_feature_holds_cost_the_unit_with_advice(tmp_path: Path):
    bench = bench_of(tmp_path)
    good = json_lines([{"a": 1, "x": [[1, 2]]}])
    records = decoded(bench, json_lines([{"a": 1, "x": [[1], [2, 3]]}]), good)
    assert len(records) == 1
    assert "'x' has lists of lists that are not one array in every line" in bench.set_aside[0]


def test_an_object_without_a_record_is_skipped_with_the_first_reason(tmp_path: Path):
    bench = bench_of(tmp_path)
    assert decoded(bench, b'[{"a":1},\n{"a":2}]', b"\n\n", b'{"a":1}') != []
    assert bench.set_aside == {
        0: "none of its first lines is a record; the first: the line is not JSON: unexpected end of data: "
        "line 1 column 10 (char 9)",
        1: "none of its first lines is a record; the first: the line is blank",
    }


def test_lines_with_thousands_of_names_are_refused_with_what_to_do(tmp_path: Path):
    bench = bench_of(tmp_path)
    decoded(bench, json_lines([{f"k{n}": n, "a": 1} for n in range(1000)]))
    assert "1001 different names, expected at most 1000: name the wanted ones" in bench.set_aside[0]
    bench = bench_of(tmp_path / "wanted", columns=["a"])
    assert len(decoded(bench, json_lines([{f"k{n}": n, "a": 1} for n in range(1000)]))) == 1000


# --- columns


def test_columns_select_names_and_whatever_is_below_them(tmp_path: Path):
    row = {"a": 1, "m": {"x": 1, "y": {"z": 2}}, "m.q": 3, "l": [{"k": 1, "v": "x"}], "n": [1, "x"]}
    for columns, names in {
        ("a",): ["a"],
        ("m",): ["m.q", "m.x", "m.y.z"],
        ("m.y",): ["m.y.z"],
        ("l.v", "a"): ["a", "l.v"],
        ("m.y.z", "m.x"): ["m.x", "m.y.z"],
        ("m.q",): ["m.q"],
    }.items():
        bench = bench_of(tmp_path / columns[0], columns=list(columns))
        [record] = decoded(bench, json_lines([row]))
        assert sorted(record) == names


def test_values_outside_the_columns_are_not_built_but_their_keys_are_checked():
    parser = LineParser(["a"])
    assert parser.record(b'{"a":1,"b":[1,null],"c":99999999999999999999,"a.b":2}') == {
        "a": 1,
        "a.b": 2,
    }
    with pytest.raises(RecordError, match="the key 'b' twice"):
        parser.record(b'{"a":1,"b":1,"b":2}')


def test_a_column_that_no_line_has_is_refused_by_name(tmp_path: Path):
    bench = bench_of(tmp_path / "typed", columns=["text", "txt"])
    decoded(bench, json_lines([{"text": "x", "id": 1}] * 3))
    assert bench.set_aside == {
        0: "none of its first 3 records has a column 'txt' (source.columns), only 'text'; if the column is "
        "rare, declare it in source.features"
    }
    bench = bench_of(tmp_path / "changed", columns=["txt"], transform="tests.sampler.steps:twice")
    decoded(bench, json_lines([{"text": "x", "id": 1}] * 3))
    assert bench.set_aside == {
        0: "no value in the columns 'txt' (source.columns); its keys: 'text', 'id'"
    }
