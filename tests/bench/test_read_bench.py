"""The reading benchmark holds every reader to the same records, and measures each of its figures."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench import data, delivery, measuring
from tests.bench.contenders import CONTENDERS
from tests.bench.data import CASES, RecordSet
from tests.bench.delivery import DeliveryError, verify
from tests.bench.runs import FIGURES
from tests.bench.test_short_forms import run
from tests.bench.worker import Worker

# Every checkout that runs tests has these packages; rivals run where theirs are installed.
INSTALLED = {"torch", "tensorflow"}


@pytest.mark.long
def test_every_reader_that_is_installed_delivers_every_record(tmp_path):
    quick = ("--quick", "--megabytes", "4", "--data", str(tmp_path), "--only", "4kB/*")
    document, printed = run("read", *quick)
    assert document["failed"] == {}
    measured, verified = document["measured"]["4kB"], document["verified"]["4kB"]
    assert {n for n, r in CONTENDERS.items() if set(r.imports) <= INSTALLED} <= measured.keys()
    for name, figures in measured.items():
        baseline = CONTENDERS[name].family == "baseline"
        assert baseline or verified[name]["whole"]
        assert set(figures) == set(FIGURES[:2] if baseline else FIGURES), name
        assert figures["mb_s"][0] > 0
        assert f"\n| {name} |" in printed


# Delivery


@pytest.fixture
def records(tmp_path) -> RecordSet:
    return RecordSet(tmp_path, CASES["4kB"], 0.1)


def batches(records: RecordSet) -> list[dict]:
    """A right delivery: three records a batch, the last first."""
    batches = [range(n, n + 3) for n in range(records.num_records - 3, -1, -3)]
    return [
        {
            "image": np.stack([data.image(records.case, number) for number in batch]),
            "label": np.array(batch),
        }
        for batch in batches
    ]


def check(records: RecordSet, delivered: list[dict], tails: int = 0) -> delivery.Verified:
    return verify(lambda: iter(delivered), records, seconds=60, tails=tails)


def test_a_whole_pass_of_the_right_records_is_accepted(records):
    assert (records.num_records, records.batch_size) == (24, 3)
    assert check(records, batches(records)) == delivery.Verified(24, whole=True)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ("delivered[3]['image'][0, 99] ^= 1", "not the one that was written"),
        ("delivered[3]['label'][1] += 1", "does not belong to its label"),
        ("delivered[3] = delivered[4]", "delivered twice"),
        ("del delivered[3]", "3 of 24 records are missing"),
        ("delivered[3] = {n: column[:1] for n, column in delivered[3].items()}", "expected"),
        ("delivered.reverse()", "in the order in which they are stored"),
    ],
)
def test_another_delivery_is_found_out(records, spoil, why):
    delivered = batches(records)
    exec(spoil, {"delivered": delivered})
    with pytest.raises(DeliveryError, match=why):
        check(records, delivered)


def test_a_worker_may_drop_its_last_batch_if_it_is_not_full(records):
    delivered = batches(records)[1:]
    assert check(records, delivered, tails=2).records == records.num_records - 3
    with pytest.raises(DeliveryError, match="3 of 24 records are missing"):
        check(records, delivered, tails=1)


# Measuring


class Clock:
    CLOCK_PROCESS_CPUTIME_ID = 0

    def __init__(self) -> None:
        self.now = 100.0
        self.slept = 0.0

    def perf_counter(self) -> float:
        return self.now

    def perf_counter_ns(self) -> int:
        return round(self.now * 1e9)

    def clock_gettime(self, clock: int) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(measuring, "time", made)
    return made


def buffering(clock: Clock, records: RecordSet, fill: float, each: float, count: int):
    """A reader that fills a buffer for some seconds at the start of a pass, then takes `each`."""

    def begin():
        clock.now += fill
        for _ in range(count):
            clock.now += each
            yield {"label": range(records.batch_size)}

    return begin


def test_a_window_over_the_end_of_a_pass_has_the_start_of_the_next_in_it(clock, records):
    window = measuring.drain(buffering(clock, records, 4.0, 1.0, 8), records, seconds=7.0)
    assert window.records == records.num_records  # 7 batches, and the first of the next pass
    assert window.seconds == pytest.approx(7.0 + 5.0)


def test_a_paced_consumer_sleeps_to_its_schedule_and_times_next_alone(clock, records):
    rate = records.batch_size * records.record_bytes / 2.0  # a batch every two seconds
    passes = buffering(clock, records, 4.0, 0.5, 8)
    paced = measuring.pace(passes, records, seconds=11.0, rate=rate)
    assert paced.records == 18
    assert paced.next_seconds == pytest.approx(6 * 0.5)
    assert paced.seconds == pytest.approx(12.5)  # six intervals and the last batch's making


def test_a_reader_that_fails_says_why_and_leaves_the_worker_to_others(tmp_path):
    records = RecordSet(tmp_path, CASES["4kB"], 0.1)
    task = {"do": "measure", "case": "4kB", "data": str(tmp_path), "megabytes": 0.1}
    task |= {"seconds": 0.01, "verify": True}
    with Worker([]) as worker:
        assert "a FileSet of no files" in worker.do(contender="ours:numpy", **task)["failed"]
        records.make("tfrecord", data.write_shards)
        assert worker.do(contender="ours:numpy", **task)["done"]["whole"] is True
