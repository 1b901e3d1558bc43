"""What a transform can do to its process: the unit pays for it, and nobody else.

Two real processes serve all tests of this file; each harm is done beside a neighbour that works.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachecd.sampler.messages import Failed, Sealed
from cachecd_client._core import decode_example
from tests.contracts.format import read_back
from tests.executors.bench import Bench, is_alive, until
from tests.faults.deeds import DEEDS

SILENCE = 3.0
STEP = " while tests.faults.deeds:do was running"
MEMORY = 240 << 20


class Workers:
    """An executor with two processes, run by the test's calls alone."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.log = (folder / "stderr").open("w+")
        self._loop = asyncio.new_event_loop()
        self._stderr = os.dup(2)
        os.dup2(self.log.fileno(), 2)  # the processes' stderr is ours
        self.bench = Bench(
            folder,
            2,
            transform="tests.faults.deeds:do",
            environ={**os.environ, "NOTES": str(self.notes)},
            silence=SILENCE,
            memory=MEMORY,
        )
        self.executor = self.bench.executor
        self._number = 0
        self._loop.run_until_complete(self.bench.start())

    def close(self) -> None:
        pids = self.executor.pids
        self._loop.run_until_complete(self.executor.close(5))
        os.dup2(self._stderr, 2)
        os.close(self._stderr)
        self.log.close()
        self._loop.close()
        assert not any(map(is_alive, pids))

    def make(self, *deeds: str) -> tuple[int, Sealed | Failed]:
        """One shard of these; a neighbour's, made meanwhile, must come out right."""
        assert {deed.split()[0] for deed in deeds} <= DEEDS.keys()
        number, neighbour = self._number + 1, self._number + 2
        self._number += 2

        async def both() -> Sealed | Failed:
            self.bench.submit(number, *(deed.encode() for deed in deeds))
            self.bench.submit(neighbour, b"fine", b"fine")
            other = await self.bench.answer(neighbour)
            assert isinstance(other, Sealed)
            assert not other.skipped
            return await self.bench.answer(number)

        answer = self._loop.run_until_complete(both())
        assert done(self.bench.path(neighbour)) == {0: b"", 1: b""}
        if isinstance(answer, Failed):
            assert not list(self.bench.folder.glob(f"{number}.tfrecord*")), "nothing of it is left"
        self.poll(self.ready)
        return number, answer

    def made(self, *deeds: str) -> tuple[dict[int, bytes], dict[int, str]]:
        """What each deed returned, and the reasons of those that are skipped."""
        number, answer = self.make(*deeds)
        assert isinstance(answer, Sealed), answer
        path = self.bench.path(number)
        reasons = {skip.unit % 1000: skip.reason for skip in answer.skipped}
        return done(path), reasons

    def failed(self, deed: str) -> str:
        """Its reason; the deed is the third of four, and is named."""
        before = self.executor.status()
        number, answer = self.make("fine", "fine", deed, "fine")
        assert isinstance(answer, Failed), answer
        assert (answer.cause, answer.unit) == ("worker", 1000 * number + 2)
        assert self.executor.status() == {
            "workers": 2,
            "alive": 2,
            "restarts": before["restarts"] + 1,
            "last_end": f"{answer.reason} (unit {answer.unit})",
        }
        return answer.reason

    def failed_at_once(self, *deeds: str) -> list[str]:
        """Their reasons, each in a process of its own and the second of three."""
        first = self._number + 1
        self._number += len(deeds)

        async def all_of_them() -> list[Failed]:
            for number, deed in enumerate(deeds, first):
                self.bench.submit(number, b"fine", deed.encode(), b"fine")
            return [await self.bench.failed(number) for number in range(first, self._number + 1)]

        answers = self._loop.run_until_complete(all_of_them())
        for number, answer in enumerate(answers, first):
            assert (answer.cause, answer.unit) == ("worker", 1000 * number + 1)
        self.poll(self.ready)
        return [answer.reason for answer in answers]

    def ready(self) -> bool:
        busy = [bool(p.streams) or p.retired for p in self.executor._processes]
        return busy == [False, False]

    def poll(self, condition: Callable[[], bool]) -> None:
        self._loop.run_until_complete(until(condition))

    def noted(self, name: str) -> int:
        self.poll((self.notes / name).exists)
        return int((self.notes / name).read_text())


def done(path: str) -> dict[int, bytes]:
    records = read_back(Path(path)).records
    return {unit % 1000: decode_example(r)["done"][1][0] for unit, _, r in records}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    found = Workers(tmp_path_factory.mktemp("workers"))
    try:
        yield found
    finally:
        found.close()


# --- what costs the unit, and not even its process


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("error", "ValueError: no good"),
        ("exit", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt"),
        ("cancelled", "asyncio.exceptions.CancelledError"),
        ("generator", "GeneratorExit"),
        ("memory", "MemoryError: no good"),
    ],
)
def test_whatever_it_raises_costs_the_unit_alone_and_names_the_users_line(
    workers: Workers, what: str, name: str
):
    pids = set(workers.executor.pids)
    found, reasons = workers.made("fine", f"raise {what}", "fine")
    assert found == {0: b"", 2: b""}
    assert reasons.keys() == {1}
    assert reasons[1].startswith(f"tests.faults.deeds:do raised {name} (")
    assert "deeds.py:" in reasons[1]
    assert set(workers.executor.pids) == pids


def test_what_fails_once_is_tried_again_at_once(workers: Workers):
    found, reasons = workers.made("raise-once a", "fine", "raise-once b")
    assert (found, reasons) == ({0: b"2", 1: b"", 2: b"2"}, {})


# --- what costs the process


@pytest.mark.parametrize(
    ("deed", "end"),
    [
        ("abort", "was killed by SIGABRT"),
        ("exit 0", "exited with status 0"),
    ],
)
def test_a_death_costs_the_stream_and_names_the_unit(workers: Workers, deed: str, end: str):
    assert workers.failed(deed) == f"sampler process {end}{STEP}"


def test_closed_descriptors_name_the_step_that_had_run(workers: Workers):
    assert workers.failed("close-descriptors") == (
        "sampler process exited with status 1 after tests.faults.deeds:do had run"
    )


@pytest.mark.parametrize("shortage", ["emfile", "enfile", "enomem", "eagain", "thread"])
def test_shortage_of_its_process_replaces_it_without_blame(workers: Workers, shortage: str):
    before = workers.executor.status().restarts
    number, answer = workers.make("fine", f"raise {shortage}", "fine")
    assert isinstance(answer, Failed), answer
    assert (answer.cause, answer.unit, answer.passing) == ("worker", 1000 * number + 1, True)
    assert "does tests.faults.deeds:do leak?" in answer.reason
    assert workers.executor.status().restarts == before + 1


@pytest.mark.parametrize("how", ["loudly", "silently"])
def test_leak_of_all_descriptors_names_user_code_and_their_count(workers: Workers, how: str):
    """If the step ignores its own error, the shard, the store or the next step fails."""
    _, answer = workers.make("fine", f"leak-descriptors {how}", "leak-descriptors loudly", "fine")
    assert isinstance(answer, Failed), answer
    assert (answer.cause, answer.passing) == ("worker", True)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert f"({limit} of {limit} descriptors are open; does tests.faults.deeds:do" in answer.reason


HUNG = (
    f"sampler process was silent for {SILENCE:g} s (does a transform hang? sampler.unit_timeout) and "
    f"was killed by SIGKILL{STEP}"
)


def test_a_hang_is_found_by_its_silence(workers: Workers):
    """One that lets other threads run, one that keeps the GIL."""
    assert workers.failed_at_once("spin", "stuck-in-c") == [HUNG, HUNG]


def test_what_takes_too_much_memory_is_ended(workers: Workers):
    assert workers.failed("leak-for-ever") == (
        "sampler process took more than 240 MiB of memory (sampler.memory) and was killed by SIGKILL"
        + STEP
    )


def test_a_process_that_leaks_slowly_is_replaced_between_two_shards_at_no_cost(workers: Workers):
    before = set(workers.executor.pids)
    found, reasons = workers.made("leak 180", "fine")
    assert (found, reasons) == ({0: b"", 1: b""}, {})
    workers.poll(lambda: len(set(workers.executor.pids) - before) == 1)
    assert "memory was nearly used up" in workers.executor.status().last_end


# --- what it leaves behind


def test_what_it_started_dies_with_its_process_whatever_its_session(workers: Workers):
    """A forked child that it waits for, one in a session of its own, and one whose parent is dead."""
    assert workers.failed_at_once("wait-for-a-child a", "start-and-hang b") == [HUNG, HUNG]
    workers.failed("daemonise-and-die c")
    children = [workers.noted(name) for name in ("a", "b", "c")]
    workers.poll(lambda: not any(map(is_alive, children)))


def test_a_child_that_comes_back_from_the_fork_ends_there(workers: Workers):
    found, reasons = workers.made("fine", "fork-twice twice", "fine", "fork-twice again", "fine")
    assert (found, reasons) == ({0: b"", 1: b"parent", 2: b"", 3: b"parent", 4: b""}, {})
    children = [workers.noted(name) for name in ("twice", "again")]
    workers.poll(lambda: not any(map(is_alive, children)))


# --- what it does to its surroundings


def test_what_it_writes_to_our_pipe_is_not_taken_for_a_message(workers: Workers):
    assert workers.failed("write-to-pipes") == (
        "sampler process wrote something that is not a message (does a transform write to its pipe?) and "
        f"was killed by SIGKILL{STEP}"
    )


def test_what_it_writes_to_inherited_descriptors_is_its_units_fault(workers: Workers):
    assert "the shard's descriptor was written to or closed by other code" in workers.failed(
        "write-everywhere"
    )


def test_a_kill_from_outside_is_no_units_fault_for_ever(workers: Workers):
    _, answer = workers.make("fine", "killed", "fine")
    assert isinstance(answer, Failed)
    assert (answer.unit is not None, answer.passing) == (True, True)
    assert answer.reason == "sampler process was killed by SIGKILL (out of memory?)" + STEP
    _, answer = workers.make("fine", "segfault", "fine")
    assert isinstance(answer, Failed)
    assert not answer.passing
