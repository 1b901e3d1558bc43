"""Killed at any step, a daemon leaves what its successor goes on with. `python -m tests.faults.crash` is
the long form of this: every point there is, and random instants."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.faults import power
from tests.faults.crash import Crashes
from tests.faults.lives import Kill

SHARD, LEASE, LOG = "shards/train/??????????.tfrecord", "leases/*.json", "catalog.sqlite-wal"
DRAFT = "tmp/train.??????????.tfrecord"

# Each is one cache, killed at one step after the other: every life begins with what the last one left.
STEPS = {
    "make": [
        Kill("growth", "fill", "allocate", DRAFT, 1),
        Kill("growth", "fill", "sync", DRAFT, 3),
        Kill("growth", "fill", "create", f"{DRAFT}.idx", 2),
        Kill("growth", "fill", "sync", f"{DRAFT}.idx", 0),
    ],
    "publish": [
        Kill("growth", "fill", "rename", f"{SHARD}.idx", 2),  # sealed, still in tmp/
        Kill("growth", "fill", "rename", SHARD, 2),  # between the two names
        Kill("growth", "fill", "sync", "shards/train", 2),  # named, not durable
        Kill("growth", "fill", "write", LOG, 40),  # durable, not in the catalog
    ],
    "grant": [
        Kill("rotation", "grant", "create", f"{LEASE}.new"),
        Kill("rotation", "grant", "write", f"{LEASE}.new"),  # begun, empty
        Kill("rotation", "grant", "rename", LEASE),  # written, not named
        Kill("rotation", "next grant", "rename", LEASE, after=True),  # named, not replied
    ],
    "retire and end": [
        Kill("rotation", "next grant", "write", LOG, 0),  # marked, not saved
        Kill("rotation", "next grant", "write", LOG, 3),  # one saved, others not
        Kill("rotation", "release", "unlink", LEASE),  # the lease has ended, its manifest stands
        Kill("rotation", "release", "unlink", LEASE, after=True),  # gone, nothing has followed yet
    ],
    "unlink": [
        Kill("rotation", "release", "unlink", SHARD),
        Kill("rotation", "release", "unlink", f"{SHARD}.idx"),  # between the two files
        Kill("rotation", "release", "sync", "shards/train"),
    ],
    "unlinked": [  # by itself: after the others nothing may be left to remove
        Kill("rotation", "release", "write", LOG, 0)  # the files are gone, the row is not
    ],
    "first start": [
        Kill("growth", "start", "write", "catalog.sqlite-journal"),
        Kill("growth", "start", "write", LOG, 2),
        Kill("growth", "start", "write", "index/train.*.units"),  # an index that is only begun
        Kill("growth", "start", "sync", "index"),
        Kill("growth", "start", "mkdir", "shards/train"),
    ],
    "start after start": [
        Kill("growth", "fill", "rename", SHARD, 3),
        Kill("growth", "start", "unlink", f"{SHARD}.idx"),  # half a pair
        Kill("growth", "start", "sync", "shards/train"),
        Kill("growth", "start", "unlink", DRAFT),  # while it removes what the last left
        Kill("growth", "start", "write", LOG, 0),
    ],
}


@pytest.fixture(scope="module")
def crashes() -> Iterator[Crashes]:
    with Crashes(Path(tempfile.mkdtemp(prefix="crash-", dir="/tmp"))) as crashes:
        crashes.points()
        yield crashes


def stands(crashes: Crashes, kills: Sequence[Kill], damages: Sequence[power.Damage] = ()) -> int:
    """Fails if anything was lost; how many kills came where they should."""
    run = crashes.run(kills, damages)
    assert not run.failure, f"{' | '.join(run.kills)}\n{run.failure}\n{run.log}"
    return run.struck


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step_nothing_valid_is_lost_and_nothing_is_left_over(crashes, step):
    assert stands(crashes, STEPS[step]) == len(STEPS[step])


def test_killed_at_random_instants_over_and_over_it_goes_on(crashes):
    chance = random.Random(11)
    instants = [crashes.instant(chance) for _ in range(6)]
    for setting in crashes.settings:
        stands(crashes, [kill for kill in instants if kill.setting == setting])


def test_a_catalog_that_a_power_failure_took_or_tore_costs_no_shard_and_no_record(crashes):
    damages = [d for d in power.DAMAGES if d.__name__.startswith("catalog")]
    stands(crashes, [Kill("growth", "fill", "write", LOG, 20) for _ in damages], damages)


def test_a_catalog_older_than_the_shards_costs_no_shard_and_no_record(crashes):
    """What was committed since the last checkpoint is lost, or the end of it."""
    damages = [power.log_gone, power.log_zeroed, power.log_cut]
    stands(crashes, [Kill("rotation", "release", "write", LOG, 30) for _ in damages], damages)


def test_files_that_a_power_failure_left_empty_or_halved_are_never_seen(crashes):
    damages = [d for d in power.DAMAGES if not d.__name__.startswith(("catalog", "log"))]
    stands(crashes, [Kill("growth", "fill", "write", LOG, 20) for _ in damages], damages)
