"""epoch.report(): what an epoch's loaders gave and waited, whatever becomes of them, and its last line."""

import logging

import pytest

from cachecd_client.errors import CallerError
from cachecd_client.report.summary import line
from cachecd_client.session.cache import Cache


class Clock:
    """In place of the time module; stands still but for what a test adds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("cachecd_client.loader.loader.time", made)
    monkeypatch.setattr("cachecd_client.report.reads.time", made)
    return made


@pytest.fixture
def leased(cache):
    """20 records."""
    with cache.acquire("train") as found:
        yield found


def verdicts(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith("epoch ")]


def test_all_passes_of_all_loaders_are_summed(leased):
    whole = leased.numpy(batch_size=5)
    for _ in range(2):
        assert len(list(whole)) == 4
    closed = leased.numpy(batch_size=10)
    next(iter(closed))
    closed.close()
    left = leased.numpy(batch_size=4)
    for _ in left:
        break
    leased.numpy(batch_size=1)  # never iterated over
    report = leased.report()
    assert (report["steps"], report["records"]) == (4 + 4 + 1 + 1, 20 + 20 + 10 + 4)
    assert report["bytes"] == whole.bytes_read + closed.bytes_read + left.bytes_read > 0


def test_time_between_batches_is_spent_elsewhere_and_time_outside_passes_nowhere(leased, clock):
    for _ in leased.numpy(batch_size=5):
        clock.now += 2.0
    clock.now += 100.0
    batches = iter(leased.numpy(batch_size=5))
    next(batches)
    clock.now += 5.0
    assert leased.report()["seconds_elsewhere"] == pytest.approx(13.0, abs=0.5)
    batches.close()
    clock.now += 100.0
    report = leased.report()
    assert report["seconds_elsewhere"] + report["seconds_waited"] == pytest.approx(13.0, abs=0.001)
    assert report["seconds_waited"] < 0.5


@pytest.mark.parametrize(
    ("options", "dropped"),
    [({}, 4), ({"drop_last": False}, 0), ({"pad_last": True}, 0)],
)
def test_the_line_says_how_many_records_drop_last_left_out(cache, options, dropped):
    with cache.acquire("train", epoch=8) as epoch:
        assert epoch.num_records == 100
        list(epoch.numpy(batch_size=32, **options))
        assert epoch.report()["dropped_records"] == dropped
        said = "dropped 4 records in a short last batch (drop_last)"
        assert (said in line(epoch.report())) == bool(dropped)


def test_waiting_and_the_fill_of_the_queue_are_reported_in_parts(leased):
    for _ in range(2):
        list(leased.numpy(batch_size=5))
    report = leased.report()
    assert sum(report["stages_s"].values()) == pytest.approx(report["seconds_waited"], abs=1e-6)
    assert set(report["stages_s"]) >= {"open"}
    assert 0 <= report["queue_p10"] <= report["queue_p50"] <= 1


def test_fill_of_the_queue_is_unknown_before_the_first_step(leased):
    report = leased.report()
    assert [report[name] for name in ("queue", "queue_p10", "queue_p50")] == [None] * 3
    assert report["stages_s"] == {}


def test_growth_is_against_the_jobs_set_before(cache):
    run = cache.epochs("train", 3)
    assert [next(run).report()["growth"] for _ in range(3)] == [
        None, pytest.approx(3 / 2, rel=0.01), pytest.approx(4 / 3, rel=0.01),
    ]  # fmt: skip
    assert cache.acquire("train", job="another").report()["growth"] is None


def test_the_last_report_is_logged_once_when_the_epoch_is_released(cache, caplog):
    caplog.set_level(logging.INFO, "cachecd")
    for epoch in cache.epochs("train", 2):
        assert len(verdicts(caplog)) == epoch.epoch
        list(epoch.numpy(batch_size=5))
    epoch.release()
    first, second = verdicts(caplog)
    assert first.startswith("epoch 0 of train: 4 steps, waited ")
    assert first.endswith(" %); the set has 20 records")
    assert second.startswith("epoch 1 of train: 6 steps, waited ")
    assert second.endswith(" %); the cache grew 1.5x")
    assert {r.levelname for r in caplog.records} == {"INFO"}


def test_the_session_reports_the_epoch_leased_last(cache: Cache):
    for epoch in cache.epochs("train", 2):
        list(epoch.numpy(batch_size=10))
        assert cache.report("train") == epoch.report()
    cache.acquire("eval", epoch=5)
    assert (cache.report("train")["epoch"], cache.report("train")["steps"]) == (1, 3)
    assert (cache.report()["epoch"], cache.report()["steps"]) == (5, 0)
    with pytest.raises(CallerError, match="leased no epoch of 'trian' yet"):
        cache.report("trian")
