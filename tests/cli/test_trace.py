"""`cachecd trace`: the file that Perfetto opens, and what can go wrong."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd.cli.trace import command, document
from cachecd_client.protocol import AskSpans, SpansReply

SPANS = st.lists(
    st.tuples(
        st.sampled_from(["fetch a.tar", "fetch b.tar", "wait", "m:step"]),
        st.integers(0, 50).map(float),
        st.integers(0, 20).map(float),
    )
)


def complete(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X"]


def test_each_process_is_a_row_with_its_name_the_daemon_first():
    spans = {
        "worker 9": [("fetch a.tar", 12.0, 0.5)],
        "trainer job rank 0": [("next", 12.5, 0.1)],
        "daemon 3": [("Acquire", 10.0, 0.001)],
    }
    events = document(spans)["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {1: "daemon 3", 2: "worker 9", 3: "trainer job rank 0"}
    [fetch] = [event for event in complete(events) if event["name"] == "fetch"]
    assert (fetch["pid"], fetch["ts"], fetch["dur"]) == (2, 2e6, 5e5)
    assert fetch["args"] == {"of": "a.tar"}
    json.dumps(events, allow_nan=False)


def test_no_spans_are_a_valid_trace():
    events = document({"daemon 3": []})["traceEvents"]
    assert complete(events) == []


@given(SPANS)
def test_spans_of_one_row_never_overlap(spans: list[tuple[str, float, float]]):
    """Perfetto would draw one below the other, as if it were its part."""
    events = complete(document({"worker 9": spans})["traceEvents"])
    assert len(events) == len(spans)
    for row in {event["tid"] for event in events}:
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["tid"] == row)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(own))
        assert len({event["name"] for event in events if event["tid"] == row}) == 1


def test_without_a_daemon_there_is_one_clear_line(cachecd, tmp_path, monkeypatch):
    monkeypatch.setattr("cachecd.cli.trace._PATIENCE", 0.2)
    done = cachecd("trace", "-o", tmp_path / "t.json", "--endpoint", f"ipc://{tmp_path}/no.sock")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "no daemon answered" in line
    assert "cachecd run CONFIG" in line
    assert list(tmp_path.iterdir()) == []


def test_more_seconds_than_the_daemon_keeps_are_refused(cachecd):
    done = cachecd("trace", "--seconds", "61")
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "58" in line


@pytest.mark.parametrize("is_complete", [True, False])
def test_trace_of_dropped_spans_says_which_part_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, is_complete: bool
):
    def reply(transport: Any, request: AskSpans, patience: float) -> SpansReply:
        return SpansReply(request.id, {"daemon 3": []}, 0.0 if is_complete else time.monotonic())

    monkeypatch.setattr("cachecd_client.transport.Transport.ask", reply)
    monkeypatch.setattr("cachecd.cli.trace._REPORTED_WITHIN", 0.0)
    command(0.2, tmp_path / "t.json", f"ipc://{tmp_path}/no.sock")
    watching, *more = capsys.readouterr().err.splitlines()
    assert "watching for 0.2 s" in watching
    assert len(more) == (0 if is_complete else 1)
    assert all("spans of the first 0.2 s are missing" in line for line in more)
