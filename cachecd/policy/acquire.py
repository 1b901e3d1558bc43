"""Acquire: which set a job gets, who waits, who is refused, and when an epoch begins. Pure."""

from __future__ import annotations

from cachecd.policy import commands as do
from cachecd.policy.dataset import Dataset
from cachecd.policy.events import AcquireAsked
from cachecd.policy.generation import Generation
from cachecd.policy.leases import GRACE, LeaseState, manifest_size, new_lease
from cachecd.policy.pause import Pause
from cachecd.policy.room import Room
from cachecd.policy.rotation import Boundary
from cachecd.policy.shard_table import ShardSet
from cachecd.policy.values import GenerationId, Lease, Resume

Reply = do.ReplyWaiting | do.ReplyRefused
_MOST_PLACE = 1 << 62


class Leases:
    """All leases, by name and by (dataset, job, epoch)."""

    def __init__(self, room: Room, disk: Pause) -> None:
        self.by_id: dict[str, LeaseState] = {}
        self.boot, self.block = "", 4096
        self._room, self._disk = room, disk
        self._by_epoch: dict[tuple[str, str, int], str] = {}
        self._serial = 0

    # --- requests

    def acquire(self, event: AcquireAsked, spent: str, now: float, out: list[do.Command]) -> None:
        """Answers a rank, now or when the manifest is written. `spent`: why nothing will be fetched any
        more, or ""."""
        if refused := self._refusal(event):
            out.append(refused)
            return
        dataset = self._room.datasets[event.dataset]
        known = self._by_epoch.get((event.dataset, event.job, event.epoch))
        if self._other_split(dataset, event):
            message = (
                f"datasets.{event.dataset}: split was changed. Job {event.job} holds a set from before, "
                "which may contain records that are now held out. Start the job again."
            )
            out.append(do.ReplyRefused(event.request, "split-changed", message))
            return
        if known is None:
            chosen = self._choose(dataset, event, spent, out)
            if isinstance(chosen, Reply):
                out.append(chosen)
                return
            known = self._grant(dataset, event, *chosen, now, out)
        if known is None:
            message = "there is no room under cache.limit for the manifest of a lease"
            out.append(do.ReplyWaiting(event.request, 0, 0, message))
            return
        state = self.by_id[known]
        state.renew(event.local_rank, now)
        if state.written:
            coverage = dataset.generation.coverage
            out.append(do.ReplyGranted(event.request, known, coverage))
        else:
            state.requests.append(event.request)

    def _refusal(self, event: AcquireAsked) -> do.ReplyRefused | None:
        datasets, resume = self._room.datasets, event.resume
        if event.dataset not in datasets:
            names = ", ".join(sorted(datasets))
            message = f"no dataset {event.dataset!r}; this daemon serves {names}"
            return do.ReplyRefused(event.request, "unknown-dataset", message)
        if not 0 <= event.epoch < 1 << 63 or not 0 <= event.local_rank < event.local_world_size:
            message = (
                f"epoch {event.epoch}, local rank {event.local_rank} of {event.local_world_size}: "
                "expected 0 <= epoch < 2**63 and 0 <= rank < world size"
            )
            return do.ReplyRefused(event.request, "bad-request", message)
        if resume and not (
            0 <= resume.place < _MOST_PLACE
            and 0 < resume.streams <= 1024
            and 0 <= resume.sampling_seed < 1 << 64
        ):
            message = (
                f"resume: place {resume.place}, {resume.streams} streams, sampling seed "
                f"{resume.sampling_seed}: expected at most 2**62, 1024 and 2**64"
            )
            return do.ReplyRefused(event.request, "bad-request", message)
        return None

    def _other_split(self, dataset: Dataset, event: AcquireAsked) -> bool:
        """Whether the job holds a set from before a change of split."""
        splits = {gen.id: gen.split for gen in (dataset.generation, *dataset.older)}
        return any(
            splits.get(GenerationId(state.lease.dataset, state.lease.generation))
            != dataset.rules.split
            for state in self.by_id.values()
            if (state.lease.dataset, state.lease.job) == (event.dataset, event.job)
        )

    # --- which set

    def _choose(
        self, dataset: Dataset, event: AcquireAsked, spent: str, out: list[do.Command]
    ) -> tuple[Generation, ShardSet] | Reply:
        """The set of a new epoch, or why there is none."""
        if event.resume is not None:
            self._note_resume(dataset, event.resume)
            if (again := self._set_again(dataset, event.resume)) is not None:
                return again  # no new epoch, so that nothing rotates
        if dataset.is_new(event.job, event.epoch) and dataset.was_held:
            dataset.was_held = False
            self.boundary(dataset, not spent, out)
        gen, rules = dataset.generation, dataset.rules
        first = self._room.first(dataset)
        older = [
            each for each in dataset.older if each.split == rules.split and each.table.live_bytes
        ]
        if rules.pin:
            is_ready, older = gen.is_whole and not gen.quarantine.work, []
        else:
            is_ready = gen.table.live_bytes >= first or gen.is_whole or bool(spent)
            is_ready = is_ready or (not older and self._room.is_full(dataset))
        upto = None
        if rules.wait and dataset.waits(event.epoch, self._room.shares(dataset)[rules.name]):
            upto = dataset.target(event.epoch)
            short = (s for s in gen.streams if s.next < upto)
            lacks = any(s.feeds(gen.blocks) or gen.blocks.waits for s in short)
            is_ready = bool(spent) or not lacks
            if lacks:
                dataset.epoch = max(dataset.epoch, event.epoch - 1)
        identity = gen.id.name.partition("-")[0]  # HASH-2 replaces HASH, whose listing is damaged
        twins = [each for each in older if each.id.name.partition("-")[0] == identity]
        if twins and twins[0].table.live_bytes > gen.table.live_bytes:
            gen, upto = twins[0], None
        elif not is_ready and older:
            gen, upto = older[0], None
        shards = gen.table.select(upto)
        if shards.records and (is_ready or gen is not dataset.generation):
            return gen, shards
        want = rules.first if not rules.pin else int(min(gen.estimate, 1 << 62))
        return self._not_ready(dataset, event.request, want if upto is None else 0, spent)

    def _note_resume(self, dataset: Dataset, resume: Resume) -> None:
        """A generation that never sealed a shard takes sampling seed, S and place of a run that resumes."""
        gen = dataset.generation
        is_fresh = not any(s.next or s.reserved or s.open for s in gen.streams)
        if is_fresh and not gen.writes_shape and resume.generation == gen.id.name:
            dataset.resume = resume

    def _set_again(self, dataset: Dataset, resume: Resume) -> tuple[Generation, ShardSet] | None:
        """The set of a resumed run, if all of its shards may be leased. A retired shard may, while another
        lease of the same set exists."""
        inherited = any(
            state.lease.fingerprint == resume.fingerprint for state in self.by_id.values()
        )
        for gen in (dataset.generation, *dataset.older):
            if gen.id.name != resume.generation or gen.split != dataset.rules.split:
                continue
            if not resume.intervals or len(gen.streams) != resume.streams:
                return None
            shards = gen.table.find(resume.intervals, inherited)
            if shards is None or f"{shards.digest:016x}" != resume.fingerprint:
                return None
            return None if gen.table.names_any(gen.tainted, resume.intervals) else (gen, shards)
        return None

    def _not_ready(self, dataset: Dataset, request: str, want: int, spent: str) -> Reply:
        """Waiting carries figures and a reason. Refused is for what waiting cannot change."""
        gen, name = dataset.generation, dataset.rules.name
        have = gen.table.live_bytes
        if gen.completed and not gen.units:
            message = (
                f"the source of {name} has no objects, or its split or partition leaves it none: there "
                "is nothing to lease"
            )
            return do.ReplyRefused(request, "impossible", message)
        if spent and not gen.reserved:
            message = f"{have} bytes of {name} are cached and no more will be fetched: {spent}"
            return do.ReplyRefused(request, "impossible", message)
        if gen.is_whole and not have and not gen.supplements.reserved:
            message = (
                f"no record of {name} could be made: all units are skipped; `cachecd status` names the "
                "reasons"
            )
            return do.ReplyRefused(request, "impossible", message)
        if dataset.rules.pin and not gen.is_whole and not gen.reserved and gen.streams:
            going = sum(each.table.total - each.table.live_bytes for each in self._room.generations)
            if self._room.is_full(dataset) and not going and self._room.measured.spare > 0:
                short = max(0, want - have) + 4 * gen.footprint
                message = (
                    f"{name} is pinned and needs about {want} bytes, of which {have} fit: raise "
                    f"cache.limit from {self._room.limit} to about {self._room.limit + short} bytes"
                )
                return do.ReplyRefused(request, "impossible", message)
        reason = dataset.source.why or self._disk.why or gen.reason
        if not reason and gen.blocks.waits:
            reason = "the source is being listed"
        if not reason and gen.quarantine.work:
            reason = f"{len(gen.quarantine.work)} damaged shards are being made again"
        filling = [
            each.rules.name
            for each in self._room.datasets.values()
            if each.rules.pin and each is not dataset and not each.generation.is_whole
        ]
        if not reason and filling and not dataset.rules.pin:
            reason = f"{filling[0]} is pinned and is filled first"
        return do.ReplyWaiting(request, have, want, reason)

    # --- an epoch begins

    def boundary(self, dataset: Dataset, fetches: bool, out: list[do.Command]) -> None:
        """Retires shards as an epoch begins. `fetches`: new shards can replace them."""
        gen = dataset.generation
        if dataset.rules.pin:
            return
        figures = Boundary(
            live=gen.table.live_bytes,
            shards=gen.table.num_live,
            held=gen.table.live_bytes + gen.reserved,
            share=self._room.share(dataset),
            first=self._room.first(dataset),
            refresh=dataset.rules.refresh,
            footprint=gen.footprint,
            full=self._room.is_full(dataset),
            feeds=fetches and (not gen.is_whole or gen.supplements.lacks_room),
        )
        gen.retire(dataset.rotation.boundary(figures, gen.table.live()), out)

    def _grant(
        self, dataset: Dataset, event: AcquireAsked, gen: Generation, shards: ShardSet, now: float,
        out: list[do.Command],
    ) -> str | None:  # fmt: skip
        """Makes the lease; None if there is no room for its manifest."""
        self._serial += 1
        ranks, serial = event.local_world_size, f"{self.boot}{self._serial}"
        lease = new_lease(dataset.rules, event.job, event.epoch, ranks, gen, shards, serial)
        if not self._room.write(manifest_size(lease, self.block), in_slack=True):
            return None
        self.add(LeaseState(lease, shards.allocated, now + GRACE, now))
        out.append(do.WriteManifest(lease))
        return lease.id

    # --- the life of a lease

    def add(self, state: LeaseState) -> None:
        """A lease is made, or a start found it."""
        lease = state.lease
        self.by_id[lease.id] = state
        self._by_epoch[lease.dataset, lease.job, lease.epoch] = lease.id
        if dataset := self._room.datasets.get(lease.dataset):
            dataset.leases += 1
            dataset.epoch = max(dataset.epoch, lease.epoch)
        if gen := self.generation_of(lease):
            gen.table.hold(lease.intervals, lease.versions)

    def generation_of(self, lease: Lease) -> Generation | None:
        """The generation of a lease, if it is on disk and has the same S."""
        name = GenerationId(lease.dataset, lease.generation)
        same = (gen for gen in self._room.generations if gen.id == name)
        return next((gen for gen in same if gen.table.streams == lease.streams), None)

    def written(self, lease: str, out: list[do.Command]) -> None:
        """A manifest is on disk: the ranks that asked may lock it, unless a shard of it was quarantined
        meanwhile."""
        if (state := self.by_id.get(lease)) is None:
            return
        state.written = True
        gen, lease_of = self.generation_of(state.lease), state.lease
        if gen is None or not gen.table.is_current(lease_of.intervals, lease_of.versions):
            reason = "a shard of the set was quarantined"
            out += [do.ReplyWaiting(each, 0, 0, reason) for each in state.requests]
            out.append(do.EndLease(lease))
        else:
            coverage = self._room.datasets[lease_of.dataset].generation.coverage
            out += [do.ReplyGranted(each, lease, coverage) for each in state.requests]
        state.requests.clear()

    def refused(self, lease: str, reason: str, out: list[do.Command]) -> None:
        """The disk refused a manifest: its ranks ask again."""
        if state := self.by_id.get(lease):
            out += [do.ReplyWaiting(each, 0, 0, reason) for each in state.requests]
            self.ended(lease, out)

    def holds(self, request: str, lease: str, rank: int, out: list[do.Command]) -> None:
        """A rank reports that it holds the lease."""
        state = self.by_id.get(lease)
        if state is None:
            message = f"lease {lease} has ended: acquire again"
            out.append(do.ReplyRefused(request, "lease-lost", message))
        elif not 0 <= rank < state.lease.ranks:
            message = f"rank {rank}: expected 0 to {state.lease.ranks - 1}"
            out.append(do.ReplyRefused(request, "bad-request", message))
        else:
            state.held_by.add(rank)
            if dataset := self._room.datasets.get(state.lease.dataset):
                dataset.was_held = True
            if not state.marked_held:
                state.marked_held = True
                out.append(do.MarkHeld(lease))
            out.append(do.ReplyDone(request))

    def delivered(self, lease: str, fraction: float) -> None:
        """A rank reports the fraction of its part that was delivered since its last report."""
        state = self.by_id.get(lease)
        dataset = self._room.datasets.get(state.lease.dataset) if state else None
        if state and dataset and dataset.generation is self.generation_of(state.lease):
            part = min(max(fraction, 0.0), 1.0) * state.allocated / state.lease.ranks
            dataset.rotation.delivered += part

    def unheld(self, lease: str, now: float, out: list[do.Command]) -> None:
        """No process locks the manifest. A lease that could not be granted any more has no grace."""
        state = self.by_id.get(lease)
        if state is None:
            return
        dataset, gen = self._room.datasets.get(state.lease.dataset), self.generation_of(state.lease)
        barred = dataset is None or gen is None or gen.split != dataset.rules.split
        barred = barred or (gen is not None and gen.table.has_quarantined(state.lease.intervals))
        if not state.stands(now) or (barred and state.written):
            out.append(do.EndLease(lease))

    def ended(self, lease: str, out: list[do.Command]) -> None:
        """The manifest is gone: what no lease names any more is unlinked."""
        if (state := self.by_id.pop(lease, None)) is None:
            return
        named = state.lease.dataset, state.lease.job, state.lease.epoch
        if self._by_epoch.get(named) == lease:
            del self._by_epoch[named]
        if dataset := self._room.datasets.get(state.lease.dataset):
            dataset.leases -= 1
        if gen := self.generation_of(state.lease):
            gen.unlink(gen.table.let_go(state.lease.intervals, state.lease.versions), out)
