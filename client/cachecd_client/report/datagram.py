"""Reports what a process reads to the daemon, as datagrams, and warns if the process waits too much."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from cachecd_client.protocol import MAX_SPANS, TrainerReport, parse
from cachecd_client.report.last_minute import MINUTE, LastMinute
from cachecd_client.report.summary import MUCH, waits
from cachecd_client.sockets import reports_of

log = logging.getLogger("cachecd")

#: The stages of a wait. `other`: Python code of the loader.
STAGES = frozenset(
    ("lease", "open", "read", "verify", "decode", "assemble", "prepare", "copy", "gil", "other")
)
MAX_REPORT_BYTES = 1 << 14

_MAX_TEXT = 256  # characters; each has at most 12 bytes in a datagram
_EVERY = 1.0  # seconds between two reports
_WARN_EVERY = 600.0  # seconds
_KINDS: dict[str, type[Any]] = {TrainerReport.__name__: TrainerReport}
_TEXTS = "dataset", "job", "reader", "blind"
_COUNTS = "rank", "pid", "epoch", "steps", "records", "bytes", "memory", "random_bytes"


def encode_report(report: TrainerReport) -> bytes:
    """Returns the datagram of a report. Shortens long texts, and keeps the longest spans."""
    texts = {name: getattr(report, name)[:_MAX_TEXT] for name in _TEXTS}
    spans = sorted(report.spans, key=lambda span: -span[2])[:MAX_SPANS]
    report = replace(report, **texts, spans=spans)
    body = {field.name: getattr(report, field.name) for field in fields(report)}
    return json.dumps({"type": TrainerReport.__name__, **body}, separators=(",", ":")).encode()


def decode_report(datagram: bytes) -> TrainerReport:
    """Returns the report in a datagram. ValueError if it is not a report, or breaks a limit."""
    try:
        report: TrainerReport = parse(_KINDS, json.loads(datagram))
    except RecursionError:
        raise ValueError("its body is nested too deeply") from None
    texts = [getattr(report, name) for name in _TEXTS] + [name for name, _, _ in report.spans]
    if max(map(len, texts)) > _MAX_TEXT or len(report.spans) > MAX_SPANS:
        raise ValueError(f"found {len(report.spans)} spans, or a text above {_MAX_TEXT} characters")
    counts = [getattr(report, name) for name in _COUNTS]
    others = [report.waited_s, report.elsewhere_s, report.reads_per_record, report.gil_s]
    if (
        min([*counts, *others, *report.stages_s.values()]) < 0
        or not 0 <= (report.queue or 0.0) <= 1
    ):
        raise ValueError("found a negative number, or a queue outside of 0..1")
    stages: dict[str, float] = {}
    for stage, waited in report.stages_s.items():
        known = stage if stage in STAGES else "other"  # of a later minor version
        stages[known] = stages.get(known, 0.0) + waited
    return replace(report, stages_s=stages, spans=[(n, b, s) for n, b, s in report.spans])


class Reports:
    """The reports of one job in this process, at most one a second.

    It has no thread, waits for nothing, and raises no Exception: a report is lost if no daemon reads it, or
    if its queue is full. If the job waited for more than a tenth of the last minute, it logs a warning, at
    most once in ten minutes.
    """

    def __init__(self, endpoint: str) -> None:
        self._path = reports_of(endpoint)
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._due = self._warns_at = 0.0
        self._minute = LastMinute()

    def report(self, make: Callable[[], TrainerReport]) -> None:
        """Sends the report that `make` returns, unless a report was sent within the last second."""
        now = time.monotonic()
        if self._process != os.getpid():  # a forked child
            self._begin()
        if now < self._due:
            return
        self._due = now + _EVERY
        try:
            report = make()
            self._minute.add(report, now)
            self._send(encode_report(report))
            self._warn(report, now)
        except Exception as error:
            log.debug("report to the daemon failed: %r", error)

    def _send(self, datagram: bytes) -> None:
        # A socket for each report, because forked children and a daemon that starts again need new ones.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        ):
            sender.setblocking(False)
            sender.sendto(datagram, self._path)

    def _warn(self, report: TrainerReport, now: float) -> None:
        if report.first or report.blind or now < self._warns_at:
            return
        stages = self._minute.stages(now)
        if sum(stages.values()) > MUCH * MINUTE:
            self._warns_at = now + _WARN_EVERY
            log.warning("%s: rank %d %s", report.dataset, report.rank, waits(stages, MINUTE))
