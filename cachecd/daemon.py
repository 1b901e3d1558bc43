"""The daemon: one event loop that carries the policy's commands out. The only place that wires.

Everything that decides is in `state`; everything that touches the world is in the part that owns
it. Here a request, a sampler's message, a finished thread or the clock becomes an event, the
state's commands are carried out, and their results become events again, one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog

from cachecd import events as ev
from cachecd import leases
from cachecd.catalog import Catalog
from cachecd.config import Config
from cachecd.dataset import DatasetRules
from cachecd.disk import allocated, free_bytes
from cachecd.errors import DiskError, LimitTooSmallError, SourceError
from cachecd.executors.local import LocalExecutor
from cachecd.index import Index
from cachecd.ingest import list_source, publish_shard, unlink_shard, verify_shard
from cachecd.layout import Layout
from cachecd.ledger import Ledger, footprint
from cachecd.model import SetAside, ShardId
from cachecd.preflight import Figures, figures, listing_of
from cachecd.reconcile import remove_temporaries
from cachecd.recovery import (
    held_units,
    lease_of,
    lease_of_damaged,
    manifest_of,
    recover,
    saved_plan,
)
from cachecd.sampler import messages
from cachecd.state import State
from cachecd.status import document
from cachecd_client import protocol
from cachecd_client.errors import CallerError

# A lease ends within a second of its last holder's death: probe well within that.
_PROBE_EVERY = 0.25
_MEASURE_EVERY = 1.0
_RELIST_AFTER = 60.0
_RETRY_UNLINK_AFTER = 5.0

_log = structlog.get_logger("cachecd.daemon")


class Daemon:
    """One cache directory, served. The caller owns the directory's lock and the socket.

    `start` makes it answer; `stop` ends it within its grace. Between the two everything happens on
    the running event loop.
    """

    def __init__(self, config: Config, found: Figures, *, offline: bool = False) -> None:
        self._config = config
        self._layout = Layout(config.cache.dir)
        self._offline = offline
        self._started = time.time()
        ledger = Ledger(found.limit, footprint(config.cache.shard_size))
        workers = 0 if offline else config.sampler.workers
        self.state = State(ledger, config.cache.shard_size, workers, secrets.token_hex(3))
        self._catalog = Catalog(self._layout.catalog)
        self._indexes: dict[str, Index] = {}
        self._schemas: dict[tuple[str, str], dict[str, Any]] = {}
        self._set_aside: dict[str, list[SetAside]] = {}
        self._events: deque[ev.Event] = deque()
        self._handling = False
        self._replies: dict[str, protocol.Reply] = {}
        self._failed_manifests: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._foreign = 0
        self._index_ahead = 0
        for rules in found.datasets:
            self._recover(rules)
        self._recover_leases()
        self._executor = LocalExecutor(
            messages.Setup(
                datasets={n: d.model_dump(mode="json") for n, d in config.datasets.items()},
                connections=max(1, config.sampler.connections // config.sampler.workers),
                bandwidth=(
                    config.sampler.bandwidth / config.sampler.workers
                    if config.sampler.bandwidth
                    else None
                ),
            ),
            workers,
            config.sampler.python,
            self._deliver,
        )

    # --- starting and stopping

    def _recover(self, rules: DatasetRules) -> None:
        name = rules.name
        index = Index.open(self._layout.index, name, listing_of(self._config.datasets[name]))
        if index.discarded:
            _log.warning("listing starts afresh", dataset=name, reason=index.discarded)
        self._indexes[name] = index
        size = self._config.cache.shard_size
        recovered = recover(self._layout, self._catalog, index, rules, size, self.state)
        for generation, schema in recovered.schemas.items():
            self._schemas[name, generation] = schema
        self._set_aside[name] = self._catalog.set_aside(name)
        for line in recovered.found.removed:
            _log.warning("shard removed", why=line)

    def _recover_leases(self) -> None:
        removed = remove_temporaries(self._layout)
        if removed:
            _log.info("temporary files of a killed run removed", files=len(removed))
        found, damaged = leases.read_manifests(self._layout)
        now = time.monotonic()
        for manifest in found:
            self.state.adopt_lease(lease_of(manifest), now)
        serial = itertools.count(1)
        for bad in damaged:
            _log.warning("damaged manifest", path=str(bad.path), why=bad.why, held=bad.held)
            if bad.held:
                for dataset in self.state.datasets.values():
                    lease = lease_of_damaged(bad.path.stem, dataset, serial)
                    self.state.adopt_lease(lease, now)

    async def start(self) -> None:
        """Starts samplers, listing and the clock."""
        self._measure()
        if not self._offline:
            await self._executor.start()
            for name in self.state.datasets:
                if len(self._indexes[name]):
                    self._feed(
                        ev.Listed(name, len(self._indexes[name]), self._indexes[name].complete)
                    )
                self._spawn(self._keep_listed(name))
        self._spawn(self._every(_PROBE_EVERY, self._probe))
        self._spawn(self._every(_MEASURE_EVERY, self._measure))

    async def stop(self, grace: float) -> None:
        """Starts no more shards, gives those being made `grace` seconds, and closes everything."""
        self._feed(ev.Draining())
        deadline = time.monotonic() + grace
        while any(d.making for d in self.state.datasets.values()) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        await self._executor.close(max(0.0, deadline - time.monotonic()))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for index in self._indexes.values():
            index.close()
        self._catalog.close()

    def reconfigure(self, load: Callable[[], Config]) -> None:
        """Takes up what can be changed while running: limit, growth, refresh, datasets' limits.

        A configuration that is wrong, or that would need a restart, is reported and has no effect.
        """
        try:
            config = load()
            found = figures(config)
        except CallerError as error:
            _log.error("configuration not reloaded", why=str(error))
            return
        changed = _needs_restart(self._config, config)
        if changed:
            _log.error("configuration not reloaded: restart to change it", changed=changed)
            return
        self._config = config
        self.state.reconfigure(found.limit, found.datasets)
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
                    self._carry_out(command)
        finally:
            self._handling = False

    def answer(self, request: protocol.Request) -> protocol.Reply:
        """The reply to one request."""
        match request:
            case protocol.Acquire(id, dataset, job, epoch, rank, world):
                return self._ask(ev.AcquireAsked(id, dataset, job, epoch, rank, world), id)
            case protocol.Held(id, lease, rank):
                return self._ask(ev.RankHolds(id, lease, rank), id)
            case protocol.Released(id, lease, _):
                self._probe_lease(lease)
                return protocol.Done(id)
            case protocol.ReportCorrupt(id, dataset, shard, offset, why):
                _log.warning(
                    "corrupt record reported", shard=f"{dataset}/{shard}", offset=offset, why=why
                )
                self._feed(ev.CorruptReported(ShardId(dataset, shard)))
                return protocol.Done(id)
            case protocol.AskStatus(id):
                return protocol.StatusReply(id, self.status())

    def _ask(self, event: ev.Event, request: str) -> protocol.Reply:
        self._feed(event)
        return self._replies.pop(request)

    def status(self) -> dict[str, Any]:
        """The status document."""
        found = document(self.state, self._set_aside, time.monotonic())
        found["cache"]["dir"] = str(self._layout.root)
        found["daemon"] = {
            "pid": os.getpid(),
            "uptime_s": round(time.time() - self._started, 1),
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
                with self._logged("schema not saved"):
                    self._catalog.save_schema(shard.dataset, dataset.rules.generation, schema)
                self._feed(ev.SchemaFound(shard.dataset))
            case messages.Working(shard, fetched, _):
                self._feed(ev.ShardProgressed(shard, fetched))
            case messages.Made(shard, outcome):
                for aside in outcome.set_aside:
                    _log.warning(
                        "unit set aside", dataset=shard.dataset, key=aside.key, why=aside.reason
                    )
                self._feed(ev.ShardMade(shard, outcome))
            case messages.Failed(shard, cause, reason, _, unit):
                _log.warning("shard not made", shard=str(shard), cause=cause, why=reason)
                self._feed(ev.ShardFailed(shard, cause, reason, unit))

    # --- commands out

    def _carry_out(self, command: ev.Command) -> None:
        match command:
            case ev.StartShard():
                self._start_shard(command)
            case ev.PublishShard(shard, outcome):
                self._spawn(self._publish(shard, outcome))
            case ev.SavePlan():
                self._save_plan(command)
            case ev.RetireShard(shard):
                with self._logged("retirement not saved"):
                    self._catalog.retire(shard)
            case ev.UnlinkShard(shard):
                self._spawn(self._unlink(shard))
            case ev.VerifyShard(shard):
                self._spawn(self._verify(shard))
            case ev.WriteManifest(lease):
                manifest = manifest_of(lease, self._schemas[lease.dataset, lease.generation])
                try:
                    leases.write_manifest(self._layout, manifest)
                except (DiskError, FileExistsError) as error:
                    self._failed_manifests[lease.id] = str(error)
                    self._events.append(ev.LeaseEnded(lease.id))
            case ev.EndLease(lease):
                with self._logged("lease not ended"):
                    if leases.end(self._layout.manifest(lease)):
                        self._events.append(ev.LeaseEnded(lease))
            case ev.ReplyGranted(request, lease):
                if why := self._failed_manifests.pop(lease, None):
                    self._replies[request] = protocol.Waiting(request, 0, 0, 0.0, why)
                else:
                    path = self._layout.manifest(lease).relative_to(self._layout.root)
                    self._replies[request] = protocol.Granted(
                        request, lease, str(self._layout.root), str(path)
                    )
            case ev.ReplyDone(request):
                self._replies[request] = protocol.Done(request)
            case ev.ReplyWaiting(request, have, want, rate, reason):
                self._replies[request] = protocol.Waiting(request, have, want, rate, reason)
            case ev.ReplyRefused(request, code, message):
                self._replies[request] = protocol.Refused(request, code, message)

    def _start_shard(self, command: ev.StartShard) -> None:
        assignment = command.assignment
        shard, name = assignment.shard, assignment.shard.dataset
        dataset, index = self.state.datasets[name], self._indexes[name]
        try:
            self._catalog.save_assignment(assignment, saved_plan(dataset, index))
        except DiskError as error:
            self._events.append(ev.ShardFailed(shard, "disk", str(error)))
            return
        self._executor.submit(
            messages.Make(
                assignment=assignment,
                path=str(self._layout.temporary(shard)),
                capacity=self._config.cache.shard_size,
                schema=self._schemas.get((name, assignment.generation)),
                classes=index.classes,
                meta={
                    "dataset": name,
                    "number": shard.number,
                    "generation": assignment.generation,
                    "index": index.id,
                    "cursor": dataset.plan.cursor,
                },
            )
        )

    def _save_plan(self, command: ev.SavePlan) -> None:
        name = command.dataset
        self._set_aside[name] += command.set_aside
        with self._logged("plan not saved"):
            self._catalog.save_progress(
                name,
                saved_plan(self.state.datasets[name], self._indexes[name]),
                command.done,
                command.shard,
                command.units,
                command.set_aside,
            )

    async def _publish(self, shard: ShardId, outcome: Any) -> None:
        generation = self.state.datasets[shard.dataset].plan.open[shard.number].generation
        try:
            sealed, units = await asyncio.to_thread(
                publish_shard, self._layout, shard, generation, outcome
            )
        except DiskError as error:
            _log.warning("shard not published", shard=str(shard), why=str(error))
            self._feed(ev.ShardFailed(shard, "disk", str(error)))
        else:
            self._feed(ev.ShardPublished(sealed, [int(u) for u in units]))

    async def _unlink(self, shard: ShardId) -> None:
        units = held_units(self._catalog, self.state.datasets[shard.dataset], shard)
        while True:
            try:
                await asyncio.to_thread(unlink_shard, self._layout, shard)
                self._catalog.remove(shard)
            except DiskError as error:
                _log.warning("shard not removed", shard=str(shard), why=str(error))
                await asyncio.sleep(_RETRY_UNLINK_AFTER)
            else:
                self._feed(ev.ShardUnlinked(shard, units))
                return

    async def _verify(self, shard: ShardId) -> None:
        why = await asyncio.to_thread(verify_shard, self._layout, shard)
        if why:
            _log.error("shard is corrupt: barred, and fetched again", shard=str(shard), why=why)
        self._feed(ev.ShardVerified(shard, sound=not why))

    # --- the listing

    async def _keep_listed(self, name: str) -> None:
        """Lists the source until that has succeeded once in this run."""
        source, index = self._config.datasets[name].source, self._indexes[name]
        assert source is not None, "the configuration requires a source"
        pause = 1.0
        while True:
            try:
                await list_source(
                    source, index, self._config.sampler.connections, self._reserve_index
                )
            except (SourceError, DiskError, LimitTooSmallError) as error:
                _log.warning("source not listed", dataset=name, why=str(error), again_in_s=pause)
                self._feed(ev.IngestStopped(name, str(error)))
                await asyncio.sleep(pause)
                pause = min(2 * pause, _RELIST_AFTER)
            else:
                self._feed(ev.Listed(name, len(index), complete=True))
                return

    def _reserve_index(self, cost: int) -> None:
        """Counts what the index is about to take before it takes it."""
        self._index_ahead += cost
        self._measure(keep_ahead=True)
        ledger = self.state.ledger
        if ledger.room < 0:
            raise LimitTooSmallError(
                f"the listing needs {-ledger.room} bytes more than cache.limit ({ledger.limit}) leaves: "
                f"raise cache.limit to at least {ledger.limit - ledger.room}"
            )

    # --- the clock

    def _probe(self) -> None:
        for lease in list(self.state.leases):
            self._probe_lease(lease)
        self._feed(ev.Tick())

    def _probe_lease(self, lease: str) -> None:
        with self._logged("lease not probed"):
            if lease in self.state.leases and not leases.probe(self._layout.manifest(lease)):
                self._feed(ev.LeaseUnheld(lease))

    def _measure(self, *, keep_ahead: bool = False) -> None:
        """Counts everything that is not a shard, and what the file system has left."""
        if not keep_ahead:
            self._index_ahead = 0
        with self._logged("disk not measured"):
            spare = free_bytes(self._layout.root) - self._config.cache.reserve_free
            self._feed(ev.MetadataMeasured(self._metadata() + self._index_ahead, spare))

    def _metadata(self) -> int:
        """Blocks of everything under cache.dir but shards and temporary files."""
        root, shards = self._layout.root, self._layout.shards
        total = _own(root) + _own(shards) + _own(self._layout.tmp)
        for entry in root.iterdir():
            if entry not in (shards, self._layout.tmp):
                total += allocated(entry)
        for entry in shards.iterdir():
            total += _own(entry) if entry.name in self.state.datasets else allocated(entry)
        return total

    async def _every(self, seconds: float, do: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                do()
            except Exception:
                _log.exception("periodic work failed")

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_report)

    @contextlib.contextmanager
    def _logged(self, what: str) -> Any:
        """A failing disk is logged and outlived; a restart finds out from the shards."""
        try:
            yield
        except (DiskError, OSError) as error:
            _log.warning(what, why=str(error))


def _needs_restart(old: Config, new: Config) -> list[str]:
    """Which keys differ that a running daemon cannot change."""

    def fixed(config: Config) -> dict[str, Any]:
        values = config.model_dump(mode="json")
        for key in ("limit", "reserve_free"):
            del values["cache"][key]
        for dataset in values["datasets"].values():
            for key in ("grow", "evict", "limit"):
                del dataset[key]
        return values

    before, after = fixed(old), fixed(new)
    return sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))


def _own(path: Path) -> int:
    return path.stat().st_blocks * 512


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _log.error("task failed", exc_info=error)
