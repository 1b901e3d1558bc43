"""How a daemon ends, by request or by force, and what its successor finds."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from cachecd_client._core import Sidecar
from tests.e2e.daemons import Daemon, alive, descendants, said_line, trainer, wait_until
from tests.e2e.inventory import Found, Peak, inventory, repeated
from tests.e2e.link import Link
from tests.e2e.reading import by_numpy, expected

MIB = 1 << 20
LONG = "CACHECD_LONG" in os.environ


def keys(shards: dict[int, Found]) -> set[str]:
    """The objects of which these shards have records."""
    sidecars = [Sidecar.read(f"{shard.path}.idx") for shard in shards.values()]
    return {key.decode() for sidecar in sidecars for _, key, *_ in sidecar.table}


def test_sigterm_drains_and_the_next_start_fetches_nothing_that_is_cached(daemon, objects, s3):
    source = {"url": "s3://spine/train/", "format": "files"}
    with Link(s3.endpoint) as link:
        environ = {**s3.environ, "AWS_ENDPOINT_URL": link.endpoint}
        slow = {"bandwidth": "4MB/s"}
        served = daemon({"train": {"source": source}}, environ=environ, sampler=slow).start()
        wait_until(lambda: served.train["shards"] >= 4)
        assert served.terminate() == 0
        assert served.temporaries() == []
        assert not served.socket.parent.exists()
        before = inventory(served.cache)
        cached = {f"/spine/train/{key}" for key in keys(before)}
        assert cached <= link.fetched.keys()
        # Of 8 streams, what the lanes have ahead and a shard that is not sealed are fetched again.
        assert len(link.fetched.keys() - cached) <= 8 * (16 + 26)
        assert len(cached) < 0.9 * len(objects), "there is something left to do"
        assert set(link.fetched.values()) == {1}

        link.fetched.clear()
        served.start()
        wait_until(lambda: served.train["whole"], 60)
        after = inventory(served.cache)
        assert {n: after[n].same for n in before} == {n: s.same for n, s in before.items()}
        assert not cached & link.fetched.keys()
        assert keys(after) == objects.keys()
        assert not repeated(after)
        assert served.terminate() == 0


def kill_over_and_over(served: Daemon, times: int, seed: int) -> int:
    """Starts and kills it so many times, and looks at what is there each time; the epochs it gave out.

    The instants are counted in changes of the directories, so that they fall into the middle of
    what it does rather than into its pauses.
    """
    chance = random.Random(seed)
    known: dict[int, Found] = {}
    marked: set[int] = set()
    epoch = 0
    for number in range(times):
        served.start()
        found = inventory(served.cache)
        evicted = known.keys() - found.keys()
        assert {n: found[n].same for n in known if n in found} == {
            n: s.same for n, s in known.items() if n in found
        }
        assert len(evicted - marked) <= served.train["evicted_shards"], f"lost: {evicted - marked}"
        with served.connect() as cache:
            # Epoch after epoch: once the cache is full, shards come and go.
            names, changes = names_in(served), chance.randrange(1, 16)
            asked, deadline = 0.0, time.monotonic() + 20
            while changes > 0:
                if (now := names_in(served)) != names:
                    names, changes = now, changes - 1
                    continue
                if time.monotonic() < asked + 0.02:
                    time.sleep(0.001)
                    continue
                status, asked = served.status(), time.monotonic()
                assert asked < deadline, f"start {number}: {status}"
                train = status["datasets"]["train"]
                if train["whole"]:
                    break
                if not train["making"]:
                    cache.acquire("train", epoch, job="job", timeout=30).release()
                    epoch += 1
            served.kill()
        known = inventory(served.cache)  # fails on a shard that is not whole
        assert not repeated(known)
        marks = served.cache.glob("datasets/train/*/shards/*.old")
        marked = {int(mark.name[:10]) for mark in marks}
    # Offline nothing is begun, so what there is now is all that a start leaves.
    kept = known.keys() - marked
    served.start("--offline")
    assert served.temporaries() == []
    wait_until(lambda: inventory(served.cache).keys() == kept, what="retired shards are gone")
    assert served.train["shards"] == len(kept)
    assert served.terminate() == 0
    said = served.said()
    assert "Traceback" not in said
    assert "error" not in said
    return epoch


@pytest.mark.long
def test_killed_while_shards_come_and_go_it_leaves_whole_ones_and_its_successor_goes_on(
    daemon, train
):
    limit = (6 if LONG else 4) * MIB
    served: Daemon = daemon({"train": train()}, limit=limit, sampler={"workers": 2})
    with Peak(served.cache, every=0.005) as peak:  # beside all these starts
        served.start()
        with served.connect() as cache:
            for epoch in range(60):
                cache.acquire("train", epoch, job="job", timeout=30).release()
                if served.train["evicted_shards"]:
                    break
            else:
                pytest.fail("nothing was evicted in 60 epochs")
        assert served.terminate() == 0
        kill_over_and_over(served, 8 if LONG else 5, seed=15)
    assert peak.bytes <= limit


@pytest.mark.long
def test_killed_while_it_cuts_large_units_it_forgets_no_record_and_repeats_none(daemon, tfrecords):
    """A file of this source spreads over several shards; what did not fit must be remembered."""
    source = {"url": "s3://tfrecords/train/", "format": "tfrecord"}
    served: Daemon = daemon(
        {"train": {"source": source, "grow": {"first": "1MiB"}}}, sampler={"workers": 2}
    )
    epoch = kill_over_and_over(served, 5 if LONG else 3, seed=7)
    served.start()
    served.until_whole()
    assert not repeated(inventory(served.cache))
    with served.connect() as cache, cache.acquire("train", epoch, timeout=30) as last:
        assert by_numpy(last) == tfrecords.meant


def names_in(daemon: Daemon) -> set[str]:
    return {path.name for path in daemon.cache.glob("datasets/train/*/shards/*")}


OWNER = """
import json, sys
from cachecd_client import connect
cache = connect(sys.argv[1])
epoch = cache.acquire("train", timeout=30)
print(json.dumps({"pid": cache.status()["daemon"]["pid"], "endpoint": cache.endpoint}), flush=True)
sys.stdin.read()
cache.close()
"""


@pytest.mark.parametrize("end", ["killed", "closed"])
def test_a_daemon_started_by_its_trainer_ends_with_it_and_leaves_no_process(daemon, train, end):
    served: Daemon = daemon({"train": train()}, sampler={"workers": 2, "bandwidth": "4MB/s"})
    served.write_config()
    with trainer(served, OWNER, str(served.config)) as owner:
        found = said_line(owner)
        processes = [found["pid"], *descendants(found["pid"])]
        assert len(processes) == 5, "a daemon, two samplers and their guards"
        folder = Path(found["endpoint"].removeprefix("ipc://")).parent
        assert folder.exists()
        if end == "killed":
            owner.kill()
        else:
            owner.stdin.close()
        wait_until(lambda: not any(map(alive, processes)), 10.0, "no process is left")
    assert served.temporaries() == []
    assert not folder.exists()
    assert not served.socket.parent.exists(), "the configured endpoint is not for it"


@pytest.mark.long
def test_a_source_that_goes_away_leaves_what_is_cached_to_be_served(daemon, train, objects, s3):
    with Link(s3.endpoint) as link:
        environ = {**s3.environ, "AWS_ENDPOINT_URL": link.endpoint}
        served = daemon({"train": train()}, environ=environ, sampler={"bandwidth": "4MB/s"}).start()
        wait_until(lambda: served.train["shards"] >= 6)
        link.cut()
        with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
            records = by_numpy(epoch)
            assert records == expected(objects, records)
        assert served.terminate() == 0

        served.start()
        with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
            records = by_numpy(epoch)
            assert records == expected(objects, records)
            assert len(epoch.files) >= 6
            wait_until(lambda: served.train["stopped"])
        reason = served.train["stopped"]
        assert link.endpoint in reason
        assert "cannot connect to the store" in reason
        assert "Traceback" not in served.said()


def test_offline_serves_what_is_cached_and_asks_the_network_nothing(daemon, train, objects, s3):
    with Link(s3.endpoint) as link:
        environ = {**s3.environ, "AWS_ENDPOINT_URL": link.endpoint}
        served = daemon({"train": train()}, environ=environ, limit=8 * MIB)
        served.start()
        wait_until(lambda: served.train["shards"] >= 6)
        assert served.terminate() == 0
        before, asked = inventory(served.cache), link.requests

        served.start("--offline")
        with served.connect() as cache:
            for epoch in cache.epochs("train", 3, timeout=30):
                records = by_numpy(epoch)
                assert records == expected(objects, records)
        assert descendants(served.pid) == []
        assert served.status()["daemon"]["offline"]
        assert inventory(served.cache).keys() == before.keys()
        assert served.terminate() == 0
        assert link.requests == asked


TRAINER = """
import os, signal, sys
from cachecd_client import connect
with connect() as cache:
    assert cache.acquire("train", timeout=30).num_records
if sys.argv[1] == "exit":
    sys.exit(int(sys.argv[2]))
os.kill(os.getpid(), int(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("how", "code"), [(("exit", "3"), 3), (("signal", str(int(signal.SIGKILL))), 128 + 9)]
)
def test_the_trainers_exit_code_is_passed_on_and_nothing_is_left(daemon, train, how, code):
    served: Daemon = daemon({"train": train()}, limit=8 * MIB)
    done = served.run(trainer=[sys.executable, "-c", TRAINER, *how])
    assert done.returncode == code
    assert done.stdout == ""
    assert not served.socket.parent.exists()
    assert served.temporaries() == []


def test_a_trainer_that_is_not_there_is_127_and_said_so(daemon, train):
    served: Daemon = daemon({"train": train()}, limit=8 * MIB)
    done = served.run(trainer=["no-such-trainer", "--epochs", "3"])
    assert done.returncode == 127
    assert "no-such-trainer" in done.stderr
    assert "Traceback" not in done.stderr
