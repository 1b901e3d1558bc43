"""Runs a function again and again, in processes forked under a faulty disk: a kill costs milliseconds.

with Victims(disk, "tests.disk.deeds") as victims:
    assert victims.run("publish", str(folder)) == -signal.SIGKILL
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from tests.faults.disk import FaultyDisk

CHANGES = frozenset(
    ["create", "write", "sync", "rename", "unlink", "mkdir", "allocate", "truncate", "link"]
)
REPOSITORY = Path(__file__).parents[2]


class Victims:
    """A process that has imported a module, and forks a child for each run of one of its functions."""

    def __init__(self, disk: FaultyDisk, module: str) -> None:
        self._disk = disk
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.victims", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **disk.environ, "OMP_NUM_THREADS": "1"},
            cwd=REPOSITORY,
        )

    def __enter__(self) -> Victims:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, function: str, *arguments: object) -> int:
        """The exit status of the child: 0, 1 after an exception, or minus the signal that ended it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([function, *arguments]).encode() + b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def changes(self, function: str, *arguments: object) -> list[tuple[int, str, str]]:
        """(index among all operations, operation, path) of every operation that changes the disk, in a run
        in which nothing is killed."""
        self._disk.reset()
        self._disk.trace()
        assert self.run(function, *arguments) == 0
        traced = self._disk.traced
        self._disk.reset()
        return [(n, done, path) for n, (_, done, path) in enumerate(traced) if done in CHANGES]

    def kill_at(self, index: int, function: str, *arguments: object) -> None:
        """A run that is killed before the operation of this index."""
        self._disk.reset()
        self._disk.kill("*", f"{self._disk.root}*", skip=index)
        status = self.run(function, *arguments)
        self._disk.reset()
        assert status == -signal.SIGKILL, f"operation {index} was never reached: status {status}"

    def fail_at(self, index: int, code: int, function: str, *arguments: object) -> int:
        """A run in which the operation of this index fails with errno `code`; its exit status."""
        self._disk.reset()
        self._disk.fail("*", f"{self._disk.root}*", code, skip=index, count=1)
        status = self.run(function, *arguments)
        self._disk.reset()
        return status


def _lines() -> Iterator[list[str]]:
    for line in sys.stdin.buffer:
        yield json.loads(line)


def main(name: str) -> None:
    module = importlib.import_module(name)
    for function, *arguments in _lines():
        child = os.fork()
        if child == 0:
            status = 1
            try:
                getattr(module, function)(*arguments)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
