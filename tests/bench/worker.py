"""Measures contenders, each in a process of its own, forked from one that has loaded its packages.

`Worker` runs this module as `python -m tests.bench.worker PACKAGE...`. Loading torch takes seconds and
TensorFlow more, so that process does it once, and forks before anything has run. It takes tasks on its
standard input, one JSON object a line, and answers each on its standard output: {"done": ...} or
{"failed": "why"}. A task with a `call`, "module:function", calls it with the task's other items. Such a
worker may run in another Python, which has only the packages.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from tests.bench import measuring

if TYPE_CHECKING:
    from tests.bench.data import RecordSet

ROOT = Path(__file__).parents[2]

Task = Mapping[str, Any]

_MOST_OF_A_MESSAGE = 300
_PATIENCE = 120.0  # seconds that a task may take, besides what it is told to take


class Worker:
    """A process that has loaded some packages and measures contenders that need them."""

    def __init__(self, packages: Sequence[str], python: str = sys.executable) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.getenv("PYTHONPATH")])]),
            "PYTHONWARNINGS": "ignore",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
            "LITDATA_DISABLE_VERSION_CHECK": "1",
        }
        self._process = subprocess.Popen(
            [python, "-m", "tests.bench.worker", *packages],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what packages warn of
            env=environment,
            cwd=ROOT,
            text=True,
        )
        self._first: dict[str, Any] | None = None

    def absent(self) -> str | None:
        if self._first is None:
            self._first = self._answer()
        return self._first.get("failed")

    def do(self, **task: Any) -> dict[str, Any]:
        """The task's answer: {"done": ...} or {"failed": why}."""
        assert self.absent() is None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            return {"failed": "its process died"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.terminate()
        self._process.wait()
        self._process.stdout.close()


def main(packages: list[str]) -> None:
    # Packages print what they like: the answers go where only they go.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        for package in packages:
            importlib.import_module(package)
    except Exception as error:
        answers.write(json.dumps({"failed": _why(error)}) + "\n")
        return
    answers.write(json.dumps({"done": None}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(_forked(json.loads(line))) + "\n")


def _forked(task: Task) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()  # its own children end with it, however it ends
        with suppress(BaseException):
            os.close(reading)
            answer = _carry_out(task)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(json.dumps(answer).encode() + b"\n")
        os._exit(0)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            answer = _answer(child, pipe, task)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
    return answer


def _answer(child: int, pipe: BinaryIO, task: Task) -> dict[str, Any]:
    """The line that comes from the child, if one comes; its children may hold the pipe open."""
    until = time.monotonic() + _PATIENCE + 20 * task.get("seconds", 60)
    received = b""
    while not received.endswith(b"\n"):
        if time.monotonic() > until:
            return {"failed": "took too long"}
        if not select.select([pipe], [], [], 0.05)[0]:
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return {"failed": "its process died"}
            continue
        part = pipe.read(1 << 16)
        if not part:
            return {"failed": "its process died"}
        received += part
    answer: dict[str, Any] = json.loads(received)
    return answer


def _carry_out(task: Task) -> dict[str, Any]:
    try:
        if "call" in task:
            module, _, name = task["call"].partition(":")
            given = {key: value for key, value in task.items() if key != "call"}
            return {"done": getattr(importlib.import_module(module), name)(**given)}
        from tests.bench.contenders import CONTENDERS
        from tests.bench.data import CASES, RecordSet

        contender = CONTENDERS[task["contender"]]
        records = RecordSet(Path(task["data"]), CASES[task["case"]], task["megabytes"])
        if task["do"] == "convert":
            records.make(contender.form, contender.convert)
            return {"done": None}
        return {"done": _measured(task, records)}
    except Exception as error:
        return {"failed": _why(error)}


def _why(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    message = str(error)
    if len(message) > _MOST_OF_A_MESSAGE:  # the error of a process comes last, its traceback before
        message = f"{message[: _MOST_OF_A_MESSAGE // 2]}...{message[-_MOST_OF_A_MESSAGE // 2 :]}"
    return f"{type(error).__name__}: {message} ({Path(where.filename).name}:{where.lineno})"


def _measured(task: Task, records: RecordSet) -> dict[str, float | bool]:
    """One value for each figure; those of readers only are left out for baselines."""
    from tests.bench import delivery
    from tests.bench.contenders import CONTENDERS

    contender, seconds = CONTENDERS[task["contender"]], task["seconds"]
    figures: dict[str, float | bool] = {}
    with contender.open(records) as passes:
        if contender.family == "baseline":
            return _alone(measuring.drain(passes, records, seconds), records)
        if task["verify"]:
            patience = max(10.0, 2 * seconds)  # how fast it is, is no question here
            figures |= asdict(
                delivery.verify(passes, records, seconds=patience, tails=contender.tails)
            )
        figures |= _alone(measuring.drain(passes, records, seconds), records)
        window = measuring.drain(passes, records, seconds, measuring.computing())
        figures["busy_mb_s"] = window.records * records.record_bytes / window.seconds / 1e6
        paced = measuring.pace(passes, records, seconds)
        gigabytes = paced.records * records.record_bytes / 1e9
        figures["next_ms_gb"] = paced.next_seconds * 1e3 / gigabytes
        figures["paced_mb_s"] = gigabytes * 1e3 / paced.seconds
    return figures


def _alone(window: measuring.Window, records: RecordSet) -> dict[str, float | bool]:
    num_bytes = window.records * records.record_bytes
    return {
        "mb_s": num_bytes / window.seconds / 1e6,
        "cpu_s_gb": window.cpu_seconds / (num_bytes / 1e9),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
