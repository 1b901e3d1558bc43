"""What curves are made of: changes since the last reading, over one epoch after another."""

from dataclasses import replace

import pytest

from cachecd_client.meter import Meter
from tests.client.test_advice import REPORT

NONE = replace(
    REPORT, steps=0, records=0, bytes=0, seconds_waited=0.0, seconds_elsewhere=0.0, queue=None
)


@pytest.fixture
def meter():
    """A meter, and the reports that it is to get."""
    reports = []
    return Meter(lambda: reports.pop(0)), reports


def test_a_reading_is_what_changed_since_the_last(meter):
    made, reports = meter
    reports += [
        replace(NONE, steps=10, records=100, bytes=1000, seconds_waited=1.9, seconds_elsewhere=8.0,
                queue=0.5, seconds_leasing=0.1),
        replace(NONE, steps=30, records=300, bytes=5000, seconds_waited=1.9, seconds_elsewhere=12.0,
                queue=0.7, seconds_leasing=0.1, coverage=None),
    ]  # fmt: skip
    assert made.read() == pytest.approx({
        "wait_share": 0.2, "queue": 0.5, "records_per_second": 10, "bytes_per_second": 100,
        "set_records": 240_000, "set_bytes": 24_000_000, "reads_per_record": 2.0, "coverage": 0.5,
    })  # fmt: skip
    assert made.read() == pytest.approx({
        "wait_share": 0, "queue": 0.8, "records_per_second": 50, "bytes_per_second": 1000,
        "set_records": 240_000, "set_bytes": 24_000_000, "reads_per_record": 2.0,
    })  # fmt: skip


def test_another_epoch_begins_at_nothing(meter):
    made, reports = meter
    one = replace(NONE, steps=10, records=100, seconds_elsewhere=10.0, queue=0.5)
    reports += [one, replace(one, epoch=4, seconds_leasing=30.0), replace(one, epoch=4, steps=5)]
    assert made.read()["wait_share"] == pytest.approx(0.1 / 10.1)
    assert made.read()["wait_share"] == 0.75  # the wait for the set
    assert made.read()["records_per_second"] == pytest.approx(100 / 10.1)  # of a lease of its own


def test_without_a_step_there_is_no_rate(meter):
    made, reports = meter
    reports += [NONE, NONE]
    for _ in range(2):
        assert made.read().keys() == {"set_records", "set_bytes", "reads_per_record", "coverage"}
