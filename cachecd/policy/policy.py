"""The policy: `handle(event, now)` takes an event and returns commands. Pure.

A shard's life: granted (its room is reserved) -> sealed -> published (live) -> retired -> unlinked.
Only Published (except the bytes of the shard), StreamFailed, StreamClosed and Unlink free reserved room.
So used and reserved bytes never exceed the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.acquire import Acquire
from cachecd.policy.dataset import Dataset
from cachecd.policy.generation import Generation
from cachecd.policy.granting import Granting, Report
from cachecd.policy.leases import GRACE, Leases, LeaseState
from cachecd.policy.pause import Pause, Restraint
from cachecd.policy.repair import Repairs
from cachecd.policy.room import Room, footprint
from cachecd.policy.shard_table import LIVE
from cachecd.policy.values import GenerationId, Lease, Rules

# Events that may name a generation that is unknown or was removed.
_UNKNOWN_TOO = (
    ev.GenerationFound, ev.DamageReported, ev.ShardVerified, ev.ShardLost, do.VerifyShard, do.MarkBad,
)  # fmt: skip


class Policy:
    """The state of all decisions. Other rooms must not change its attributes."""

    def __init__(self, manifest_length: Callable[[Lease], int]) -> None:
        """`manifest_length` returns the bytes of a lease's manifest."""
        self._out: list[do.Command] = []
        self.room = Room()
        self.datasets = self.room.datasets
        self.disk = Pause()
        self.restraint = Restraint()
        self.leases = Leases(self.room, self._out)
        self.acquire = Acquire(
            *(self.room, self.disk, self.restraint, self.leases),
            *(self._new_name, manifest_length, self._out),
        )
        self._granting = Granting(self.room, self.disk, self._out)
        self.repair = Repairs(self.room, self._new_name, self._out)
        self._rules: dict[str, Rules] = {}
        self._refused: list[do.Command] = []
        self._boot, self._serial = "", count(1)
        self._started = self._draining = False

    def handle(self, event: ev.Event, now: float) -> list[do.Command]:
        """Returns the commands that an event causes. `now`: seconds since 1970; it never decreases while
        the daemon runs."""
        self._apply(event, now)
        if self._started:
            self._pump(now)
        out = self._out.copy()
        self._out.clear()
        return out

    def reserve(self, generation: GenerationId, size: int, grown: int, must_fit: bool) -> bool:
        """Reserves room for a page of a listing, as `Room.write_page` does. The next `handle` returns the
        commands that make room."""
        return self.room.write_page(self.datasets[generation.dataset], size, grown, must_fit)

    def pauses(self, now: float) -> str:
        """Returns why nothing is fetched although there may be room, or ""."""
        return self.restraint.spent or self.restraint.idles(bool(self.leases.by_id), now)

    def shows_damage(self, event: ev.ShardVerified | ev.ShardLost) -> bool:
        """Whether an event shows damage for the first time: several readers report the same shard."""
        known = self.room.by_id.get(event.generation)
        if known is None or known.table.status(event.number) not in LIVE:
            return False
        if isinstance(event, ev.ShardLost):
            return not known.will_retire(event.number)
        return not (event.sound or event.number in known.repairs)

    def rotation_waits(self, dataset: Dataset, now: float) -> str:
        """Returns why the next epoch of a full dataset replaces nothing, or ""."""
        return dataset.rotation.waits(self.acquire.at(dataset, now))

    def _repeat(self) -> None:
        """Repeats the commands that the disk refused, with the current figures and heads."""
        for command in self._refused:
            match command:
                case do.KeepFigures(name):
                    self._out.append(self.datasets[name].keep_figures())
                case do.FindMissing(name, begin, _):
                    shards = self.room.by_id[name].table.current_names()
                    self._out.append(do.FindMissing(name, begin, shards))
                case do.Unlink(name, _, names, why):
                    self.room.by_id[name].unlink(names, why)
                case _:
                    self._out.append(command)
        self._refused.clear()

    def _new_name(self) -> str:
        return f"{self._boot}{next(self._serial)}"

    def _pump(self, now: float) -> None:
        """Begins all work that may begin now."""
        for dataset in self.datasets.values():
            gen = dataset.generation
            if gen.contradiction is None and gen.shape is not None:
                gen.judge(gen.shape, self.room.first(dataset))
            self._granting.settle(gen)
        if self.disk.stops(now) or self._draining:
            return
        self._repeat()
        may = not self.pauses(now)
        for dataset in self.datasets.values():
            gen = dataset.generation
            fetches = may and not (dataset.source.stops(now) or gen.contradicted)
            gen.note_oldest()
            self.repair.make(gen, fetches, now)
            if not gen.table.num_live and self.room.page_lacks(dataset):
                self._granting.give_back(gen)
            if fetches:
                self._granting.fix_shape(dataset)
            if fetches and gen.shape and not (gen.writes_shape or dataset.resume):
                self._granting.grant(dataset, now)
                self._granting.supplement(dataset, now)
        for gen in self.room.others:
            self.repair.make(gen, False, now)
        self.repair.finish()

    def _apply(self, event: ev.Event, now: float) -> None:
        subject = event.command if isinstance(event, ev.CommandDone | ev.DiskRefused) else event
        name = getattr(subject, "generation", None)
        if name and name not in self.room.by_id and not isinstance(subject, _UNKNOWN_TOO):
            return  # its directory was removed since
        match event:
            case ev.AcquireAsked():
                self.restraint.wanted_at = now
                self.acquire.acquire(event, now)
            case ev.RankHolds(request, lease, rank):
                self.leases.holds(request, lease, rank)
            case ev.Delivered(lease, fraction):
                self.leases.delivered(lease, fraction)
            case ev.LeaseUnheld(lease):
                self.leases.unheld(lease, now)
            case ev.Listed(name):
                self.room.page_written(name)
                dataset = self.datasets.get(name.dataset)
                if dataset and dataset.generation.id == name:
                    dataset.generation.listed(event, dataset.rules.awaits_classes)
                    dataset.source.refused = event.reason if event.doubted else ""
            case ev.CursorRead(name, number, before):
                self.room.by_id[name].cursor_read(number, before)
            case _ if isinstance(event, Report):
                self._granting.report(self.datasets[event.stream.dataset], event, now)
            case ev.MissingFound(name):
                gen = self.room.by_id[name]
                gen.supplements.note_missing(event, now, gen.is_whole)
            case ev.DamageReported():
                self.repair.reported(event)
            case ev.ShardVerified():
                self.repair.verified(event)
            case ev.ShardLost():
                self.repair.lost(event)
            case ev.Remade(name):
                self.repair.remade(self.room.by_id[name], event)
            case ev.RemakeFailed(name, number, reason):
                self.repair.failed(self.room.by_id[name], number, reason, now)
            case ev.ExcludeAsked():
                self.repair.exclude(event)
            case ev.HoldersFound():
                self.repair.holders(event)
            case ev.CommandDone(command):
                self.disk.end()
                self._done(command, now)
            case ev.DiskRefused(command, reason):
                self.disk.begin(now, reason)
                self._disk_refused(event, now)
            case ev.Measured():
                self.room.measure(event)
                self.restraint.fetched, self.disk.refused = event.fetched, event.refused
            case ev.Draining():
                self._draining = True
                self._out += [dataset.keep_figures() for dataset in self.datasets.values()]
            case ev.Tick():
                pass
            case _:
                self._start(event, now)

    # --- a start

    def _start(self, event: ev.Event, now: float) -> None:
        match event:
            case ev.Configured():
                self._configure(event)
            case ev.GenerationFound():
                self._add_generation(event)
            case ev.LeaseFound(lease, held_by, epochs, is_held):
                gen = self.leases.generation_of(lease)
                allocated = gen.table.set_of(lease.intervals).allocated if gen else 0
                state = LeaseState(lease, allocated, now + GRACE, True, held_by=set(held_by))
                self.leases.add(state, epochs)
                if (held_by or is_held) and lease.dataset in self.datasets:
                    self.datasets[lease.dataset].was_held = True
            case ev.Started():
                self._started = True
                for gen in self.room.generations:
                    gen.started()
                    self._remove_if_empty(gen)

    def _configure(self, event: ev.Configured) -> None:
        self.room.limit = event.limit
        self.restraint.egress_limit, self.restraint.idle = event.egress_limit, event.idle
        self.restraint.offline = event.offline
        if not self._started:
            self._boot, self.acquire.block = event.boot, event.block
        for rules in event.datasets:
            self._rules[rules.name] = rules
            if dataset := self.datasets.get(rules.name):
                dataset.rules = rules

    def _add_generation(self, event: ev.GenerationFound) -> None:
        name, shape = event.generation, event.shape
        rules = self._rules.get(name.dataset)
        configured = rules if rules is not None and rules.generation == name.name else None
        size = shape.capacity if shape else rules.shard_size if rules else 0
        gen = Generation(
            event, configured is not None, footprint(size, self.acquire.block), self._out
        )
        self.room.by_id[name] = gen
        if configured is not None:
            self.datasets[name.dataset] = Dataset(configured, gen, self.room.by_id, event.figures)

    # --- results

    def _done(self, command: do.Command, now: float) -> None:
        match command:
            case do.WriteShape(name, shape):
                dataset = self.datasets[name.dataset]
                gen, resume = dataset.generation, dataset.resume
                gen.writes_shape, dataset.resume = False, None
                gen.fix(shape, resume.place if resume else 0)
                gen.has_resumed = resume is not None
                if resume:  # so that the next start begins there
                    gen.unlink()
            case do.MarkRetired(name, names):
                self.room.by_id[name].marked(names)
            case do.Unlink(name, _, names):
                self.room.by_id[name].unlinked(names)
                self._remove_if_empty(self.room.by_id[name])
            case do.RemoveGeneration(name):
                del self.room.by_id[name]
            case do.MarkBad():
                self.repair.marked(command)
            case do.WriteExclusion(exclusion):
                self._out.append(do.FindHolders(exclusion))
            case do.FinishExclusion(exclusion):
                self.repair.finished(exclusion)
            case do.WriteManifest(lease):
                self.leases.written(lease.id)
            case do.MarkLease(lease, None):
                self.leases.marked(lease)
            case do.EndLease(name):
                self.restraint.wanted_at = now
                self.leases.ended(name)

    def _remove_if_empty(self, gen: Generation) -> None:
        if not gen.is_configured and gen.table.is_empty:
            self._out.append(do.RemoveGeneration(gen.id))

    def _disk_refused(self, event: ev.DiskRefused, now: float) -> None:
        command, reason, gone = event
        match command:
            case do.WriteManifest(lease):
                self.leases.refused(lease.id, reason, now, may_repeat=not gone)
            case do.ReadCursor(name, number, version):
                self.room.by_id[name].cursor_read(number, None)
                # Verifying the shard shows whether the disk can return other files.
                self.repair.reported(ev.DamageReported("", name, number, version))
            case do.PublishShard(stream):
                self._granting.refused(self.datasets[stream.dataset].generation, stream)
            case do.MarkLease(lease, None):
                self.leases.marked(lease)
            case do.EndLease() | do.MarkLease():
                pass  # the next probe finds the lease again
            case do.RemakeShard(name, number):
                gen = self.room.by_id[name]
                self.repair.failed(gen, number, reason, now, refused=True)
            case _:
                self._refused.append(command)
