"""Files below cache.dir that are damaged, gone or foreign, under a real daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachecd_client.runs.epoch import Epoch
from tests.e2e.daemons import Daemon, wait_until
from tests.e2e.inventory import Peak, generation
from tests.faults.rotating import dataset_of, source_of

LIMIT = 6 << 20
OBJECTS = 600  # of 12 kB: more than the limit


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    source_of(tmp_path / "source", OBJECTS)
    with Daemon(
        tmp_path, dataset_of(tmp_path / "source"), limit=LIMIT, shard_size="128KiB"
    ) as made:
        yield made


def filled(daemon: Daemon) -> None:
    daemon.start()
    wait_until(lambda: daemon.train["full"] and not daemon.train["making"])


def keys(epoch: Epoch) -> list[bytes]:
    return [bytes(key) for batch in epoch.numpy(8, drop_last=False) for key in batch["key"]]


def rotten(daemon: Daemon) -> str:
    """Flips a bit in the unit table of a sidecar. Returns a key of another shard."""
    first, *_, last = sorted((generation(daemon.cache) / "shards").glob("*.idx"))
    content = bytearray(last.read_bytes())
    content[content.rindex(b".bin")] ^= 4
    last.write_bytes(content)
    text = first.read_bytes()
    at = text.index(b".bin")
    return text[at - 5 : at + 4].decode()


@pytest.mark.parametrize("restarts", [False, True])
def test_rotten_sidecar_costs_its_shard_whatever_reads_it(daemon, restarts):
    filled(daemon)
    excluded = rotten(daemon)
    with daemon.connect() as cache:
        cache.exclude("train", excluded)
    if restarts:
        daemon.kill()
        daemon.start()
    wait_until(lambda: not daemon.train["quarantined_shards"])
    with daemon.connect() as cache, cache.acquire("train", job="job", timeout=30) as epoch:
        found = keys(epoch)
    assert len(found) == len(set(found)) > 0
    assert excluded.encode() not in found


def whole(daemon: Daemon) -> list[Path]:
    """Starts a daemon with room for all. Returns the sidecars."""
    daemon.document["cache"]["limit"] = 4 * LIMIT
    daemon.start()
    wait_until(lambda: daemon.train["whole"] and not daemon.train["making"])
    return sorted((generation(daemon.cache) / "shards").glob("*.idx"))


@pytest.mark.parametrize("damage", ["gone", "directory"])
@pytest.mark.parametrize("restarts", [False, True])
def test_lost_files_never_make_a_record_come_twice(daemon, damage, restarts):
    """One shard loses its data and another its sidecar; names of shards become directories."""
    first, second, third, *_ = whole(daemon)
    for path in (first.with_suffix(""), second):
        path.unlink()
        if damage == "directory":
            path.mkdir()
    for name in ("0000000099.tfrecord.idx", third.name[:10] + ".old", third.name[:10] + ".bad"):
        (third.parent / name).mkdir()
    with daemon.connect() as cache:
        cache.exclude("train", "00000.bin")  # reads every sidecar
    if restarts:
        daemon.kill()
        daemon.start()
    for epoch in range(2):
        with daemon.connect() as cache, cache.acquire("train", job="job", epoch=epoch) as held:
            keys(held)  # reports what cannot be read
        wait_until(lambda: not (daemon.train["quarantined_shards"] or daemon.train["making"]))
    with daemon.connect() as cache, cache.acquire("train", job="job", epoch=2) as held:
        found = keys(held)
    assert len(found) == len(set(found))


@pytest.mark.parametrize("damage", ["gone", "directory"])
def test_marks_that_are_lost_bring_no_excluded_record_back(daemon, damage):
    """Killed before all copies are made, the daemon finds its marks gone, or replaced."""
    whole(daemon)
    excluded = [f"{number:05d}.bin" for number in range(0, OBJECTS, 8)]
    with daemon.connect() as cache:
        cache.exclude("train", *excluded)
        daemon.kill()
    for mark in (generation(daemon.cache) / "shards").glob("*.bad"):
        mark.unlink()
        if damage == "directory":
            mark.mkdir()
    daemon.start()
    wait_until(lambda: not (daemon.train["quarantined_shards"] or daemon.train["making"]))
    with daemon.connect() as cache, cache.acquire("train", job="job", timeout=30) as epoch:
        found = keys(epoch)
    assert len(found) == len(set(found)) == OBJECTS - len(excluded)
    assert not {key.decode() for key in found}.intersection(excluded)


def test_data_that_is_cut_while_the_daemon_is_down_is_made_again_once(daemon):
    whole(daemon)
    daemon.kill()
    cut = sorted((generation(daemon.cache) / "shards").glob("*.tfrecord"))[3]
    os.truncate(cut, cut.stat().st_size // 2)
    daemon.start()
    wait_until(lambda: not (daemon.train["quarantined_shards"] or daemon.train["making"]))
    with daemon.connect() as cache, cache.acquire("train", job="job", timeout=30) as epoch:
        found = keys(epoch)
    assert len(found) == len(set(found)) == OBJECTS


@pytest.mark.parametrize("damage", ["flipped", "gone"])
@pytest.mark.parametrize("configured", [True, False])
def test_generation_that_cannot_be_read_is_counted_named_and_gives_its_room(
    daemon, damage, configured
):
    filled(daemon)
    daemon.kill()
    identity = generation(daemon.cache) / "generation.json"
    if damage == "gone":
        identity.unlink()
    else:
        content = bytearray(identity.read_bytes())
        content[2] ^= 1
        identity.write_bytes(content)
    if not configured:
        daemon.document["datasets"]["train"]["generation"] = 2
    with Peak(daemon.cache) as peak:
        daemon.start()
        assert "generation.json" in daemon.train["older"][0]["damaged"]
        wait_until(lambda: not daemon.train["older"], what="the shards make room")
        wait_until(lambda: daemon.train["full"] and not daemon.train["making"])
    assert peak.bytes <= LIMIT
    with daemon.connect() as cache, cache.acquire("train", job="job", timeout=30) as epoch:
        found = keys(epoch)
    assert len(found) == len(set(found)) > 0


def test_foreign_files_in_shards_are_counted_and_stay(daemon):
    filled(daemon)
    daemon.kill()
    shards = generation(daemon.cache) / "shards"
    for path in sorted(shards.iterdir()):
        path.unlink()
    foreign = shards / "of-others.bin"
    foreign.write_bytes(os.urandom(LIMIT // 2))
    (shards / "folder").mkdir()
    (shards / "folder" / "more.bin").write_bytes(os.urandom(LIMIT // 16))
    with Peak(daemon.cache) as peak:
        daemon.start()
        wait_until(lambda: daemon.train["full"] and not daemon.train["making"])
    assert peak.bytes <= LIMIT
    assert foreign.stat().st_size == LIMIT // 2
    assert daemon.status()["cache"]["used"] > LIMIT // 2


def test_configuration_changes_with_foreign_files_in_the_old_directory(daemon):
    filled(daemon)
    daemon.kill()
    old = generation(daemon.cache)
    (old / "shards" / "notes").write_text("mine")
    daemon.document["datasets"]["train"]["generation"] = 2
    daemon.start()
    wait_until(lambda: not daemon.train["older"])
    wait_until(lambda: daemon.train["full"] and not daemon.train["making"])
    assert (old / "shards" / "notes").read_text() == "mine"
    assert not daemon.status()["cache"]["stopped"]
