"""Promise 1, the trainer's side: the lock is there while the lease is, and ends with its holder."""

import contextlib
import dataclasses
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachecd_client.errors import CallerError, CorruptError, LeaseLostError, ProtocolVersionError
from cachecd_client.lease.held_lease import HeldLease
from cachecd_client.lease.leased_set import ShardFiles
from cachecd_client.protocol import Manifest
from tests.client.conftest import locked
from tests.core.processes import fork, in_child, until
from tests.core.shards import LONG


@pytest.fixture
def path(cache_dir):
    return cache_dir.manifest()


def test_a_stopped_trainer_keeps_its_lease_and_a_killed_one_ends_it(path):
    holder = start_holder(path)
    holder.send_signal(signal.SIGSTOP)
    os.waitpid(holder.pid, os.WUNTRACED)
    assert locked(path)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    until(lambda: not locked(path), seconds=1.0)


def test_a_forked_child_that_lives_on_does_not_prolong_the_lease(path):
    held = HeldLease(path)
    asleep, wake = os.pipe()
    child = fork()
    if child == 0:
        os.close(wake)
        os.read(asleep, 1)
        os._exit(0)
    try:
        held.close()
        until(lambda: not locked(path), seconds=1.0)
    finally:
        os.close(asleep)
        os.close(wake)
        os.waitpid(child, 0)


def test_a_forked_childs_end_does_not_end_the_lease(path):
    held = HeldLease(path)
    assert in_child(lambda: (held.is_held, held.close())) in [(False, None), [False, None]]
    assert locked(path)
    held.close()


def test_a_forked_child_that_reads_holds_a_lock_of_its_own(cache_dir):
    path = cache_dir.manifest()
    held = HeldLease(path)

    def read() -> bool:
        held.ensure()
        os.kill(os.getppid(), signal.SIGUSR1)  # the parent lets go
        while not released.exists():
            os.sched_yield()
        return locked(path)

    released = cache_dir.root / "released"

    def let_go(*_):
        held.close()
        released.touch()

    before = signal.signal(signal.SIGUSR1, let_go)
    try:
        assert in_child(read) is True
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not locked(path)


def test_a_manifest_under_deletion_is_a_lost_lease(path):
    with open(path, "r+b") as daemon:
        fcntl.fcntl(daemon, fcntl.F_OFD_SETLK, write_lock())
        with pytest.raises(LeaseLostError, match="the daemon is deleting this lease"):
            HeldLease(path)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_manifest_deleted_or_replaced_just_before_the_lock_is_a_lost_lease(
    path, monkeypatch, replaced
):
    lock = fcntl.fcntl

    def overtaken(*call):
        path.rename(path.with_suffix(".old"))
        if replaced:
            path.write_text("{}")
        return lock(*call)

    monkeypatch.setattr(fcntl, "fcntl", overtaken)
    match = "deleted or replaced before"
    with pytest.raises(LeaseLostError, match=match):
        HeldLease(path)


def test_a_cache_that_is_not_mounted_here_is_named(tmp_path):
    with pytest.raises(
        CallerError, match=r"mount the daemon.s cache in this container, and set \$CACHECD_DIR"
    ):
        HeldLease(tmp_path / "nowhere" / "leases" / "a.json")


@settings(max_examples=100 if LONG else 50, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from([f.name for f in dataclasses.fields(Manifest)]),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
    | st.lists(st.lists(st.integers(-2, 9), max_size=3) | st.none(), max_size=3)
    | st.just({}),
)  # fmt: skip
def test_a_manifest_of_any_content_is_read_as_it_is_or_refused(cache_dir, field, value):
    path = cache_dir.manifest()
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with contextlib.suppress(CorruptError, ProtocolVersionError):
        held = HeldLease(path)
        assert getattr(held.manifest, field) == value
        files = ShardFiles("", 2, held.manifest.intervals, held.manifest.versions)
        assert len(files) == len(set(files))
        held.close()


def test_a_manifest_of_another_version_says_what_to_install(path):
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 3}))
    with pytest.raises(ProtocolVersionError, match=r"version 3, expected 2: install"):
        HeldLease(path)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"streams": 0}, "streams is 0, expected 1 or more"),
        ({"intervals": [[3, 0, 1]]}, r"interval \[3, 0, 1\] .* of 2 streams, expected ascending"),
        ({"intervals": [[0, 0, 4], [0, 4, 5]]}, r"interval \[0, 4, 5\] after \[0, 0, 4\]"),
        ({"versions": [[5, 1]]}, r"version \[5, 1\] after shard -1"),
        ({"versions": [[1, 1], [1, 2]]}, r"version \[1, 2\] after shard 1"),
    ],
)
def test_a_manifest_that_no_lease_has_names_what_is_wrong(cache_dir, changes, why):
    with pytest.raises(CorruptError, match=why):
        HeldLease(cache_dir.manifest(**changes))


def write_lock() -> bytes:
    return struct.pack("hhqqi0q", fcntl.F_WRLCK, 0, 0, 0, 0)


def start_holder(path) -> subprocess.Popen:
    program = (
        "import sys, signal\n"
        "from cachecd_client.lease.held_lease import HeldLease\n"
        "held = HeldLease(sys.argv[1])\n"
        "print('held', flush=True)\n"
        "signal.pause()\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    return holder
