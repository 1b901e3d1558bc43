"""The spans that the daemon keeps for a timeline."""

from __future__ import annotations

import os
import time

import pytest

from cachecd.daemon import timeline
from cachecd.daemon.timeline import Timeline
from cachecd_client.protocol import MAX_SPANS

OWN = f"daemon {os.getpid()}"


def test_spans_come_by_process_and_old_ones_are_left_out():
    kept, now = Timeline(), time.monotonic()
    kept.note("Acquire", now)
    kept.add("worker 7", [("fetch a", now - 100, 1.0), ("fetch b", now - 5, 1.0)])
    found = kept.last(10.0)
    assert [name for name, _, _ in found[OWN]] == ["Acquire"]
    assert [name for name, _, _ in found["worker 7"]] == ["fetch b"]
    assert [name for name, _, _ in kept.last(1e9)["worker 7"]] == ["fetch b"], "a minute is kept"


def test_a_report_with_too_many_spans_is_cut():
    kept, now = Timeline(), time.monotonic()
    kept.add("worker 7", [("wait", now, 1.0)] * (MAX_SPANS + 1))
    assert len(kept.last(10.0)["worker 7"]) == MAX_SPANS


def test_the_number_of_kept_spans_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timeline, "_MOST", 10)
    kept = Timeline()
    for _ in range(25):
        kept.note("AskStatus", time.monotonic())
    assert len(kept.last(10.0)[OWN]) == 10


def test_dropped_spans_end_before_the_timeline_is_complete(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timeline, "_MOST", 3)
    kept, now = Timeline(), time.monotonic()
    kept.add(
        "worker 7", [("fetch a", now - 9, 5.0), ("wait", now - 8, 1.0), ("wait", now - 3, 1.0)]
    )
    assert kept.complete_since == 0.0
    kept.add("worker 8", [("fetch b", now - 2, 1.0), ("wait", now - 1, 1.0)])
    assert kept.complete_since == now - 4, "the longer span was dropped, and ended last"


def test_span_from_the_future_makes_the_timeline_incomplete_only_until_now(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(timeline, "_MOST", 1)
    kept = Timeline()
    kept.add("worker 7", [("wait", 1e12, 1.0), ("wait", 1e12, 1.0)])
    assert kept.complete_since <= time.monotonic()
