"""Parquet files as objects: which bytes are read, which units there are, and what hostile ones cost."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cachecd.config import Config, DatasetConfig, SourceConfig
from cachecd.daemon.workers import lister_of
from cachecd.errors import ConfigError
from cachecd.model import Unit
from cachecd.sampler.formats import open_format
from cachecd.sampler.formats.parquet.footer import Footer
from cachecd.units.first_look import check_sources
from cachecd.units.source_units import list_units
from cachecd.units.unit_store import open_unit_store
from cachecd_client._core import decode_example
from tests.contracts.format import Bench
from tests.sampler.test_parquet import CONFIG, bench_of, parquet

RNG = np.random.default_rng(9)


# --- columns and bytes


def test_only_the_wanted_columns_are_read(tmp_path: Path):
    rows = 1000
    table = {
        "large": [RNG.bytes(5000) for _ in range(rows)],
        "meta": [{"w": i, "h": 2} for i in range(rows)],
        "id": list(range(rows)),
    }
    body = parquet(table, row_group_size=100)
    bench = bench_of(tmp_path, columns=["id", "meta"])
    [shard] = bench.pour([body])
    assert [decode_example(r)["id"] for _, _, r in shard.records] == [
        ("int64", [i]) for i in range(rows)
    ]
    assert decode_example(shard.records[7][2])["meta.w"] == ("int64", [7])
    assert len(body) > 5_000_000
    assert bench.taken < 200_000


def test_a_missing_column_is_refused_before_anything_is_made(tmp_path: Path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "README.md").write_text("read me")
    (tmp_path / "source" / "a.parquet").write_bytes(parquet({"image": [b"x"], "label": [1]}))

    def config(*columns: str) -> Config:
        url = (tmp_path / "source").as_uri()
        source = {"url": url, "format": "parquet", "columns": columns}
        cache = {"dir": str(tmp_path / "cache"), "limit": "1GiB"}
        return Config.model_validate(
            {"version": 1, "cache": cache, "datasets": {"train": {"source": source}}}
        )

    def look(given: Config) -> None:
        check_sources(given, lister_of(given, is_owner=False))

    look(config("image", "label"))
    with pytest.raises(
        ConfigError, match=r"^datasets\.train\.source\.columns: 'a\.parquet': it has no "
    ):
        look(config("image", "lable"))


def test_row_group_above_the_memory_is_skipped(tmp_path: Path):
    body = parquet({"a": [RNG.bytes(1000)] * 10, "b": [1] * 10}, row_group_size=5)

    def bench(*columns: str) -> Bench:
        source = {**CONFIG["source"], "columns": columns}
        config = DatasetConfig.model_validate({"source": source})
        return Bench(open_format(config, (), memory=1000), tmp_path, capacity=1 << 20)

    narrow, wide = bench("b"), bench("a", "b")
    [shard] = narrow.pour([body])
    assert len(shard.records) == 10
    assert wide.pour([body]) == []
    assert wide.set_aside[0].startswith("row group 0 has ")
    assert "more than a worker may take (1000 B): raise sampler.memory" in wide.set_aside[0]


# --- units


def listed(folder: Path, objects: dict[str, bytes]) -> list[Unit]:
    for key, body in objects.items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(body)
    source = SourceConfig.model_validate({"url": folder.as_uri(), "format": "parquet"})
    found = [unit for page in list_units(source, open_unit_store(source, 4)) for unit in page]
    return [
        Unit(number, unit.key, unit.size, unit.etag, begin=unit.begin)
        for number, unit in enumerate(found)
    ]


def test_row_groups_are_units_and_what_is_no_parquet_is_one_unit_each(tmp_path: Path):
    whole = parquet({"a": list(range(250))}, row_group_size=100)
    objects = {
        "a.parquet": whole,
        "b/half.parquet": whole[: len(whole) // 2],
        "c.txt": b"read me",
        "d/_SUCCESS": b"",
        "_delta_log/1.json": b"{}",
        "e.parquet": parquet({"a": pa.array([], pa.int64())}),
        "_f.parquet": b"f",
        "g.parquet": b"",
    }
    units = listed(tmp_path, objects)
    assert [(u.key, u.begin > 0) for u in units] == [
        ("_f.parquet", False),
        *[("a.parquet", True)] * 3,
        ("b/half.parquet", False),
        ("c.txt", False),
        ("e.parquet", False),
    ]
    assert sum(u.size for u in units[1:4]) < len(whole)
    bench = bench_of(tmp_path / "b")
    [shard] = bench.pour_slices(list(units), [objects[u.key] for u in units])
    found = [decode_example(record)["a"][1] for _, _, record in shard.records]
    assert found == [[n] for n in range(250)]
    assert [unit for unit, _, _ in shard.records] == [1] * 100 + [2] * 100 + [3] * 50
    assert "expected b'PAR1' (truncated?)" in bench.set_aside[4]
    assert bench.set_aside[5].startswith("not a Parquet file: its 7 bytes end with b'd me'")
    assert bench.set_aside[6] == "it has no records"


def test_a_footer_longer_than_what_is_read_first_is_read_whole(tmp_path: Path):
    body = parquet({f"column {n:04d}": list(range(20)) for n in range(300)}, row_group_size=5)
    assert int.from_bytes(body[-8:-4], "little") > 64 << 10
    units = listed(tmp_path, {"wide.parquet": body})
    assert len(units) == 4
    [shard] = bench_of(tmp_path).pour_slices(units[2:3], [body] * 3)
    assert decode_example(shard.records[0][2])["column 0299"] == ("int64", [10])


# --- what is hostile


def claims(length: int) -> Callable[[bytes], bytes]:
    return lambda body: body[:-8] + length.to_bytes(4, "little") + body[-4:]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (claims(2**32 - 1), "its Parquet footer has 4294967295 bytes, but the object has"),
        (claims(20), "its Parquet footer cannot be read"),
        (lambda body: body[:-4] + b"PARE", "an encrypted Parquet file"),
        (lambda body: body[:-3], "not a Parquet file"),
        (lambda body: body[4 + len(body) // 4 :], "Invalid column metadata (corrupt file?)"),
    ],
)
def test_a_footer_that_cannot_be_true_costs_its_unit(
    tmp_path: Path, damage: Callable[[bytes], bytes], reason: str
):
    body = parquet({"a": list(range(1000)), "b": [RNG.bytes(30) for _ in range(1000)]})
    bench = bench_of(tmp_path)
    [shard] = bench.pour([damage(body), body])
    assert {unit for unit, _, _ in shard.records} == {1}
    assert reason in bench.set_aside[0]


def test_a_flipped_bit_in_a_page_with_a_checksum_is_found(tmp_path: Path):
    body = bytearray(parquet({"a": list(range(2000))}, write_page_checksum=True))
    body[len(body) // 3] ^= 1
    bench = bench_of(tmp_path)
    assert bench.pour([bytes(body)]) == []
    assert "cannot be decoded" in bench.set_aside[0]
    assert "CRC" in bench.set_aside[0]


def test_rows_that_are_not_there_are_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A footer that claims more rows than the pages have."""
    groups = Footer._groups

    def lying(footer: Footer, end: int) -> Any:
        return tuple(dataclasses.replace(g, rows=g.rows + 5) for g in groups(footer, end))

    monkeypatch.setattr(Footer, "_groups", lying)
    bench = bench_of(tmp_path)
    bench.pour([parquet({"a": [1, 2]})])
    assert bench.set_aside == {0: "its Parquet footer says 7 rows, but it has 2: it is damaged"}


def test_whatever_bits_are_flipped_it_is_the_units_fault_or_none(tmp_path: Path):
    body = parquet(
        {"a": list(range(300)), "s": ["x", "yy", "zzz"] * 100, "l": [[1, 2], [], [3]] * 100},
        row_group_size=100,
    )
    chance = np.random.default_rng(3)
    for turn in range(60):
        damaged = bytearray(body)
        for at in chance.integers(0, len(body), 3):
            damaged[at] ^= 1 << int(chance.integers(8))
        (tmp_path / f"{turn}").mkdir()
        bench = bench_of(tmp_path / f"{turn}")
        bench.pour([bytes(damaged)])
        assert len(bench.set_aside) <= 1


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    for name in [n for n in sys.modules if n.startswith("cachecd.sampler.formats.parquet")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pyarrow.*'cachecd\[parquet\]'"):
        open_format(DatasetConfig.model_validate(CONFIG), ())


def test_what_pyarrow_would_abort_the_process_for_is_the_units_fault(tmp_path: Path):
    """A schema that contradicts the size statistics: pyarrow ends the process, by an exception of C++."""
    body = parquet({"a": list(range(100))})
    optional, required = b"\x25\x02\x18\x01a", b"\x25\x00\x18\x01a"
    assert body.count(optional) == 1
    bench = bench_of(tmp_path)
    assert bench.pour([body.replace(optional, required)]) == []
    # Old pyarrow knows no size statistics, and fails as it decodes.
    assert "histogram" in bench.set_aside[0] or "cannot be decoded" in bench.set_aside[0]
