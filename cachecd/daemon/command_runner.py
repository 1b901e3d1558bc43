"""Carries out the commands of the policy in threads, and delivers the results as events.

One thread does all writes, in the order of the commands. So the shards of a stream are published in order,
and the reports of a stream stay in order. An exclusion is written before shards are searched. A second
thread does the slow work: it searches shards, and makes and publishes local copies of whole shards.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, get_args

import structlog

from cachecd.daemon.background import Background
from cachecd.daemon.disk_work import DiskWork, Search, Write
from cachecd.daemon.ingest import Ingest
from cachecd.daemon.refetch import Refetch
from cachecd.daemon.timeline import Timeline
from cachecd.daemon.worker_streams import WorkerStreams
from cachecd.errors import DiskError
from cachecd.executors import Executor
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.values import GenerationId

_log = structlog.get_logger("cachecd.daemon")
_LAST_WRITES = 2.0  # seconds for the queued writes when the daemon ends
_RETRY = 5.0  # seconds until the daemon retries to write a schema that the disk refused
_WRITES, _SEARCHES = get_args(Write), get_args(Search)

ToClient = do.ReplyGranted | do.ReplyDone | do.ReplyWaiting | do.ReplyRefused


class CommandRunner:
    """`deliver` gets every event, on the event loop. `reply` gets the replies to requests.
    `ingest` adds up bytes and work; `timeline` gets a span for each write. `background` holds all tasks."""

    def __init__(
        self,
        work: DiskWork,
        executor: Executor,
        deliver: Callable[[ev.Event], None],
        reply: Callable[[ToClient], None],
        timeline: Timeline | None = None,
        ingest: Ingest | None = None,
    ) -> None:
        self._timeline = timeline or Timeline()
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._deliver, self._reply = deliver, reply
        self._writes = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._searches = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._closing = False
        self.background = Background()
        self.streams = WorkerStreams(
            *(executor, work, self.background, self.record, self._described),
            ingest or Ingest(self._timeline),
        )
        self._refetch = Refetch(work, self.streams, self.background, self.record)

    def carry_out(self, commands: Iterable[do.Command]) -> None:
        """Starts every command, in order. Never blocks."""
        for command in commands:
            match command:
                case do.OpenStream():
                    self.streams.open(command)
                case do.SetUntil() | do.GrantShard():
                    self.streams.send(command)
                case do.CloseStream(stream):
                    self.streams.close(stream, is_awaited=True)
                case do.FindMissing():
                    self._refetch.find(command)
                case do.MakeSupplement():
                    self._refetch.supplement(command)
                case do.RemakeShard(local=False):
                    self._refetch.remake(command)
                case _ if isinstance(command, _WRITES):
                    self.record(partial(self._do, self._work.write, command))
                case _ if isinstance(command, _SEARCHES):
                    self._submit(self._searches, partial(self._do, self._work.search, command))
                case _:
                    self._reply(command)  # type: ignore[arg-type]

    def record(self, job: Callable[[], list[ev.Event]]) -> None:
        """Runs a job in the thread of writes, after all earlier jobs, and delivers its events."""
        self._submit(self._writes, job)

    async def finish(self) -> None:
        """Completes the writes that were started, and stops long work. Delivers no event afterwards."""
        self._closing = True
        self._work.stops.set()
        await self.background.close()
        self.streams.finish()
        self._searches.shutdown(wait=False, cancel_futures=True)
        ending = asyncio.ensure_future(asyncio.to_thread(self._writes.shutdown))
        _, late = await asyncio.wait({ending}, timeout=_LAST_WRITES)
        if late:  # for example, an exclusion of 10,000 keys; the next start continues it
            self._writes.shutdown(wait=False, cancel_futures=True)
        await ending
        await asyncio.to_thread(self._searches.shutdown)

    def _submit(self, pool: ThreadPoolExecutor, job: Callable[[], list[ev.Event]]) -> None:
        def work() -> None:
            try:
                events = job()
            except Exception:
                _log.exception("a background task of the daemon failed unexpectedly")
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
            except Exception as error:  # the next events are still delivered
                about = {"message": f"{type(event).__name__} not handled", "exception": error}
                self._loop.call_exception_handler(about)

    def _do(self, work: Callable[[Any], list[ev.Event]], command: Any) -> list[ev.Event]:
        began = time.monotonic()
        try:
            return work(command)
        except InterruptedError:  # the daemon ends
            return []
        except Exception as error:
            _log.exception("a command failed unexpectedly")
            return [ev.DiskRefused(command, f"{type(error).__name__}: {error}")]
        finally:
            self._timeline.note(type(command).__name__, began)

    def _described(self, generation: GenerationId, schema: dict[str, Any]) -> None:
        self._work.schemas[generation] = schema

        def write() -> list[ev.Event]:
            try:
                self._work.write_schema(generation, json.dumps(schema))
            except DiskError as error:
                _log.warning("schema not stored yet", dataset=generation.dataset, why=str(error))
                later = self._loop.call_later
                self._loop.call_soon_threadsafe(later, _RETRY, self._described, generation, schema)
            return []

        self.record(write)
