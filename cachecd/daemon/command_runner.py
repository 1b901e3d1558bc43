"""Carries out the commands of the policy, each in its thread, and delivers the results as events.

One thread writes, in the order of the commands. So shards of a stream are published in order, an exclusion
is written before shards are searched, and the reports of a stream stay in order. Searches, and local copies
of whole shards, take long: another thread does them. It also publishes the copies.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import structlog

from cachecd.daemon.background import Background
from cachecd.daemon.disk_work import DiskWork, Search, Write
from cachecd.daemon.refetch import Refetch
from cachecd.daemon.worker_streams import WorkerStreams
from cachecd.errors import DiskError
from cachecd.executors import Executor
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.values import GenerationId

_log = structlog.get_logger("cachecd.daemon")
_LAST_WRITES = 2.0  # seconds for the writes that wait when the daemon ends
_RETRY = 5.0  # seconds until a schema that the disk refused is written again
_WRITES, _SEARCHES = get_args(Write), get_args(Search)

ToClient = do.ReplyGranted | do.ReplyDone | do.ReplyWaiting | do.ReplyRefused


class CommandRunner:
    """`deliver` gets every event, on the event loop. `reply` gets the replies to requests. `fetched` counts
    bytes of a dataset. `background` holds all tasks."""

    def __init__(
        self,
        work: DiskWork,
        executor: Executor,
        deliver: Callable[[ev.Event], None],
        reply: Callable[[ToClient], None],
        fetched: Callable[[str, int], None] = lambda dataset, count: None,
    ) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._deliver, self._reply = deliver, reply
        self._writes = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._searches = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._closing = False
        self.background = Background()
        self.streams = WorkerStreams(
            *(executor, work, self.background, self.record, self._described, fetched)
        )
        self._refetch = Refetch(work, self.streams, self.background, self.record)

    def carry_out(self, commands: Iterable[do.Command]) -> None:
        """Begins every command, in order. Never blocks."""
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: do.Command) -> None:
        match command:
            case do.OpenStream():
                self.streams.open(command)
            case do.SetUntil() | do.GrantShard():
                self.streams.send(command)
            case do.CloseStream():
                self.streams.close(command)
            case do.RemakeShard(local=False) | do.FindMissing() | do.MakeSupplement():
                self._refetch.carry_out(command)
            case _ if isinstance(command, _WRITES):
                self.record(lambda: self._do(self._work.write, command))
            case _ if isinstance(command, _SEARCHES):
                self.search(lambda: self._do(self._work.search, command))
            case _:
                self._reply(command)  # type: ignore[arg-type]

    def record(self, job: Callable[[], list[ev.Event]]) -> None:
        """Does a job in the thread of writes, after all jobs before, and delivers its events."""
        self._begin(self._writes, job)

    def search(self, job: Callable[[], list[ev.Event]]) -> None:
        """Does a job in the thread of searches, and delivers its events."""
        self._begin(self._searches, job)

    async def finish(self) -> None:
        """Ends the writes that were begun, and stops long work. Nothing is delivered afterwards."""
        self._closing = True
        self._work.stops.set()
        await self.background.close()
        self.streams.finish()
        self._searches.shutdown(wait=False, cancel_futures=True)
        ending = asyncio.ensure_future(asyncio.to_thread(self._writes.shutdown))
        _, late = await asyncio.wait({ending}, timeout=_LAST_WRITES)
        if late:  # as many writes as an exclusion of 10,000 keys has: a start takes them up
            self._writes.shutdown(wait=False, cancel_futures=True)
        await ending
        await asyncio.to_thread(self._searches.shutdown)

    def _begin(self, pool: ThreadPoolExecutor, job: Callable[[], list[ev.Event]]) -> None:
        def work() -> None:
            try:
                events = job()
            except Exception:
                _log.exception("a job of the daemon failed unexpectedly")
                return
            self._loop.call_soon_threadsafe(self._take, events)

        if not self._closing:
            pool.submit(work)

    def _take(self, events: Iterable[ev.Event]) -> None:
        if self._closing:
            return
        for event in events:
            try:
                self._deliver(event)
            except Exception as error:  # the events behind it count all the same
                about = {"message": f"{type(event).__name__} not handled", "exception": error}
                self._loop.call_exception_handler(about)

    def _do(self, work: Callable[[Any], list[ev.Event]], command: Any) -> list[ev.Event]:
        try:
            return work(command)
        except InterruptedError:  # the daemon ends
            return []
        except Exception as error:
            _log.exception("a command failed unexpectedly")
            reason = f"{type(error).__name__}: {error}"
            return [ev.DiskRefused(command, reason)]

    def _described(self, generation: GenerationId, schema: dict[str, Any]) -> None:
        self._work.schemas[generation] = schema

        def write() -> list[ev.Event]:
            try:
                self._work.write_schema(generation, json.dumps(schema))
            except DiskError as error:
                _log.warning("schema stored later", dataset=generation.dataset, why=str(error))
                later = self._loop.call_later
                self._loop.call_soon_threadsafe(later, _RETRY, self._described, generation, schema)
            return []

        self.record(write)
