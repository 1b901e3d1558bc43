"""Format `files` with `match`, `skip` and `join`: what is listed, and how joined objects are read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cachecd.config import SourceConfig
from cachecd.errors import UnitError
from cachecd.model import Unit
from cachecd.sampler.joined import Joined
from cachecd.stores.key_ranges import Lanes
from cachecd.units.source_units import list_units, sweep_units
from cachecd_client._core import decode_example, encode_example
from tests.contracts.format import FormatContract, TwiceContract
from tests.contracts.store import opened
from tests.sampler.test_formats import BODIES
from tests.sampler.test_worker import Bench
from tests.stores import S3Server

JOIN = {"image": "images/*.png", "mask": "masks/*.json"}
CONFIG = {"source": {"url": "file:///nowhere", "format": "files", "join": JOIN}}
SIZES = [(9, 0), (0, 7), (5000, 70_000), (1, 1), (0, 0), (30, 40)]
Put = Callable[[dict[str, bytes]], str]


class TestJoinedFiles(FormatContract):
    """The contract's objects: the first half of each is one object, the rest another."""

    config = CONFIG

    def objects(self) -> list[bytes]:
        return BODIES

    def records(self) -> Iterator[tuple[int, int, bytes]]:
        for unit, body in enumerate(BODIES):
            half = len(body) // 2
            record = {"image": body[:half], "key": f"{unit:04d}".encode(), "mask": body[half:]}
            yield unit, 0, encode_example(record)


class TestJoinedFilesThroughATransform(TwiceContract):
    plain = TestJoinedFiles()


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Puts objects below a new URL, which it returns."""

    def put_all(objects: dict[str, bytes]) -> str:
        for key, body in objects.items():
            path = tmp_path / "src" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
        return f"file://{tmp_path}/src"

    return put_all


def keys(url: str, after: str = "", **picks: Any) -> list[str]:
    """What the source lists, sorted."""
    source = SourceConfig.model_validate({"url": url, "format": "files", **picks})
    store = opened(url, **picks)
    return sorted(unit.key for page in list_units(source, store, after) for unit in page)


@pytest.mark.parametrize(
    ("picks", "picked"),
    [
        ({}, ["a.png", "sub/b.jpg", "sub/b.png", "sub/deep/c.png", "x/[1].png"]),
        ({"match": "*.png"}, ["a.png", "sub/b.png", "sub/deep/c.png", "x/[1].png"]),
        ({"match": ["sub/*", "a*"]}, ["a.png", "sub/b.jpg", "sub/b.png", "sub/deep/c.png"]),
        ({"match": "sub/*.png", "skip": "*/deep/*"}, ["sub/b.png"]),
        ({"skip": ["*.jpg", "sub/*"]}, ["a.png", "x/[1].png"]),
        ({"match": "x/[1].png"}, ["x/[1].png"]),
        ({"join": {"a": "sub/*.png"}}, ["b", "deep/c"]),
        ({"join": {"a": "*.jpg", "b": "*.png"}}, ["sub/b"]),
    ],
)
def test_patterns_select_and_name_the_units(put: Put, picks: dict[str, Any], picked: list[str]):
    url = put(
        dict.fromkeys(["a.png", "sub/b.jpg", "sub/b.png", "sub/deep/c.png", "x/[1].png"], b"1")
    )
    assert keys(url, **picks) == picked


@pytest.mark.parametrize("picks", [{"join": JOIN}, {"match": "images/*", "skip": "*7.png"}])
def test_several_requests_at_a_time_list_the_same_units(s3: S3Server, monkeypatch, picks):
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    bucket, url = s3.bucket(f"joined-{next(iter(picks))}"), f"s3://joined-{next(iter(picks))}/a"
    s3.put(bucket, {f"a/{kind}/{n}.png": b"1" for kind in ("images", "masks") for n in range(30)})
    source = SourceConfig.model_validate({"url": url, "format": "files", **picks})
    sweep = sweep_units(source, opened(url, **picks), Lanes())
    assert sweep is not None
    swept = [unit.key for page in iter(sweep.next, None) for unit in page]
    sweep.close()
    assert sorted(swept) == keys(url, **picks) != []


def test_only_the_folder_of_the_first_pattern_is_listed(put: Put):
    url = put({f"{folder}/{n}.png": b"1" for folder in ("images", "masks") for n in range(3)})
    backend: Any = opened(url, join={"i": "images/*.png", "m": "masks/*.png"}).backend
    assert [o.key for o in backend.glimpse()] == [f"images/{n}.png" for n in range(3)]
    assert keys(url, match=["images/1*", "images/2*"]) == ["images/1.png", "images/2.png"]


def test_a_listing_resumes_after_a_text_in_key_order(tmp_path: Path):
    names = ["a", "a-b", "a.b", "b", "b-", "c"]  # "a-b.png" comes before "a.png"
    for name in names:
        (tmp_path / f"{name}.png").write_bytes(b"1")
    url, join = f"file://{tmp_path}", {"image": "*.png"}
    listed = [u.key for page in opened(url, join=join).list() for u in page]
    assert sorted(listed) == sorted(names)
    for at, text in enumerate(listed):
        after = keys(url, text, join=join)
        assert set(listed[at + 1 :]) <= set(after)
        assert text not in after


class TestWorker:
    @pytest.fixture
    def pairs(self) -> dict[str, tuple[bytes, bytes]]:
        chance = random.Random(3)
        return {
            f"d/{n:02d}": (chance.randbytes(a), chance.randbytes(b))
            for n, (a, b) in enumerate(SIZES * 5)
        }

    def test_a_record_holds_the_bytes_of_each_object_fetched_once(
        self, put: Put, pairs: dict[str, tuple[bytes, bytes]], tmp_path: Path
    ):
        objects = {f"images/{text}.png": image for text, (image, _) in pairs.items()}
        objects |= {f"masks/{text}.json": mask for text, (_, mask) in pairs.items()}
        lost = {"d/03", "d/09"}
        for text in lost:
            del objects[f"masks/{text}.json"]
        source: dict[str, Any] = {"url": put(objects), "format": "files", "join": JOIN}
        units = [
            Unit(n, u.key, u.size, u.etag)
            for n, u in enumerate(u for page in opened(**source).list() for u in page)
        ]
        assert {unit.key for unit in units} == pairs.keys()
        folder = tmp_path / "tmp"
        folder.mkdir()
        outcome, shard = Bench(folder, source=source).made(units)
        found = [decode_example(record) for _, _, record in shard.records]
        assert {r["key"][1][0].decode(): (r["image"][1][0], r["mask"][1][0]) for r in found} == {
            text: pair for text, pair in pairs.items() if text not in lost
        }
        assert [(s.key, s.reason, s.passing) for s in outcome.skipped] == [
            (text, f"'masks/{text}.json' is missing", False) for text in sorted(lost)
        ]
        whole = sum(len(a) + len(b) for text, (a, b) in pairs.items() if text not in lost)
        assert outcome.fetched_bytes == whole


def test_a_folder_that_is_gone_costs_no_unit(tmp_path: Path):
    """There is no other object that can be read: the folder may not be mounted."""
    (tmp_path / "tmp").mkdir()
    source = {"url": f"file://{tmp_path}/gone", "format": "files", "join": JOIN}
    failed = Bench(tmp_path / "tmp", source=source).failed([Unit(0, "1", 10)])
    assert (failed.cause, "not mounted?" in failed.reason) == ("source", True)


def test_a_joined_object_that_cannot_be_read_now_is_named_and_tried_again():
    class Refusing:
        async def find(self, key: str) -> None:
            raise UnitError("refused", passing=True)

    reader: Any = Refusing()
    unit = Joined(Unit(0, "k", 3, "e"), {"a": "*1", "b": "*2"}, reader, lambda size: None)
    with pytest.raises(UnitError, match="'k2': refused") as caught:
        asyncio.run(unit.read(0, 3))
    assert caught.value.passing


def test_empty_label_is_part_of_a_joined_record(put):
    url = put({"l/a.txt": b"", "l/b.txt": b"1", "l/.c.txt": b"1", "i/a.png": b"x"})
    assert keys(url, join={"text": "l/*.txt", "image": "i/*.png"}) == ["a", "b"]
    assert keys(url, match="l/*.txt") == ["l/b.txt"]
