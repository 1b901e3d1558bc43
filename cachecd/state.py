"""All policy: growth, rotation, leases, reservations, faults. Pure: no I/O, clock or randomness.

`State.handle(event, now)` is the one way in, a list of commands the one way out. Whoever carries a
command out reports its result as an event.

A shard's life: reserved -> being made -> published (live, served) -> retired or barred -> unlinked.
Room is reserved before StartShard and returned only by ShardPublished (for what the shard really
takes), ShardFailed, or ShardUnlinked: so `used + reserved <= limit` at every instant.

A lease's life: granted -> held by all ranks of its node -> unheld -> ended. A grant stands without
a lock for GRACE seconds after the latest rank asked; once all ranks have held it, or that time has
passed, the locks alone decide. So they do for a set that could not be granted any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cachecd import events as ev
from cachecd.acquire import (
    GRACE,
    LeaseState,
    begin_at,
    may_stand,
    new_lease,
    no_delivery,
    refusal,
    set_again,
)
from cachecd.dataset import DatasetState
from cachecd.ingest import Ingest, exclude, finish
from cachecd.ledger import Ledger
from cachecd.model import Held, Lease, Outcome, Shard, ShardId
from cachecd.pause import Pause
from cachecd.restraint import Restraint
from cachecd.room import Room
from cachecd.rotation import Rotation
from cachecd.rules import DatasetRules
from cachecd.shardtable import Rows, ShardSet
from cachecd.waiting import Hindrances, not_ready, still_held

_IN_VAIN = 1024
_MOST_RANKS = 1 << 12  # of a node, where a restart has forgotten how many there are


class State:
    """The policy's whole state. `datasets`, `leases` and `ledger` are for reading from outside."""

    def __init__(
        self,
        ledger: Ledger,
        shard_size: int,
        workers: int,
        boot: str,
        offline: bool = False,
        restraint: Restraint | None = None,
    ) -> None:
        self.ledger = ledger
        self.datasets: dict[str, DatasetState] = {}
        self.leases: dict[str, LeaseState] = {}
        self.disk = Pause(shortest=0.1)  # what it refuses once, it may allow the next moment
        self.restraint = restraint or Restraint()
        self.corrupt_shards = 0
        self._room = Room(ledger, self.datasets, shard_size)
        self._rotation = Rotation(self.datasets, self._room)
        self._ingest = Ingest(ledger, self.datasets, self._room, self.disk, shard_size, workers)
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
        self.datasets[shard.id.dataset].live.add(shard, retired, barred)
        self.ledger.adopt(shard.id.dataset, shard.allocated)

    def adopt_shards(self, dataset: str, generations: Sequence[str], rows: Rows) -> None:
        """Many at once, as LiveShards.add_all has them."""
        self.datasets[dataset].live.add_all(generations, rows)
        self.ledger.adopt(dataset, int(rows["allocated"].sum()))

    def adopt_lease(self, lease: Lease, now: float, age: float = 0.0) -> None:
        """A manifest found on disk, after its shards: it stands for a fresh grace, whoever holds it,
        and its epoch goes on growing the cache."""
        self.leases[lease.id] = LeaseState(lease, now + GRACE, since=now - age, taken=True)
        self._by_epoch[lease.dataset, lease.job, lease.epoch] = lease.id
        if dataset := self.datasets.get(lease.dataset):
            dataset.allow_after(lease)
            dataset.live.hold(lease.id, lease.shards)

    def reconfigure(
        self, limit: int, rules: Iterable[DatasetRules], restraint: Restraint | None = None
    ) -> None:
        """New bounds for the same datasets; what is on disk beyond a lower limit is rotated out."""
        self.ledger.change(limit)
        if restraint is not None:
            self.restraint.change(restraint)
        for rule in rules:
            self.datasets[rule.name].change(rule)
        for held in self.leases.values():
            if dataset := self.datasets.get(held.lease.dataset):
                dataset.allow_after(held.lease)

    # --- the one way in

    def handle(self, event: ev.Event, now: float) -> list[ev.Command]:
        """What is to be done about this event at this time (seconds of a monotonic clock)."""
        out: list[ev.Command] = []
        match event:
            case ev.AcquireAsked():
                self._acquire(event, now, out)
            case ev.RankHolds(request, lease, rank):
                self._rank_holds(request, lease, rank, out)
            case ev.Delivered():
                self._delivered(event, out)
            case ev.LeaseUnheld(lease):
                state = self.leases.get(lease)
                if state and not (state.stands_without_lock(now) and self._may_stand(state.lease)):
                    out.append(ev.EndLease(lease))
            case ev.LeaseEnded(lease):
                if state := self.leases.pop(lease, None):
                    self.restraint.wanted(now)
                    self._ended(state, out)
            case ev.Listed(dataset, complete, fresh):
                if self.datasets[dataset].listed_on(complete, fresh, now):
                    out.append(ev.SavePlan(dataset))
            case ev.Relisted(dataset, gone, back):
                if again := self.datasets[dataset].relisted(gone, back, now):
                    out.append(ev.SavePlan(dataset, again=again))
            case ev.ListingStopped(dataset, reason, stuck, down, doubted):
                self.datasets[dataset].listing_stopped(reason, stuck, down, now, doubted)
            case ev.SchemaFound(dataset):
                self.datasets[dataset].described = True
            case ev.ShardProgressed(shard, fetched):
                self._progressed(shard, fetched, now)
            case ev.ShardMade(shard, outcome):
                self._made(shard, outcome, now, out)
            case ev.ShardPublished():
                self._published(event, out)
            case ev.ShardFailed():
                self._failed(event, now, out)
            case ev.ShardUnlinked(shard, units):
                self._unlinked(shard, units, out)
            case ev.CorruptReported(shard):
                self._corrupt_reported(shard, out)
            case ev.ShardVerified(shard, sound, held):
                self._verified(shard, sound, held, out)
            case ev.UnitsExcluded(dataset, units):
                out.append(exclude(self.datasets[dataset], units))
            case ev.HoldersFound(dataset, holders):
                for number in holders:
                    self._bar_holder(ShardId(dataset, number), out)
            case ev.ExclusionsKnown(dataset):
                self.datasets[dataset].excluded.sought = False
            case ev.MetadataMeasured(allocated, spare, spare_shards, coming):
                self.ledger.measured(allocated, spare, spare_shards, coming)
            case ev.DiskChecked(refused):
                self.disk.refused = refused
            case ev.Tick():
                for each in self.datasets.values():
                    self._rotation.unlink_unheld(each, self._may_fetch, out)
            case ev.Draining():
                self._draining = True
        self._ingest.schedule(now, not (self._draining or self.rests(now)), out)
        return out

    def rests(self, now: float) -> str:
        """Why nothing is begun though there may be room, "" if something may be."""
        return self._spent() or self.restraint.resting(bool(self.leases), now)

    def _spent(self) -> str:
        return self.restraint.spent(sum(d.egress for d in self.datasets.values()))

    @property
    def _may_fetch(self) -> bool:
        return not (self._draining or self._spent())

    # --- leases

    def _acquire(self, asked: ev.AcquireAsked, now: float, out: list[ev.Command]) -> None:
        if refused := refusal(asked, self.datasets):
            out.append(refused)
            return
        dataset, resume = self.datasets[asked.dataset], asked.resume
        self.restraint.wanted(now)
        known = self._by_epoch.get((asked.dataset, asked.job, asked.epoch))
        if resume is not None and begin_at(dataset, resume):
            out.append(ev.SavePlan(asked.dataset))
        if known:
            before = self.leases[known].lease
            if not dataset.may_lease(before.generation):
                out.append(still_held(before, dataset, asked.request))
                return
        elif dataset.excluded.sought:
            out.append(ev.ReplyWaiting(asked.request, 0, 0, 0.0, "what was excluded is looked for"))
            return
        elif resume is not None and resume.fingerprint:
            found = set_again(dataset, asked, resume, self.leases.values())
            if isinstance(found, ev.ReplyWaiting):
                out.append(found)
                return
            if found is not None:  # no new epoch, so nothing rotates
                known = self._lease(dataset, asked, resume.generation, found, now, out)
        if known is None:
            known = self._grant(dataset, asked, now, out)
        if known is None:
            return
        self.leases[known].asked(asked.local_rank, asked.local_world_size, now)
        out.append(ev.ReplyGranted(asked.request, known, dataset.plan.coverage))

    def _grant(
        self, dataset: DatasetState, asked: ev.AcquireAsked, now: float, out: list[ev.Command]
    ) -> str | None:
        rules = dataset.rules
        needed = dataset.needed(asked.epoch)
        dataset.allowed = max(dataset.allowed, needed)  # a job may begin in its middle
        served = dataset.live.served(rules.generation).shards > 0
        if rules.wait and not served:  # whatever was made is gone: one more, at least
            dataset.allowed = max(dataset.allowed, dataset.made() + 1)
        stuck, holder = self._stuck(dataset)
        if stuck and served and (rules.wait or holder):
            needed = 0  # the limit is reached: what there is is all that fits
        no_more = self._no_more(dataset)
        if no_more and not rules.pin:
            needed = 0  # what is cached is all there will be
        generation = dataset.generation_to_lease(needed)
        if generation in (None, rules.generation) and (why := dataset.contradicted):
            out.append(ev.ReplyRefused(asked.request, "contradicted", why))
            return None
        if generation is None and stuck:
            self._rotation.make_room(dataset, self._may_fetch, out)
            stuck, holder = self._stuck(dataset)
        if generation is None:
            hindrances = Hindrances(stuck, holder, no_more, self.disk.why)
            out.append(not_ready(dataset, self._room, needed, hindrances, asked.request, now))
            return None
        if rules.wait:
            dataset.allowed = max(dataset.allowed, dataset.needed(asked.epoch + 1))
        if generation == rules.generation and not dataset.was_leased:
            dataset.was_leased = True
            out.append(ev.SavePlan(asked.dataset))
        # An epoch that is asked for again because nobody ever held it is not a new one.
        if dataset.in_vain.pop(asked.job, None) != asked.epoch:
            self._rotation.boundary(dataset, generation, self._may_fetch, out)
        shards = dataset.choose(asked.epoch, generation)
        return self._lease(dataset, asked, generation, shards, now, out)

    def _stuck(self, dataset: DatasetState) -> tuple[bool, Lease | None]:
        """Whether it can hold no more than it does, and the lease whose end would change that."""
        stuck = self._room.stuck(dataset)
        return stuck, self._holder() if stuck and self._room.kept_for_leases() else None

    def _no_more(self, dataset: DatasetState) -> str:
        """Why nothing comes any more."""
        if self._offline:
            return "start without --offline"
        return "" if dataset.making else self._spent()

    def _lease(
        self, dataset: DatasetState, asked: ev.AcquireAsked, generation: str, shards: ShardSet,
        now: float, out: list[ev.Command],
    ) -> str:  # fmt: skip
        self._serial += 1
        serial, cursor = f"{self._boot}{self._serial}", dataset.plan.cursor
        lease = new_lease(dataset.rules, asked.job, asked.epoch, generation, shards, serial, cursor)
        dataset.allow_after(lease)
        dataset.live.hold(lease.id, lease.shards)
        self.leases[lease.id] = LeaseState(lease, now + GRACE, since=now)
        self._by_epoch[lease.dataset, lease.job, lease.epoch] = lease.id
        out.append(ev.WriteManifest(lease))
        self._rotation.unlink_unheld(dataset, self._may_fetch, out)
        return lease.id

    def _rank_holds(self, request: str, lease: str, rank: int, out: list[ev.Command]) -> None:
        state = self.leases.get(lease)
        if state is None:
            message = f"lease {lease} has ended: acquire again"
            out.append(ev.ReplyRefused(request, "lease-lost", message))
            return
        if not 0 <= rank < (state.ranks or _MOST_RANKS):
            message = f"rank {rank}: expected 0 to {(state.ranks or _MOST_RANKS) - 1}"
            out.append(ev.ReplyRefused(request, "bad-request", message))
            return
        state.taken = True
        state.held_by.add(rank)
        out.append(ev.ReplyDone(request))

    def _delivered(self, event: ev.Delivered, out: list[ev.Command]) -> None:
        state = self.leases.get(event.lease)
        dataset = self.datasets.get(state.lease.dataset) if state else None
        if state is None or dataset is None:
            out.append(ev.ReplyDone(event.request))  # it has ended: what it names may be gone
            return
        if wrong := no_delivery(state.lease, event.shards, event.shares):
            out.append(ev.ReplyRefused(event.request, "bad-request", wrong))
            return
        dataset.live.deliver(event.shards, event.shares)
        out += [ev.SavePlan(state.lease.dataset), ev.ReplyDone(event.request)]

    def _may_stand(self, lease: Lease) -> bool:
        dataset = self.datasets.get(lease.dataset)
        return dataset is None or may_stand(dataset, lease)

    def _ended(self, state: LeaseState, out: list[ev.Command]) -> None:
        lease = state.lease
        if self._by_epoch.get((lease.dataset, lease.job, lease.epoch)) == lease.id:
            del self._by_epoch[lease.dataset, lease.job, lease.epoch]
        dataset = self.datasets.get(lease.dataset)
        if dataset is None:
            return
        if not state.taken:
            dataset.in_vain[lease.job] = lease.epoch
            if len(dataset.in_vain) > _IN_VAIN:  # jobs that never came back
                del dataset.in_vain[next(iter(dataset.in_vain))]
        dataset.live.let_go(lease.id)
        self._rotation.unlink_unheld(dataset, self._may_fetch, out)

    def _holder(self) -> Lease | None:
        """The oldest lease for which shards are kept that no later lease names."""
        for held in sorted(self.leases.values(), key=lambda s: (s.since, s.lease.id)):
            dataset = self.datasets.get(held.lease.dataset)
            if dataset and dataset.live.any_doomed_in(held.lease.shards):
                return held.lease
        return None

    # --- shards

    def _progressed(self, shard: ShardId, fetched: int, now: float) -> None:
        dataset = self.datasets[shard.dataset]
        making = dataset.making.get(shard.number)
        if making and fetched > making.fetched_bytes:
            dataset.source.works(now)
            dataset.fetched(fetched - making.fetched_bytes, now)
            making.fetched_bytes = fetched

    def _made(self, shard: ShardId, outcome: Outcome, now: float, out: list[ev.Command]) -> None:
        dataset = self.datasets[shard.dataset]
        self._progressed(shard, outcome.fetched_bytes, now)
        dataset.source.end()
        outcome = dataset.made_of(shard.number, outcome, now)
        if outcome.records:
            dataset.making[shard.number].outcome = outcome
            out.append(ev.PublishShard(shard, outcome))
        else:
            self.ledger.cancel(shard)
            out.append(finish(dataset, shard.number, outcome))

    def _published(self, event: ev.ShardPublished, out: list[ev.Command]) -> None:
        shard, units = event.shard, event.units
        dataset = self.datasets[shard.id.dataset]
        outcome = dataset.making[shard.id.number].outcome
        assert outcome is not None, "published before it was made"
        self.ledger.seal(shard.id, shard.allocated)
        self.disk.end()
        dataset.live.add(shard)
        dataset.debt = max(0, dataset.debt - shard.allocated)
        dataset.sealed_since_boundary += shard.allocated
        dataset.refilled += shard.allocated
        done = finish(dataset, shard.id.number, outcome, shard, units)
        out.append(done)
        cut = {part.unit for part in done.parts}
        # Nothing that another shard holds is assigned. If it is all the same, no lease is to name it twice.
        twice = dataset.plan.held_twice([unit for unit in units if unit not in cut])
        if twice or not dataset.excluded.numbers.isdisjoint(
            units
        ):  # excluded while it was being made
            self._bar_holder(shard.id, out)

    def _failed(self, failed: ev.ShardFailed, now: float, out: list[ev.Command]) -> None:
        shard, cause, reason = failed.shard, failed.cause, failed.reason
        dataset, number = self.datasets[shard.dataset], shard.number
        self.ledger.cancel(shard)
        del dataset.making[number]
        if cause == "disk":
            self.disk.begin(now, reason)
            dataset.retry[number] = now
        elif cause == "source":
            dataset.source.begin(now, reason)
            dataset.retry[number] = now
        elif aside := dataset.lost_worker(number, failed.unit, reason, failed.passing, now):
            out.append(ev.SavePlan(dataset.rules.name, set_aside=(aside,)))

    def _unlinked(self, shard: ShardId, units: Iterable[int], out: list[ev.Command]) -> None:
        dataset = self.datasets[shard.dataset]
        live = dataset.live[shard.number]
        gone, retired, released = live.shard, live.retired, live.released
        dataset.live.remove(shard.number)
        self.ledger.free(shard.dataset, gone.allocated)
        if not released:
            dataset.plan.release(list(units))
        dataset.exhausted = False
        dataset.evict(gone)
        if retired and (gone.generation == dataset.rules.generation or dataset.preparing):
            dataset.debt += gone.allocated
        # In one transaction: what is gone is owed, across restarts too.
        out.append(ev.SavePlan(shard.dataset, removed=shard.number))

    def _bar_holder(self, shard: ShardId, out: list[ev.Command]) -> None:
        """It holds records that no lease is to name, of an excluded unit, or of a unit that another shard
        holds: barred as soon as it is known what comes again."""
        self.datasets[shard.dataset].excluded.shards.add(shard.number)
        self._corrupt_reported(shard, out)

    def _corrupt_reported(self, shard: ShardId, out: list[ev.Command]) -> None:
        dataset = self.datasets.get(shard.dataset)
        live = dataset.live.get(shard.number) if dataset else None
        if live and not (live.verifying or live.barred or live.unlinking):
            live.verifying = True
            out.append(ev.VerifyShard(shard))

    def _verified(self, shard: ShardId, sound: bool, held: Held, out: list[ev.Command]) -> None:
        dataset = self.datasets[shard.dataset]
        live = dataset.live[shard.number]
        live.verifying = False
        unwanted = shard.number in dataset.excluded.shards
        dataset.excluded.shards.discard(shard.number)
        if unwanted or not sound:
            # What it held comes again at once, whoever still holds the shard.
            live.barred = live.released = True
            dataset.give_back(held)
            self.corrupt_shards += not sound
            out.append(ev.SavePlan(shard.dataset, barred=shard.number))
        self._rotation.unlink_unheld(dataset, self._may_fetch, out)
