"""cache.epochs: what is held at each step, without a daemon too, and how a run ends."""

import time

import pytest

from cachecd_client.protocol import (
    Acquire,
    AskStatus,
    Held,
)
from cachecd_client.session.cache import connect
from tests.client.conftest import locked
from tests.core.processes import run_program


def test_the_next_set_is_acquired_before_the_last_is_released(cache, granting, manifest):
    held = []
    for epoch in cache.epochs("train", 3):
        held.append([locked(manifest(k)) for k in range(epoch.epoch + 1)])
        assert len(epoch.files) == 2 + epoch.epoch
    assert held == [[True], [False, True], [False, False, True]]
    assert not locked(manifest(2))
    told = [
        (type(request).__name__, getattr(request, "epoch", getattr(request, "lease", None)))
        for request in granting.requests
        if not isinstance(request, AskStatus)
    ]
    assert told == [
        ("Acquire", 0), ("Held", "train-0"),
        ("Acquire", 1), ("Held", "train-1"), ("Released", "train-0"),
        ("Acquire", 2), ("Held", "train-2"), ("Released", "train-1"),
        ("Released", "train-2"),
    ]  # fmt: skip


def test_progress_is_that_of_the_whole_run(cache):
    seen = []
    for epoch in cache.epochs("train", 2):
        seen.append(epoch.progress)
        seen += [epoch.progress for _ in epoch.numpy(batch_size=10)]
        seen.append(epoch.progress)
    assert seen == pytest.approx([0, 1 / 4, 1 / 2, 1 / 2, 1 / 2, 4 / 6, 5 / 6, 1, 1])


def test_without_a_daemon_the_set_is_repeated_in_another_order(
    hasty_cache, granting, manifest, caplog
):
    labels, seeds, sets = [], [], []
    for epoch in hasty_cache.epochs("train", 3):
        if epoch.epoch == 0:
            granting.kill()
        assert locked(manifest(0))
        labels.append([i for b in epoch.numpy(batch_size=20) for i in b["label"]])
        seeds.append(epoch.seed)
        sets.append((epoch.fingerprint, epoch.files))
    assert not locked(manifest(0))
    assert (
        "train: epoch 1 repeats the 2 files of the previous epoch: no daemon answered"
        in caplog.text
    )
    assert (
        "train: epoch 2 repeats the 2 files of the previous epoch: no daemon answered"
        in caplog.text
    )
    assert sets[0] == sets[1] == sets[2]
    assert len(set(seeds)) == 3
    assert sorted(labels[0]) == sorted(labels[1]) == sorted(labels[2]) == list(range(20))
    assert labels[0] != labels[1] != labels[2]


def test_only_the_first_boundary_waits_for_a_daemon_that_has_ended(granting, monkeypatch):
    monkeypatch.setattr("cachecd_client.session.epochs._RESTART", 0.5)
    took = []
    with connect(granting.endpoint) as cache:
        epochs = cache.epochs("train", 4)
        next(epochs)
        granting.kill()
        for _ in range(3):
            began = time.monotonic()
            assert next(epochs).lease == "train-0"
            took.append(time.monotonic() - began)
        epochs.close()
    assert 0.5 <= took[0] < 5.0
    assert max(took[1:]) < 0.4


def test_a_daemon_that_returns_serves_the_next_epoch(hasty_cache, granting, manifest):
    epochs = hasty_cache.epochs("train", 3)
    next(epochs)
    granting.kill()
    assert next(epochs).lease == "train-0"
    granting.start()
    assert next(epochs).lease == "train-2"
    assert not locked(manifest(0))
    epochs.close()


def test_a_loop_that_is_left_releases_the_lease(cache, manifest):
    epochs = cache.epochs("train", 3)
    next(epochs)
    assert locked(manifest(0))
    epochs.close()
    assert not locked(manifest(0))


ENDINGS = {
    "os._exit": "os._exit(3)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "an exception in a thread's loop": "thread = threading.Thread(target=lambda: [1 / 0 for _ in epochs])\n"
    "thread.start(); thread.join()",
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_however_a_trainer_ends_while_it_reads_nothing_stays_locked(granting, manifest, ending):
    program = (
        "import os, resource, signal, sys, threading\n"
        "from cachecd_client import connect\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "epochs = connect(sys.argv[1]).epochs('train', 3)\n"
        "first = next(epochs)\n"
        "batches = iter(first.numpy(1))\n"
        "next(batches)\n"
        f"{ending}\n"
    )
    done = run_program(program, granting.endpoint)
    assert "train-0" in {held.lease for held in granting.of(Held)}, done.stderr
    assert not any(locked(manifest(held.epoch)) for held in granting.of(Acquire))
