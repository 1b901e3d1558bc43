"""The policy: it takes events by `handle(event, now)` and returns commands. Pure.

A shard's life: granted (its room is reserved) -> sealed -> published (live) -> retired -> unlinked.
Reserved room is freed only by Published (but for the bytes of the shard), Failed, StreamClosed or Unlink:
used and reserved bytes never exceed the limit.
"""

from __future__ import annotations

from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.acquire import Leases
from cachecd.policy.dataset import Dataset
from cachecd.policy.feeding import Feeding
from cachecd.policy.generation import Generation
from cachecd.policy.leases import GRACE, LeaseState
from cachecd.policy.pause import Pause, Restraint
from cachecd.policy.repair import Repair
from cachecd.policy.room import Room, footprint
from cachecd.policy.values import GenerationId, Rules
from cachecd.stream import StreamId

# The disk refused them: they are tried again, unchanged.
_REPEATED = (
    do.WriteShape, do.MarkRetired, do.WriteState, do.Unlink, do.RemoveGeneration, do.MarkBad,
    do.WriteExclusion, do.FinishExclusion, do.MarkHeld,
)  # fmt: skip


class Policy:
    """The whole state of the daemon's decisions. The attributes are for reading."""

    def __init__(self) -> None:
        self.datasets: dict[str, Dataset] = {}
        self.room = Room(self.datasets)
        self.disk = Pause()
        self.leases = Leases(self.room, self.disk)
        self.restraint = Restraint()
        self._feeding = Feeding(self.room, self.disk)
        self._repair = Repair(self.room)
        self._rules: dict[str, Rules] = {}
        self._generations: dict[GenerationId, Generation] = {}
        self._refused: list[do.Command] = []
        self._started = self._draining = False

    def handle(self, event: ev.Event, now: float) -> list[do.Command]:
        """The commands that follow from an event at a time (seconds of a monotonic clock)."""
        out: list[do.Command] = []
        self._apply(event, now, out)
        if self._started:
            self._pump(now, out)
        return out

    def pauses(self, now: float) -> str:
        """Why nothing is fetched though there may be room, or ""."""
        return self._spent or self.restraint.idles(bool(self.leases.by_id), now)

    @property
    def _spent(self) -> str:
        return self.restraint.spent(self.room.measured.fetched)

    def _pump(self, now: float, out: list[do.Command]) -> None:
        """What may begin now."""
        if self.disk.stops(now) or self._draining:
            return
        out += self._refused
        self._refused.clear()
        may = not self.pauses(now)
        for dataset in self.datasets.values():
            gen, fetches = dataset.generation, may and not dataset.source.stops(now)
            self._repair.make(gen, dataset, fetches, now, out)
            if fetches:
                self._feeding.fix_shape(dataset, out)
                if gen.shape is not None and not gen.writes_shape:
                    self._feeding.grant(dataset, now, out)
                    self._feeding.supplement(dataset, now, out)
            self._feeding.settle(gen, out)
        for gen in self.room.others:
            self._repair.make(gen, None, False, now, out)

    def _apply(self, event: ev.Event, now: float, out: list[do.Command]) -> None:
        subject = event.command if isinstance(event, ev.Done | ev.DiskRefused) else event
        name = getattr(subject, "generation", None)
        known = name is None or name in self._generations
        if not (known or isinstance(subject, ev.GenerationFound | ev.DamageReported | do.MarkBad)):
            return  # its directory was removed meanwhile
        match event:
            case ev.AcquireAsked():
                self.restraint.wanted_at = now
                self.leases.acquire(event, self._spent, now, out)
            case ev.RankHolds(request, lease, rank):
                self.leases.holds(request, lease, rank, out)
            case ev.Delivered(lease, fraction):
                self.leases.delivered(lease, fraction)
            case ev.LeaseUnheld(lease):
                self.leases.unheld(lease, now, out)
            case ev.LeaseEnded(lease):
                self.restraint.wanted_at = now
                self.leases.ended(lease, out)
            case ev.Listed(name):
                dataset = self.datasets.get(name.dataset)
                if dataset and dataset.generation.id == name:
                    dataset.generation.listed(event, dataset.rules.awaits_classes)
                    dataset.source.refused = event.reason if event.doubted else ""
            case ev.CursorRead(name, number, before):
                self._generations[name].cursor_read(number, before)
            case ev.HalfFull(stream, number):
                self._half_full(stream, number)
            case ev.Sealed(stream):
                self._feeding.sealed(self.datasets[stream.dataset], event, now, out)
            case ev.Failed(stream):
                self._feeding.failed(self.datasets[stream.dataset], event, now)
            case ev.StreamClosed(stream):
                self._feeding.closed(self.datasets[stream.dataset].generation, stream.index)
            case ev.Published(stream):
                self._feeding.published(self.datasets[stream.dataset], event, out)
            case ev.PublishRefused(stream):
                self._feeding.refused(self.datasets[stream.dataset], event, now, out)
            case ev.MissingFound(name):
                gen = self._generations[name]
                gen.supplements.note_missing(event, gen.completed, now, gen.is_whole)
            case ev.DamageReported(request, name):
                if name in self._generations:
                    self._repair.reported(self._generations[name], event, out)
                elif request:
                    out.append(do.ReplyDone(request))
            case ev.ShardVerified(name):
                self._repair.verified(self._generations[name], event, out)
            case ev.Remade(name):
                self._repair.remade(self._generations[name], event, out)
            case ev.RemakeFailed(name, number):
                self._repair.failed(self._generations[name], number, False, now, out)
            case ev.ExcludeAsked(request, dataset_name, keys):
                self._repair.excluding(request, request)
                out.append(do.WriteExclusion(request, dataset_name, keys))
            case ev.HoldersFound():
                self._repair.holders(event, out)
            case ev.Done(command):
                self.disk.end()
                self._done(command, out)
            case ev.DiskRefused(command, reason):
                self._disk_refused(command, reason, now, out)
            case ev.Measured():
                self.room.measure(event)
                self.disk.refused = event.refused
            case ev.RoomAsked(purpose, size):
                out.append(do.ReplyRoom(purpose, self.room.write(size, in_slack=False)))
            case ev.Draining():
                self._draining = True
            case ev.Tick():
                pass
            case _:
                self._start(event, now, out)

    # --- a start

    def _start(self, event: ev.Event, now: float, out: list[do.Command]) -> None:
        match event:
            case ev.Configured():
                self._configure(event)
            case ev.GenerationFound():
                self._add_generation(event)
            case ev.LeaseFound(lease, was_held):
                gen = self.leases.generation_of(lease)
                allocated = gen.table.set_of(lease.intervals).allocated if gen else 0
                grace = now if was_held else now + GRACE
                state = LeaseState(lease, allocated, grace, now, True, was_held)
                self.leases.add(state)
                if was_held and lease.dataset in self.datasets:
                    self.datasets[lease.dataset].was_held = True
            case ev.Started():
                self._started = True
                for gen in self.room.generations:
                    gen.started(out)
                out += [
                    do.RemoveGeneration(gen.id) for gen in self.room.others if gen.table.is_empty
                ]

    def _configure(self, event: ev.Configured) -> None:
        self.room.limit = event.limit
        self.leases.block, self.leases.boot = event.block, event.boot
        self.restraint.egress_limit, self.restraint.idle = event.egress_limit, event.idle
        self.restraint.offline = event.offline
        for rules in event.datasets:
            self._rules[rules.name] = rules
            if dataset := self.datasets.get(rules.name):
                dataset.rules = rules

    def _add_generation(self, event: ev.GenerationFound) -> None:
        name, shape = event.generation, event.shape
        rules = self._rules.get(name.dataset)
        configured = rules is not None and rules.generation == name.name
        size = shape.capacity if shape else rules.shard_size if rules else 0
        gen = self._generations[name] = Generation(event, footprint(size, self.leases.block))
        if rules is not None and configured:
            dataset = self.datasets[name.dataset] = Dataset(rules, gen)
            dataset.older = [each for each in self.room.others if each.id.dataset == name.dataset]
            dataset.older.reverse()
        else:
            # Newest first they are found, oldest first they go.
            self.room.others.insert(0, gen)
            gen.is_configured = False
            if dataset_of := self.datasets.get(name.dataset):
                dataset_of.older.append(gen)

    # --- results

    def _half_full(self, name: StreamId, number: int) -> None:
        gen = self.datasets[name.dataset].generation
        for stream in gen.streams[name.index : name.index + 1]:
            _, j = gen.blocks.shape.split(number)
            stream.half = stream.half or (bool(stream.granted) and stream.granted[0] == j)

    def _done(self, command: do.Command, out: list[do.Command]) -> None:
        match command:
            case do.WriteShape(name, shape):
                dataset = self.datasets[name.dataset]
                gen, resume = dataset.generation, dataset.resume
                gen.writes_shape, dataset.resume = False, None
                gen.fix(shape, resume.place if resume else 0)
                if resume:  # a start, too, begins there
                    out.append(do.WriteState(name, gen.heads()))
            case do.MarkRetired(name, numbers):
                self._generations[name].marked(numbers, out)
            case do.WriteState(name):
                self._generations[name].state_written(command, out)
            case do.Unlink(name, names):
                self._unlinked(self._generations[name], names, out)
            case do.RemoveGeneration(name):
                gen = self._generations.pop(name)
                waiting = [each for some in gen.quarantine.verifying.values() for each in some]
                out += [do.ReplyDone(request) for request in waiting if request]
                self.room.others.remove(gen)
                if dataset_of := self.datasets.get(name.dataset):
                    dataset_of.older.remove(gen)
            case do.MarkBad(name):
                self._repair.marked(command, self._generations.get(name), out)
            case do.WriteExclusion(exclusion):
                out.append(do.FindHolders(exclusion))
            case do.FinishExclusion(exclusion):
                self._repair.finished(exclusion, out)
            case do.WriteManifest(lease):
                self.leases.written(lease.id, out)

    def _unlinked(
        self, gen: Generation, names: tuple[tuple[int, int], ...], out: list[do.Command]
    ) -> None:
        gen.unlinked(names, out)
        if gen in self.room.others and gen.table.is_empty:
            out.append(do.RemoveGeneration(gen.id))

    def _disk_refused(
        self, command: do.Command, reason: str, now: float, out: list[do.Command]
    ) -> None:
        self.disk.begin(now, reason)
        match command:
            case do.WriteManifest(lease):
                self.leases.refused(lease.id, reason, out)
            case do.ReadCursor(name, number):  # its sidecar is damaged
                gen = self._generations[name]
                report = ev.DamageReported("", name, number, gen.table.facts(number).version)
                self._repair.reported(gen, report, out)
            case do.RemakeShard(name, number):
                self._repair.failed(self._generations[name], number, True, now, out)
            case _ if isinstance(command, _REPEATED):
                self._refused.append(command)
