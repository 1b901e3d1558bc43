"""An epoch of the demo: the first pass whole, then as many as the time allows."""

from __future__ import annotations

import pytest

from cachecd.demo.passes import PassTimer


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def advance(self, seconds):
            self.now += seconds

    found = Clock()
    monkeypatch.setattr("cachecd.demo.passes.time.monotonic", lambda: found.now)
    return found


def test_later_passes_go_on_until_the_time_is_up(clock):
    passes = PassTimer(budget=10.0)
    given = []
    for batch in passes.over(lambda number: [f"{number}.{i}" for i in range(4)]):
        given.append(batch)
        clock.advance(2)
    assert given == ["0.0", "0.1", "0.2", "0.3", "1.0", "1.1"]
    assert passes.batches == 6
