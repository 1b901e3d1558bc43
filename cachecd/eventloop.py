"""The daemon: one event loop that carries the policy's commands out. The only place that wires.

Everything that decides is in `state`; everything that touches the world is in the part that owns
it. Here a request, a sampler's message, a finished thread or the clock becomes an event, the
state's commands are carried out, and their results become events again, one at a time.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from cachecd import events as ev
from cachecd import leases, preflight
from cachecd.aside import Asides
from cachecd.catalog import Catalog, SavedPlan
from cachecd.complaints import Complaints
from cachecd.config import Config
from cachecd.disk.filesystem import free_bytes
from cachecd.errors import DiskError
from cachecd.exclusions import Exclusions
from cachecd.executors.local import LocalExecutor
from cachecd.index import Index, drop_unused
from cachecd.layout import Layout
from cachecd.ledger import METADATA_SLACK, Ledger, footprint
from cachecd.listings import keep_listed
from cachecd.meter import Meter
from cachecd.model import Held, ShardId
from cachecd.preflight import Figures, figures, least_for_shards, needs_restart, open_index
from cachecd.probing import Probes
from cachecd.reconcile import remove_temporaries
from cachecd.recovery import held_by, manifest_of, recover, recover_leases, saved_plan
from cachecd.replies import asked_of, reply_of
from cachecd.rules import DatasetRules
from cachecd.sampler import messages
from cachecd.saving import PlanSaver
from cachecd.shards import ShardWork
from cachecd.sidecarwalk import meta_of
from cachecd.state import State
from cachecd.status import document
from cachecd.waiting import held_back
from cachecd_client import protocol
from cachecd_client.errors import CallerError

_PROBE_EVERY = 0.25  # a lease ends within a second of its last holder's death
_MEASURE_EVERY = 1.0
_UNASKED = 10.0  # seconds; a rank that waits asks twice a second

_log = structlog.get_logger("cachecd.daemon")


class Daemon:
    """One cache directory, served. The caller owns the directory's lock and the socket, and has launched
    the executor, unless it is `offline`.

    Between `start` and `stop` everything happens on the running event loop.
    """

    def __init__(
        self,
        config: Config,
        found: Figures,
        executor: LocalExecutor,
        progress: Callable[[str], None] = lambda text: None,
        *,
        offline: bool = False,
    ) -> None:
        """Recovers what is on disk; where that takes long, `progress` is called with how far it is."""
        self._config = config
        self._layout = Layout(config.cache.dir)
        self._offline = offline
        self._started = time.monotonic()
        ledger = Ledger(found.limit, footprint(config.cache.shard_size))
        workers = 0 if offline else config.sampler.workers
        boot, size = secrets.token_hex(3), config.cache.shard_size
        self.state = State(ledger, size, workers, boot, offline, found.restraint)
        self._catalog = Catalog(self._layout.catalog)
        if free_bytes(self._layout.root) < METADATA_SLACK:  # what a start writes need not fit
            self._catalog.keep_writes()
        if self._catalog.rebuilt and any(self._layout.shards.glob("*/*.tfrecord")):
            _log.warning(
                "the catalog is made again from the shards",
                why=self._catalog.removed or "it is gone",
                lost="the account of what was fetched, which sampler.egress_limit counts, plans, units set "
                "aside, and marks of shards that are retired or corrupt",
            )
        self._indexes: dict[str, Index] = {}
        self._schemas: dict[tuple[str, str], dict[str, Any]] = {}
        self._asides = Asides()
        self._events: deque[ev.Event] = deque()
        self._handling = False
        self._replies: dict[str, protocol.Reply] = {}
        self._failed_manifests: dict[str, str] = {}
        self._accounted: dict[str, int] = {}
        self._complaints = Complaints()
        self._saver = PlanSaver(self._catalog, self._saved_plan, self._complaints)
        self._tasks: set[asyncio.Task[None]] = set()
        self._exclusions = Exclusions(
            self._layout.index,
            self._catalog,
            self._saver,
            self._indexes,
            self.state.datasets,
            self._feed,
            self._spawn,
        )
        for rules in found.datasets:
            self._recover(rules, progress)
        self._meter = Meter(
            self._layout,
            self.state,
            lambda: self._config.cache.reserve_free,
            self._complaints,
            self._feed,
            least_for_shards(found.datasets, config.cache.shard_size),
            self._drop_index,
        )
        self._shards = ShardWork(
            self._layout,
            self._held_by,
            self._feed,
            self._complaints,
            self._meter.check,
        )
        self._probes = Probes(
            self._layout, self.state.leases, self._complaints, self._meter.check, self._feed
        )
        if removed := remove_temporaries(self._layout):
            _log.info("temporary files of a killed run removed", files=len(removed))
        for line in recover_leases(self._layout, self.state, time.monotonic()):
            _log.warning("damaged manifest", what=line)
        self._catalog.settle()
        self._executor = executor
        self._lister = preflight.lister_of(config, preflight.workers_name(config))

    # --- starting and stopping

    def _recover(self, rules: DatasetRules, progress: Callable[[str], None]) -> None:
        name = rules.name
        dataset = self._config.datasets[name]
        index = open_index(self._layout, rules, dataset)
        if index.discarded:
            _log.warning("listing starts afresh", dataset=name, reason=index.discarded)
        self._indexes[name] = index
        size = self._config.cache.shard_size

        def read(done: int, of: int) -> None:
            progress(f"{name}: {done} of {of} sidecars read, which the catalog does not know")

        recovered = recover(self._layout, self._catalog, index, rules, size, self.state, read)
        for generation, schema in recovered.schemas.items():
            self._schemas[name, generation] = schema
        asides = self._catalog.set_aside(name)
        self._asides.found(name, asides)
        recovered.state.found_aside(asides)
        for event, why in recovered.found.damages():
            _log.warning(event, why=why)
        state = recovered.state
        if why := held_back(state):
            _log.warning("shards are held back", dataset=name, why=why)
        elif older := state.live.superseded(state.rules.generation).size:
            _log.info(
                "the configuration makes other records than before: older shards are leased until there is "
                "grow.first of the new ones",
                dataset=name,
                older_shards=older,
                generation=state.rules.generation,
            )
        if state.twice:
            _log.warning("shards hold units that others hold too", dataset=name, shards=state.twice)

    def _drop_index(self) -> bool:
        dropped = drop_unused(self._layout.index, {i.path for i in self._indexes.values()})
        if dropped is not None:
            _log.info("listing removed, to make room", path=str(dropped))
        return dropped is not None

    async def start(self) -> None:
        """Starts samplers, listing and the clock. No request is answered before exclusions are in force."""
        for name, state in self.state.datasets.items():  # before anything is begun
            if not self._offline:
                state.begin_listing(self._indexes[name].complete)
        self._look()
        for name, state in self.state.datasets.items():
            self._feed(ev.HoldersFound(name, state.twice))
        self._exclusions.start()
        if not self._offline:
            await self._executor.start(self._deliver)
            for name in self.state.datasets:
                index = self._indexes[name]
                self._feed(ev.Listed(name, index.complete))
                dataset, room = self.state.datasets[name], self._meter.index_room.of(name)
                about = index, room, dataset.plan.partly_held, dataset.listing
                config = self._config.datasets[name]
                then = dataset.rules.awaits, dataset.doubt.known
                listed = partial(keep_listed, name, config, self._lister, *about, self._feed, *then)
                self._spawn(self._kept_up(f"listing of {name}", listed))
        self._spawn(self._every(_PROBE_EVERY, self._probe))
        self._spawn(self._every(_MEASURE_EVERY, self._look))

    async def stop(self, grace: float) -> None:
        """Starts no more shards, gives those being made `grace` seconds, and closes everything."""
        self._feed(ev.Draining())
        deadline = time.monotonic() + grace
        while any(d.making for d in self.state.datasets.values()) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        await self._executor.close(max(0.0, deadline - time.monotonic()))
        self._lister.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._account()
        for index in self._indexes.values():
            index.close()
        self._catalog.close()

    def reconfigure(self, load: Callable[[], Config]) -> None:
        """Takes up what can be changed while running: limit, growth, refresh, datasets' limits.

        What is wrong, or needs a restart, is reported and has no effect.
        """
        try:
            config = load()
            found = figures(config)
        except CallerError as error:
            _log.error("configuration not reloaded", why=str(error))
            return
        if changed := needs_restart(self._config, config):
            _log.error("configuration not reloaded: restart to change it", changed=changed)
            return
        self._config = config
        self.state.reconfigure(found.limit, found.datasets, found.restraint)
        _log.info("configuration reloaded", limit=found.limit)

    # --- events in

    def _feed(self, event: ev.Event) -> None:
        """Handles the event, and what it leads to, in order."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                for command in self.state.handle(self._events.popleft(), time.monotonic()):
                    try:
                        self._carry_out(command)
                    # What comes after it must be carried out all the same.
                    except Exception as error:
                        _log.exception("command failed", command=type(command).__name__)
                        self._gave_up(command, str(error))
        finally:
            self._handling = False

    def answer(self, request: protocol.Request) -> protocol.Reply:
        """The reply to one request."""
        match request:
            case protocol.Acquire(id, dataset, job, epoch):
                self._probes.granted(dataset, job, epoch)
                return self._ask(asked_of(request), id)
            case protocol.Held(id, lease, rank):
                return self._ask(ev.RankHolds(id, lease, rank), id)
            case protocol.Delivered(id, lease, shards, shares):
                ranges = tuple((first, last) for first, last in shards)
                return self._ask(ev.Delivered(id, lease, ranges, tuple(shares)), id)
            case protocol.Released(id, lease, _):
                if lease in self.state.leases:  # else it is no name of a file of ours
                    self._probes.these([lease])
                return protocol.Done(id)
            case protocol.ReportCorrupt(id, dataset, shard, offset, why):
                known = self.state.datasets.get(dataset)
                if (
                    known
                    and (live := known.live.get(shard))
                    and not (live.verifying or live.barred)
                ):
                    told = ShardId(dataset, shard)
                    _log.warning("corrupt record reported", shard=str(told), offset=offset, why=why)
                    self._feed(ev.CorruptReported(told))
                return protocol.Done(id)
            case protocol.Exclude():
                return self._exclusions.answer(request)
            case protocol.AskStatus(id):
                return protocol.StatusReply(id, self.status())

    def _ask(self, event: ev.Event, request: str) -> protocol.Reply:
        self._feed(event)
        return self._replies.pop(request)

    def status(self) -> dict[str, Any]:
        """The status document."""
        found = document(self.state, self._asides, time.monotonic())
        found["cache"]["dir"] = str(self._layout.root)
        for name, index in self._indexes.items():
            found["datasets"][name]["units_listed"] = len(index)
        for lease in found["leases"]:
            lease["held"] = leases.seems_held(self._layout.manifest(lease["lease"]))
        found["cache"]["stopped"] = found["cache"]["stopped"] or self._complaints.reason
        found["sampler"] = self._executor.status()
        found["daemon"] = {
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started, 1),
            "workers": 0 if self._offline else self._config.sampler.workers,
            "offline": self._offline,
        }
        return found

    def _deliver(self, message: messages.FromSampler) -> None:
        """A sampler's message becomes an event."""
        match message:
            case messages.Described(shard, schema):
                dataset = self.state.datasets[shard.dataset]
                self._schemas[shard.dataset, dataset.rules.generation] = schema
                with self._complaints.hearing("schema not saved"):
                    self._catalog.save_schema(shard.dataset, dataset.rules.generation, schema)
                self._feed(ev.SchemaFound(shard.dataset))
            case messages.Working(shard, fetched, _):
                self._feed(ev.ShardProgressed(shard, fetched))
            case messages.Made(shard, outcome):
                self._feed(ev.ShardMade(shard, outcome))
            case messages.Failed(shard, cause, reason, _, unit, passing):
                _log.warning("shard not made", shard=str(shard), cause=cause, why=reason)
                failed = ev.ShardFailed(shard, cause, reason, unit, passing)
                self._spawn(self._shards.discard(failed))

    # --- commands out

    def _carry_out(self, command: ev.Command) -> None:
        match command:
            case ev.StartShard():
                self._start_shard(command)
            case ev.PublishShard(shard, outcome):
                generation = self.state.datasets[shard.dataset].plan.open[shard.number].generation
                self._spawn(self._shards.publish(shard, generation, outcome))
            case ev.SavePlan():
                self._asides.changed(command)
                self._saver.save(command)
            case ev.MarkShards():
                self._saver.save(command)
            case ev.UnlinkShard(shard):
                self._spawn(self._shards.unlink(shard))
            case ev.VerifyShard(shard):
                self._spawn(self._shards.verify(shard))
            case ev.WriteManifest(lease):
                manifest = manifest_of(lease, self._schemas, self._config.cache.window)
                try:
                    leases.write_manifest(self._layout, manifest, self._meter.announce_manifest)
                except DiskError as error:
                    self._complaints.refused("lease not written", "", str(error), _UNASKED)
                    self._gave_up(command, str(error))
                else:
                    self._complaints.works("lease not written", "")
            case ev.EndLease(lease):
                with self._complaints.hearing("lease not ended", lease):
                    if leases.end(self._layout.manifest(lease)):
                        self._events.append(ev.LeaseEnded(lease))
            case ev.ReplyGranted(request, lease) if lease in self._failed_manifests:
                why = self._failed_manifests.pop(lease)
                self._replies[request] = protocol.Waiting(request, 0, 0, 0.0, why)
            case _:
                self._replies[command.request] = reply_of(command, self._layout)

    def _gave_up(self, command: ev.Command, why: str) -> None:
        """Lets the policy know what did not come about, so that nothing is waited for in vain."""
        match command:
            case ev.StartShard(assignment):
                self._events.append(ev.ShardFailed(assignment.shard, "disk", why))
            case ev.WriteManifest(lease):
                self._failed_manifests[lease.id] = why
                # What a failing disk did not let go of ends like any lease that nobody holds.
                if not os.path.lexists(self._layout.manifest(lease.id)):
                    self._events.append(ev.LeaseEnded(lease.id))

    def _start_shard(self, command: ev.StartShard) -> None:
        assignment = command.assignment
        shard, name = assignment.shard, assignment.shard.dataset
        index, dataset = self._indexes[name], self.state.datasets[name]
        try:
            self._saver.begin(name)
        except DiskError as error:
            self._gave_up(command, str(error))
            return
        self._executor.submit(
            messages.Make(
                assignment=assignment,
                path=str(self._layout.temporary(shard)),
                capacity=self._config.cache.shard_size,
                schema=self._schemas.get((name, assignment.generation)),
                classes=self._config.datasets[name].source.classes or index.classes,
                meta=meta_of(assignment, dataset.plan, index),
            )
        )

    def _saved_plan(self, name: str) -> SavedPlan:
        return saved_plan(self.state.datasets[name], self._indexes[name])

    def _held_by(self, shard: ShardId) -> Held:
        dataset, index = self.state.datasets[shard.dataset], self._indexes[shard.dataset]
        return held_by(self._catalog, self._saver, dataset, index, shard)

    # --- the clock

    def _probe(self) -> None:
        self._probes.all()
        self._feed(ev.Tick())

    def _look(self) -> None:
        self._meter.look()
        self._saver.catch_up()
        self._account()

    def _account(self) -> None:
        """Keeps what has been fetched by now; where the disk refuses, the next look does."""
        for name, dataset in self.state.datasets.items():
            if dataset.egress != self._accounted.get(name, 0):
                with suppress(DiskError):
                    self._catalog.save_egress(name, dataset.egress)
                    self._accounted[name] = dataset.egress

    async def _every(self, seconds: float, do: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(seconds)
            self._try(do.__name__.strip("_"), do)

    def _try(self, what: str, do: Callable[[], None]) -> None:
        """What fails otherwise than thought is told, in status too, and tried again when it is due."""
        try:
            do()
        except Exception as error:
            self._failed(what, error)
        else:
            self._complaints.works("work failed", what)

    def _failed(self, what: str, error: Exception) -> None:
        why = f"{what} failed otherwise than thought: {type(error).__name__}: {error}"
        if self._complaints.refused("work failed", what, why):
            _log.error("its traceback", what=what, exc_info=error)

    async def _kept_up(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Begins it again, ever more rarely, when it fails otherwise than thought."""
        pause = 1.0
        while True:
            try:
                await work()
            except Exception as error:
                self._failed(what, error)
                await asyncio.sleep(pause)
                self._complaints.works("work failed", what)
                pause = min(2 * pause, 60.0)
            else:
                return

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_report)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _log.error("task failed", exc_info=error)
