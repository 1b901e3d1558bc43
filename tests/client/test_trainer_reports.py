"""What a reading process reports to the daemon, as datagrams that nobody needs to read."""

import contextlib
import logging
import os
import socket
import threading
import time

import pytest

from cachecd_client.protocol import Acquire, TrainerReport, Waiting
from cachecd_client.report.datagram import MAX_REPORT_BYTES, Reports, decode_report, encode_report
from cachecd_client.session.cache import connect
from cachecd_client.sockets import reports_of
from tests.client.test_epoch_report import Clock
from tests.client.test_one_ahead import Lane
from tests.core.processes import until
from tests.frameworks import Lazy, torch

framework = Lazy("cachecd_client.frameworks.torch")


@pytest.fixture
def receiver(granting):
    """The daemon's socket for reports."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(reports_of(granting.endpoint))
        bound.settimeout(30)
        yield bound


@pytest.fixture
def next_report(receiver):
    return lambda: decode_report(receiver.recv(MAX_REPORT_BYTES + 1))


def waiting(times):
    """Replies this many times that the set is not ready."""
    left = iter(range(times))

    def reply(usual):
        def answer(request):
            if isinstance(request, Acquire) and next(left, None) is not None:
                return Waiting(request.id, 1, 2, 1.0)
            return usual(request)

        return answer

    return reply


def test_pass_that_ended_is_reported_with_its_figures(cache, next_report):
    with cache.acquire("train", job="a job") as epoch:
        list(epoch.numpy(batch_size=5))
        report, figures = next_report(), epoch.report()
    assert (report.dataset, report.job, report.epoch) == ("train", "a job", 0)
    assert (report.rank, report.pid, report.reader) == (0, os.getpid(), "numpy")
    assert (report.steps, report.records, report.bytes) == (4, 20, figures["bytes"])
    assert report.waited_s == pytest.approx(figures["seconds_waited"])
    assert report.elsewhere_s == pytest.approx(figures["seconds_elsewhere"])
    assert sum(report.stages_s.values()) == pytest.approx(report.waited_s)
    assert (report.first, report.blind) == (False, "")


def test_reports_are_at_most_one_a_second(cache, receiver, next_report):
    with cache.acquire("train") as epoch:
        began = time.monotonic()
        while time.monotonic() < began + 1.5:
            list(epoch.numpy(batch_size=5))
    steps = [next_report().steps, next_report().steps]
    assert steps[0] == 4 < steps[1]
    receiver.setblocking(False)
    with pytest.raises(BlockingIOError):
        receiver.recv(1)


def test_trainer_goes_on_while_nobody_reads_its_reports(granting, monkeypatch):
    monkeypatch.setattr("cachecd_client.report.datagram._EVERY", 0.0)
    reports = Reports(granting.endpoint)
    made = TrainerReport("train", "job", 0, 1, 0, "numpy", 0, 0, 0, 0.0, 0.0, {})
    reports.report(lambda: made)  # no socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as full:
        full.bind(reports_of(granting.endpoint))
        for _ in range(2000):  # more than the kernel queues
            reports.report(lambda: made)
        assert decode_report(full.recv(MAX_REPORT_BYTES)) == made


def test_a_report_that_cannot_be_made_disturbs_no_training(granting):
    def fails():
        raise ZeroDivisionError

    Reports(granting.endpoint).report(fails)


def test_path_that_is_too_long_for_a_socket_disturbs_no_training(tmp_path):
    made = TrainerReport("train", "job", 0, 1, 0, "numpy", 0, 0, 0, 0.0, 0.0, {})
    Reports(f"ipc://{tmp_path}/{'x' * 100}").report(lambda: made)


def test_job_that_waits_for_its_first_set_reports_that(granting, next_report):
    granting.answer = waiting(3)(granting.answer)
    with connect(granting.endpoint) as cache, cache.acquire("train", job="new") as epoch:
        report = next_report()
        assert (report.first, report.reader, report.epoch, report.job) == (True, "", 0, "new")
        assert report.stages_s == {"lease": report.waited_s}
        until(lambda: time.monotonic() > epoch._sets[0].reads.reports._due)
        list(epoch.numpy(batch_size=5))
        assert not (later := next_report()).first
        assert later.stages_s["lease"] == 0


def test_waiting_for_a_later_set_counts_as_waiting(granting, next_report):
    late = [Waiting("", 1, 2, 1.0)] * 4

    def answer(request, usual=granting.answer):
        if isinstance(request, Acquire) and request.epoch and late:
            return Waiting(request.id, *[late.pop().have_bytes, 2, 1.0])
        return usual(request)

    granting.answer = answer
    with connect(granting.endpoint) as cache:
        for epoch in cache.epochs("train", 2):
            due = epoch._sets[0].reads.reports._due
            until(lambda due=due: time.monotonic() > due)
            list(epoch.numpy(batch_size=5))
    reports = [next_report()]
    while reports[-1].epoch < 1 or not reports[-1].steps:
        reports.append(next_report())
    assert not any(report.first for report in reports)
    seconds = epoch.report()["seconds_leasing"]
    assert reports[-1].stages_s["lease"] == pytest.approx(seconds) != 0
    assert sum(reports[-1].stages_s.values()) == pytest.approx(reports[-1].waited_s)


def test_a_long_wait_for_prepare_is_reported_from_within(cache, next_report):
    go = threading.Event()

    def slow(batch, random):
        assert go.wait(60)
        return batch

    with cache.acquire("train") as epoch:
        batches = iter(epoch.numpy(batch_size=5, prepare=slow))
        taken = threading.Thread(target=next, args=(batches,))
        taken.start()
        report = next_report()
        assert (report.steps, go.is_set()) == (0, False)
        assert report.stages_s["prepare"] > 0.9
        go.set()
        taken.join()


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_copy_counts_unless_the_device_is_busy(cache, is_busy):
    class Slow(Lane):
        def send(self, batch):
            time.sleep(0.02)  # stands for a copy to pinned memory
            return super().send(batch)

    with cache.acquire("train") as epoch:
        made = framework.Torch()
        made.lane = lane = Slow()
        lane.is_busy = is_busy
        loader = epoch._loader(5, made, {})
        batches = iter(loader)
        next(batches)
        copied = {name for name, _, _ in loader.take_spans() if name == "copy"}
        list(batches)
        stages = epoch.report()["stages_s"]
    assert copied == (set() if is_busy else {"copy"})
    assert ("copy" in stages) == (not is_busy)
    assert is_busy or stages["copy"] >= 4 * 0.02


def test_worker_of_a_dataloader_reports_that_it_sees_no_waiting_of_the_loop(cache, next_report):
    with cache.acquire("train") as epoch:
        dataset = epoch.to_dataset(5)
        loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1)
        assert len(list(loader)) == 4
    report = next_report()
    assert report.pid != os.getpid()
    assert (report.reader, report.steps) == ("torch worker", 4)
    assert "reads ahead" in report.blind


def test_pipeline_of_tensorflow_reports_what_it_does_not_see(cache, next_report):
    batches = iter(cache.tf_dataset("train", 5, 1, features=["label"]))
    next(batches)
    report = next_report()
    assert (report.reader, report.steps, report.waited_s) == ("tf_dataset", 0, 0)
    assert "not seen" in report.blind
    with contextlib.suppress(StopIteration):
        while True:
            next(batches)


# The warning


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("cachecd_client.report.datagram.time", made)
    return made


def training(reports, clock, seconds, waits, **changes):
    """Reports of each second of an epoch, of which a part is waited."""
    for second in range(1, seconds + 1):
        clock.now += 1.0
        waited = waits * second
        made = TrainerReport(
            "train", "job", 2, 1, 0, "numpy", second, 0, 0, waited, second - waited,
            {"decode": 0.75 * waited, "read": 0.25 * waited}, **changes,
        )  # fmt: skip
        reports.report(lambda made=made: made)


def test_a_job_that_waits_too_much_is_warned_of_once_in_ten_minutes(clock, caplog):
    reports = Reports("ipc:///nobody")
    training(reports, clock, 590, 0.25)
    [warning] = caplog.records
    assert warning.levelno == logging.WARNING
    assert warning.getMessage() == (
        "train: rank 2 waited for data for 10 % of the last 60 s, mostly for stage `decode` (4.7 s): store "
        "smaller pictures, or pixels instead of JPEG and PNG (a transform), or give the trainer more "
        "processors"
    )
    training(reports, clock, 60, 0.25)
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("waits", "changes"), [(0.09, {}), (0.9, {"first": True}), (0.9, {"blind": "a worker"})]
)
def test_a_job_that_waits_little_or_unseen_is_not_warned_of(clock, caplog, waits, changes):
    training(Reports("ipc:///nobody"), clock, 300, waits, **changes)
    assert caplog.records == []


def test_report_survives_its_datagram():
    made = TrainerReport(
        "train", "job", 1, 2, 3, "jax", 4, 5, 6, 7.5, 8.5, {"gil": 7.5}, 0.5, 9, 10,
        2.5, 0.5, True, "blind", [("next: gil", 1.0, 2.0)],
    )  # fmt: skip
    assert decode_report(encode_report(made)) == made
