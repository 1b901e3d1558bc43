"""What the reports of a process say of the last minute."""

import pytest

from cachecd_client.protocol import TrainerReport
from cachecd_client.report.last_minute import LastMinute


def report(waited=0.0, elsewhere=0.0, epoch=0, first=False, stage="read"):
    return TrainerReport(
        "train", "job", 0, 1, epoch, "numpy", 0, 0, 0, waited, elsewhere, {stage: waited}, first=first
    )  # fmt: skip


def minute_of(*reports):
    minute = LastMinute()
    for now, each in reports:
        minute.add(each, now)
    return minute


def test_share_is_of_the_life_of_a_young_process():
    minute = minute_of((1000.0, report(0.5, 0.5)), (1003.0, report(1.0, 3.0)))
    assert minute.share(1003.0) == pytest.approx(0.25)


def test_waiting_more_than_a_minute_ago_does_not_count():
    every = [(1000.0 + t, report(30.0, t)) for t in range(30, 90)]
    minute = minute_of((1000.0 + 30, report(30.0, 0.0)), *every)
    assert minute.share(1030.0) == pytest.approx(1.0)
    assert minute.share(1089.0) == pytest.approx(1 / 60, abs=0.001)
    assert minute.share(1095.0) == pytest.approx(0.0)


def test_silent_process_loses_its_share():
    minute = minute_of((1000.0, report(10.0)), (1010.0, report(20.0)))
    assert minute.share(1010.0) == 1.0
    assert minute.share(1020.0) == pytest.approx(2 / 3)
    assert minute.share(1080.0) == pytest.approx(0.0)


def test_an_epoch_that_begins_counts_from_zero():
    minute = minute_of(
        (1000.0, report(2.0, 8.0)),
        (1010.0, report(1.0, 9.0, epoch=1)),
        (1020.0, report(4.0, 16.0, epoch=1)),
    )
    assert minute.stages(1020.0) == {"read": pytest.approx(6.0)}
    assert minute.share(1020.0) == pytest.approx(6 / 30)


def test_waiting_for_the_first_set_does_not_count():
    minute = minute_of(
        (1000.0, report(20.0, first=True, stage="lease")),
        (1010.0, report(30.0, first=True, stage="lease")),
        (1020.0, report(1.0, 9.0)),
    )
    assert minute.stages(1020.0) == {"read": pytest.approx(1.0)}


def test_epoch_shorter_than_a_minute_is_taken_as_even():
    minute = minute_of((5000.0, report(5.0, 45.0)))
    assert minute.share(5000.0) == pytest.approx(0.1)


def test_lost_reports_lose_no_waiting():
    seen = minute_of(*[(1000.0 + t, report(t / 4, t)) for t in range(1, 50)])
    lost = minute_of((1001.0, report(0.25, 1.0)), (1049.0, report(49 / 4, 49.0)))
    assert lost.share(1049.0) == pytest.approx(seen.share(1049.0), abs=0.001)


def test_few_samples_are_kept_of_many_reports():
    minute = minute_of(*[(1000.0 + t / 10, report(t / 20, t / 20)) for t in range(1, 3000)])
    assert len(minute._samples) < 16
    assert minute.share(1299.9) == pytest.approx(0.5, abs=0.01)


def test_late_report_of_the_epoch_before_counts_no_wait_twice():
    """An open pass of epoch 0 ends when its lease is released, after epoch 1 was acquired."""
    minute = minute_of(
        (1000.0, report(8.0, 2.0)),
        (1001.0, report(1.0, 0.0, epoch=1)),
        (1002.0, report(9.0, 2.0)),
        (1003.0, report(2.0, 1.0, epoch=1)),
    )
    assert minute.stages(1003.0) == {"read": pytest.approx(8.0 + 1.0 + 1.0 + 1.0)}


def test_second_run_that_begins_with_epoch_0_counts_from_zero():
    minute = minute_of(
        (1000.0, report(4.0, 6.0)),
        (1010.0, report(5.0, 5.0, epoch=1)),
        (1012.0, report(1.0, 1.0)),
        (1013.0, report(1.5, 1.5)),
    )
    assert minute.stages(1013.0) == {"read": pytest.approx(4.0 + 5.0 + 1.5)}


def test_few_epochs_are_remembered_of_many():
    minute = minute_of(*[(1000.0 + n, report(0.5, 0.5, epoch=n)) for n in range(50)])
    assert len(minute._before) < 10
