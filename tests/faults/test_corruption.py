"""Shards that rot under a real daemon: found, barred, fetched again, counted; never delivered."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachecd_client import Epoch
from cachecd_client._core import Sidecar
from cachecd_client.protocol import ReportCorrupt
from tests.core.shards import flip
from tests.e2e.daemons import Daemon, wait_until
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
    (folder / "source").mkdir()
    found = {b"%03d" % n: chance.randbytes(chance.randint(2000, 10000)) for n in range(OBJECTS)}
    for key, body in found.items():
        (folder / "source" / key.decode()).write_bytes(body)
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
    wait_until(lambda: of_train(daemon)["whole"] and of_train(daemon)["records"] == OBJECTS)


def of_train(daemon: Daemon) -> dict[str, Any]:
    found: dict[str, Any] = daemon.status()["datasets"]["train"]
    return found


def corrupt_shards(daemon: Daemon) -> int:
    found: int = daemon.status()["cache"]["corrupt_shards"]
    return found


def files(daemon: Daemon) -> list[Path]:
    return sorted((daemon.cache / "shards" / "train").glob("*.tfrecord"))


def read(epoch: Epoch) -> Records:
    """What a pass delivers; a record that comes in place of another comes again."""
    found: Records = {}
    for batch in epoch.numpy(16, pad_last=True):
        for key, payload, valid in zip(
            batch["key"], batch["payload"], batch["_valid"], strict=True
        ):
            if valid:
                found[bytes(key)] = bytes(payload)
    return found


def assert_all_is_there(daemon: Daemon, objects: Records, job: str) -> None:
    filled(daemon)
    with daemon.connect() as cache, cache.acquire("train", job=job) as epoch:
        assert epoch.num_records == OBJECTS
        assert read(epoch) == objects


def flip_a_payload(path: Path) -> None:
    flip(path, int(Sidecar.read(f"{path}.idx").offsets[3]) + 40)


def flip_a_length(path: Path) -> None:
    flip(path, int(Sidecar.read(f"{path}.idx").offsets[2]) + 2)


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_the_sidecar(path: Path) -> None:
    flip(Path(f"{path}.idx"), -5)


def cut_the_sidecar(path: Path) -> None:
    os.truncate(f"{path}.idx", 30)


def lose_the_sidecar(path: Path) -> None:
    Path(f"{path}.idx").unlink()


def lose_the_shard(path: Path) -> None:
    path.unlink()


DAMAGES = [
    *(flip_a_payload, flip_a_length, cut_off, flip_the_sidecar),
    *(cut_the_sidecar, lose_the_sidecar, lose_the_shard),
]


def test_what_rots_while_it_is_leased_is_reported_barred_kept_and_fetched_again(daemon, objects):
    before = corrupt_shards(daemon)
    with daemon.connect() as cache, cache.acquire("train", job="a") as epoch:
        payload, length, short, *_ = map(Path, epoch.files)
        flip_a_payload(payload)
        flip_a_length(length)
        cut_off(short)
        found = read(epoch)
        assert found.items() <= objects.items(), "nothing corrupt is delivered"
        assert 0 < OBJECTS - len(found) < OBJECTS / 3
        wait_until(lambda: of_train(daemon)["barred_shards"] == 3)
        assert corrupt_shards(daemon) == before + 3
        # Fetched again at once, though the lease still holds the damaged ones.
        assert_all_is_there(daemon, objects, "b")
        assert all(path.exists() for path in (payload, length, short))
    wait_until(lambda: of_train(daemon)["barred_shards"] == 0)
    assert not any(path.exists() for path in (payload, length, short))
    said = daemon.said()
    assert said.count("shard is corrupt: barred, and fetched again") == 3
    assert "corrupt record reported" in said


def test_a_false_report_costs_nothing(daemon, objects):
    before = corrupt_shards(daemon), files(daemon)
    number = int(before[1][1].stem)
    for request in range(3):
        report(daemon, number, f"{request}")
    filled(daemon)
    assert (corrupt_shards(daemon), files(daemon)) == before
    assert_all_is_there(daemon, objects, "c")


def test_a_reported_shard_that_cannot_be_read_for_a_moment_is_kept(daemon, disk):
    before = corrupt_shards(daemon)
    shard = files(daemon)[1]
    rule = disk.fail("open", f"*/{shard.name}", errno.EIO, count=1)
    report(daemon, int(shard.stem), "unreadable")
    wait_until(lambda: disk.hits(rule) >= 2)
    filled(daemon)
    assert corrupt_shards(daemon) == before
    assert shard.exists()
    assert "shard not verified" in daemon.said()


def report(daemon: Daemon, shard: int, request: str) -> None:
    with daemon.connect() as cache:
        cache._transport.ask(ReportCorrupt(request, "train", shard, 0, "a lie"), 10.0)


def test_what_rots_while_it_is_cold_is_found_by_verify_and_fetched_again(daemon, objects):
    before = corrupt_shards(daemon)
    damaged = files(daemon)[: len(DAMAGES)]
    for damage, path in zip(DAMAGES, damaged, strict=True):
        damage(path)
    assert daemon.verify() == 1
    wait_until(lambda: not any(path.exists() for path in damaged))
    # One of them was gone from the beginning: that it is found shows in the count alone.
    wait_until(lambda: corrupt_shards(daemon) >= before + len(DAMAGES))
    assert corrupt_shards(daemon) == before + len(DAMAGES)
    assert_all_is_there(daemon, objects, "d")
    assert daemon.verify() == 0, "what was fetched again is sound"


def test_a_disk_that_cannot_read_at_all_costs_no_shard(daemon, objects, disk):
    before = corrupt_shards(daemon), files(daemon)
    with disk.failing("open", "*/shards/train/*", errno.EIO):
        assert daemon.verify() == 1
    wait_until(lambda: of_train(daemon)["whole"])
    assert (corrupt_shards(daemon), files(daemon)) == before
    assert_all_is_there(daemon, objects, "f")
