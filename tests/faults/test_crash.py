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
from tests.faults.lives import DRAFT, SHARD, Kill

LEASE, SHARDS = "leases/*.json", "datasets/train/*/shards"
OLD = f"{SHARDS}/??????????.old"

# Each is one cache, killed at one step after the other: every life begins with what the last one left.
STEPS = {
    "make": [
        Kill("growth", "fill", "allocate", DRAFT, 1),
        Kill("growth", "fill", "create", f"{DRAFT}.idx", 2),
    ],
    "publish": [
        Kill("growth", "fill", "rename", SHARD, 2),  # between the two names
        Kill("growth", "fill", "sync", SHARDS, 2),  # named, not durable
    ],
    "grant": [
        Kill("rotation", "grant", "write", f"{LEASE}.new"),  # begun, empty
        Kill("rotation", "next grant", "rename", LEASE, after=True),  # named, not replied
    ],
    "retire and end": [
        Kill("rotation", "next grant", "link", OLD, after=True),  # not durable
        Kill("rotation", "release", "unlink", LEASE, after=True),  # gone, nothing has followed yet
    ],
    "unlink": [Kill("rotation", "release", "unlink", f"{SHARD}.idx")],  # between the two files
    # By itself: after the others nothing may be left to remove, and the mark is all that is left.
    "unlinked": [Kill("rotation", "release", "unlink", OLD)],
    "first start": [
        Kill("growth", "start", "rename", "datasets/train/*/generation.json"),
        Kill("growth", "start", "write", "datasets/train/*/listing.sqlite", 1),
    ],
    "start after start": [
        Kill("growth", "fill", "rename", SHARD, 3),
        Kill("growth", "start", "unlink", f"{SHARD}.idx"),  # half a pair
        Kill("growth", "start", "unlink", DRAFT),  # while it removes what the last left
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


@pytest.mark.long
def test_killed_at_random_instants_over_and_over_it_goes_on(crashes):
    chance = random.Random(11)
    instants = [crashes.instant(chance) for _ in range(6)]
    for setting in crashes.settings:
        stands(crashes, [kill for kill in instants if kill.setting == setting])


def test_files_that_a_power_failure_left_empty_or_halved_are_never_seen(crashes):
    damages = [
        d for d in power.DAMAGES if d.__name__.startswith(("shard", "sidecar", "one", "man"))
    ]
    stands(crashes, [Kill("growth", "fill", "rename", SHARD, 4) for _ in damages], damages)
