"""The sampler process: `python -m cachecd.sampler [PROGRESS_FD]`, started by an executor.

Frames (cachecd.sampler.messages) come in on stdin and go out on stdout. Whoever prints, prints on
stderr. PROGRESS_FD is a shared file whose first eight bytes always name the unit in hand, so that
whoever finds this process dead knows the unit on which it died.

It ends when stdin does, at once and whatever it is doing: it must not outlive the daemon. Nor does what
it has started outlive it (cachecd.sampler.guard).
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from typing import BinaryIO, NoReturn

from cachecd.sampler import messages
from cachecd.sampler.draft import discard
from cachecd.sampler.guard import die_with_the_parent, start_guard
from cachecd.sampler.messages import FromSampler, Make, Setup
from cachecd.sampler.worker import Worker

_OOM_SCORE = 800  # of -1000 (never killed) to 1000 (first)


def main(arguments: list[str]) -> None:
    # Even where EOF cannot be noticed, in native code that keeps the GIL.
    die_with_the_parent()
    if os.getpgrp() == os.getpid():
        start_guard()
    _die_before_the_trainer()
    for number in (signal.SIGINT, signal.SIGTERM):
        # A service manager signals the whole group: the daemon drains, and ends this process by EOF.
        # A handler, unlike SIG_IGN, is not inherited by what a transform may start.
        signal.signal(number, lambda *_: None)
    requests, replies = _take_over_the_pipes()
    setup = messages.read(requests)
    if setup is None:
        return
    assert isinstance(setup, Setup), f"expected Setup first, got {type(setup).__name__}"

    worker: Worker

    def end() -> NoReturn:
        # Not by way of the event loop, which a transform may keep busy for long.
        if worker.path is not None:
            discard(worker.path)
        os._exit(0)

    def send(message: FromSampler) -> None:
        try:
            replies.write(messages.pack(message))
            replies.flush()
        except BrokenPipeError:
            end()

    worker = Worker(setup, send, _marker(arguments))
    worker.prepare()
    asyncio.run(_serve(worker, requests, send, end))


async def _serve(
    worker: Worker,
    requests: BinaryIO,
    send: Callable[[FromSampler], None],
    end: Callable[[], NoReturn],
) -> None:
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[Make] = asyncio.Queue()

    def listen() -> None:
        try:
            while isinstance(request := messages.read(requests), Make):
                loop.call_soon_threadsafe(inbox.put_nowait, request)
        except ValueError:
            traceback.print_exc()
        end()

    threading.Thread(target=listen, name="listen", daemon=True).start()
    while True:
        send(await worker.make(await inbox.get()))


def _die_before_the_trainer() -> None:
    """When the machine has no memory left: this process is replaced at no cost, the trainer is not."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+") as file:
        score = max(int(file.read()), _OOM_SCORE)
        file.seek(0)
        file.write(f"{score}")


def _take_over_the_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The two pipes, out of reach of other code: a `print` goes to stderr, and stdin is empty."""
    sys.stdout.flush()
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(requests, "rb"), os.fdopen(replies, "wb")


def _marker(arguments: list[str]) -> Callable[[int], None]:
    if not arguments:
        return lambda unit: None
    shared = mmap.mmap(int(arguments[0]), 8)
    return lambda unit: struct.pack_into("<q", shared, 0, unit)


if __name__ == "__main__":
    main(sys.argv[1:])
