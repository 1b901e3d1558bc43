"""Shards that rot under a real daemon: found, quarantined, made again, counted; never delivered."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachecd_client import Epoch
from cachecd_client._core import Sidecar
from cachecd_client.protocol import ReportCorrupt
from tests.core.shards import flip
from tests.e2e.daemons import Daemon, file_source, wait_until
from tests.e2e.inventory import generation
from tests.faults.disk import FaultyDisk

OBJECTS = 240

Records = dict[bytes, bytes]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corruption")


@pytest.fixture(scope="module")
def objects(folder: Path) -> Records:
    """A source of files: key -> content."""
    chance = random.Random(5)
    found = {b"%03d" % n: chance.randbytes(chance.randint(2000, 10000)) for n in range(OBJECTS)}
    file_source(folder / "source", {key.decode(): body for key, body in found.items()})
    return found


@pytest.fixture(scope="module")
def disk(folder: Path) -> FaultyDisk:
    return FaultyDisk(folder / "faults", root=folder / "cache")


@pytest.fixture(scope="module")
def shared(folder: Path, objects: Records, disk: FaultyDisk) -> Iterator[Daemon]:
    source = {"url": f"file://{folder}/source", "format": "files"}
    train = {"train": {"source": source}}
    with Daemon(folder, train, disk.environ, shard_size="128KiB") as found:
        yield found.start()


@pytest.fixture
def daemon(shared: Daemon, disk: FaultyDisk) -> Daemon:
    """Has cached all of them in small shards."""
    disk.heal()
    filled(shared)
    shared.log.write_text("")
    return shared


def filled(daemon: Daemon) -> None:
    wait_until(lambda: daemon.train["whole"] and daemon.train["records"] == OBJECTS)


def corrupt_shards(daemon: Daemon) -> int:
    found: int = daemon.status()["cache"]["corrupt_shards"]
    return found


def files(daemon: Daemon) -> list[Path]:
    return sorted((generation(daemon.cache) / "shards").glob("*.tfrecord"))


def read(epoch: Epoch) -> Records:
    """What a pass delivers; a record that comes in place of another comes again."""
    found: Records = {}
    for batch in epoch.numpy(16, drop_last=False):
        rows = zip(batch["key"], batch["payload"], strict=True)
        found |= {bytes(key): bytes(payload) for key, payload in rows}
    return found


def assert_all_is_there(daemon: Daemon, objects: Records, job: str) -> None:
    filled(daemon)
    with daemon.connect() as cache, cache.acquire("train", job=job) as epoch:
        assert epoch.num_records == OBJECTS
        assert read(epoch) == objects


DAMAGES: dict[str, Callable[[Path], object]] = {
    "payload": lambda path: flip(path, int(Sidecar.read(f"{path}.idx").offsets[3]) + 40),
    "length": lambda path: flip(path, int(Sidecar.read(f"{path}.idx").offsets[2]) + 2),
    "cut off": lambda path: os.truncate(path, path.stat().st_size // 2),
    "sidecar": lambda path: flip(Path(f"{path}.idx"), -5),
    "sidecar cut off": lambda path: os.truncate(f"{path}.idx", 30),
    "sidecar lost": lambda path: Path(f"{path}.idx").unlink(),
    "lost": lambda path: path.unlink(),
}


def test_what_rots_while_it_is_leased_is_reported_quarantined_kept_and_made_again(daemon, objects):
    before = corrupt_shards(daemon)
    with daemon.connect() as cache, cache.acquire("train", job="a") as epoch:
        damaged = [Path(file) for file in epoch.files[:3]]
        for name, path in zip(("payload", "length", "cut off"), damaged, strict=True):
            DAMAGES[name](path)
        found = read(epoch)
        assert found.items() <= objects.items(), "nothing corrupt is delivered"
        assert 0 < OBJECTS - len(found) < OBJECTS / 3
        wait_until(lambda: corrupt_shards(daemon) == before + 3)
        # Fetched again at once, though the lease still holds the damaged ones.
        assert_all_is_there(daemon, objects, "b")
        assert all(path.exists() for path in damaged)
    wait_until(lambda: not any(path.exists() for path in damaged))
    assert all(path.with_name(f"{path.stem}.1.tfrecord").exists() for path in damaged)
    said = daemon.said()
    assert said.count("shard is damaged: quarantined") == 3
    assert "corrupt record reported" in said


def test_a_false_report_costs_nothing(daemon, objects):
    before = corrupt_shards(daemon), files(daemon)
    for request in range(3):
        report(daemon, before[1][1], f"{request}")
    filled(daemon)
    assert (corrupt_shards(daemon), files(daemon)) == before
    assert_all_is_there(daemon, objects, "c")


def report(daemon: Daemon, shard: Path, request: str) -> None:
    name, _, version = shard.stem.partition(".")
    about = "train", generation(daemon.cache).name, int(name), int(version or 0)
    with daemon.connect() as cache:
        cache._leases.transport.ask(ReportCorrupt(request, *about, 0, "a lie"), 10.0)


def test_what_rots_while_it_is_cold_is_found_by_verify_and_fetched_again(daemon, objects):
    before = corrupt_shards(daemon)
    damaged = files(daemon)[: len(DAMAGES)]
    for damage, path in zip(DAMAGES.values(), damaged, strict=True):
        damage(path)
    assert daemon.verify() == 1
    wait_until(lambda: not any(path.exists() for path in damaged))
    # One of them was gone from the beginning: that it is found shows in the count alone.
    wait_until(lambda: corrupt_shards(daemon) >= before + len(DAMAGES))
    assert corrupt_shards(daemon) == before + len(DAMAGES)
    assert_all_is_there(daemon, objects, "d")
    assert daemon.verify() == 0, "what was fetched again is sound"
    newest = files(daemon)
    assert {*newest[0].parent.iterdir()} == {*newest, *(Path(f"{path}.idx") for path in newest)}


def test_a_disk_that_cannot_read_at_all_costs_no_shard(daemon, objects, disk):
    before = corrupt_shards(daemon), files(daemon)
    with disk.failing("open", "*/shards/*", errno.EIO):
        assert daemon.verify() == 1
    daemon.until_whole()
    assert (corrupt_shards(daemon), files(daemon)) == before
    assert_all_is_there(daemon, objects, "f")
