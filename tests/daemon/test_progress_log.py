"""The daemon's log of a first listing and a first fill: after ten seconds, then once a minute."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from cachecd.daemon.progress_log import ProgressLog
from tests.clock import Clock
from tests.policy.cache import Cache, a_full_cache, a_whole_cache


@pytest.fixture
def clock() -> Clock:
    return Clock()


def logged(cache: Cache, clock: Clock, seconds: int, per_second: int = 0) -> list[Any]:
    """The lines of so many seconds, in which `per_second` objects are listed."""
    log = ProgressLog(clock)
    with capture_logs() as lines:
        for second in range(seconds):
            clock.now = float(second)
            log.note(cache.policy, {"a": second * per_second})
    return lines


def test_a_first_listing_is_logged_after_ten_seconds_and_each_minute(clock: Clock):
    lines = [each for each in logged(Cache(), clock, 140, 50) if each["event"].startswith("list")]
    assert [line["progress"] for line in lines] == [
        "500 objects, 50 objects/s",
        "3,500 objects, 50 objects/s",
        "6,500 objects, 50 objects/s",
    ]
    assert {line["dataset"] for line in lines} == {"a"}
    assert {line["log_level"] for line in lines} == {"info"}


def test_a_first_fill_is_logged_with_its_goal(clock: Clock):
    lines = [each for each in logged(Cache(), clock, 12) if each["event"] == "filling"]
    assert [line["progress"] for line in lines] == ["0 B of 20 B (0 %)"]


@pytest.mark.parametrize("cache", [a_whole_cache(), a_full_cache()])
def test_a_dataset_that_trains_already_is_not_logged(clock: Clock, cache: Cache):
    assert logged(cache, clock, 140) == []
