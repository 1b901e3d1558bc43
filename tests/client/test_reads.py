"""How often a job reads each record, and when it is told that this is too often."""

import logging

import pytest

from cachecd_client.report.reads import Reads


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def read(cache, passes: list[int], **options) -> None:
    for epoch, count in zip(cache.epochs("train", len(passes), **options), passes, strict=True):
        loader = epoch.numpy(batch_size=10)
        for _ in range(count):
            list(loader)


def test_more_than_ten_reads_of_each_record_are_warned_of_once(cache, caplog):
    # Sets of 20, 30, 40 and 50 records; when an epoch ends the next one's set is there.
    read(cache, [10, 10, 0, 0])  # 200 / 30, then 500 / 40
    assert warnings(caplog) == [
        "train: each record was read 12 times so far: let the cache grow faster (grow.per_epoch, "
        "evict.refresh, cache.limit, sampler.bandwidth; `cachecd status` shows the limiting option), or "
        "plan fewer epochs or steps"
    ]
    read(cache, [20, 20])
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("reader", ["tf_dataset", "to_dataset"])
def test_what_is_read_elsewhere_counts_as_often_as_its_steps_go_over_the_set(cache, caplog, reader):
    """A set of 20 records: 24 steps of ten are twelve passes."""
    for epoch in cache.epochs("train", 1, steps_per_epoch=24):
        getattr(epoch, reader)(batch_size=10)
    assert cache.report()["reads_per_record"] == 12
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize(
    ("coverage", "pinned", "said"),
    [
        (0.4, False, "so far, but 60 % of the source has never been cached: let the cache grow"),
        (None, False, "so far: let the cache grow"),
        (1.0, False, None),  # there is nothing else to read
        (0.4, True, None),  # what evaluation sets are for
    ],
)
def test_the_warning_is_for_sets_that_might_be_larger(caplog, coverage, pinned, said):
    reads = Reads("train", "ipc:///nobody")
    reads.leased("g", [[0, 1, 4]], 100, 1000)
    reads.read(1100, coverage, pinned)
    assert len(warnings(caplog)) == (said is not None)
    assert said is None or said in warnings(caplog)[0]
