"""Which fraction of its part of a lease a rank reports as delivered, and with which request."""

from __future__ import annotations

from itertools import islice

import pytest

from cachecd_client.protocol import Acquire, Released
from cachecd_client.session.cache import connect
from tests.client.conftest import beside, lending
from tests.core.processes import run_program

SHARDS = 24
PER_SHARD = 10
RECORDS = SHARDS * PER_SHARD


@pytest.fixture
def lender(daemon, cache_dir):
    """Grants sets of 24 shards with 240 records."""

    def make(request):
        lease = f"{request.job}-{request.epoch}"
        return cache_dir.manifest(lease, shards=SHARDS, job=request.job, epoch=request.epoch)

    return daemon(lending(make))


def reported(lender):
    """(request, lease, fraction) of each request that reports a fraction."""
    requests = lender.of((Acquire, Released))
    return [(type(r).__name__, r.lease, r.delivered) for r in requests if r.delivered]


def fractions(lender):
    return [fraction for _, _, fraction in reported(lender)]


def read(cache, batches, state=None, **options):
    with cache.acquire("train", job="j") as epoch:
        loader = epoch.numpy(batch_size=PER_SHARD, **options)
        if state is not None:
            loader.load_state_dict(state)
        labels = [label for batch in islice(loader, batches) for label in batch["label"].tolist()]
        return labels, loader.state_dict()


def test_each_epoch_is_reported_once_with_the_next_acquire(lender):
    with connect(lender.endpoint) as cache:
        for epoch in cache.epochs("train", 3, job="j"):
            batches = {0: 24, 1: 12, 2: 6}[epoch.epoch]
            list(islice(epoch.numpy(batch_size=PER_SHARD), batches))
    assert reported(lender) == [
        ("Acquire", "j-0", 1.0), ("Acquire", "j-1", 0.5), ("Released", "j-2", 0.25),
    ]  # fmt: skip


def test_each_rank_reports_the_fraction_of_its_own_part(lender, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with connect(lender.endpoint) as cache:
        assert len(read(cache, 6)[0]) == RECORDS / 4
    assert fractions(lender) == [0.5]


def test_a_pass_that_is_stopped_and_resumed_counts_once(lender):
    with connect(lender.endpoint) as cache:
        _, state = read(cache, 10)
        _, state = read(cache, 5, state)
        read(cache, 100, state)
    assert fractions(lender) == pytest.approx([10 / 24, 5 / 24, 9 / 24])


@pytest.mark.parametrize("way", ["numpy", "tf_dataset"])
def test_where_another_node_has_fewer_records_what_is_left_out_counts_as_nothing(lender, way):
    least = RECORDS // 4
    with connect(lender.endpoint) as cache:
        for epoch in cache.epochs("train", n=1, agree=beside(least)):
            rows = sum(len(batch["label"]) for batch in getattr(epoch, way)(batch_size=PER_SHARD))
            assert rows == least
    assert fractions(lender) == [0.25]


def test_what_drop_last_leaves_out_of_a_pass_counts_as_delivered(lender):
    with connect(lender.endpoint) as cache, cache.acquire("train") as epoch:
        assert sum(len(batch["label"]) for batch in epoch.numpy(batch_size=100)) == 200
    assert fractions(lender) == [1.0]


def test_what_nobody_counts_counts_as_delivered(lender):
    with connect(lender.endpoint) as cache:
        with cache.acquire("train", job="tensorflow") as epoch:
            epoch.tf_dataset(batch_size=PER_SHARD)
        with cache.acquire("train", job="files") as epoch:
            assert len(epoch.files) == SHARDS
    assert fractions(lender) == [1.0, 1.0]


def test_what_a_dead_daemon_did_not_hear_is_reported_with_a_later_request(lender, monkeypatch):
    monkeypatch.setattr("cachecd_client.session.epochs._RESTART", 0.0)
    with connect(lender.endpoint) as cache:
        for epoch in cache.epochs("train", 3, job="j"):
            list(islice(epoch.numpy(batch_size=PER_SHARD), 6))
            (lender.kill, lender.start, lambda: None)[epoch.epoch]()
    assert reported(lender) == [("Acquire", "j-0", 0.5), ("Released", "j-2", 0.25)]


@pytest.mark.parametrize(
    ("ending", "fraction"), [("raise SystemExit(3)", [0.25]), ("os._exit(3)", [])]
)
def test_a_trainer_reports_as_it_exits_and_not_when_it_crashes(lender, ending, fraction):
    program = (
        "import os, sys\n"
        "from cachecd_client import connect\n"
        "epochs = connect(sys.argv[1]).epochs('train', 3)\n"
        "batches = iter(next(epochs).numpy(60))\n"
        f"next(batches)\n{ending}\n"
    )
    run_program(program, lender.endpoint)
    assert fractions(lender) == fraction
