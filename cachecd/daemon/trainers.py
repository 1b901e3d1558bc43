"""The reports of trainers: a datagram socket beside the control socket, and what it says of each process.

A report has at most 16 KiB, is never answered, and may be lost. So no trainer waits for the daemon, and no
trainer makes the daemon work: it reads at most 1,600 reports a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from cachecd.daemon.ownership import open_socket_to_group
from cachecd.daemon.status import TrainerStatus
from cachecd.daemon.timeline import Timeline
from cachecd.errors import DiskError
from cachecd_client.protocol import TrainerReport
from cachecd_client.report.datagram import MAX_REPORT_BYTES, decode_report
from cachecd_client.report.last_minute import MINUTE, LastMinute
from cachecd_client.sockets import MAX_PATH, path_length

_BATCH = 16  # reports that are read at once, in at most 2 ms
_PAUSE = 0.01  # seconds until more reports are read, so that a flood delays no reply
_MOST = 1024  # processes

_log = structlog.get_logger("cachecd.daemon")

_Key = tuple[str, str, int, int]  # dataset, job, rank, pid


@dataclass(slots=True)
class _Process:
    report: TrainerReport
    at: float
    minute: LastMinute = field(default_factory=LastMinute)


class Trainers:
    """The processes that read now, each with its last report. A process that is silent for a minute is
    dropped; above 1,024 processes, the one that was silent longest. `timeline` gets their spans."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._processes: dict[_Key, _Process] = {}  # the one that reported last is last
        #: Datagrams that were not reports.
        self.refused = 0
        self._warns_at = 0.0

    def add(self, datagram: bytes, now: float) -> None:
        """Adds a report. Counts a datagram that is none as refused, and logs one of them each minute."""
        try:
            report = decode_report(datagram)
        except ValueError as error:
            self.refused += 1
            if now >= self._warns_at:
                self._warns_at = now + MINUTE
                _log.warning(
                    "a datagram is no report of a trainer: install cachecd and cachecd-client of the same "
                    "release, or find the process that sends it (ss -xp)",
                    why=str(error), refused=self.refused,
                )  # fmt: skip
            return
        key = report.dataset, report.job, report.rank, report.pid
        process = self._processes.pop(key, None)
        if process is None:
            process = _Process(report, now)
            process.minute.begin_late(report, now)
        process.report, process.at = report, now
        process.minute.add(report, now)
        self._processes[key] = process
        if len(self._processes) > _MOST:
            del self._processes[next(iter(self._processes))]
        title = f"{report.dataset}: {report.job} rank {report.rank} (pid {report.pid})"
        self._timeline.add(title, report.spans)

    def status(self, now: float) -> list[TrainerStatus]:
        """Returns a row for each process: first those that waited most in the last minute, last those that
        do not see whether training waits."""
        for key, process in list(self._processes.items()):
            if process.at < now - MINUTE:
                del self._processes[key]
        rows = [_row(process, now) for process in self._processes.values()]
        return sorted(rows, key=lambda row: (bool(row.blind), -row.wait_share))


def _row(process: _Process, now: float) -> TrainerStatus:
    report = process.report
    return TrainerStatus(
        dataset=report.dataset,
        job=report.job,
        rank=report.rank,
        pid=report.pid,
        epoch=report.epoch,
        reader=report.reader,
        age_s=round(max(0.0, now - process.at), 1),
        steps=report.steps,
        records=report.records,
        bytes=report.bytes,
        waited_s=round(report.waited_s, 3),
        elsewhere_s=round(report.elsewhere_s, 3),
        stages_s={stage: round(seconds, 3) for stage, seconds in report.stages_s.items()},
        queue=report.queue,
        wait_share=round(process.minute.share(now), 4),
        memory=report.memory,
        random_bytes=report.random_bytes,
        reads_per_record=round(report.reads_per_record, 3),
        gil_s=round(report.gil_s, 4),
        first=report.first,
        blind=report.blind,
    )


@contextlib.contextmanager
def listening(path: Path, trainers: Trainers) -> Iterator[None]:
    """Reads reports from a socket at `path`, on the running event loop, until the block ends. The socket
    has the mode of the control socket. If the path is too long, this is logged, and the daemon knows
    nothing of its trainers. DiskError if there is another file."""
    if path_length(path) > MAX_PATH:
        _log.warning(
            "trainers cannot report how long they wait, because the path of the socket for reports is too "
            "long: set server.endpoint to a shorter path",
            path=str(path), bytes=path_length(path), most=MAX_PATH,
        )  # fmt: skip
        yield
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.setblocking(False)
        if path.is_socket():  # left by a daemon that was killed: claim_socket() excludes others
            path.unlink()
        try:
            receiver.bind(str(path))
        except OSError as error:
            raise DiskError(
                f"cannot listen on {path}: {error.strerror}; remove it, or set server.endpoint to "
                "another path"
            ) from error
        try:
            open_socket_to_group(path)
            with _reading(receiver, trainers):
                yield
        finally:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _reading(receiver: socket.socket, trainers: Trainers) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    pause: asyncio.TimerHandle | None = None

    def read() -> None:
        nonlocal pause
        now = time.monotonic()
        for _ in range(_BATCH):
            try:
                # One byte more, so that a longer datagram is no valid JSON.
                trainers.add(receiver.recv(MAX_REPORT_BYTES + 1), now)
            except BlockingIOError:
                return
        loop.remove_reader(receiver)
        pause = loop.call_later(_PAUSE, loop.add_reader, receiver, read)

    loop.add_reader(receiver, read)
    try:
        yield
    finally:
        if pause is not None:
            pause.cancel()
        loop.remove_reader(receiver)
