"""Records that are fetched again, by a worker in this process: supplements, and damaged shards."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cachecd.config import DatasetConfig
from cachecd.daemon import refetch
from cachecd.model import Cursor
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.values import Piece
from cachecd.units.source_units import list_units
from cachecd.units.unit_store import open_unit_store
from cachecd_client._core import Sidecar
from tests.daemon.directories import NAME, Directory, stream
from tests.daemon.test_worker_streams import SHAPE, Bench, make_source, opened
from tests.daemon.workers import InProcess
from tests.disk.shards import contents, tree

UNITS = 40
SUPPLEMENTS = stream(SHAPE.streams)
NUMBER = SHAPE.streams  # of the first supplement


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "src"


@pytest.fixture
@asynccontextmanager
async def bench(tmp_path: Path, source: Path) -> AsyncIterator[Bench]:
    """A complete listing of files of 5 kB, and a worker."""
    make_source(source, UNITS, 5000)
    dataset = {"source": {"url": f"file://{source}", "format": "files"}}
    given = DatasetConfig.model_validate(dataset).source
    units = [unit for page in list_units(given, open_unit_store(given, 4)) for unit in page]

    def executor_of(disk: Directory) -> InProcess:
        return InProcess(
            {"train": dataset}, lambda grant: disk.generation.temporary(grant.number, grant.version)
        )

    async with opened(tmp_path, executor_of) as bench:
        executor = bench.runner.streams._executor
        await executor.start(bench.streams.handle)
        bench.fed.schema = None
        await bench.list(units, ends=True)
        yield bench
        await bench.until(lambda: not executor.worker._streams)
        assert not any(".new" in name for name in tree(bench.disk.generation)), "no draft is left"


async def event(bench: Bench, kind: type[Any], command: do.Command | None = None) -> Any:
    """The next event of this kind, after a command."""
    before = len(bench.events)
    if command is not None:
        bench.runner.carry_out([command])
    [found, *_] = await bench.until(
        lambda: [each for each in bench.events[before:] if isinstance(each, kind)]
    )
    return found


def pieces(*units: int) -> tuple[Piece, ...]:
    return tuple(map(Piece, units))


# --- supplements


async def test_supplement_has_the_listed_pieces_without_excluded_units(bench):
    bench.disk.exclude("e", "00005")
    make = do.MakeSupplement(SUPPLEMENTS, NUMBER, pieces(3, 5, 7, UNITS + 5))
    sealed = await event(bench, ev.ShardSealed, make)
    assert (sealed.before, sealed.after) == (Cursor(), Cursor(0, 0, 4))
    assert (sealed.facts.records, sealed.facts.ended, sealed.skipped) == (2, 2, ())
    await event(bench, ev.Published, do.PublishShard(SUPPLEMENTS, NUMBER))
    assert [unit for unit, *_ in contents(bench.disk.generation, NUMBER)] == [3, 7]
    meta = json.loads(Sidecar.read(str(bench.disk.generation.sidecar(NUMBER))).meta)
    assert (meta["stream"], meta["number"]) == (SHAPE.streams, NUMBER)
    assert not [each for each in bench.events if isinstance(each, ev.StreamClosed)]


async def test_supplement_without_a_record_leaves_no_file(bench, source):
    (source / "00003").unlink()
    make = do.MakeSupplement(SUPPLEMENTS, NUMBER, pieces(3))
    sealed = await event(bench, ev.ShardSealed, make)
    assert (sealed.facts.records, [skip.unit for skip in sealed.skipped]) == (0, [3])
    assert tree(bench.disk.generation) == []


# --- damaged shards


async def shard(bench: Bench) -> tuple[dict[str, Any], list[tuple[int, int, bytes]]]:
    """Has stream 0 make its first shard; returns the meta text of its sidecar, and its records."""
    bench.open()
    bench.runner.carry_out([do.GrantShard(stream(0), 0)])
    for _ in range(3):  # units in pages
        bench.ask()
    await bench.until(lambda: [each for each in bench.events if isinstance(each, ev.ShardSealed)])
    await event(bench, ev.Published, do.PublishShard(stream(0), 0))
    await event(bench, ev.StreamClosed, do.CloseStream(stream(0)))
    return meta(bench, 0), contents(bench.disk.generation, 0)


def meta(bench: Bench, version: int) -> dict[str, Any]:
    return json.loads(Sidecar.read(str(bench.disk.generation.sidecar(0, version))).meta)


REMAKE = do.RemakeShard(NAME, 0, 0, local=False, drop=True)


async def test_next_version_has_the_records_and_the_meta_text_of_the_damaged_shard(
    bench, monkeypatch
):
    monkeypatch.setattr(refetch, "MOST_AT_ONCE", 3)  # of more units than one look-up gives
    text, records = await shard(bench)
    remade = await event(bench, ev.Remade, REMAKE)
    assert (remade.number, remade.facts.version) == (0, 1)
    assert remade.facts.records == len(records) > 6
    assert sorted(contents(bench.disk.generation, 0, 1)) == sorted(records)
    assert meta(bench, 1) == text
    assert not bench.disk.generation.shard(0).exists(), "dropped"


async def test_next_version_has_the_remaining_units_however_many_are_deleted(bench, source):
    _, records = await shard(bench)
    kept = records[-1][0]
    for path in source.iterdir():
        if int(path.name) != kept:
            path.unlink()
    remade = await event(bench, ev.Remade, REMAKE)
    assert remade.facts.records == 1
    assert [unit for unit, *_ in contents(bench.disk.generation, 0, 1)] == [kept]


async def test_next_version_with_a_newly_excluded_record_is_not_published(bench, monkeypatch):
    _, records = await shard(bench)
    key = f"{records[0][0]:05d}"
    send = bench.runner.streams._executor.send

    def excluding(message: Any) -> None:
        bench.disk.exclude("e", key)
        send(message)

    with monkeypatch.context() as patch:
        patch.setattr(bench.runner.streams._executor, "send", excluding)
        failed = await event(bench, ev.RemakeFailed, REMAKE)
    assert failed.reason == "a record of it was excluded"
    remade = await event(bench, ev.Remade, REMAKE)
    assert remade.facts.records == len(records) - 1


async def test_next_version_without_a_record_is_tried_again(bench, source):
    await shard(bench)
    for path in source.iterdir():
        path.write_bytes(b"another")
    failed = await event(bench, ev.RemakeFailed, REMAKE)
    assert failed.reason == "none of its records can be fetched now"


async def test_damaged_shard_is_retried_while_its_source_is_missing(bench, source):
    await shard(bench)
    source.rename(source.with_name("away"))
    failed = await event(bench, ev.RemakeFailed, REMAKE)
    assert "the folder does not exist" in failed.reason
    source.with_name("away").rename(source)
    await event(bench, ev.Remade, REMAKE)
