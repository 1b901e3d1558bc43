"""The sampler process: `python -m cachecd.sampler [PROGRESS_FD LINK_FD]`, started by an executor.

The process reads frames (cachecd.sampler.messages) from stdin, and writes frames to stdout. A `print` of
any code writes to stderr. PROGRESS_FD is a shared file (cachecd.sampler.heartbeat) that always names the
unit in work. If the process dies, the executor reads the unit from this file. LINK_FD is a file
through which all samplers share the bandwidth (cachecd.sampler.throttle).

The process ends at once when stdin ends, because it must not outlive the daemon. The processes that it
started end too (cachecd.sampler.child).
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import BinaryIO, NoReturn

from cachecd.sampler.child import keep_freed_memory, lower_priority, serve_the_daemon
from cachecd.sampler.descriptors import mapped
from cachecd.sampler.draft import discard
from cachecd.sampler.heartbeat import SIZE, Heartbeat
from cachecd.sampler.messages import FRAMES, FromStream, OfStreams, Setup
from cachecd.sampler.usercode import Guest, search_first
from cachecd.sampler.worker import Worker


def main(arguments: list[str]) -> None:
    keep_freed_memory()
    requests, replies = serve_the_daemon()
    lower_priority()
    setup = FRAMES.read(requests)
    if setup is None:
        return
    assert isinstance(setup, Setup), f"expected Setup first, got {type(setup).__name__}"

    search_first(setup.path)
    worker: Worker

    def end() -> NoReturn:
        # This thread discards the files, because a transform may keep the event loop busy for long.
        for path in worker.paths:
            discard(path)
        os._exit(0)

    def send(message: FromStream) -> None:
        try:
            replies.write(FRAMES.pack(message))
            replies.flush()
        except BrokenPipeError:
            end()

    progress, link = map(int, arguments) if arguments else (None, None)
    mark = None if progress is None else Heartbeat(mapped(progress, SIZE))
    worker = Worker(setup, send, mark, link=link)
    Guest.mark = mark or Guest.mark
    # User code runs next, and must not find a descriptor through which it could write to these files.
    for shared in (progress, link):
        if shared is not None:
            os.close(shared)
    worker.prepare()
    asyncio.run(_serve(worker, requests, end))


async def _serve(worker: Worker, requests: BinaryIO, end: Callable[[], NoReturn]) -> None:
    loop = asyncio.get_running_loop()

    def listen() -> None:
        try:
            while isinstance(request := FRAMES.read(requests), OfStreams):
                loop.call_soon_threadsafe(worker.receive, request)
        except ValueError:
            traceback.print_exc()
        end()

    threading.Thread(target=listen, name="listen", daemon=True).start()
    await worker.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
