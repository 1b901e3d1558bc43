"""connect, acquire and epochs against a scripted daemon: what is asked, locked and released, when."""

import gc
import logging
from pathlib import Path

import pytest

from cachecd_client.errors import (
    CallerError,
    DaemonUnreachableError,
    LeaseLostError,
    SchemaError,
)
from cachecd_client.protocol import (
    Acquire,
    AskStatus,
    Done,
    Exclude,
    Granted,
    Held,
    Released,
    Waiting,
)
from cachecd_client.session import acquire as waiting
from cachecd_client.session.acquire import describe
from cachecd_client.session.cache import connect
from tests.client.conftest import lending, locked

# Connecting


def test_a_socket_is_found_however_it_is_named(daemon, monkeypatch):
    scripted = daemon()
    monkeypatch.setenv("CACHECD_ENDPOINT", scripted.endpoint)
    for target in (scripted.endpoint, str(scripted.path), scripted.path, None):
        with connect(target) as opened:
            assert opened.endpoint == scripted.endpoint
    assert [type(request) for request in scripted.requests] == [AskStatus] * 4


@pytest.mark.parametrize(
    ("runtime", "endpoint"),
    [
        ("/run/user/7", "ipc:///run/user/7/cachecd/cachecd.sock"),
        (None, "ipc:///run/cachecd/cachecd.sock"),
    ],
)
def test_the_default_socket_is_the_users_own_or_the_services(monkeypatch, runtime, endpoint):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    if runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    with pytest.raises(DaemonUnreachableError, match=f"no daemon answered on {endpoint} within"):
        connect(timeout=0.05)


def test_a_closed_session_says_so(cache):
    cache.close()
    cache.close()
    with pytest.raises(CallerError, match="this session is closed"):
        cache.status()
    with pytest.raises(CallerError, match="this session is closed"):
        cache.acquire("train")


# One lease


def test_acquire_locks_before_it_says_held_and_unlocks_after_it_says_released(daemon, cache_dir):
    path = cache_dir.manifest("lease-0")
    seen = []

    def answer(request):
        if not isinstance(request, Acquire):
            seen.append((type(request).__name__, locked(path)))
        return lending(lambda _: path)(request)

    with connect(daemon(answer).endpoint) as opened:
        with opened.acquire("train"):
            assert locked(path)
        assert not locked(path)
    said = [("AskStatus", False), ("Held", True), ("Released", True)]
    assert seen == said


def test_an_epoch_is_what_its_manifest_says(cache, cache_dir, granting):
    with cache.acquire("train", epoch=1, job="resnet-7") as epoch:
        assert epoch.files == [str(cache_dir.shard(n)) for n in (1, 2, 3)]
        assert (epoch.epoch, epoch.lease, epoch.dataset, epoch.job) == (
            1, "train-1", "train", "resnet-7",
        )  # fmt: skip
        assert epoch.num_records == 30
        assert epoch.num_bytes == sum(Path(f).stat().st_size for f in epoch.files)
        assert epoch.fingerprint == "fingerprint of 3"
        assert epoch.schema.names == (
            "bits", "doubles", "image", "key", "label", "many", "names", "vector",
        )  # fmt: skip
        assert epoch.seed == 17
    (request,) = granting.of(Acquire)
    assert (request.dataset, request.job, request.epoch) == ("train", "resnet-7", 1)


def test_the_rank_and_the_launchers_job_are_told(granting, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run-3")
    with connect(granting.endpoint) as opened:
        opened.acquire("train")
    (acquire,), (held,), (released,) = map(granting.of, (Acquire, Held, Released))
    assert (acquire.job, acquire.local_rank, acquire.local_world_size) == ("run-3", 1, 2)
    assert (held.lease, held.local_rank) == ("train-0", 1)
    assert (released.lease, released.local_rank) == ("train-0", 1)


def test_a_container_may_see_the_cache_elsewhere(daemon, cache_dir, monkeypatch):
    cache_dir.manifest("lease-0")
    monkeypatch.setenv("CACHECD_DIR", str(cache_dir.root))

    def answer(request):
        if isinstance(request, Acquire):
            return Granted(request.id, "lease-0", "/on/the/host", "leases/lease-0.json")
        return None

    with connect(daemon(answer).endpoint) as opened, opened.acquire("train") as epoch:
        assert epoch.files[0] == str(cache_dir.shard(1))


def test_an_exclusion_that_a_full_disk_puts_off_says_so(daemon, monkeypatch, caplog):
    monkeypatch.setattr(waiting, "_FIRST_LINE", 0.05)

    def answer(request):
        if not isinstance(request, Exclude):
            return None
        if caplog.records:
            return Done(request.id)
        return Waiting(request.id, 0, 0, 0.0, "not done yet: no space left")

    scripted = daemon(answer)
    with connect(scripted.endpoint) as opened:
        opened.exclude("train", "a", "b")
    assert {tuple(request.keys) for request in scripted.of(Exclude)} == {("a", "b")}
    assert caplog.messages == ["train: not done yet: no space left"]


def test_a_long_wait_says_how_far_it_is(daemon, cache_dir, monkeypatch, caplog):
    monkeypatch.setattr(waiting, "_FIRST_LINE", 0.05)
    path = cache_dir.manifest("lease-0")

    def make(request):
        return path if caplog.records else Waiting(request.id, 1 << 20, 2 << 20, 1e6)

    with connect(daemon(lending(make)).endpoint) as opened:
        opened.acquire("train", timeout=20).release()
    (line,) = caplog.records
    assert (line.name, line.levelno) == ("cachecd", logging.WARNING)
    assert line.getMessage() == "train: 1 MiB of 2 MiB (50 %), 1 MB/s, ready in about 1 s"


def test_a_lease_lost_between_grant_and_lock_is_acquired_again(daemon, cache_dir):
    def make(request):
        path = cache_dir.manifest(f"lease-{len(scripted.of(Acquire))}")
        if path.stem != "lease-3":
            path.unlink()
        return path

    scripted = daemon(lending(make))
    with connect(scripted.endpoint) as opened, opened.acquire("train") as epoch:
        assert epoch.lease == "lease-3"
    assert [held.lease for held in scripted.of(Held)] == ["lease-3"]


def test_leases_that_always_vanish_are_an_error_in_the_end(daemon, cache_dir):
    (cache_dir.root / "leases").mkdir()
    scripted = daemon(lending(lambda request: cache_dir.root / "leases/gone.json"))
    with connect(scripted.endpoint) as opened, pytest.raises(LeaseLostError, match=r"gone\.json"):
        opened.acquire("train")
    assert len(scripted.of(Acquire)) == 5


def test_a_lease_whose_schema_cannot_be_read_is_not_kept(daemon, cache_dir):
    path = cache_dir.manifest("lease-0", schema={"features": 7})
    with connect(daemon(lending(lambda request: path)).endpoint) as opened:
        with pytest.raises(SchemaError, match="not a schema"):
            opened.acquire("train")
        assert not locked(path)


# The session's end


def test_closing_the_session_releases_every_epoch(granting, manifest):
    opened = connect(granting.endpoint)
    one, two = opened.acquire("train", 0), opened.acquire("train", 1)
    opened.close()
    assert not locked(manifest(0))
    assert not locked(manifest(1))
    for epoch in (one, two):
        assert epoch.released
        with pytest.raises(CallerError, match="was released, and its files may be deleted"):
            list(epoch.numpy(batch_size=1))


def test_a_session_that_is_dropped_with_its_epochs_releases_them(granting, manifest):
    connect(granting.endpoint).acquire("train")
    gc.collect()
    assert not locked(manifest(0))
    assert len(granting.of(Released)) == 1


# The messages of a wait


MIB = 1 << 20


@pytest.mark.parametrize(
    ("have", "want", "rate", "reason", "line"),
    [
        (312 * MIB, 1024 * MIB, 95e6, "", "312 MiB of 1 GiB (30 %), 95 MB/s, ready in about 8 s"),
        (
            0, 10 * MIB, 0.0, "no such bucket",
            "0 B of 10 MiB (0 %), nothing is arriving (no such bucket)",
        ),
        (0, 1536 * MIB, 1e6, "", "0 B of 1.5 GiB (0 %), 1 MB/s, ready in about 27 min"),
        (0, 3 << 40, 123456789.0, "", "0 B of 3 TiB (0 %), 123 MB/s, ready in about 7.4 h"),
        (0, 0, 0.0, "cannot write a manifest", "cannot write a manifest"),
        (0, 0, 0.0, "", "not ready yet"),
    ],
)  # fmt: skip
def test_the_line_says_how_far_how_fast_and_how_long(have, want, rate, reason, line):
    assert describe("train", Waiting("1", have, want, rate, reason)) == f"train: {line}"
