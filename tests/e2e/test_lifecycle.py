"""A daemon that is stopped, and its successor. tests/faults/test_crash.py kills daemons."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from cachecd_client._core import Sidecar
from tests.e2e.conftest import upload
from tests.e2e.daemons import Daemon, alive, descendants, said_line, trainer, wait_until
from tests.e2e.inventory import Found, inventory, repeated
from tests.e2e.link import Link
from tests.e2e.reading import rows


def keys(shards: dict[int, Found]) -> set[str]:
    """The objects of which these shards have records."""
    sidecars = [Sidecar.read(f"{shard.path}.idx") for shard in shards.values()]
    return {key.decode() for sidecar in sidecars for _, key, *_ in sidecar.table}


def test_sigterm_drains_and_later_starts_fetch_nothing_that_is_cached(daemon, objects, s3):
    part = {key[8:]: body for key, body in objects.items() if key.startswith("class-3/")}
    upload(s3, s3.bucket("drained"), {f"train/{key}": body for key, body in part.items()})
    source = {"url": "s3://drained/train/", "format": "files"}
    with Link(s3.endpoint) as link:
        settings = {
            "environ": {**s3.environ, "AWS_ENDPOINT_URL": link.endpoint},
            "sampler": {"bandwidth": "500kB/s"},
            "shard_size": "64KiB",
        }
        train = {"source": source, "grow": {"first": "64KiB"}, "streams": 1}
        served: Daemon = daemon({"train": train}, **settings).start()
        wait_until(lambda: served.train["shards"] >= 4)
        assert served.terminate() == 0
        assert served.temporaries() == []
        assert not served.socket.parent.exists()
        before = inventory(served.cache)
        folder = source["url"].removeprefix("s3:/")
        cached = {f"{folder}{key}" for key in keys(before)}
        assert cached <= link.fetched.keys()
        # Bytes that lanes read ahead, and those of an unsealed shard, are fetched again.
        assert len(link.fetched.keys() - cached) <= 16 + 12
        assert len(cached) < 0.9 * len(part), "there is something left to do"
        assert set(link.fetched.values()) == {1}

        link.fetched.clear()
        del served.document["sampler"]["bandwidth"]
        served.start()
        served.until_whole()
        after = inventory(served.cache)
        assert {n: after[n].same for n in before} == {n: s.same for n, s in before.items()}
        assert not cached & link.fetched.keys()
        assert keys(after) == part.keys()
        assert not repeated(after)
        assert served.terminate() == 0

        asked = link.requests
        served.start("--offline")
        with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
            found = {bytes(k).decode(): bytes(p) for k, p in rows(epoch, "key", "payload")}
        assert found == part
        assert descendants(served.pid) == []
        assert served.status()["daemon"]["offline"]
        assert served.terminate() == 0
        assert link.requests == asked


TRAINER = """
import os
from cachecd_client import connect
with connect() as cache:
    assert cache.acquire("train", timeout=30).num_records
os.kill(os.getpid(), 9)
"""


def test_trainers_signal_or_absence_is_the_exit_code(daemon, train):
    served: Daemon = daemon({"train": train()}, limit="8MiB")
    done = served.run(trainer=[sys.executable, "-c", TRAINER])
    assert done.returncode == 128 + signal.SIGKILL
    assert done.stdout == ""
    assert not served.socket.parent.exists()
    assert served.temporaries() == []
    done = served.run(trainer=["no-such-trainer", "--epochs", "3"])
    assert done.returncode == 127
    assert "no-such-trainer" in done.stderr
    assert "Traceback" not in done.stderr


OWNER = """
import json, sys
from cachecd_client import connect
cache = connect(sys.argv[1])
epoch = cache.acquire("train", timeout=30)
print(json.dumps({"pid": cache.status()["daemon"]["pid"], "endpoint": cache.endpoint}), flush=True)
sys.stdin.read()
"""


def test_daemon_of_a_killed_trainer_leaves_no_process(daemon, train):
    served: Daemon = daemon({"train": train()}, sampler={"bandwidth": "4MB/s"})
    served.write_config()
    with trainer(served, OWNER, str(served.config)) as owner:
        found = said_line(owner)
        processes = [found["pid"], *descendants(found["pid"])]
        assert len(processes) == 3, "a daemon, a sampler and its guard"
        folder = Path(found["endpoint"].removeprefix("ipc://")).parent
        assert folder.exists()
        owner.kill()
        wait_until(lambda: not any(map(alive, processes)), 10.0, "no process is left")
    assert served.temporaries() == []
    assert not folder.exists()
    assert not served.socket.parent.exists(), "the configured endpoint is not for it"
