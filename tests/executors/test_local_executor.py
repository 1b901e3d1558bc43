"""Local sampler processes: work, death in every form, and the end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cachecd.errors import ConfigError
from cachecd.executors import local
from cachecd.sampler.messages import Failed, FromStream, Sealed
from cachecd_client._core import decode_example
from tests.contracts.format import read_back
from tests.executors.bench import Bench, bench, is_alive, until


async def test_processes_that_cannot_live_are_started_again_ever_more_seldom(
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

    with capture_logs() as said:
        async with bench(tmp_path, python=script) as b:
            await until(lambda: len(pauses) >= 12)
            assert pauses[:10] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]
            b.submit(1, b"x")
            failed = await b.failed(1)
            assert (failed.cause, failed.unit) == ("worker", None)
            assert "exited with status 7" in failed.reason
    assert {line["why"] for line in said} == {"sampler process exited with status 7"}


async def test_an_interpreter_that_does_not_exist_is_a_configuration_error(tmp_path: Path):
    b = Bench(tmp_path, 2, python=tmp_path / "no" / "python")
    with pytest.raises(ConfigError, match=r"sampler.python: cannot start .*/no/python: "):
        await b.start()


async def test_closing_ends_processes_that_work_and_removes_their_files(tmp_path: Path):
    step = "tests.sampler.steps:first_then_wait"
    b = Bench(tmp_path, 2, transform=step)
    await b.start()
    b.submit(1, b"whose first record passes and is all")
    await b.answer(1)
    for number in (2, 3, 4):
        b.submit(number, b"passes", b"waits")
    await until(lambda: sum(Path(b.path(number)).exists() for number in (2, 3, 4)) == 2)
    pids, said = b.executor.pids, list(b.said)
    assert [os.getpgid(pid) for pid in pids] == pids, "groups of their own"
    assert len(set(pids)) == 2
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


async def test_closing_ends_stopped_and_hanging_processes_in_time(tmp_path: Path):
    """One hangs in C, one waits for a child in a session of its own that has its pipes, one is stopped."""
    environ = {**os.environ, "NOTES": str(tmp_path)}
    b = Bench(tmp_path, 3, transform="tests.faults.deeds:do", environ=environ)
    await b.start()
    b.submit(1, b"stuck-in-c")
    b.submit(2, b"wait-for-a-child child")
    b.submit(3, b"spin")
    await until(lambda: all(b.unit_of(number) is not None for number in (1, 2, 3)))
    await until((tmp_path / "child").exists)
    pids = [*b.executor.pids, int((tmp_path / "child").read_text())]
    os.kill(pids[0], signal.SIGSTOP)
    began = time.monotonic()
    await b.executor.close(0.2)
    assert time.monotonic() - began < 0.2 + 3
    await until(lambda: not any(map(is_alive, pids)))
    assert not list(tmp_path.glob("*.tfrecord*"))


async def test_a_defect_in_who_listens_is_logged_and_wedges_nothing(tmp_path: Path):
    with capture_logs() as said:
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
    assert "a defect" in repr([line.get("exc_info") for line in said])


async def test_streams_are_spread_over_the_processes(tmp_path: Path):
    async with bench(tmp_path, workers=2) as b:
        for number in range(1, 5):
            b.submit(number, b"x")
        assert sorted(len(process.streams) for process in b.executor._processes) == [2, 2]
        for number in range(1, 5):
            assert isinstance(await b.answer(number), Sealed)


async def test_process_has_a_successor_before_its_streams_fail(tmp_path: Path):
    """The others may be short of the same resource."""
    async with bench(tmp_path, workers=2, transform="tests.faults.deeds:do") as b:
        report, alive = b.executor._streams.report, []

        def reported(message: FromStream) -> None:
            if isinstance(message, Failed):
                alive.append(len(b.executor.pids))
            report(message)

        b.executor._streams.report = reported
        b.submit(1, b"fine", b"raise emfile")
        b.submit(2, b"spin")
        assert "no good" in (await b.failed(1)).reason
        assert alive == [2]
        [fresh] = [p for p in b.executor._processes if not p.streams]
        b.submit(4, b"fine")
        assert len(fresh.streams) == 1
        assert isinstance(await b.answer(4), Sealed)


async def test_what_users_print_goes_to_stderr_and_stdin_is_empty(tmp_path: Path, capfd):
    async with bench(tmp_path, transform="tests.sampler.steps:chatty") as b:
        b.submit(1, b"x", b"y")
        assert isinstance(await b.answer(1), Sealed)
    for _, _, record in read_back(Path(b.path(1))).records:
        assert decode_example(record)["stdin"] == ("bytes", [b""])
    printed = capfd.readouterr().err.splitlines()
    for line in ("a print", "a write to descriptor 1", "a child's output"):
        assert printed.count(line) == 2


async def test_signals_for_the_whole_group_are_left_to_the_daemon(tmp_path: Path):
    async with bench(tmp_path) as b:
        b.submit(1, b"x")
        await b.answer(1)
        [pid] = b.executor.pids
        os.kill(pid, signal.SIGTERM)
        b.submit(2, b"y")
        assert isinstance(await b.answer(2), Sealed)
        assert b.executor.pids == [pid]
