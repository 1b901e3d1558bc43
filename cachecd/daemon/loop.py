"""One cache.dir with its policy, from a start to its end: the only place where the parts meet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import structlog

from cachecd.config import Config
from cachecd.daemon.carrying import Carrying, Making, Reply
from cachecd.daemon.feeding import Executor, FedGeneration
from cachecd.daemon.identities import classes_rule
from cachecd.daemon.listings import LimitRoom, ListingKeeper
from cachecd.daemon.remaking import MakeExecutor, Remaking
from cachecd.daemon.start import Start, measure, start
from cachecd.disk import leases
from cachecd.disk.durable import write_egress
from cachecd.disk.snapshot import Row, write_snapshot
from cachecd.errors import DiskError
from cachecd.model import ObjectInfo
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.generation import Generation
from cachecd.policy.policy import Policy
from cachecd.policy.values import GenerationId
from cachecd.sampler.messages import Described, Failed, FromSampler, FromStream, Made, Working

_TICK, _PROBE, _MEASURE = 0.25, 0.5, 5.0  # seconds
_MINUTE, _SNAPSHOT = 60.0, 600.0
_PAUSE = 1.0  # after a failure

_log = structlog.get_logger("cachecd.daemon")


class WorkerExecutor(Executor, MakeExecutor, Protocol):
    """Carries streams, and makes single shards."""


class CacheLoop:
    """`lister` lists the source of a dataset; `reply` answers requests. All methods belong to the event
    loop's thread. The executor's reports go to `heard`, on the event loop."""

    def __init__(
        self,
        config: Config,
        limit: int,
        executor: WorkerExecutor,
        lister: Callable[[str], Iterable[list[ObjectInfo]]],
        reply: Callable[[Reply], None],
    ) -> None:
        self.policy = Policy()
        self._config, self._limit = config, limit
        self._executor, self._lister = executor, lister
        self._answer = reply
        self._rooms: dict[str, LimitRoom] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._fetched = 0

    async def open(self) -> None:
        """Reports what a start finds, then begins to list, to probe leases and to measure. DiskError."""
        self._found = await start(self._config, self._limit)
        self._fetched = self._found.fetched
        self._found.work.schema_of = self._schema
        self.carrying = Carrying(
            *(
                self._found.work,
                self._executor,
                self.feed,
                self._reply,
                self._again_made,
                self._count,
            )
        )
        self.feeding = self.carrying.feeding
        self.remaking = Remaking(self.carrying, self._found.work, self._executor)
        keepers = [self._configured(name) for name in self._found.configured]
        for event in self._found.events:
            self.feed(event)
        work = [self._again(keeper.keep) for keeper in keepers]
        work += [
            self._every(_TICK, self._tick),
            self._every(_PROBE, self._probe),
            self._every(_MEASURE, self._measure),
            self._every(_MINUTE, self._write_egress),
            self._every(_SNAPSHOT, self._write_snapshots),
        ]
        self._tasks = [asyncio.ensure_future(each) for each in work]

    def feed(self, event: ev.Event) -> None:
        """Reports an event to the policy, and begins to carry out what follows."""
        self.carrying.carry_out(self.policy.handle(event, time.monotonic()))
        if isinstance(event, ev.Sealed):
            self.carrying.record(self._egress)

    def heard(self, message: FromSampler | FromStream) -> None:
        """A worker reports."""
        match message:
            case Made() | Failed():
                self.remaking.heard(message)
            case Described() | Working():
                pass  # of a shard that is made again: its schema is known
            case _:
                self.feeding.heard(message)

    async def close(self) -> None:
        """Ends all work. What was begun on disk ends first."""
        self.feed(ev.Draining())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._write_egress()
        await self._write_snapshots()
        await self.remaking.finish()
        await self.carrying.finish()
        for listing in self._found.listings.values():
            await listing.close()

    # --- wiring

    def _configured(self, name: str) -> ListingKeeper:
        """Has the streams of a dataset's generation fed, and its listing kept."""
        found: Start = self._found
        generation, listing = found.configured[name], found.listings[name]
        layout = found.layout.generation(*generation)
        shape = found.generations[generation].shape
        self.feeding.generations[generation] = FedGeneration(
            generation, layout, listing, found.schema(generation), shape
        )
        self._rooms[name] = LimitRoom(name, self.feed)
        dataset = self._config.datasets[name]
        return ListingKeeper(
            *(generation, dataset, listing, lambda: self._lister(name)),
            *(found.layout.classes(name, classes_rule(dataset)), self._rooms[name], self.feed),
            lambda: self.feeding.wake(generation),
        )

    def _schema(self, generation: GenerationId) -> dict[str, Any] | None:
        fed = self.feeding.generations.get(generation)
        return fed.schema if fed is not None else self._found.schema(generation)

    def _reply(self, reply: Reply) -> None:
        if isinstance(reply, do.ReplyRoom):
            self._rooms[reply.purpose].granted = reply.granted
        else:
            self._answer(reply)

    def _again_made(self, command: Making) -> None:
        self.remaking.carry_out(command)

    def _count(self, fetched: int) -> None:
        self._fetched += fetched

    # --- time

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self._again(work)

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        """Does work, and again after a failure."""
        while True:
            try:
                return await work()
            except DiskError as error:
                _log.warning("the disk refuses", why=str(error))
            except Exception:
                _log.exception("work of the daemon failed otherwise than expected")
            await asyncio.sleep(_PAUSE)

    async def _tick(self) -> None:
        self.feed(ev.Tick())

    async def _probe(self) -> None:
        """Reports each lease on whose manifest no process holds a lock."""
        written = [name for name, state in self.policy.leases.by_id.items() if state.written]
        layout = self._found.layout

        def look() -> list[str]:
            return [name for name in written if not leases.is_held(layout, name)]

        for name in await asyncio.to_thread(look):
            self.feed(ev.LeaseUnheld(name))

    async def _measure(self) -> None:
        try:
            measured = await asyncio.to_thread(measure, self._found.layout, self._fetched)
        except DiskError as error:
            then = self.policy.room.measured
            measured = then._replace(refused=str(error))
        self.feed(measured)

    def _egress(self) -> list[ev.Event]:
        try:
            write_egress(self._found.layout.egress, self._fetched)
        except DiskError as error:
            _log.warning("egress.json not written", why=str(error))
        return []

    async def _write_egress(self) -> None:
        self.carrying.record(self._egress)

    async def _write_snapshots(self) -> None:
        """Writes the shard table of every generation."""
        for generation in self.policy.room.generations:
            rows = list(_rows(generation))
            path = self._found.layout.generation(*generation.id).snapshot

            def write(path: Any = path, rows: Any = rows) -> list[ev.Event]:
                try:
                    write_snapshot(path, rows)
                except DiskError as error:
                    _log.warning("snapshot not written", why=str(error))
                return []

            self.carrying.record(write)


def _rows(generation: Generation) -> Iterable[Row]:
    for number, _ in generation.table.live():
        facts = generation.table.facts(number)
        yield Row(
            number,
            facts.version,
            facts.allocated,
            facts.records,
            facts.data_bytes,
            facts.ended,
            facts.digest,
        )
