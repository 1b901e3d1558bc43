"""A failure is logged at once, every ten minutes, and when it ends."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from cachecd.daemon.failures import Failures


class Bench:
    def __init__(self) -> None:
        self.now = 100.0
        self.failures = Failures(lambda: self.now)
        self.levels: list[str] = []

    def note(self, reason: str, verb: str = "fails", subject: str = "the disk") -> list[str]:
        with capture_logs() as logs:
            self.failures.note(subject, reason, 0.0, verb)
        self.levels = [line["log_level"] for line in logs]
        return [
            f"{line['event']}: {line['why']}" if "why" in line else line["event"] for line in logs
        ]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_failure_is_logged_once_and_once_when_it_works_again(bench):
    assert bench.note("full") == ["the disk fails: full"]
    assert bench.note("full of it") == []
    bench.now += 7
    assert bench.failures.seconds("the disk") == 7
    assert bench.failures.reasons == {"the disk": "full of it"}
    assert bench.note("") == ["the disk works again"]
    assert bench.note("") == []
    assert bench.failures.seconds("the disk") == 0
    assert bench.failures.reasons == {}


def test_alternating_failures_are_logged_once_a_minute(bench):
    lines = []
    for _ in range(120):
        bench.now += 1
        lines += bench.note("full") + bench.note("")
    assert lines.count("the disk fails: full") == 2
    assert lines.count("the disk works again") == 2


def test_lasting_failure_is_logged_every_ten_minutes(bench):
    lines = []
    for _ in range(3600):
        lines += bench.note("full")
        bench.now += 1
    assert lines == ["the disk fails: full"] * 6
    assert bench.note("") == ["the disk works again"]


def test_pause_is_no_failure(bench):
    assert bench.note("a lease keeps it", "waits", "rotation") == [
        "rotation waits: a lease keeps it"
    ]
    assert bench.levels == ["info"]
    assert bench.note("", "waits", "rotation") == ["rotation continues"]
    assert bench.note("no room", "stops", "ingest") == ["ingest stops: no room"]
    assert bench.levels == ["warning"]
    assert bench.note("", "stops", "ingest") == ["ingest continues"]


def test_success_of_one_subject_ends_no_failure_of_another(bench):
    bench.note("down", subject="the listing of a")
    bench.note("down", subject="the listing of b")
    assert bench.note("", subject="the listing of a") == ["the listing of a works again"]
    assert bench.failures.reasons == {"the listing of b": "down"}
