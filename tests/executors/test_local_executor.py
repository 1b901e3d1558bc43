"""Local sampler processes: work, death in every form, and the end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cachecd.errors import ConfigError
from cachecd.executors import Executor, local
from cachecd.sampler.messages import Described, Failed, FromStream, Sealed
from tests.executors.bench import Bench, bench, in_loop, is_alive, run, until


@in_loop
async def test_each_stream_is_carried_and_answered_once(tmp_path: Path):
    async with bench(tmp_path, workers=2) as b:
        for number in range(1, 8):
            b.submit(number, b"%d" % number, b"x")
        for number in range(1, 8):
            assert isinstance(await b.answer(number), Sealed)
            assert b.payloads(number) == [b"%d" % number, b"x"]
        kinds = [type(m) for m in b.said]
        assert kinds.count(Sealed) == kinds.count(Described) == 7
        assert Failed not in kinds


def test_it_keeps_the_contract_of_executors(tmp_path: Path):
    executor: Executor = Bench(tmp_path, 1).executor
    assert executor is not None


@in_loop
async def test_processes_are_groups_of_their_own_and_as_many_as_workers(tmp_path: Path):
    async with bench(tmp_path, workers=3) as b:
        assert len(set(b.executor.pids)) == 3
        assert [os.getpgid(pid) for pid in b.executor.pids] == b.executor.pids


@in_loop
async def test_a_process_killed_from_outside_is_replaced(tmp_path: Path):
    async with bench(tmp_path, transform="tests.sampler.steps:first_then_wait") as b:
        b.submit(1, b"x", b"y")
        await until(lambda: b.unit_of(1) == 1001)
        [pid] = b.executor.pids
        os.kill(pid, signal.SIGKILL)
        failed = await b.failed(1)
        assert failed.unit == 1001
        await until(lambda: b.executor.pids not in ([], [pid]))


@in_loop
async def test_an_idle_process_that_dies_is_replaced_and_costs_nothing(tmp_path: Path):
    async with bench(tmp_path) as b:
        b.submit(1, b"x")
        await b.answer(1)
        [pid] = b.executor.pids
        os.kill(pid, signal.SIGKILL)
        await until(lambda: b.executor.pids not in ([], [pid]))
        b.submit(2, b"y")
        assert isinstance(await b.answer(2), Sealed)
        assert not any(isinstance(m, Failed) for m in b.said)


@in_loop
async def test_what_a_transform_started_dies_with_its_process(tmp_path: Path):
    child_file = tmp_path / "child"
    environ = {**os.environ, "CHILD_FILE": str(child_file)}
    step = "tests.sampler.steps:spawn_and_wait"
    async with bench(tmp_path, transform=step, environ=environ) as b:
        b.submit(1, b"x")
        await until(lambda: child_file.exists() and child_file.read_text() != "")
        child = int(child_file.read_text())
        assert is_alive(child)
    await until(lambda: not is_alive(child))


def test_processes_that_cannot_live_are_started_again_ever_more_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The interpreter has no cachecd: every process ends at once."""
    pauses: list[float] = []
    wait_for = asyncio.wait_for

    async def impatient(awaitable: Any, timeout: float) -> Any:
        pauses.append(timeout)
        return await wait_for(awaitable, 0.001)

    monkeypatch.setattr(local.asyncio, "wait_for", impatient)
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexit 7\n")
    script.chmod(0o755)

    async def test() -> None:
        async with bench(tmp_path, python=script) as b:
            await until(lambda: len(pauses) >= 12)
            assert pauses[:10] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]
            b.submit(1, b"x")
            failed = await b.failed(1)
            assert (failed.cause, failed.unit) == ("worker", None)
            assert "exited with status 7" in failed.reason

    with capture_logs() as said:
        run(test)
    assert {line["why"] for line in said} == {"sampler process exited with status 7"}


@in_loop
async def test_an_interpreter_that_does_not_exist_is_a_configuration_error(tmp_path: Path):
    b = Bench(tmp_path, 2, python=tmp_path / "no" / "python")
    with pytest.raises(ConfigError, match=r"sampler.python: cannot start .*/no/python: "):
        await b.start()


@in_loop
async def test_the_users_interpreter_and_variables_are_used(tmp_path: Path):
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\necho "$MINE" > {tmp_path}/said\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    async with bench(tmp_path, python=script, environ={**os.environ, "MINE": "yes"}) as b:
        b.submit(1, b"x")
        assert isinstance(await b.answer(1), Sealed)
    assert (tmp_path / "said").read_text() == "yes\n"


@in_loop
async def test_closing_ends_processes_that_work_and_removes_their_files(tmp_path: Path):
    step = "tests.sampler.steps:first_then_wait"
    b = Bench(tmp_path, 2, transform=step)
    await b.start()
    b.submit(1, b"whose first record passes and is all")
    await b.answer(1)
    for number in (2, 3, 4):
        b.submit(number, b"passes", b"waits")
    await until(lambda: Path(b.path(2)).exists() and Path(b.path(3)).exists())
    pids, said = b.executor.pids, list(b.said)
    began = time.monotonic()
    await b.executor.close(10)
    assert time.monotonic() - began < 5, "they end by themselves"
    assert not any(is_alive(pid) for pid in pids)
    assert sorted(p.name for p in tmp_path.glob("*.tfrecord*")) == [
        "1.tfrecord",
        "1.tfrecord.idx",
    ]
    await asyncio.sleep(0.05)
    assert b.said == said, "nothing is delivered any more"


@in_loop
async def test_closing_kills_what_does_not_end_by_itself(tmp_path: Path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\ntrap '' TERM\nwhile true; do sleep 3600; done\n")
    script.chmod(0o755)
    b = Bench(tmp_path, 2, python=script)
    await b.start()
    pids = b.executor.pids
    b.submit(1, b"x")
    await b.executor.close(0.05)
    assert len(pids) == 2
    assert not any(is_alive(pid) for pid in pids)
    await b.executor.close(0)


@in_loop
async def test_without_workers_there_is_nothing_to_start_or_close(tmp_path: Path):
    b = Bench(tmp_path, 0)
    await b.executor.close(1)


def test_a_defect_in_who_listens_is_logged_and_wedges_nothing(tmp_path: Path):
    async def test() -> None:
        async with bench(tmp_path) as b:
            report = b.executor._streams.report

            def defective(message: FromStream) -> None:
                b.executor._streams.report = report
                raise RuntimeError("a defect")

            b.executor._streams.report = defective
            b.submit(1, b"x")
            failed = await b.failed(1)
            assert "was killed" in failed.reason
            b.submit(2, b"y")
            assert isinstance(await b.answer(2), Sealed)

    with capture_logs() as said:
        run(test)
    assert "a defect" in repr([line.get("exc_info") for line in said])
