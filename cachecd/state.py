"""All policy: growth, rotation, leases, reservations, faults. Pure: no I/O, clock or randomness.

`State.handle(event, now)` is the one way in, a list of commands the one way out. Whoever carries a
command out reports its result as an event.

A shard's life: reserved -> being made -> published (live, served) -> retired or barred -> unlinked.
Room is reserved before StartShard and returned only by ShardPublished (for what the shard really
takes), ShardFailed, or ShardUnlinked: so `used + reserved <= limit` at every instant.

A lease's life: granted -> held by all ranks of its node -> unheld -> ended. A grant stands without
a lock for GRACE seconds after the latest rank asked; once all ranks have held it, or that time has
passed, the locks alone decide.
"""

from __future__ import annotations

from collections.abc import Iterable

from cachecd import events as ev
from cachecd.dataset import DatasetRules, DatasetState, LiveShard, Making
from cachecd.grant import GRACE, LeaseState, new_lease
from cachecd.ledger import Ledger
from cachecd.model import Assignment, Lease, Outcome, Shard, ShardId
from cachecd.pause import Pause
from cachecd.room import Room
from cachecd.waiting import not_ready


class State:
    """The policy's whole state. `datasets`, `leases` and `ledger` are for reading from outside."""

    def __init__(
        self, ledger: Ledger, shard_size: int, workers: int, boot: str, offline: bool = False
    ) -> None:
        self.ledger = ledger
        self.datasets: dict[str, DatasetState] = {}
        self.leases: dict[str, LeaseState] = {}
        self.disk = Pause()
        self.corrupt_shards = 0
        self._shard_size = shard_size
        self._room = Room(ledger, self.datasets, shard_size)
        self._workers = workers
        self._boot = boot  # makes lease names unique across restarts
        self._serial = 0
        self._by_epoch: dict[tuple[str, str, int], str] = {}
        self._offline = offline
        self._draining = offline  # offline, nothing is ever started

    # --- what a start found on disk; before the first event

    def add_dataset(self, dataset: DatasetState) -> None:
        self.datasets[dataset.rules.name] = dataset

    def adopt_shard(self, shard: Shard, retired: bool, barred: bool = False) -> None:
        """A valid shard found on disk; its units are held in the plan by the caller, unless barred."""
        live = LiveShard(shard, retired, barred, released=barred)
        self.datasets[shard.id.dataset].live[shard.id.number] = live
        self.ledger.adopt(shard.id, shard.allocated)

    def adopt_lease(self, lease: Lease, now: float, age: float = 0.0) -> None:
        """A manifest found on disk, after its shards: it stands for a fresh grace, whoever holds it,
        and its epoch goes on growing the cache."""
        self.leases[lease.id] = LeaseState(lease, now + GRACE, since=now - age)
        self._by_epoch[lease.dataset, lease.job, lease.epoch] = lease.id
        if dataset := self.datasets.get(lease.dataset):
            dataset.allow_after(lease)
            for number, live in dataset.live.items():
                live.leased = live.leased or lease.names(number)

    def reconfigure(self, limit: int, rules: Iterable[DatasetRules]) -> None:
        """New sizes for the same datasets; what is on disk beyond a lower limit is rotated out."""
        self.ledger.limit = limit
        for rule in rules:
            self.datasets[rule.name].change(rule)

    # --- the one way in

    def handle(self, event: ev.Event, now: float) -> list[ev.Command]:
        """What is to be done about this event at this time (seconds of a monotonic clock)."""
        out: list[ev.Command] = []
        match event:
            case ev.AcquireAsked():
                self._acquire(event, now, out)
            case ev.RankHolds(request, lease, rank):
                self._rank_holds(request, lease, rank, out)
            case ev.LeaseUnheld(lease):
                state = self.leases.get(lease)
                if state and not state.stands_without_lock(now):
                    out.append(ev.EndLease(lease))
            case ev.LeaseEnded(lease):
                if state := self.leases.pop(lease, None):
                    key = (state.lease.dataset, state.lease.job, state.lease.epoch)
                    if self._by_epoch.get(key) == lease:
                        del self._by_epoch[key]
                    self._unlink_unheld(state.lease.dataset, out)
            case ev.Listed(dataset, _, complete):
                state_of = self.datasets[dataset]
                state_of.plan.extend()
                state_of.listed = complete
                state_of.exhausted = False
                state_of.source.end()
            case ev.IngestStopped(dataset, reason):
                self.datasets[dataset].source.begin(now, reason)
            case ev.SchemaFound(dataset):
                self.datasets[dataset].described = True
            case ev.ShardProgressed(shard, fetched):
                self._progressed(shard, fetched, now)
            case ev.ShardMade(shard, outcome):
                self._made(shard, outcome, now, out)
            case ev.ShardPublished(shard, units):
                self._published(shard, units, out)
            case ev.ShardFailed(shard, cause, reason, unit):
                self._failed(shard, cause, reason, unit, now, out)
            case ev.ShardUnlinked(shard, units):
                self._unlinked(shard, units, out)
            case ev.CorruptReported(shard):
                self._corrupt_reported(shard, out)
            case ev.ShardVerified(shard, sound, units):
                self._verified(shard, sound, units, out)
            case ev.MetadataMeasured(allocated, spare):
                self.ledger.measured(allocated, spare)
            case ev.Tick():
                for name in self.datasets:
                    self._unlink_unheld(name, out)
            case ev.Draining():
                self._draining = True
        if not self._draining:
            self._schedule(now, out)
        return out

    # --- leases

    def _acquire(self, asked: ev.AcquireAsked, now: float, out: list[ev.Command]) -> None:
        dataset = self.datasets.get(asked.dataset)
        if dataset is None:
            names = ", ".join(sorted(self.datasets))
            message = f"no dataset {asked.dataset!r}; this daemon serves {names}"
            out.append(ev.ReplyRefused(asked.request, "unknown-dataset", message))
            return
        if not 0 <= asked.epoch < 1 << 63 or not 0 <= asked.local_rank < asked.local_world_size:
            message = (
                f"epoch {asked.epoch}, local rank {asked.local_rank} of {asked.local_world_size}: "
                "expected 0 <= epoch < 2**63 and 0 <= rank < world size"
            )
            out.append(ev.ReplyRefused(asked.request, "bad-request", message))
            return
        known = self._by_epoch.get((asked.dataset, asked.job, asked.epoch))
        if known is None:
            known = self._grant(dataset, asked, now, out)
            if known is None:
                return
        self.leases[known].asked(asked.local_rank, asked.local_world_size, now)
        out.append(ev.ReplyGranted(asked.request, known))

    def _grant(
        self, dataset: DatasetState, asked: ev.AcquireAsked, now: float, out: list[ev.Command]
    ) -> str | None:
        rules = dataset.rules
        needed = dataset.needed(asked.epoch)
        dataset.allowed = max(dataset.allowed, needed)  # a job may begin in its middle
        stuck = self._room.stuck(dataset)
        if rules.wait and stuck and dataset.served(rules.generation):
            needed = 0  # the limit is reached: the plan's last shards are all that fits
        if self._offline and not rules.pin:
            needed = min(needed, dataset.data())  # what is cached is all there will be
        generation = dataset.generation_to_lease(needed)
        if generation is None:
            disk = self.disk.reason
            out.append(
                not_ready(
                    dataset, self.ledger, needed, stuck, self._offline, disk, asked.request, now
                )
            )
            return None
        self._boundary(dataset, generation, out)
        shards = dataset.choose(asked.epoch, generation)
        for shard in shards:
            dataset.live[shard.id.number].leased = True
        self._serial += 1
        serial = f"{self._boot}{self._serial}"
        lease = new_lease(rules, asked.job, asked.epoch, generation, shards, serial)
        dataset.allow_after(lease)
        self.leases[lease.id] = LeaseState(lease, now + GRACE, since=now)
        self._by_epoch[lease.dataset, lease.job, lease.epoch] = lease.id
        out.append(ev.WriteManifest(lease))
        self._unlink_unheld(rules.name, out)
        return lease.id

    def _rank_holds(self, request: str, lease: str, rank: int, out: list[ev.Command]) -> None:
        state = self.leases.get(lease)
        if state is None:
            message = f"lease {lease} has ended: acquire again"
            out.append(ev.ReplyRefused(request, "lease-lost", message))
            return
        state.held_by.add(rank)
        out.append(ev.ReplyDone(request))

    # --- rotation

    def _boundary(self, dataset: DatasetState, generation: str, out: list[ev.Command]) -> None:
        """An epoch begins: retires what newer shards shall replace."""
        rules = dataset.rules
        if generation == rules.generation:
            for live in dataset.superseded():  # leases never mix generations: they are of no use
                self._retire(live, out)
        preparing = generation != rules.generation
        floor = 1 if preparing or rules.wait else min(rules.first, dataset.data(generation))
        at_limit = not self._room.fits(dataset)
        over = self.ledger.room < 0
        chosen = dataset.to_retire(self._room.capacity(dataset), at_limit, floor, over)
        for live in chosen:
            self._retire(live, out)
            dataset.debt += live.shard.allocated
        dataset.sealed_since_boundary = 0
        if chosen:
            dataset.last_retired = sum(live.shard.allocated for live in chosen)
            out.append(ev.SavePlan(rules.name))  # the debt survives a restart

    def _retire(self, live: LiveShard, out: list[ev.Command]) -> None:
        live.retired = True
        out.append(ev.MarkShard(live.shard.id))

    def _unlink_unheld(self, name: str, out: list[ev.Command]) -> None:
        dataset = self.datasets.get(name)
        if dataset is None:
            return
        if dataset.rules.pin:  # what a pinned set of old generation takes, the new one needs
            for live in dataset.superseded():
                self._retire(live, out)
        if not any(live.doomed for live in dataset.live.values()):
            return
        leases = [s.lease for s in self.leases.values() if s.lease.dataset == name]
        for number, live in dataset.live.items():
            if live.doomed and not any(lease.names(number) for lease in leases):
                live.unlinking = True
                out.append(ev.UnlinkShard(live.shard.id))

    # --- shards

    def _progressed(self, shard: ShardId, fetched: int, now: float) -> None:
        dataset = self.datasets[shard.dataset]
        making = dataset.making.get(shard.number)
        if making and fetched > making.fetched_bytes:
            dataset.fetched(fetched - making.fetched_bytes, now)
            making.fetched_bytes = fetched

    def _made(self, shard: ShardId, outcome: Outcome, now: float, out: list[ev.Command]) -> None:
        dataset = self.datasets[shard.dataset]
        self._progressed(shard, outcome.fetched_bytes, now)
        dataset.source.end()
        if outcome.records:
            dataset.making[shard.number].outcome = outcome
            out.append(ev.PublishShard(shard, outcome))
        else:
            self.ledger.cancel(shard)
            self._finish(dataset, shard.number, outcome, None, (), out)

    def _published(self, shard: Shard, units: Iterable[int], out: list[ev.Command]) -> None:
        dataset = self.datasets[shard.id.dataset]
        outcome = dataset.making[shard.id.number].outcome
        assert outcome is not None, "published before it was made"
        self.ledger.seal(shard.id, shard.allocated)
        self.disk.end()
        dataset.live[shard.id.number] = LiveShard(shard)
        dataset.debt = max(0, dataset.debt - shard.allocated)
        dataset.sealed_since_boundary += shard.allocated
        self._finish(dataset, shard.id.number, outcome, shard, list(units), out)

    def _finish(
        self,
        dataset: DatasetState,
        number: int,
        outcome: Outcome,
        shard: Shard | None,
        units: list[int] | tuple[()],
        out: list[ev.Command],
    ) -> None:
        del dataset.making[number]
        dataset.plan.finish(number, outcome, units)
        dataset.exhausted = False
        name = dataset.rules.name
        out.append(ev.SavePlan(name, number, shard, units, outcome.set_aside))

    def _failed(
        self, shard: ShardId, cause: str, reason: str, unit: int | None, now: float,
        out: list[ev.Command],
    ) -> None:  # fmt: skip
        dataset, number = self.datasets[shard.dataset], shard.number
        self.ledger.cancel(shard)
        del dataset.making[number]
        if cause == "disk":
            self.disk.begin(now, reason)
            dataset.retry[number] = now
        elif cause == "source":
            dataset.source.begin(now, reason)
            dataset.retry[number] = now
        elif aside := dataset.lost_worker(number, unit, reason, now):
            out.append(ev.SavePlan(dataset.rules.name, set_aside=(aside,)))

    def _unlinked(self, shard: ShardId, units: Iterable[int], out: list[ev.Command]) -> None:
        dataset = self.datasets[shard.dataset]
        live = dataset.live.pop(shard.number)
        self.ledger.free(shard)
        if not live.released:
            dataset.plan.release(list(units))
        dataset.exhausted = False
        if live.shard.generation == dataset.rules.generation:
            dataset.evicted += live.shard.data_bytes
            dataset.evicted_shards += 1
        out.append(ev.SavePlan(shard.dataset))

    def _corrupt_reported(self, shard: ShardId, out: list[ev.Command]) -> None:
        dataset = self.datasets.get(shard.dataset)
        live = dataset.live.get(shard.number) if dataset else None
        if live and not (live.verifying or live.barred or live.unlinking):
            live.verifying = True
            out.append(ev.VerifyShard(shard))

    def _verified(
        self, shard: ShardId, sound: bool, units: Iterable[int], out: list[ev.Command]
    ) -> None:
        dataset = self.datasets[shard.dataset]
        live = dataset.live[shard.number]
        live.verifying = False
        if not sound:
            # Its units come again at once, whoever still holds the shard.
            live.barred = live.released = True
            dataset.plan.release(list(units))
            dataset.exhausted = False
            self.corrupt_shards += 1
            out.append(ev.MarkShard(shard, barred=True))
        self._unlink_unheld(shard.dataset, out)

    # --- ingest

    def _schedule(self, now: float, out: list[ev.Command]) -> None:
        """Starts as many shards as there are workers, room and work for."""
        for dataset in self.datasets.values():
            self._forgive(dataset)
        if now < self.disk.until:
            return
        pins_missing = any(d.rules.pin and not d.whole for d in self.datasets.values())
        while sum(len(d.making) for d in self.datasets.values()) < self._workers:
            waiting = sorted(
                self.datasets.values(),
                key=lambda d: (not d.rules.pin, len(d.making), d.rules.name),
            )
            if not any(self._start_one(d, pins_missing, now, out) for d in waiting):
                return

    def _forgive(self, dataset: DatasetState) -> None:
        """Room that no shard fits into any more is not a debt."""
        if dataset.debt and (not dataset.has_work or self._room.stuck(dataset)):
            dataset.debt = 0

    def _start_one(
        self, dataset: DatasetState, pins_missing: bool, now: float, out: list[ev.Command]
    ) -> bool:
        if now < dataset.source.until or (dataset.making and not dataset.described):
            return False
        if not self._room.fits(dataset):
            return False
        due = [n for n, not_before in dataset.retry.items() if not_before <= now]
        if due:
            assignment = dataset.plan.open[min(due)]
            del dataset.retry[min(due)]
            if not assignment.units:  # every unit of it has been set aside
                empty = Outcome(0, 0, 0, 0, 0, 0.0)
                dataset.making[assignment.shard.number] = Making()
                self._finish(dataset, assignment.shard.number, empty, None, (), out)
                return True
        else:
            found = self._next_assignment(dataset, pins_missing)
            if found is None:
                return False
            assignment = found
        reserved = self.ledger.reserve(assignment.shard)
        assert reserved, "space was checked above"
        dataset.making[assignment.shard.number] = Making()
        out.append(ev.StartShard(assignment))
        return True

    def _next_assignment(self, dataset: DatasetState, pins_missing: bool) -> Assignment | None:
        rules = dataset.rules
        allowed = dataset.allowed
        if pins_missing and not rules.pin:
            allowed = min(allowed, rules.first)
        coming = (len(dataset.making) + len(dataset.retry)) * self._shard_size
        held = dataset.data() + (dataset.evicted if rules.wait else 0)
        if dataset.exhausted or held + coming >= allowed or not dataset.plan.num_units:
            return None
        found = dataset.plan.assign()
        if isinstance(found, Assignment):
            return found
        # Blocked or exhausted: either way only a finished or an unlinked shard, or a longer
        # listing, changes it, and each of these clears the mark.
        dataset.exhausted = True
        return None
