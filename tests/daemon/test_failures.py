"""What fails is logged once, and once when it works again."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from cachecd.daemon.failures import Failures


class Bench:
    def __init__(self) -> None:
        self.now = 100.0
        self.failures = Failures(lambda: self.now)

    def note(self, reason: str) -> list[str]:
        with capture_logs() as logs:
            self.failures.note("the disk", reason, 0.0)
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


def test_subject_that_fails_and_works_in_turns_is_logged_once_a_minute(bench):
    lines = []
    for _ in range(120):
        bench.now += 1
        lines += bench.note("full") + bench.note("")
    assert lines.count("the disk fails: full") == 2
    assert lines.count("the disk works again") == 2
