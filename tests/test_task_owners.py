"""Every task has an owner: an exception that nobody thought of fails its source, and no more."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from cachecd import eventloop, exclusions, service, shards
from cachecd.complaints import Complaints
from cachecd.config import Config, load
from cachecd.eventloop import Daemon
from cachecd.events import HoldersFound, ShardFailed, ShardUnlinked, ShardVerified
from cachecd.executors.process import SamplerProcess
from cachecd.layout import Layout
from cachecd.model import Held, Outcome, ShardId
from cachecd.preflight import executor_of, figures
from cachecd.sampler.messages import Failed, Made
from cachecd.server import Server
from tests.bench.cachedir import make
from tests.executors.bench import bench, in_loop, until
from tests.test_exclusions import search  # noqa: F401  a fixture

PACKAGE = Path(__file__).parent.parent / "cachecd"
STARTS = {"create_task", "ensure_future", "_spawn", "_keep"}
SHARD = ShardId("train", 1)

# Every place that starts a task, and who hears of what it did not think of: a test of this file or of
# another, or the task that awaits it, where the exception comes out.
OWNERS = {
    "eventloop.py start": "test_daemon_start.py: work that fails is told; here: the listings",
    "eventloop.py _deliver": "test_a_shard_is_discarded_though_the_first_try_fails_as_nobody_thought",
    "eventloop.py _carry_out": "the tests of ShardWork here, and of what a dataset waits for",
    "eventloop.py _spawn": "starts what the others give it, and logs what comes out",
    "daemon/remaking.py _start": "test_remake_that_fails_otherwise_than_expected_is_begun_again",
    "daemon/loop.py open": "test_work_that_fails_otherwise_than_expected_is_done_again",
    "daemon/feeding.py _start": "test_feeding.py: a defect in the listing fails the stream",
    "exclusions.py answer": "test_exclusions.py: a search that fails otherwise than thought is answered",
    "exclusions.py start": "test_exclusions_are_in_force_though_the_first_look_fails_as_nobody_thought",
    "service.py _serve": "a daemon whose socket is served no more ends with a failure; the watchdog's",
    "trainer.py": "awaited there",
    "executors/process.py attend": "test_local_executor.py: a defect in who listens wedges nothing",
    "executors/local.py start": "test_a_sampler_process_that_nobody_looks_after_is_replaced",
    "executors/local.py _keep": "starts what `start` gives it",
    "sampler/worker.py serve": "a process that is silent is judged by that; test_unknown_failures.py",
    "sampler/worker.py _work": "awaited there",
    "sampler/worker.py _close": "awaited by `serve`: test_closed_stream_leaves_nothing",
    "sampler/carried.py _seal": "awaited there: test_disk_that_is_gone_fails_the_stream",
    "sampler/worker.py make": "a process that is silent is judged by that; test_unknown_failures.py",
    "sampler/sources/parquet/rows.py": "awaited by the unit's reader",
    "sampler/sources/npy.py": "awaited by the unit's reader",
    "sampler/sources/lockstep.py": "awaited by the unit's reader",
    "sampler/sources/aligned.py": "awaited by the unit's reader",
    "sampler/ahead.py": "awaited by the unit's reader; test_unknown_failures.py",
}


def places() -> set[str]:
    """Where tasks are started: file and function."""
    found = set()
    for path in set(PACKAGE.rglob("*.py")) - set((PACKAGE / "policy").rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for call in ast.walk(function):
                    if isinstance(call, ast.Call):
                        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
                        if name in STARTS:
                            found.add(f"{path.relative_to(PACKAGE)} {function.name}")
    return found


def test_every_test_that_is_an_owner_exists():
    files = list(Path(__file__).parent.rglob("test_*.py"))
    there = {path.name for path in files}
    for path in files:
        there.update(re.findall(r"def (test_\w+)", path.read_text()))
    named = {name for owner in OWNERS.values() for name in re.findall(r"test_\w+(?:\.py)?", owner)}
    assert named - there == set()


def test_every_place_that_starts_a_task_has_its_owner_named_here():
    def owned(place: str) -> bool:
        return place in OWNERS or place.partition(" ")[0] in OWNERS

    there = places()
    assert sorted(place for place in there if not owned(place)) == []
    alone = {place.partition(" ")[0] for place in there}
    assert sorted(OWNERS.keys() - there - alone) == []


def failing_once(real: Callable[..., Any]) -> Callable[..., Any]:
    failed = []

    def called(*arguments: Any) -> Any:
        if not failed:
            failed.append(1)
            raise RuntimeError("nobody thought of this")
        return real(*arguments)

    return called


@pytest.fixture
def work(tmp_path: Path) -> SimpleNamespace:
    layout = Layout(tmp_path)
    for path in (layout.tmp, layout.shards / "train"):
        path.mkdir(parents=True)
    events: list[object] = []
    complaints = Complaints()
    made = shards.ShardWork(layout, lambda _: Held(), events.append, complaints, lambda: None)
    return SimpleNamespace(made=made, events=events, complaints=complaints, layout=layout)


def test_a_shard_whose_publication_fails_as_nobody_thought_fails_and_leaves_nothing(
    work, monkeypatch
):
    work.layout.temporary(SHARD).write_bytes(b"x")
    monkeypatch.setattr(shards, "publish_shard", failing_once(lambda *_: None))
    asyncio.run(work.made.publish(SHARD, "g", Outcome(1, 1, 1, 1, 0, 0.0, ())))
    (event,) = work.events
    assert isinstance(event, ShardFailed)
    assert "nobody thought of this" in event.reason
    assert "nobody thought of this" in work.complaints.reason
    assert os.listdir(work.layout.tmp) == []


def test_a_shard_is_discarded_though_the_first_try_fails_as_nobody_thought(work, monkeypatch):
    work.layout.temporary(SHARD).write_bytes(b"x")
    monkeypatch.setattr(shards, "_discard", failing_once(shards._discard))
    failed = ShardFailed(SHARD, "disk", "full")
    asyncio.run(work.made.discard(failed))
    assert work.events == [failed]
    assert (os.listdir(work.layout.tmp), work.complaints.reason) == ([], "")


@pytest.mark.parametrize(
    ("deed", "part", "event"),
    [("unlink", "unlink_shard", ShardUnlinked), ("verify", "verify_shard", ShardVerified)],
)
def test_what_is_done_to_a_shard_is_done_though_the_first_try_fails_as_nobody_thought(
    work, monkeypatch, deed, part, event
):
    monkeypatch.setattr(shards, part, failing_once(getattr(shards, part)))
    asyncio.run(getattr(work.made, deed)(SHARD))
    assert [type(told) for told in work.events] == [event]
    assert work.complaints.reason == ""


def test_exclusions_are_in_force_though_the_first_look_fails_as_nobody_thought(
    search,  # noqa: F811
    monkeypatch,
):
    monkeypatch.setattr(exclusions, "_POLL", 0.001)
    monkeypatch.setattr(search.index, "find", failing_once(search.index.find))
    search.train.excluded.names.update([("b", 1)])

    async def start() -> None:
        search.exclusions.start()
        until = time.monotonic() + 20
        while len(search.events) < 2:
            assert time.monotonic() < until
            await asyncio.sleep(0.001)

    asyncio.run(start())
    assert search.events[1] == HoldersFound("train", [3])


@in_loop
async def test_a_sampler_process_that_nobody_looks_after_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(SamplerProcess, "_offence", failing_once(SamplerProcess._offence))

    async with bench(tmp_path) as b:
        [first] = b.executor.pids
        b.submit(1, b"x")
        await until(lambda: b.executor.pids not in ([], [first]))
        b.submit(2, b"y")
        answered = [m for m in b.said if isinstance(m, Failed | Made)]
        assert all(m.shard.number == 1 for m in answered)
        assert isinstance(await b.answer(2), Made)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load(make(tmp_path, shards=3).config)


def test_listing_that_fails_unexpectedly_is_reported_and_begun_again(config, monkeypatch):
    async def lived() -> None:
        executor = executor_of(config)
        executor.launch()
        made = Daemon(config, figures(config), executor)
        begun: list[str] = []

        async def once(*_: object) -> None:
            begun.append("again" if begun else "first")
            if len(begun) == 1:
                raise RuntimeError("nobody thought of this")

        monkeypatch.setattr(eventloop, "keep_listed", once)
        try:
            await made.start()
            await until(lambda: begun)
            await until(lambda: "nobody thought of this" in made.status()["cache"]["stopped"])
            assert "listing of train" in made.status()["cache"]["stopped"]
            await until(lambda: begun == ["first", "again"])
            await until(lambda: "nobody" not in made.status()["cache"]["stopped"])
        finally:
            await made.stop(0)

    asyncio.run(asyncio.wait_for(lived(), 30))


def test_a_daemon_whose_socket_is_served_no_more_ends_with_a_failure(config, monkeypatch):
    async def fail(_: Server) -> None:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(Server, "serve", fail)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        with structlog.testing.capture_logs() as said:
            assert service.run(config, service.Options(offline=True), lambda: config) == 1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    (line,) = [line for line in said if line["log_level"] == "error"]
    assert str(line["exc_info"]) == "nobody thought of this"


def test_a_watchdog_that_fails_once_goes_on(monkeypatch):
    manager = SimpleNamespace(watchdog_interval=0.001)
    told: list[int] = []

    def watchdog() -> None:
        told.append(1)
        if len(told) == 1:
            raise RuntimeError("nobody thought of this")

    manager.watchdog = watchdog

    async def watched() -> None:
        task = asyncio.ensure_future(service._watchdog(manager))
        await until(lambda: len(told) > 2)
        task.cancel()

    asyncio.run(watched())


def test_a_reload_that_fails_as_nobody_thought_changes_nothing_and_is_said_to_be_over():
    said: list[str] = []
    manager = SimpleNamespace(
        reloading=lambda: said.append("reloading"), ready=lambda: said.append("ready")
    )
    broken = SimpleNamespace(reconfigure=failing_once(lambda _: None))
    with structlog.testing.capture_logs() as logged:
        service._reloaded(broken, manager, dict)
    assert said == ["reloading", "ready"]
    assert [line["log_level"] for line in logged] == ["error"]
