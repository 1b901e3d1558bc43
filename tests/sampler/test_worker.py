"""One shard from a store to its two files, by a worker in this process."""

from __future__ import annotations

import asyncio
import errno
import random
import uuid
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachecd.model import Unit
from cachecd.sampler import read_ahead
from cachecd.sampler.messages import Close, Closed, Failed, FromStream, Sealed, Setup
from cachecd.sampler.worker import Worker
from cachecd.stores import fetch
from cachecd_client._core import decode_example, encode_example
from tests import scripted
from tests.contracts.format import Shard, read_back
from tests.core.shards import frames
from tests.sampler.streams import RETRY, one_shard
from tests.scripted import ScriptedServer, scripted_server
from tests.stores import S3Server

CAPACITY = 1 << 20
RNG = np.random.default_rng(11)


class Bench:
    def __init__(self, folder: Path, **dataset: Any) -> None:
        self.folder = folder
        self.said: list[FromStream] = []
        self.capacity = CAPACITY
        setup = Setup({"train": dataset}, connections=8, bandwidth=None)
        self.worker = Worker(setup, self.said.append, retry=RETRY)
        self._loop = asyncio.new_event_loop()
        weakref.finalize(self, self._loop.close)

    def make(self, units: list[Unit], number: int = 1, lanes: int = 1) -> Sealed | Failed:
        return self._loop.run_until_complete(self._make(units, number, lanes))

    async def _make(self, units: list[Unit], number: int, lanes: int) -> Sealed | Failed:
        path = self.folder / f"{number}.tfrecord"
        for message in one_shard(units, path, number, self.capacity, lanes):
            self.worker.receive(message)
        serving = asyncio.ensure_future(self.worker.serve())
        end = await self._said(Sealed, Failed)
        self.worker.receive(Close(end.stream))
        await self._said(Closed)
        serving.cancel()
        await asyncio.wait({serving})
        return end

    async def _said(self, *kinds: type[Any]) -> Any:
        """What the worker says last, once it is one of these."""
        while not (self.said and isinstance(self.said[-1], kinds)):
            await asyncio.sleep(0.001)
        return self.said[-1]

    def made(self, units: list[Unit], number: int = 1, lanes: int = 1) -> tuple[Sealed, Shard]:
        result = self.make(units, number, lanes)
        assert isinstance(result, Sealed), result
        return result, read_back(self.folder / f"{number}.tfrecord")

    def failed(self, units: list[Unit]) -> Failed:
        result = self.make(units)
        assert isinstance(result, Failed), result
        assert list(self.folder.iterdir()) == [], "nothing of it is left on disk"
        return result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "tmp"
    path.mkdir()
    return path


def written(root: Path, bodies: list[bytes]) -> list[Unit]:
    root.mkdir()
    for number, body in enumerate(bodies):
        (root / f"{number:04d}").write_bytes(body)
    return [Unit(number, f"{number:04d}", len(body)) for number, body in enumerate(bodies)]


def files(root: Path) -> dict[str, Any]:
    return {"source": {"url": f"file://{root}", "format": "files"}}


def payloads(shard: Shard) -> dict[int, bytes]:
    return {unit: decode_example(r)["payload"][1][0] for unit, _, r in shard.records}


class TestS3:
    @pytest.fixture
    def bucket(self, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
        for name, value in s3.environ.items():
            monkeypatch.setenv(name, value)
        return s3.bucket(f"worker-{uuid.uuid4().hex}")

    def units(self, s3: S3Server, bucket: str) -> list[Unit]:
        pages = s3.client.list_objects_v2(Bucket=bucket)["Contents"]
        return [Unit(n, o["Key"], o["Size"], o["ETag"]) for n, o in enumerate(pages)]

    def test_objects_become_records_and_what_is_gone_is_skipped(
        self, s3: S3Server, bucket: str, folder: Path
    ):
        bodies = {f"{n:03d}": RNG.bytes(n * 10) for n in range(50)}
        s3.put(bucket, bodies)
        units = self.units(s3, bucket)
        s3.client.delete_object(Bucket=bucket, Key="007")
        s3.put(bucket, {"008": b"changed"})
        outcome, shard = Bench(folder, source={"url": f"s3://{bucket}/", "format": "files"}).made(
            units
        )
        expected = {n: body for n, body in enumerate(bodies.values()) if n not in (7, 8)}
        assert payloads(shard) == expected
        assert [(s.unit, s.key) for s in outcome.skipped] == [(7, "007"), (8, "008")]
        assert "deleted" in outcome.skipped[0].reason
        assert "changed" in outcome.skipped[1].reason
        assert outcome.fetched_bytes == sum(map(len, expected.values()))


class TestOutcome:
    def test_figures_are_those_of_the_files(self, tmp_path: Path, folder: Path):
        units = written(tmp_path / "src", [RNG.bytes(5000) for _ in range(20)])
        outcome, shard = Bench(folder, **files(tmp_path / "src")).made(units)
        path, sidecar = folder / "1.tfrecord", folder / "1.tfrecord.idx"
        assert outcome.records == len(shard.records) == 20
        assert outcome.data_bytes == path.stat().st_size
        assert outcome.allocated == 512 * (path.stat().st_blocks + sidecar.stat().st_blocks)
        assert outcome.fetched_bytes == 100_000
        assert outcome.seconds > 0
        assert (outcome.end, outcome.skipped) == ("pass", ())


class TestDeterminism:
    @pytest.fixture(autouse=True)
    def late(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Objects arrive in any order."""
        get = fetch.Store.get

        async def late(*args: Any) -> Any:
            await asyncio.sleep(random.random() * 0.005)
            return await get(*args)

        monkeypatch.setattr(fetch.Store, "get", late)

    @pytest.mark.parametrize(
        "steps", [[], ["tests.sampler.steps:twice"]], ids=["verbatim", "decoded"]
    )
    def test_whatever_arrives_first_a_mixed_shard_has_the_same_bytes_and_as_much_of_each_unit(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, steps: list[str]
    ):
        bodies = [
            frames([encode_example({"x": RNG.bytes(int(n))}) for n in RNG.integers(1, 9000, 60)])
            for _ in range(20)
        ]
        units = written(tmp_path / "src", bodies)
        monkeypatch.setattr(read_ahead, "PIECE", 7000)  # many requests of odd lengths
        source = {"url": f"file://{tmp_path / 'src'}", "format": "tfrecord"}
        results = []
        for number in (1, 2):
            (folder / f"{number}").mkdir()
            bench = Bench(folder / f"{number}", source=source, transform=steps)
            outcome, shard = bench.made(units, lanes=16)
            results.append((shard.file, shard.records, outcome.after))
        assert results[0] == results[1]
        assert [lane.unit for lane in outcome.after.lanes] == list(range(16))
        given = [lane.offset for lane in outcome.after.lanes]
        assert max(given) - min(given) < 3 * 9100 * (1 + len(steps))


class TestTransforms:
    def test_one_bad_record_costs_its_unit_and_no_other(self, tmp_path: Path, folder: Path):
        bodies = [b"first", b"raise", b"exit", b"drop", b"number", b"misfit", b"last"]
        units = written(tmp_path / "src", bodies)
        bench = Bench(folder, **files(tmp_path / "src"), transform="tests.sampler.steps:wild")
        outcome, shard = bench.made(units)
        assert payloads(shard) == {0: b"first", 6: b"last"}
        reasons = {s.unit: s.reason for s in outcome.skipped}
        assert "wild raised ValueError: no good" in reasons[1]
        assert "wild raised SystemExit: 3" in reasons[2]
        assert reasons[3] == "its transform returned no record"
        assert "returned int" in reasons[4]
        assert "'payload': record has float32[], the schema says bytes[]" in reasons[5]

    def test_a_transform_that_cannot_be_imported_stops_the_dataset_with_its_reason(
        self, tmp_path: Path, folder: Path
    ):
        units = written(tmp_path / "src", [b"x"])
        failed = Bench(folder, **files(tmp_path / "src"), transform="no.such:step").failed(units)
        assert (failed.cause, failed.unit) == ("source", None)
        assert "transform no.such:step: cannot be imported" in failed.reason


class TestFaults:
    @pytest.fixture
    def server(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
        with scripted_server() as server:
            for number in range(20):
                server.script[f"/b/{number}"] = [scripted.body(b"fine")]
            yield server

    def test_a_store_that_goes_away_in_between_leaves_nothing(
        self, server: ScriptedServer, folder: Path
    ):
        server.script["/b/20"] = [scripted.refusal(503, "SlowDown")]
        source = {"url": "s3://b/", "format": "files", "endpoint": server.endpoint}
        units = [Unit(number, f"{number}", 4) for number in range(21)]
        failed = Bench(folder, source=source).failed(units)
        assert failed.cause == "source"
        assert "throttling" in failed.reason

    def test_a_disk_that_refuses_fails_it_with_the_error_number(self, tmp_path: Path, folder: Path):
        units = written(tmp_path / "src", [b"x"])
        bench = Bench(folder / "gone", **files(tmp_path / "src"))
        failed = bench.make(units)
        assert isinstance(failed, Failed)
        assert (failed.cause, failed.code) == ("disk", errno.ENOENT)

    def test_a_defect_fails_it_with_a_traceback(
        self, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
    ):
        units = written(tmp_path / "src", [b"x"])
        bench = Bench(folder, **files(tmp_path / "src"))
        bench.capacity = 1000  # no caller may ask for that
        failed = bench.failed(units)
        assert failed.cause == "worker"
        assert "ValueError: capacity of 1000 bytes" in failed.reason
        assert "Traceback" in capsys.readouterr().err
