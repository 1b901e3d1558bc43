"""How fast bytes arrive."""

from __future__ import annotations

import pytest

from cachecd.daemon.rate import Rate


def test_a_steady_stream_is_told_as_it_is_and_forgotten_when_it_ends():
    rate = Rate()
    for second in range(1, 61):
        rate.add(3_000_000, float(second))
    assert rate.now(60.0) == pytest.approx(3_000_000, rel=0.1)
    assert rate.now(120.0) < 1000


def test_nothing_that_came_is_no_rate():
    assert Rate().now(5.0) == 0.0
