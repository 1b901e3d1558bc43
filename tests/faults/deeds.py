"""A transform that does to its process what the record's payload says."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

Record = dict[str, Any]

_hoard: list[bytearray] = []
_descriptors: list[int] = []
_tries: dict[bytes, int] = {}


def do(record: Record) -> Record | None:
    """The record again, with what the deed returns; `NOTES` names a folder for numbers of processes."""
    deed, _, argument = record["payload"].partition(b" ")
    done = DEEDS[deed.decode()](argument.decode())
    return {"key": record["key"], "payload": record["payload"], "done": done or b""}


def note(name: str, pid: int) -> None:
    """For the test, all at once."""
    folder = Path(os.environ["NOTES"])
    (folder / f"{name}.new").write_text(f"{pid}")
    (folder / f"{name}.new").rename(folder / name)


def fine(_: str) -> None:
    """Nothing."""


def raise_(what: str) -> NoReturn:
    raise {
        "error": ValueError("no good"),
        "interrupt": KeyboardInterrupt(),
        "cancelled": asyncio.CancelledError(),
        "generator": GeneratorExit(),
        "exit": SystemExit(3),
        "memory": MemoryError("no good"),
        "emfile": OSError(errno.EMFILE, "no good"),
        "enfile": OSError(errno.ENFILE, "no good"),
        "enomem": OSError(errno.ENOMEM, "no good"),
        "eagain": BlockingIOError(errno.EAGAIN, "no good"),
        "thread": RuntimeError("can't start new thread"),
    }[what]


def raise_once(name: str) -> bytes:
    tries = _tries[name.encode()] = _tries.get(name.encode(), 0) + 1
    if tries == 1:
        raise ConnectionResetError("not this time")
    return b"%d" % tries


def spin(_: str) -> NoReturn:
    """Keeps the GIL, but for Python's own switching."""
    while True:
        pass


def stuck_in_c(_: str) -> None:
    """Keeps the GIL for good: a PyDLL does not let it go."""
    ctypes.PyDLL(None).sleep(3600)


def wait_for_a_child(name: str) -> None:
    if not (pid := os.fork()):
        time.sleep(3600)
        os._exit(0)
    note(name, pid)
    os.waitpid(pid, 0)


def leak(megabytes: str) -> None:
    _hoard.append(bytearray(b"x") * (int(megabytes) << 20))


def leak_for_ever(_: str) -> None:
    while True:
        leak("16")
        time.sleep(0.01)


def leak_descriptors(how: str) -> None:
    """Opens as many as the limit allows."""
    try:
        while True:
            _descriptors.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        if how != "silently":
            raise


def segfault(_: str) -> None:
    ctypes.string_at(0)


def really_exit(status: str) -> None:
    os._exit(int(status))


def killed(_: str) -> None:
    """As the kernel does it when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def fork_twice(name: str) -> bytes:
    """Both parent and child come back from here."""
    pid = os.fork()
    if pid:
        note(name, pid)
        return b"parent"
    return b"child"


def daemonise(name: str) -> None:
    """Leaves a process in a session of its own, whose parent is dead, and goes on."""
    if child := os.fork():
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    note(name, os.getpid())
    time.sleep(3600)
    os._exit(0)


def daemonise_and_die(name: str) -> NoReturn:
    daemonise(name)
    os._exit(4)


def start_and_hang(name: str) -> None:
    child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    note(name, child.pid)
    time.sleep(3600)


def _write_to(descriptors: Iterable[int]) -> None:
    for fd in descriptors:
        with contextlib.suppress(OSError):
            os.set_blocking(fd, False)
            os.write(fd, b"hello, this is a log line\n" * 10)


def write_everywhere(_: str) -> None:
    """To every number, as one may who has inherited descriptors from somewhere."""
    _write_to(range(3, 200))


def write_to_pipes(_: str) -> None:
    """Into every pipe that can be found, ours among them, whatever its number; till it is ended."""
    named = {fd: f"/proc/self/fd/{fd}" for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2}
    there = {fd: path for fd, path in named.items() if os.path.exists(path)}
    _write_to(fd for fd, path in there.items() if "pipe:" in os.readlink(path))
    time.sleep(3600)


DEEDS: dict[str, Any] = {
    "fine": fine,
    "raise": raise_,
    "raise-once": raise_once,
    "spin": spin,
    "stuck-in-c": stuck_in_c,
    "wait-for-a-child": wait_for_a_child,
    "leak": leak,
    "leak-for-ever": leak_for_ever,
    "leak-descriptors": leak_descriptors,
    "close-descriptors": lambda _: os.closerange(3, 200),
    "segfault": segfault,
    "abort": lambda _: os.abort(),
    "exit": really_exit,
    "killed": killed,
    "fork-twice": fork_twice,
    "daemonise-and-die": daemonise_and_die,
    "start-and-hang": start_and_hang,
    "write-everywhere": write_everywhere,
    "write-to-pipes": write_to_pipes,
}
