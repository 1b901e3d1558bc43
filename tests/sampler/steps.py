"""Steps of transforms for tests; sampler processes import them by name."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Record = dict[str, Any]

seen: list[Record] = []


def remember(record: Record) -> Record:
    seen.append(record)
    return record


def nameless(record: Record) -> Record:
    return {name: value for name, value in record.items() if name != "__key__"}


def twice(record: Record) -> Iterator[Record]:
    for variant in range(2):
        yield {**record, "variant": variant}


def over(step: Any, items: list[Any]) -> list[Any]:
    """The results of a ready-made step over groups."""

    async def given() -> AsyncIterator[Any]:
        for item in items:
            yield item

    async def results() -> list[Any]:
        return [result async for result in step.over(given())]

    return asyncio.run(results())


def to_bytes(record: Record) -> Record:
    """Each byte of the text is a token."""
    return {"tokens": np.frombuffer(record["text"], np.uint8)}


def tokens_of(record: Record) -> Record:
    return {"tokens": np.frombuffer(record["payload"], np.uint8)}


def reused(record: Record) -> Iterator[Record]:
    """Changes the record that it has yielded, and the array in it."""
    made = {"tokens": np.zeros(16, np.uint8)}
    for number in (1, 2):
        made["tokens"][:] = number
        yield made


def reused_in_a_group(records: Iterator[Record]) -> Iterator[Record]:
    for record in records:
        yield from reused(record)


def shifted(record: Record) -> Record:
    return {"tokens": record["tokens"][:-1], "targets": record["tokens"][1:]}


def same(records: Iterator[Record]) -> Iterator[Record]:
    yield from records


def in_pairs(records: Iterator[Record]) -> Iterator[Record]:
    """Over groups: makes one record of two."""
    for record in records:
        other = next(records, None)
        data = record["data"] + (other["data"] if other else b"")
        yield {"id": record["id"], "data": data}


def wild_in_a_group(records: Iterator[Record]) -> Iterator[Record]:
    for record in records:
        result = wild(record)
        yield result  # type: ignore[misc]


failed: list[bool] = []


def adds_one_and_fails_once(record: Record) -> Record:
    """Changes the array in place, and then fails the first time."""
    record["n"] += 1
    if not failed:
        failed.append(True)
        raise ValueError("not yet")
    return record


def keep_large(record: Record) -> Record | None:
    return record if len(record["payload"]) > 5 else None


def chatty(record: Record) -> Record:
    """Prints in every way there is, and reads stdin."""
    print("a print")  # noqa: T201
    os.write(1, b"a write to descriptor 1\n")
    subprocess.run(["echo", "a child's output"], check=True)
    return {**record, "stdin": sys.stdin.read()}


def wild(record: Record) -> Record | int | None:
    match record["payload"]:
        case b"raise":
            raise ValueError("no good")
        case b"exit":
            sys.exit(3)
        case b"drop":
            return None
        case b"number":
            return 5
        case b"misfit":
            return {**record, "payload": 1.5}
    return record


def spawn_and_wait(record: Record) -> Record:
    """Starts a process, writes its number beside this file's stead, and waits for ever."""
    child = subprocess.Popen(["sleep", "3600"])
    Path(os.environ["CHILD_FILE"]).write_text(str(child.pid))
    time.sleep(3600)
    return record


def first_then_wait(record: Record) -> Record:
    if not record["key"].endswith(b"0"):
        time.sleep(3600)
    return record


def slow(record: Record) -> Record:
    time.sleep(0.2)
    return record


def endless(record: Record) -> Iterator[Record]:
    number = 0
    while True:
        yield {"n": number}
        number += 1


def returns(record: Record) -> Any:
    return record["value"]


def hold_everything(record: Record) -> Record:
    """Never returns, and lets no other Python thread run; says in CHILD_FILE that it has begun."""
    Path(os.environ["CHILD_FILE"]).write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(3600)
    return record


def fork_and_wait(record: Record) -> Record:
    """Has a forked child, which has one too, and a started one, none of which ends when asked to."""
    path = Path(os.environ["CHILD_FILE"])
    stubborn = "trap '' TERM HUP INT; while :; do sleep 1000; done"
    started = subprocess.Popen(["sh", "-c", stubborn])
    reading, writing = os.pipe()
    if not os.fork():
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if os.fork():
            os.write(writing, b"%d " % os.getpid())
        else:
            os.write(writing, b"%d " % os.getpid())
        time.sleep(3600)
    found = b""
    while found.count(b" ") < 2:
        found += os.read(reading, 64)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(f"{os.getpid()} {started.pid} {found.decode()}")
    new.replace(path)
    time.sleep(3600)
    return record
