"""Where a sampler's time goes: stages, waits and spans."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachecd.model import StageSeconds, Unit
from cachecd.sampler import meter
from cachecd.sampler.messages import Effort, Sealed, Working
from cachecd.sampler.meter import METER, ONE_IN_FAST, ONE_IN_SLOW, Meter
from cachecd_client._core import encode_example
from cachecd_client.protocol import MAX_SPANS
from tests.core.shards import frames
from tests.sampler.test_worker import Bench, folder, written

assert folder  # a fixture


class Clock:
    """The three clocks of the module, which a test moves."""

    def __init__(self) -> None:
        self.wall = self.thread = self.process = 100.0

    def monotonic(self) -> float:
        return self.wall

    def thread_time(self) -> float:
        return self.thread

    def process_time(self) -> float:
        return self.process

    def work(self, seconds: float) -> None:
        self.wall += seconds
        self.thread += seconds
        self.process += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(meter, "time", made)
    return made


@pytest.fixture
def all_timed() -> Iterator[None]:
    METER.begin_anew(1, 1)
    yield
    METER.begin_anew()


def begun(every: int = 1, why: str = "link") -> Meter:
    made = Meter()
    made.begin_anew(every, every)
    made.turn("train", lambda: why)
    return made


def taken(made: Meter) -> Effort:
    effort = made.take()
    assert effort is not None
    return effort


@pytest.mark.parametrize(("seconds", "one_in"), [(0.0001, ONE_IN_FAST), (0.01, ONE_IN_SLOW)])
def test_a_timed_step_stands_for_the_steps_since_the_last(
    clock: Clock, seconds: float, one_in: int
):
    made, steps = Meter(), ONE_IN_SLOW + 9 * one_in
    made.turn("train", lambda: "link")
    for _ in range(steps):
        is_timed = next(made.turns)
        if is_timed:
            made.begin()
        clock.work(seconds)
        if is_timed:
            made.enter("resize", 1)
        clock.work(2 * seconds)
        if is_timed:
            made.end()
    stages = taken(made).stages
    assert stages["resize"].records == steps
    assert stages["decode"].cpu_s == pytest.approx(steps * seconds)
    assert stages["resize"].wall_s == pytest.approx(2 * steps * seconds)


def test_each_window_of_a_slow_transform_has_its_own_seconds(clock: Clock):
    made, windows = Meter(), []
    made.turn("train", lambda: "link")
    for steps in (ONE_IN_SLOW, *[10] * 8):
        for _ in range(steps):
            is_timed = next(made.turns)
            if is_timed:
                made.begin()
                made.enter("augment", 1)
            clock.work(0.3)
            if is_timed:
                made.end()
        effort = made.take()
        windows.append(effort.stages["augment"] if effort else StageSeconds())
    assert [each.records for each in windows] == [ONE_IN_SLOW, *[10] * 8]
    assert [each.wall_s for each in windows[1:]] == [pytest.approx(3.0)] * 8


def test_cpu_that_no_stage_explains_is_that_of_fetching(clock: Clock):
    made = begun()
    made.begin()
    clock.work(3.0)
    made.end()
    clock.process += 7.0  # other threads
    stages = taken(made).stages
    assert stages["decode"].cpu_s == 3.0
    assert stages["fetch"].cpu_s == 7.0


def test_an_estimate_above_the_cpu_of_the_process_is_settled_later(clock: Clock):
    made = begun(2)  # one step in two: each counts twice
    made.begin()
    clock.work(3.0)
    made.end()
    assert "fetch" not in taken(made).stages, "6 s were estimated, and 3 s were used"
    clock.process += 10.0
    assert taken(made).stages["fetch"].cpu_s == 7.0


async def test_two_waits_at_the_same_time_count_once(clock: Clock):
    made, ends = begun(why="bandwidth"), [asyncio.Event(), asyncio.Event()]

    async def wait(end: asyncio.Event) -> None:
        with made.waiting():
            await end.wait()

    both = [asyncio.ensure_future(wait(end)) for end in ends]
    await asyncio.sleep(0)
    clock.wall += 2.0
    ends[0].set()
    await both[0]
    clock.wall += 3.0
    ends[1].set()
    await both[1]
    effort = taken(made)
    assert effort.waits == {"bandwidth": 5.0}
    assert effort.stages["fetch"].wall_s == 5.0


def test_a_wait_that_lasts_is_reported_in_parts(clock: Clock):
    made = begun()
    with made.waiting():
        clock.wall += 4.0
        assert taken(made).waits == {"link": 4.0}
        clock.wall += 1.0
    assert taken(made).waits == {"link": 1.0}


def test_a_timed_step_does_not_count_its_waits_as_decoding(clock: Clock):
    made = begun()
    made.begin()
    clock.work(1.0)
    with made.waiting():
        clock.wall += 9.0
        clock.thread += 0.5  # a request of the same event loop
    clock.work(1.0)
    made.end()
    stages = taken(made).stages
    assert (stages["decode"].wall_s, stages["decode"].cpu_s) == (2.0, 2.0)
    assert stages["fetch"].wall_s == 9.0


def test_the_longest_spans_are_reported_once_a_second(clock: Clock):
    made = begun()
    for nth in range(3 * MAX_SPANS):
        clock.wall += 0.001
        made.span("fetch", clock.wall - nth, f"{nth}.tar")
    assert made.take() is None, "not before the second is over"
    clock.wall += 1.0
    spans = taken(made).spans
    assert len(spans) == MAX_SPANS
    lengths = sorted(round(seconds) for _, _, seconds in spans)
    assert lengths == list(range(2 * MAX_SPANS, 3 * MAX_SPANS))
    assert ("fetch 191.tar", 191) in {(name, round(seconds)) for name, _, seconds in spans}
    clock.wall += 1.0
    assert made.take() is None


def test_a_span_never_has_the_signature_of_a_url(clock: Clock):
    made = begun()
    clock.wall += 2.0
    made.span("fetch", clock.wall - 1, "https://user:word@host/a.tar?X-Amz-Signature=0123")
    [(name, _, _)] = taken(made).spans
    assert name == "fetch https://host/a.tar"


def stages_of(bench: Bench) -> dict[str, StageSeconds]:
    found: dict[str, StageSeconds] = {}
    for message in bench.said:
        if isinstance(message, Working | Sealed) and message.effort is not None:
            for stage, seconds in message.effort.stages.items():
                found[stage] = found.get(stage, StageSeconds()).plus(seconds)
    return found


def tfrecords(root: Path, files: int, records: int) -> list[Unit]:
    bodies = [
        frames([encode_example({"x": n * records + m}) for m in range(records)])
        for n in range(files)
    ]
    return written(root, bodies)


def steps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two steps of a module: the second makes two records of each."""
    code = "def same(record):\n    return record\ndef twice(record):\n    yield from (record, record)\n"
    (folder / "metered_steps.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))
    return {"transform": ["metered_steps:same", "metered_steps:twice"]}


@pytest.mark.usefixtures("all_timed")
def test_a_sampler_reports_each_step_by_its_name(tmp_path, folder, monkeypatch):
    units = tfrecords(tmp_path / "src", 3, 10)
    source = {"url": f"file://{tmp_path}/src", "format": "tfrecord"}
    bench = Bench(folder, source=source, **steps(tmp_path, monkeypatch))
    outcome, _ = bench.made(units)
    stages = stages_of(bench)
    assert outcome.records == 60
    assert {name: each.records for name, each in stages.items()} == {
        "decode": 30,
        "metered_steps:same": 30,
        "metered_steps:twice": 30,
        "encode": 60,
        "write": 60,
        "sync": 60,
        "fetch": 60,
    }
    assert all(each.cpu_s > 0 and each.wall_s > 0 for each in stages.values())
    assert stages["sync"].wall_s >= stages["sync"].cpu_s


@pytest.mark.usefixtures("all_timed")
def test_copied_tfrecords_are_written_but_not_encoded(tmp_path, folder):
    units = tfrecords(tmp_path / "src", 3, 10)
    bench = Bench(folder, source={"url": f"file://{tmp_path}/src", "format": "tfrecord"})
    bench.made(units)
    stages = stages_of(bench)
    assert stages.keys() == {"fetch", "decode", "write", "sync"}
    assert stages["write"].records == stages["decode"].records == 30


@pytest.mark.usefixtures("all_timed")
def test_a_users_reader_counts_as_decoding_although_it_has_its_own_thread(
    tmp_path, folder, monkeypatch
):
    code = """\
import time
class Reader:
    def read(self, unit, store):
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        yield {"x": 1}
"""
    (tmp_path / "metered_reader.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    units = written(tmp_path / "src", [b"a", b"b"])
    source = {
        "url": f"file://{tmp_path}/src",
        "format": "python",
        "reader": "metered_reader:Reader",
    }
    bench = Bench(folder, source=source)
    bench.made(units)
    stages = stages_of(bench)
    assert stages["decode"].records == 2
    assert stages["decode"].cpu_s >= 0.1
