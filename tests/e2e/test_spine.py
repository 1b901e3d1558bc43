"""The whole way, from a bucket on a real S3 server to batches: growth, rotation, limit, leases.

Every daemon is a real process and dies a real death; every byte is compared with its object.
"""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

from tests.e2e.conftest import upload
from tests.e2e.daemons import Daemon, said_line, trainer, wait_until
from tests.e2e.inventory import Found, Peak, inventory, repeated
from tests.e2e.reading import by_numpy, expected

MIB = 1 << 20
LIMIT = 6 * MIB

# Takes a lease and keeps it until its stdin ends.
HOLDER = """
import json, sys
from cachecd_client import connect
with connect() as cache:
    epoch = cache.acquire("train", timeout=30)
    print(json.dumps({"lease": epoch.lease, "files": epoch.files}), flush=True)
    sys.stdin.read()
"""


def numbers(files: list[str]) -> list[int]:
    """The numbers of an epoch's shards, ascending."""
    return [int(Path(file).name[:10]) for file in files]


def leases_of(daemon: Daemon, job: str) -> int:
    return sum(lease["job"] == job for lease in daemon.status()["leases"])


def fill_up(daemon: Daemon) -> None:
    """Waits until no shard fits any more."""
    wait_until(
        lambda: (train := daemon.train)["full"] and not train["making"], what="the cache is full"
    )


def assert_untouched(before: dict[int, Found], after: dict[int, Found]) -> None:
    """The shards that were there before are there now: the same files, the same bytes."""
    gone = before.keys() - after.keys()
    assert not gone, f"shards {sorted(gone)} are gone"
    assert {n: after[n].same for n in before} == {n: found.same for n, found in before.items()}


def test_epochs_grow_then_rotate_within_the_limit_and_every_record_is_its_object(
    daemon, train, objects, s3
):
    upload(s3, s3.bucket("spine"), {f"train/{key}": body for key, body in objects.items()})
    dataset = train(grow={"first": "512KiB", "per_epoch": "1536KiB"})
    dataset["source"]["url"] = "s3://spine/train/"
    served = daemon({"train": dataset}, limit=LIMIT)
    sets: list[list[int]] = []
    seen: set[bytes] = set()
    most = 0
    with Peak(served.cache) as peak:
        served.start()
        with served.connect() as cache:
            for epoch in cache.epochs("train", 9, timeout=30):
                records = by_numpy(epoch)
                assert records == expected(objects, records)
                seen |= records.keys()
                sets.append(numbers(epoch.files))
                most = max(most, epoch.num_records)
                assert 0 < epoch.report()["coverage"] <= 1
                on_disk = inventory(served.cache)
                assert set(sets[-1]) <= on_disk.keys()
                assert not repeated(on_disk)
                served.settle()
        assert served.terminate() == 0

    # Growth: more every epoch, and nothing goes as long as there is room.
    first_full = next(k for k in range(len(sets)) if sets[k + 1][0] != sets[k][0])
    assert first_full >= 3
    for before, after in pairwise(sets[: first_full + 1]):
        assert set(before) < set(after)
    # Rotation: the oldest go, never more than a quarter, and as much comes back.
    for before, after in pairwise(sets[first_full:]):
        left = set(before) - set(after)
        assert left, "every epoch at the limit gives up its oldest shards"
        assert max(left) < min(after)
        assert len(left) <= 0.25 * LIMIT / (200 << 10)
        assert max(after) > max(before)
    assert len(seen) > 1.2 * most, "more is seen than fits"

    assert peak.bytes <= LIMIT
    assert peak.bytes > 0.85 * LIMIT, "else the limit was never put to the test"


def test_a_leased_file_survives_pressure_kill_and_restart_and_no_valid_shard_is_lost(
    daemon, train, objects
):
    # A slow link, so that it is killed while it writes. What the first job holds must stay well
    # below evict.refresh of the limit: a holder that fills it stops rotation, as it should.
    grow = {"first": "512KiB", "per_epoch": "64MiB"}
    served = daemon(
        {"train": train(grow=grow)}, limit=LIMIT, sampler={"workers": 2, "bandwidth": "4MB/s"}
    )
    served.start()
    # Two jobs in this process, each with a session of its own as two trainers have.
    with served.connect() as first, served.connect() as second:
        leased = first.acquire("train", job="first", timeout=30)
        held = {n: inventory(served.cache)[n] for n in numbers(leased.files)}

        # Killed in the middle of ingest, with shards being written.
        wait_until(lambda: len(served.temporaries()) >= 2)
        served.kill()
        before = inventory(served.cache)
        assert_untouched(held, before)
        served.start()
        assert_untouched(before, inventory(served.cache))
        wait_until(lambda: served.train["shards"] >= len(before) + 5, what="ingest goes on")

        # The other job rotates, until all that the first one holds is retired, and then some: in
        # how many epochs is up to the link.
        for rotated in second.epochs("train", 40, job="second", timeout=30):
            last = numbers(rotated.files)
            # The lease before is noticed to have ended, and its room is there, a moment later.
            wait_until(lambda: leases_of(served, "second") == 1)
            fill_up(served)
            if served.train["evicted_shards"] > len(held):
                break
        assert not held.keys() & set(last), "no later lease names what is retired"
        assert served.train["evicted_shards"] > len(held)
        (kept,) = (lease for lease in served.status()["leases"] if lease["job"] == "first")
        assert kept["retired_bytes"] >= sum(s.path.stat().st_size for s in held.values())
        assert_untouched(held, inventory(served.cache))

        wait_until(lambda: leases_of(served, "second") == 0)
        served.kill()
        before = inventory(served.cache)
        assert not repeated(before)
        served.start()
        after = inventory(served.cache)
        assert_untouched(before, after)
        with second.acquire("train", 5, job="second", timeout=30) as later:
            assert not set(numbers(later.files)) & held.keys(), "retired is retired for good"
            assert_untouched(held, inventory(served.cache))
        records = by_numpy(leased)
        assert len(records) == leased.num_records
        assert records == expected(objects, records)


def test_the_lease_of_a_killed_trainer_ends_by_itself_and_its_retired_shards_go(daemon, train):
    served = daemon({"train": train()}, limit=LIMIT)
    served.start()
    fill_up(served)
    with trainer(served, HOLDER) as holder:
        holding = said_line(holder)
        held = [Path(file) for file in holding["files"]]
        with served.connect() as cache:
            for epoch in range(3):
                cache.acquire("train", epoch, job="other", timeout=30).release()
        assert served.train["retired_shards"] > 0
        assert all(path.exists() for path in held)
        holder.kill()
        died = time.monotonic()
        wait_until(lambda: holding["lease"] not in str(served.status()["leases"]))
        # It is probed four times a second.
        assert time.monotonic() - died < 1.0
    wait_until(lambda: served.train["retired_shards"] == 0)
    gone = [path for path in held if not path.exists()]
    assert gone == held[: len(gone)] != []
    served.settle()
    assert not [path for path in gone if path.with_name(path.name + ".idx").exists()]
