"""A whole daemon whose catalog cannot be used: what no shard says is as it was."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cachecd_client.errors import CachecdError
from tests.e2e.daemons import Daemon, file_source, wait_until
from tests.e2e.reading import keys_of

KEYS = [f"{number:02}" for number in range(40)]
BAD = KEYS[13]


def over_keys(folder: Path) -> Daemon:
    """A daemon, not started yet, whose source has an object for each key."""
    source = file_source(folder / "src", {key: key.encode() * 2000 for key in KEYS})
    dataset = {"source": source, "grow": {"first": "16KiB"}}
    return Daemon(folder, {"train": dataset}, shard_size="64KiB")


def of_another_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version=3")
        db.commit()


def overwritten(path: Path) -> None:
    for log in path.parent.glob(path.name + "-*"):
        log.unlink()
    path.write_bytes(b"nonsense" * 1000)


def deleted(path: Path) -> None:
    for file in path.parent.glob(path.name + "*"):
        file.unlink()


@pytest.mark.parametrize("damage", [of_another_version, overwritten, deleted])
def test_a_catalog_that_is_damaged_costs_no_exclusion_and_the_rest_is_said(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    with over_keys(tmp_path) as daemon:
        daemon.start()

        def settled(found: dict[str, Any]) -> tuple[Any, ...]:
            return tuple(found[name] for name in ("whole", "making", "barred_shards", "records"))

        wait_until(lambda: daemon.train["whole"])
        # The shard with it stays, barred, as long as this lease is held.
        with daemon.connect() as cache, cache.acquire("train", epoch=0, job="a"):
            assert cache.exclude("train", BAD) == (1, 1)
            wait_until(lambda: daemon.train["whole"] and not daemon.train["making"])
            before = daemon.train
            assert before["barred_shards"] == 1
            assert before["fetched_bytes"] > 0
            daemon.kill()
            damage(daemon.cache / "catalog.sqlite")
            daemon.start()
            # Before any number is known of what was excluded.
            with daemon.connect() as other, other.acquire("train", epoch=0, job="c") as early:
                assert BAD not in keys_of(early)
            # What the shard held beside comes again once it is barred.
            wait_until(lambda: settled(daemon.train) == settled(before))
            after = daemon.train
            assert after["set_aside"]["reasons"] == {"excluded by hand": 1}
            assert after["fetched_bytes"] < before["fetched_bytes"]
            why = {
                of_another_version: "version 3, expected",
                overwritten: "file is not a database",
                deleted: "it is gone",
            }
            assert why[damage] in daemon.said()
            assert "the account of what was fetched" in daemon.said()
        with daemon.connect() as cache, cache.acquire("train", epoch=1, job="b") as epoch:
            assert set(keys_of(epoch)) == set(KEYS) - {BAD}


@pytest.mark.parametrize("options", [(), ("--offline",)])
def test_after_the_loss_of_catalog_and_listing_no_lease_has_what_was_excluded(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Nobody knows then which units the shards hold, and offline nobody will."""
    with over_keys(tmp_path) as daemon:
        daemon.start()
        daemon.until_whole()
        # The shard with it stays as long as this lease is held.
        with daemon.connect() as cache, cache.acquire("train", epoch=0, job="a"):
            assert cache.exclude("train", BAD) == (1, 1)
            daemon.kill()
            deleted(daemon.cache / "catalog.sqlite")
            for listing in (daemon.cache / "index").iterdir():
                listing.unlink()
            daemon.start(*options)
            with daemon.connect() as other:
                if options:
                    with pytest.raises(CachecdError, match="offline"):
                        other.acquire("train", epoch=0, job="b", timeout=5)
                else:
                    with other.acquire("train", epoch=0, job="b", timeout=20) as early:
                        assert BAD not in keys_of(early)
            if options:
                daemon.kill()
                daemon.start()
        daemon.until_whole()
        with daemon.connect() as cache, cache.acquire("train", epoch=1, job="b") as epoch:
            assert set(keys_of(epoch)) == set(KEYS) - {BAD}


def test_what_a_killed_daemon_had_fetched_of_an_unfinished_shard_counts_but_for_the_last_seconds(
    tmp_path: Path,
) -> None:
    source = file_source(tmp_path / "src", dict.fromkeys(KEYS, bytes(100_000)))
    dataset = {"source": source, "grow": {"first": "1MiB"}}
    slow = {"bandwidth": "200kB/s"}  # a shard takes twenty seconds
    with Daemon(tmp_path, {"train": dataset}, shard_size="4MiB", sampler=slow) as daemon:

        def fetched() -> int:
            return int(daemon.train["fetched_bytes"])

        daemon.start()
        wait_until(lambda: fetched() >= 200_000)
        before, since = fetched(), daemon.status()["daemon"]["uptime_s"]
        wait_until(lambda: daemon.status()["daemon"]["uptime_s"] > since + 1.5)
        assert daemon.train["shards"] == 0
        daemon.kill()
        daemon.start("--offline")
        assert fetched() >= before
