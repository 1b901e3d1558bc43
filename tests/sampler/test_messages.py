"""The frames between the daemon and its processes: what survives them, and what is refused."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from cachecd.model import Cursor, ObjectInfo, Skipped, SkippedRecords, StageSeconds, StreamId, Unit
from cachecd.sampler.messages import (
    FRAMES,
    LONGEST_REASON,
    Effort,
    Failed,
    Frames,
    Grant,
    Sealed,
    Setup,
    Units,
    Working,
)
from cachecd.stores.backend import LeftOut
from cachecd.units.lister import QUESTIONS, REPLIES, Ended, Page, Question, Refused

STREAM = StreamId("train", "0123", 3)
ODD = "a/\udcff\udc80\n\u202eü\U0001f600"  # as os.fsdecode gives bytes that are not UTF-8
EFFORT = Effort(
    *(7, {"m:step": StageSeconds(0.5, 1.5, 3)}, {"link": 0.5}),
    [(f"fetch {ODD}", 1e6 + 1e-6, 0.25)],
)


def sealed(**fields: Any) -> Sealed:
    counts = dict.fromkeys(
        (
            "number",
            "records",
            "data_bytes",
            "allocated",
            "digest",
            "ended",
            "num_passed",
            "misfits",
        ),
        0,
    )
    texts = {"end": "full", "misfit": "", "passed": (), "skipped": ()}
    times = {"fetched_bytes": 0, "seconds": 0.5}
    cursors = {"stream": STREAM, "before": Cursor(), "after": Cursor()}
    return Sealed(**{**counts, **texts, **times, **cursors, **fields})  # type: ignore[arg-type]


def through(frames: Frames[Any], message: Any) -> Any:
    packed = io.BytesIO(frames.pack(message) * 2)
    read = frames.read(packed)
    assert frames.read(packed) == read, "the first frame ends where the second one begins"
    assert frames.read(packed) is None
    return read


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (FRAMES, Setup({"a": {"b": [None, 1.5, {ODD: True}]}}, 3, None, [ODD])),
        (FRAMES, Setup({}, 3, 1e6, (), 2**62)),
        (FRAMES, Units(STREAM, 0, 0, (Unit(2**62, ODD, 2**62, ODD, 5, ODD), None), "end")),
        (FRAMES, Units(STREAM, 0, 0, (Unit(1, "", 0, excluded=(ODD, "b")),), "listed")),
        (FRAMES, Grant(STREAM, 1, path=ODD)),
        (FRAMES, sealed(skipped=(Skipped(1, ODD, 2**64 - 1, 0, ODD),))),
        (FRAMES, sealed(passed=(SkippedRecords(ODD, 2, (ODD, "b")),), digest=2**64 - 1)),
        (FRAMES, Working(STREAM, 1, 2, -1, False, EFFORT)),
        (FRAMES, sealed(effort=EFFORT)),
        (QUESTIONS, Question({"reader": ODD}, 4, ODD, LeftOut({"a": (1, [ODD])}, ODD, ODD), [ODD])),
        (REPLIES, Page([ObjectInfo(ODD, 2**62, ODD, 5, ODD), ObjectInfo("", 0)])),
        (REPLIES, Page([])),
        (REPLIES, LeftOut({"empty object": (4, [ODD])}, "", ODD)),
        (REPLIES, LeftOut()),
        (REPLIES, Refused("configuration", ODD)),
        (REPLIES, Ended()),
    ],
)
def test_values_of_all_kinds_survive_the_pipe(frames, message):
    read = through(frames, message)
    assert read == message
    assert type(read) is type(message)


def test_limitless_memory_and_tuples_survive_the_pipe():
    assert through(FRAMES, Setup({}, 1, None)).memory == float("inf")
    read = through(FRAMES, sealed(passed=(SkippedRecords("r", 2, ("a", "b")),)))
    assert isinstance(read.passed, tuple)
    assert isinstance(read.passed[0].examples, tuple)
    hash(read)


def test_long_reason_is_cut_in_its_middle():
    long = "begin" + "x" * 10_000 + "end"
    reasons = [
        through(FRAMES, Failed(STREAM, "worker", long)).reason,
        through(FRAMES, sealed(skipped=(Skipped(1, "a", 2, 0, long),))).skipped[0].reason,
        through(FRAMES, sealed(passed=(SkippedRecords(long, 1, ()),))).passed[0].reason,
        through(REPLIES, Refused("source", long)).reason,
    ]
    [reason] = set(reasons)
    assert len(reason) == LONGEST_REASON + len(" [...] ")
    assert reason.startswith("beginx")
    assert " [...] " in reason
    assert reason.endswith("xend")


@pytest.mark.parametrize(
    "changed",
    [
        {"type": "Nothing"},
        {"number": "one"},
        {"number": None},
        {"another": 1},
        {"stream": {"dataset": "train", "generation": "0123"}},
        {"stream": {"dataset": "train", "generation": "0123", "index": 3, "another": 1}},
    ],
)
def test_frame_that_is_no_message_is_refused(changed):
    fields = json.loads(FRAMES.pack(Grant(STREAM, 1, path="/a")))
    with pytest.raises((ValueError, KeyError)):
        FRAMES.unpack(json.dumps(fields | changed).encode())
    for text in (b"", b"7", b"[1]", b"null", b"{}", b"\xff\xfe", b"hello"):
        with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
            FRAMES.unpack(text)
    assert FRAMES.read(io.BytesIO(b'{"type": "Cl')) is None, "EOF within a frame"
