"""Promise 1 with a real daemon and real trainers: who holds a lease, how long, and who does not."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachecd_client import connect
from cachecd_client.locks import is_locked
from tests.e2e.daemons import Daemon, alive, file_source, run, said_line, trainer, wait_until
from tests.faults.disk import FaultyDisk

MIB = 1 << 20


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Daemon]:
    """A daemon whose cache gains half a megabyte with each epoch; each test has a job of its own."""
    folder = tmp_path_factory.mktemp("leases")
    chance = random.Random(4)
    objects = {f"{number:04d}.bin": chance.randbytes(20_000) for number in range(600)}
    train = {
        "source": file_source(folder / "source", objects),
        "grow": {"first": "512KiB", "per_epoch": "512KiB"},
        "evict": {"refresh": 0.25},
    }
    with Daemon(folder, {"train": train}, limit=7 * MIB, shard_size="128KiB") as daemon:
        yield daemon.start()


def manifests(served: Daemon, job: str) -> list[Path]:
    """The manifests of a job that lie in the cache, held or not."""
    found = sorted((served.cache / "leases").glob("*.json"))
    return [path for path in found if json.loads(path.read_text())["job"] == job]


def held(path: Path) -> bool:
    with open(path, "rb") as file:
        return is_locked(file.fileno())


def ends_by_itself(manifest: Path) -> None:
    wait_until(lambda: not manifest.exists(), what="the lease ends by itself")


LOADER = """
import json, os, sys
from cachecd_client import connect
epoch = connect().acquire("train", job="loader", timeout=30)
print(json.dumps(epoch.lease), flush=True)
if os.fork():
    os.wait()
else:                                           # as a DataLoader forks its workers
    count = 0
    for batch in epoch.numpy(1):
        if not count:
            print(json.dumps(os.getpid()), flush=True)
            sys.stdin.readline()                # the parent is dead by then
        count += 1
    print(json.dumps([count, epoch.num_records]), flush=True)
    sys.stdin.readline()
"""


def test_forked_worker_that_outlives_its_parent_holds_the_lease(served):
    with trainer(served, LOADER) as parent:
        manifest = served.cache / "leases" / f"{said_line(parent)}.json"
        worker = said_line(parent)
        parent.kill()
        os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
        assert held(manifest)
        with connect(served.endpoint) as other:  # the epochs of others go on
            for epoch in other.epochs("train", 2, job="others", timeout=30):
                assert epoch.num_records
        # It reads its whole epoch, though whoever took the lease is long dead.
        print(file=parent.stdin, flush=True)
        count, records = said_line(parent)
        assert count == records > 0
        assert held(manifest)
        print(file=parent.stdin, flush=True)
        wait_until(lambda: not alive(worker), what="the worker ends")
        ends_by_itself(manifest)


FORK = """
import json, os, sys
from cachecd_client import connect
cache = connect()
epochs = cache.epochs("train", 3, job="fork", timeout=30)
first = next(epochs)
child = os.fork()
if child == 0:
    second = next(epochs)                       # the loop goes on in the child
    records = sum(int(batch["_valid"].sum()) for batch in second.numpy(8, pad_last=True))
    print(json.dumps([second.lease, records, second.num_records]), flush=True)
    sys.stdin.readline()
    sys.exit(0)                                 # with all that Python does at an exit
print(json.dumps([first.lease, child]), flush=True)
os.waitpid(child, 0)
print(json.dumps(first.released), flush=True)
sys.stdin.readline()
"""


def test_a_loop_that_is_forked_in_its_middle_holds_what_it_takes_and_ends_no_lease_but_its_own(
    served,
):
    with trainer(served, FORK) as parent:
        first, _ = said_line(parent)
        second, records, expected = said_line(parent)
        leases = served.cache / "leases"
        assert held(leases / f"{first}.json")
        assert held(leases / f"{second}.json")
        assert records == expected > 0
        print(file=parent.stdin, flush=True)
        assert said_line(parent) is False
        ends_by_itself(leases / f"{second}.json")
        assert held(leases / f"{first}.json")
        print(file=parent.stdin, flush=True)
        ends_by_itself(leases / f"{first}.json")


HOLDER = """
import json, sys
from cachecd_client import connect
cache = connect()
epoch = cache.acquire("train", int(sys.argv[2]), job=sys.argv[1], timeout=30)
print(json.dumps({"lease": epoch.lease, "files": epoch.files}), flush=True)
sys.stdin.readline()
"""


def test_two_runs_of_one_name_share_their_set_and_the_end_of_one_is_not_the_others(served):
    with trainer(served, HOLDER, "twins", "0") as one, trainer(served, HOLDER, "twins", "0") as two:
        (first, second) = said_line(one), said_line(two)
        assert first == second
        (manifest,) = manifests(served, "twins")
        one.kill()
        one.wait()
        (lease,) = [x for x in served.status()["leases"] if x["job"] == "twins"]
        assert lease["held"]
        assert held(manifest)
        two.kill()
        two.wait()
        ends_by_itself(manifest)


def test_a_holder_that_stays_is_named_with_its_age_while_the_others_rotate_within_the_limit(served):
    with trainer(served, HOLDER, "stays", "0") as stays:
        kept = {path: Path(path).read_bytes() for path in said_line(stays)["files"]}
        stays.send_signal(signal.SIGSTOP)
        with served.connect() as cache:
            for epoch in cache.epochs("train", 40, job="others", timeout=30):
                assert epoch.epoch < 39, "nothing that it holds was ever retired"
                status = cache.status()
                assert status["cache"]["used"] + status["cache"]["reserved"] <= 7 * MIB
                (lease,) = [x for x in status["leases"] if x["job"] == "stays"]
                if lease["retired_bytes"]:
                    break
                wait_until(lambda: not cache.status()["datasets"]["train"]["making"])
        assert lease["retired_bytes"] <= 0.25 * 7 * MIB
        (manifest,) = manifests(served, "stays")
        three_days_ago = manifest.stat().st_mtime - 3 * 86400
        os.utime(manifest, (three_days_ago, three_days_ago))  # as if it had been so long
        served.kill()
        served.start()
        (lease,) = [x for x in served.status()["leases"] if x["job"] == "stays"]
        assert 3 * 86400 <= lease["age_s"] < 3 * 86400 + 600
        assert lease["held"]
        assert lease["epoch"] == 0
        text = run([sys.executable, "-m", "cachecd", "status", served.endpoint], served).stdout
        assert "epoch 0 of stays: " in text
        assert "held (1 of 1 ranks: 0) for 3.0 d, keeps " in text
        assert {path: Path(path).read_bytes() for path in kept} == kept


# A trainer that may only read, and sees the cache elsewhere

READER = """
import json, sys
from cachecd_client import connect
with connect() as cache:
    for epoch in cache.epochs("train", 2, job=sys.argv[1], timeout=30):
        records = sum(int(batch["_valid"].sum()) for batch in epoch.numpy(8, pad_last=True))
        print(json.dumps([epoch.lease, epoch.files, records, epoch.num_records]), flush=True)
        sys.stdin.readline()
"""
WRITING = ("create", "write", "rename", "unlink", "mkdir", "truncate", "allocate", "sync")


CONTAINER = """
set -e
mount --bind "$1" "$2"
mount -o remount,bind,ro "$2"
mount -t tmpfs none "$1"
! touch "$2/leases/x" 2> /dev/null
shift 2
exec "$@"
"""
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]


def seen_elsewhere(cache: Path, elsewhere: Path) -> list[str]:
    """What a command is run by so that it sees the cache at `elsewhere`, where it may only read.

    In a container of its own with a read-only mount; where the system lets nobody make one, through
    a link, and that it may only read shows in what it does.
    """
    probe = [*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"]
    if shutil.which("unshare") and not subprocess.call(probe, stderr=subprocess.DEVNULL):
        elsewhere.mkdir()
        return [*UNSHARE, "sh", "-c", CONTAINER, "sh", str(cache), str(elsewhere)]
    elsewhere.symlink_to(cache)
    return ["env"]


def test_a_container_that_mounts_the_cache_elsewhere_and_read_only_holds_its_leases(
    served, tmp_path
):
    elsewhere = tmp_path / "data"
    disk = FaultyDisk(tmp_path / "faults", root=Path("/"))
    disk.trace()
    variables = {"CACHECD_ENDPOINT": served.endpoint, "CACHECD_DIR": str(elsewhere)}
    command = [*seen_elsewhere(served.cache, elsewhere), sys.executable, "-u", "-c", READER]
    with subprocess.Popen(
        [*command, "container"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**served.environ, **disk.environ, **variables},
    ) as process:
        try:
            for _ in range(2):
                lease, files, records, expected = said_line(process)
                assert records == expected > 0
                assert {Path(path).parents[4] for path in files} == {elsewhere}
                assert held(served.cache / "leases" / f"{lease}.json")
                print(file=process.stdin, flush=True)
            assert process.wait(30) == 0
        finally:
            process.kill()
    wait_until(lambda: not manifests(served, "container"))
    done = [(operation, path) for pid, operation, path in disk.traced if pid == process.pid]
    done = [(operation, path) for operation, path in done if path.startswith(f"{elsewhere}/")]
    assert ("open", f"{elsewhere}/leases/{lease}.json") in done
    assert not {operation for operation, _ in done}.intersection(WRITING)


# A daemon that is not there
