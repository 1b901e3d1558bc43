"""What a client says was delivered of each shard, by passes that were broken off or resumed."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from cachecd_client.protocol import Delivered
from cachecd_client.session import connect
from tests.client.conftest import beside, lending

SHARDS = 24
PER_SHARD = 10


@pytest.fixture
def lender(daemon, cache_dir):
    """Grants sets of 24 shards, read through a window that holds six of them or all."""

    def start(windowed):
        def make(request):
            lease = f"{request.job}-{request.epoch}"
            size = sum(cache_dir.shard(n).stat().st_size for n in range(1, SHARDS + 1))
            window = size // 4 if windowed else None
            return cache_dir.manifest(
                lease, shards=SHARDS, job=request.job, epoch=request.epoch, window=window
            )

        return daemon(lending(make))

    return start


def thousandths(lender, of=-1):
    said = lender.of(Delivered)[of]
    shares = np.zeros(SHARDS, np.int64)
    for (first, last), share in zip(said.shards, said.shares, strict=True):
        shares[first - 1 : last] += share
    return shares


def read(cache, batches, state=None, **options):
    with cache.acquire("train") as epoch:
        loader = epoch.numpy(batch_size=PER_SHARD, **options)
        if state is not None:
            loader.load_state_dict(state)
        labels = [label for batch in islice(loader, batches) for label in batch["label"].tolist()]
        return labels, loader.state_dict()


def test_a_pass_that_is_stopped_and_resumed_counts_once(lender):
    granting = lender(windowed=False)
    with connect(granting.endpoint) as cache:
        _, state = read(cache, 10)
        read(cache, 5, state)
    assert thousandths(granting, 0) == pytest.approx(416, abs=1)
    assert thousandths(granting, 1) == pytest.approx(208, abs=1)


@pytest.mark.parametrize("windowed", [True, False])
def test_all_of_a_pass_that_is_stopped_and_resumed_comes_to_what_it_has(lender, windowed):
    granting = lender(windowed)
    with connect(granting.endpoint) as cache:
        state = None
        for batches in (5, 8, 100):
            _, state = read(cache, batches, state)
    said = sum(thousandths(granting, of) for of in range(3))
    assert said.max() <= 1000
    assert said.min() >= 1000 - 3, "each time it is rounded down"


def test_of_a_set_beyond_the_window_shards_that_were_not_opened_count_as_nothing(lender):
    granting = lender(windowed=True)
    with connect(granting.endpoint) as cache:
        labels, _ = read(cache, 8)
    opened = np.bincount(np.array(labels) // PER_SHARD, minlength=SHARDS) > 0
    said = thousandths(granting)
    assert not said[~opened].any() or said[~opened].max() < 500
    assert (said == 0).sum() >= SHARDS // 3
    assert said.sum() == pytest.approx(8 * 1000, abs=SHARDS)


def test_of_a_pass_that_is_not_shuffled_what_comes_later_counts_as_nothing(lender):
    granting = lender(windowed=False)
    with connect(granting.endpoint) as cache:
        read(cache, 7, shuffle=False)
    assert thousandths(granting).tolist() == [1000] * 7 + [0] * (SHARDS - 7)


def test_a_loop_that_breaks_off_counts_while_its_loader_still_runs(lender):
    granting = lender(windowed=True)
    with connect(granting.endpoint) as cache:
        for epoch in cache.epochs("train", 1):
            for number, _ in enumerate(epoch.numpy(batch_size=PER_SHARD)):
                if number == 5:
                    break
    assert thousandths(granting, 0).sum() == pytest.approx(6 * 1000, abs=SHARDS)


@pytest.mark.parametrize("way", ["numpy", "tf_dataset"])
@pytest.mark.parametrize("windowed", [True, False])
def test_where_another_node_has_fewer_records_what_is_left_out_counts_as_nothing(
    lender, windowed, way
):
    granting = lender(windowed)
    least = SHARDS * PER_SHARD // 4
    with connect(granting.endpoint) as cache:
        for epoch in cache.epochs("train", n=1, agree=beside(least)):
            rows = sum(len(batch["label"]) for batch in getattr(epoch, way)(batch_size=PER_SHARD))
            assert rows == least
    said = sum(thousandths(granting, of) for of in range(len(granting.of(Delivered))))
    assert said.sum() <= 1000 * SHARDS // 4
    assert windowed or said.min() > 0


def test_what_drop_last_leaves_out_of_a_pass_counts_as_delivered(lender):
    granting = lender(windowed=False)
    with connect(granting.endpoint) as cache, cache.acquire("train") as epoch:
        assert sum(len(batch["label"]) for batch in epoch.numpy(batch_size=100)) == 200
    assert (thousandths(granting) == 1000).all()


@pytest.mark.parametrize("windowed", [True, False])
def test_epoch_given_to_tensorflow_counts_as_delivered(lender, windowed):
    granting = lender(windowed)
    with connect(granting.endpoint) as cache, cache.acquire("train") as epoch:
        epoch.tf_dataset(batch_size=PER_SHARD)
    assert (thousandths(granting) == 1000).all()
