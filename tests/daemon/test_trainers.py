"""The daemon's rows of trainers: which reports count, and what a flood or garbage does."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from cachecd.daemon.timeline import Timeline
from cachecd.daemon.trainers import Trainers, listening
from cachecd.errors import DiskError
from cachecd_client.protocol import TrainerReport
from cachecd_client.report.datagram import MAX_REPORT_BYTES, decode_report, encode_report
from tests.daemon.test_lives import until

REPORT = TrainerReport(
    dataset="train", job="job", rank=0, pid=10, epoch=3, reader="torch", steps=7, records=70, bytes=700,
    waited_s=1.0, elsewhere_s=9.0, stages_s={"read": 0.75, "decode": 0.25}, queue=0.5,
    spans=[("next: read", 5.0, 0.25)],
)  # fmt: skip


def known(*reports: TrainerReport, now: float = 100.0) -> Trainers:
    trainers = Trainers(Timeline())
    for report in reports:
        trainers.add(encode_report(report), now)
    return trainers


def test_process_that_waited_most_is_first_and_a_blind_process_last():
    blind = replace(REPORT, pid=1, waited_s=9.0, stages_s={"read": 9.0}, blind="a worker")
    slow = replace(REPORT, pid=2, rank=1, waited_s=4.0, stages_s={"read": 4.0})
    rows = known(blind, REPORT, slow).status(100.0)
    assert [row.pid for row in rows] == [2, 10, 1]
    assert rows[1].wait_share == pytest.approx(0.1)
    assert rows[1].stages_s == {"read": 0.75, "decode": 0.25}
    assert (rows[1].steps, rows[1].records, rows[1].bytes, rows[1].queue) == (7, 70, 700, 0.5)


def test_last_report_of_a_process_replaces_its_row():
    trainers = known(REPORT, replace(REPORT, steps=8))
    [row] = trainers.status(103.0)
    assert (row.steps, row.age_s) == (8, 3.0)


def test_process_that_is_silent_for_a_minute_is_dropped():
    trainers = known(REPORT)
    assert len(trainers.status(160.0)) == 1
    assert trainers.status(160.1) == []
    assert trainers.status(100.0) == []


def waited(seconds: float, elsewhere: float) -> bytes:
    report = replace(REPORT, waited_s=seconds, elsewhere_s=elsewhere, stages_s={"read": seconds})
    return encode_report(report)


def test_daemon_that_restarts_in_mid_epoch_shows_only_later_waits():
    trainers = Trainers(Timeline())
    trainers.add(waited(500.0, 500.0), 100.0)
    assert trainers.status(100.0)[0].wait_share == 0.0
    trainers.add(waited(501.0, 509.0), 110.0)
    assert trainers.status(110.0)[0].wait_share == pytest.approx(0.1)


def test_process_that_was_silent_in_mid_epoch_shows_only_later_waits():
    trainers = Trainers(Timeline())
    trainers.add(waited(1.0, 1.0), 100.0)
    trainers.add(waited(90.0, 10.0), 150.0)
    assert trainers.status(300.0) == []
    trainers.add(waited(90.0, 11.0), 301.0)
    trainers.add(waited(90.0, 31.0), 321.0)
    assert trainers.status(321.0)[0].wait_share == 0.0


def test_of_too_many_processes_the_most_silent_is_dropped():
    reports = [replace(REPORT, pid=pid) for pid in range(1024)]
    trainers = known(*reports, reports[0], replace(REPORT, pid=5000))
    pids = {row.pid for row in trainers.status(100.0)}
    assert pids == {0, *range(2, 1024), 5000}


def test_spans_of_a_report_are_in_the_timeline_with_their_process():
    timeline, now = Timeline(), time.monotonic()
    trainers = Trainers(timeline)
    for rank in range(2):
        report = replace(REPORT, rank=rank, spans=[("next: gil", now, 0.5)])
        trainers.add(encode_report(report), now)
    spans = timeline.last(10.0)
    assert spans["train: job rank 0 (pid 10)"] == [("next: gil", now, 0.5)]
    assert "train: job rank 1 (pid 10)" in spans


def test_stage_of_a_later_version_counts_as_other():
    decoded = decode_report(encode_report(replace(REPORT, stages_s={"read": 0.5, "teleport": 0.5})))
    assert decoded.stages_s == {"read": 0.5, "other": 0.5}


def test_longest_spans_of_a_report_are_sent():
    many = [(f"next: {n}", float(n), n / 100) for n in range(100)]
    decoded = decode_report(encode_report(replace(REPORT, spans=many)))
    assert {name for name, _, _ in decoded.spans} == {f"next: {n}" for n in range(36, 100)}


def test_longest_texts_fit_into_a_datagram():
    text = "\U0001f600" * 1000
    spans = [("next: assemble", 123456.123456789, 0.123456789)] * 64
    datagram = encode_report(
        replace(REPORT, dataset=text, job=text, reader=text, blind=text, spans=spans)
    )
    assert len(datagram) <= MAX_REPORT_BYTES
    assert decode_report(datagram).job == text[:256]


@pytest.mark.parametrize(
    "change",
    [
        {"steps": -1},
        {"waited_s": -0.5},
        {"waited_s": 1e308},
        {"queue": 1.5},
        {"rank": "0"},
        {"job": "x" * 257},
        {"stages_s": {"read": -1.0}},
        {"stages_s": [1]},
        {"spans": [["next", 1.0]]},
        {"spans": [["next", 1.0, 1.0]] * 65},
        {"type": "Acquire"},
    ],
)
def test_report_with_an_impossible_value_is_refused(change):
    trainers = Trainers(Timeline())
    trainers.add(json.dumps(json.loads(encode_report(REPORT)) | change).encode(), 1.0)
    assert trainers.refused == 1
    assert trainers.status(1.0) == []


@given(st.binary(max_size=200) | st.just(b"[" * 9000) | st.just(b'{"type": {}}'))
def test_garbage_is_counted_and_changes_nothing(datagram):
    trainers = known(REPORT)
    trainers.add(datagram, 100.0)
    assert trainers.refused == 1
    assert len(trainers.status(100.0)) == 1


def test_garbage_is_logged_once_a_minute():
    trainers = Trainers(Timeline())
    with capture_logs() as logs:
        for second in range(100):
            trainers.add(b"garbage", 1000.0 + second)
    assert [line["refused"] for line in logs] == [1, 61]


# The socket


def send(path: Path, *datagrams: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for datagram in datagrams:
            sender.sendto(datagram, str(path))


async def test_socket_of_the_group_is_read_and_removed(tmp_path):
    path, trainers = tmp_path / "s.reports", Trainers(Timeline())
    with listening(path, trainers):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        send(path, encode_report(REPORT), b"garbage", bytes(MAX_REPORT_BYTES * 2))
        await until(lambda: trainers.refused == 2)
        assert [row.pid for row in trainers.status(time.monotonic())] == [10]
    assert not path.exists()


async def test_socket_that_a_killed_daemon_left_is_replaced(tmp_path):
    path = tmp_path / "s.reports"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as left:
        left.bind(str(path))
    trainers = Trainers(Timeline())
    with listening(path, trainers):
        send(path, encode_report(REPORT))
        await until(lambda: trainers.status(time.monotonic()))


async def test_file_in_place_of_the_socket_is_kept_and_refused(tmp_path):
    path = tmp_path / "s.reports"
    path.write_text("mine")
    with (
        pytest.raises(DiskError, match="already in use; remove it"),
        listening(path, Trainers(Timeline())),
    ):
        raise AssertionError("it listens")
    assert path.read_text() == "mine"


async def test_path_that_is_too_long_means_a_warning_and_no_socket(tmp_path):
    path = tmp_path / ("x" * 100) / "s.reports"
    with capture_logs() as logs, listening(path, Trainers(Timeline())):
        assert not path.exists()
    [warning] = logs
    assert warning["log_level"] == "warning"
    assert "set server.endpoint to a shorter path" in warning["event"]


async def test_flood_of_reports_leaves_the_loop_to_others(tmp_path):
    path, trainers = tmp_path / "s.reports", Trainers(Timeline())
    with listening(path, trainers):
        child = os.fork()
        if child == 0:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                    while True:
                        sender.sendto(encode_report(REPORT), str(path))
            finally:
                os._exit(0)
        try:
            await until(lambda: trainers.status(time.monotonic()))
            late = []
            for _ in range(100):
                asked = time.monotonic()
                await asyncio.sleep(0.002)
                late.append(time.monotonic() - asked - 0.002)
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)
    assert sorted(late)[50] < 0.01
