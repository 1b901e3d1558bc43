"""Acquire: the set that a job gets, waiting and refused ranks, and the begin of an epoch. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from cachecd.policy import commands as do
from cachecd.policy.dataset import Dataset
from cachecd.policy.events import AcquireAsked
from cachecd.policy.generation import Generation
from cachecd.policy.leases import GRACE, LeaseState, new_lease
from cachecd.policy.pause import Pause, Restraint
from cachecd.policy.room import Room
from cachecd.policy.rotation import Boundary
from cachecd.policy.shard_table import ShardSet
from cachecd.policy.values import GenerationId, Lease, Resume, split_change

Reply = do.ReplyWaiting | do.ReplyRefused


class Leases:
    """All leases, by name and by (dataset, job, epoch). `new_name` returns a name that is unique over
    restarts; `manifest_length` the bytes of a lease's manifest. Commands are appended to `out`.

    If the manifest of a new epoch cannot be written, the job's last lease is the lease of that epoch too:
    all ranks repeat their set. Training never waits for a full disk.
    """

    def __init__(
        self, room: Room, disk: Pause, restraint: Restraint, new_name: Callable[[], str],
        manifest_length: Callable[[Lease], int], out: list[do.Command],
    ) -> None:  # fmt: skip
        self.by_id: dict[str, LeaseState] = {}
        self.block = 4096
        self._manifest_length = manifest_length
        self._room, self._disk, self._restraint = room, disk, restraint
        self._new_name, self._out = new_name, out
        self._by_epoch: dict[tuple[str, str, int], str] = {}

    # --- requests

    def acquire(self, event: AcquireAsked, now: float) -> None:
        """Answers a rank, now or when the manifest is written."""
        if refusal := self._refusal(event):
            self._out.append(do.ReplyRefused(event.request, *refusal))
            return
        dataset = self._room.datasets[event.dataset]
        name = self._by_epoch.get((event.dataset, event.job, event.epoch), "")
        known = self.by_id.get(name)
        # A job that was launched again with another number of ranks gets a set for all of them.
        is_same = known is not None and known.lease.ranks == event.local_world_size
        state = known if known and is_same else self._make(dataset, event, now)
        if not isinstance(state, LeaseState):
            self._out.append(state)
            return
        if state.renew(event.local_rank, now):
            self._mark(state)
        state.requests[event.request] = event.epoch != state.lease.epoch
        self._reply_granted(state)

    def _mark(self, state: LeaseState, epoch: int | None = None) -> None:
        """Notes what a start must know before a rank is granted the lease."""
        state.marking += 1
        self._out.append(do.MarkLease(state.lease.id, epoch=epoch))

    def _reply_granted(self, state: LeaseState) -> None:
        if not state.written or state.marking:
            return
        coverage = self._room.datasets[state.lease.dataset].generation.coverage
        for request, is_repeated in state.requests.items():
            note = state.repeats if is_repeated else state.note
            counts = state.lease.num_records, state.lease.num_skipped
            self._out.append(do.ReplyGranted(request, state.lease.id, coverage, note, *counts))
        state.requests.clear()

    def _refusal(self, event: AcquireAsked) -> tuple[str, str] | None:
        """Code and message for a request that can never be met as it is."""
        if (dataset := self._room.datasets.get(event.dataset)) is None:
            names = ", ".join(sorted(self._room.datasets))
            message = f"no dataset {event.dataset!r}; this daemon serves {names}"
            return "unknown-dataset", message
        for lease in (state.lease for state in self.by_id.values()):
            if (lease.dataset, lease.job) != (event.dataset, event.job):
                continue
            gen = self._room.by_id.get(GenerationId(lease.dataset, lease.generation))
            if gen is None or gen.split != dataset.rules.split:
                change = (
                    split_change(gen.split, dataset.rules.split) if gen else "split was changed"
                )
                message = (
                    f"datasets.{event.dataset}: {change}. Job {event.job} holds a set from before, which "
                    "may contain records that are now held out. Start the job again."
                )
                return "split-changed", message
        return None

    # --- which set

    def _make(self, dataset: Dataset, event: AcquireAsked, now: float) -> LeaseState | Reply:
        """Makes the lease of a new epoch, or the reply to a rank that gets no lease."""
        chosen = self._choose(dataset, event, now)
        if isinstance(chosen, Reply):
            return chosen
        lease = new_lease(dataset.rules, event, *chosen, self._new_name())
        state = LeaseState(lease, chosen[1].allocated, now + GRACE)
        if dataset.rules.pin and (repairs := chosen[0].repairs):
            state.note = (
                f"{len(repairs)} shards of {dataset.rules.name} are missing from the set: they are damaged "
                "or hold excluded records, and their next versions need room that the job's last set keeps"
            )
        blocks = -(-self._manifest_length(lease) // self.block)
        size = (blocks + 1) * self.block  # the directory may grow too
        if not self._room.write_manifest(size):
            why = f"there is no room under cache.limit for the manifest of a lease ({size} bytes)"
            return self._repeated(lease, why, now) or do.ReplyWaiting(event.request, 0, 0, why)
        self.add(state)
        self._out.append(do.WriteManifest(lease))
        return state

    def _repeated(self, lease: Lease, why: str, now: float) -> LeaseState | None:
        """Makes the last lease of a job the lease of a further epoch too, for all ranks. None if the job
        has none, or one with an excluded record."""
        job = lease.dataset, lease.job
        known = [
            each for each in self.by_id.values() if (each.lease.dataset, each.lease.job) == job
        ]
        last = max(known, key=lambda each: each.lease.epoch, default=None)
        if last is None or not last.written or last.lease.ranks != lease.ranks:
            return None
        if self._has_excluded(last.lease):
            return None
        self._by_epoch[*job, lease.epoch] = last.lease.id
        last.held_by.clear()
        last.grace_until = now + GRACE
        last.repeats = f"the set of epoch {last.lease.epoch} is repeated: {why}"
        self._mark(last)
        self._mark(last, lease.epoch)
        return last

    def marked(self, lease: str) -> None:
        """A mark is durable, or the disk refused it: a start may then wait for a rank in vain."""
        if (state := self.by_id.get(lease)) is not None:
            state.marking -= 1
            self._reply_granted(state)

    def _has_excluded(self, lease: Lease) -> bool:
        """Whether a shard of a lease holds an excluded record, or may: it has another version by now."""
        if (gen := self.generation_of(lease)) is None:
            return True
        excluded = (number for number, repair in gen.repairs.items() if repair.excluded)
        known = dict(lease.versions)
        newer = (known.get(n, 0) != v for n, v in gen.table.set_of(lease.intervals).versions)
        return any(newer) or any(gen.table.names(lease.id, n, known.get(n, 0)) for n in excluded)

    def _choose(
        self, dataset: Dataset, event: AcquireAsked, now: float
    ) -> tuple[Generation, ShardSet] | Reply:
        """Returns the set of a new epoch, or the reason why there is none."""
        if event.resume is not None:
            self._note_resume(dataset, event.resume)
            if (again := self._set_again(dataset, event.resume)) is not None:
                return again  # no new epoch, so that nothing rotates
        is_new = dataset.epochs.get(event.job) != event.epoch
        dataset.epochs[event.job] = event.epoch
        if is_new and dataset.was_held:
            self.boundary(dataset, now)
        gen, rules, upto = dataset.generation, dataset.rules, None
        older = [
            each
            for each in dataset.older
            if each.may_lease(rules.split) and each.table.num_live and not rules.pin
        ]
        if rules.wait and dataset.waits(event.epoch, self._room.uncapped_share(dataset)):
            upto = dataset.target(event.epoch)
            lacks = any(s.next < upto and not gen.is_whole_stream(s) for s in gen.streams)
            is_ready = bool(self._restraint.spent) or not lacks
            if lacks:
                dataset.epoch = max(dataset.epoch, event.epoch - 1)
        else:
            is_ready = self._is_ready(dataset, event.job, bool(older))
        is_ready = is_ready and gen.contradiction == ""
        identity = gen.id.name.partition("-")[0]  # HASH-2 replaces HASH, whose listing is damaged
        twins = [each for each in older if each.id.name.partition("-")[0] == identity]
        if twins and twins[0].table.live_bytes > gen.table.live_bytes:
            gen, upto = twins[0], None
        elif not is_ready and older:
            gen, upto = older[0], None
        shards = gen.table.select(upto)
        if shards.records and (is_ready or gen is not dataset.generation):
            return gen, shards
        whole = int(gen.estimate) if math.isfinite(gen.estimate) else 0  # 0: no figure yet
        listed = whole or (gen.source_bytes if gen.completed else 0)  # a small source has no more
        want = whole if rules.pin else min(rules.first, listed or rules.first)
        return self._not_ready(dataset, event.request, want if upto is None else 0)

    def _is_ready(self, dataset: Dataset, job: str, has_older: bool) -> bool:
        """Whether the configured generation may be leased, without `grow.wait`."""
        gen = dataset.generation
        if dataset.rules.pin:
            # A job that waited for shards whose room its own lease keeps would wait for ever.
            keepers = (each.job for each in self._keepers_of(gen))
            return gen.is_whole and (not gen.repairs or (job in keepers and self._lack_room(gen)))
        return (
            gen.table.live_bytes >= self._room.first(dataset)
            or gen.is_whole
            or bool(self._restraint.spent)
            or (not has_older and self._room.is_full(dataset))
        )

    def _keepers_of(self, gen: Generation) -> list[Lease]:
        """Returns the leases that name a quarantined shard, or a version of a shard that was replaced."""
        return [self.by_id[name].lease for name in gen.table.keepers(gen.repairs)]

    def _lack_room(self, gen: Generation) -> bool:
        """Whether no quarantined shard can be made again, because there is no room."""
        return not gen.remaking and not any(self._room.next_version(gen, n) for n in gen.repairs)

    def _note_resume(self, dataset: Dataset, resume: Resume) -> None:
        """A generation that never sealed a shard takes sampling seed, S and place of a run that resumes."""
        gen = dataset.generation
        takes_one = gen.is_fresh and not gen.writes_shape and dataset.resume is None
        if takes_one and resume.generation == gen.id.name:
            dataset.resume = resume

    def _set_again(self, dataset: Dataset, resume: Resume) -> tuple[Generation, ShardSet] | None:
        """The set of a resumed run, if all of its shards are live."""
        gen = self._room.by_id.get(GenerationId(dataset.rules.name, resume.generation))
        if gen is None or not gen.may_lease(dataset.rules.split):
            return None
        if len(gen.streams) != resume.streams:
            return None
        shards = gen.table.find(resume.intervals) if resume.intervals else None
        same = shards is not None and f"{shards.digest:016x}" == resume.fingerprint
        return (gen, shards) if shards is not None and same else None

    def _not_ready(self, dataset: Dataset, request: str, want: int) -> Reply:
        """Returns the reply without a lease: Waiting with figures and a reason, or Refused if waiting
        cannot help."""
        gen, name, room = dataset.generation, dataset.rules.name, self._room
        have, spent, message = gen.table.live_bytes, self._restraint.spent, ""
        if gen.contradicted:
            return do.ReplyRefused(request, "contradicted", gen.contradicted)
        retiring = sum(each.table.total - each.table.live_bytes for each in room.generations)
        if gen.completed and not gen.units:
            message = (
                f"the source of {name} has no objects, or its split or partition leaves it none: there "
                "is nothing to lease"
            )
        elif spent and not gen.reserved:
            message = f"{have} bytes of {name} are cached and no more will be fetched: {spent}"
        elif gen.is_whole and not (gen.table.num_live or gen.reserved):
            message = f"no record of {name} could be made: all units are skipped"
            return do.ReplyRefused(request, "skipped", message)
        elif (
            dataset.rules.pin
            and not (gen.is_whole or gen.reserved or retiring)
            and gen.streams
            and room.is_full(dataset)
            and room.measured.spare > 0
        ):
            short = max(0, want - have) + 4 * gen.footprint
            message = (
                f"{name} is pinned and needs about {want} bytes, of which {have} fit: raise "
                f"cache.limit from {room.limit} to about {room.limit + short} bytes"
            )
        if message:
            return do.ReplyRefused(request, "impossible", message)
        reason = dataset.source.why or self._disk.why or gen.reason
        filling = [
            each.rules.name
            for each in room.datasets.values()
            if each.rules.pin and each is not dataset and not each.generation.is_whole
        ]
        if not reason and gen.blocks.waits:
            reason = dataset.waits_for or "the source is being listed"
        elif not reason and gen.repairs:
            reason = self._repairing(gen)
        elif not reason and filling and not dataset.rules.pin:
            reason = f"{filling[0]} is pinned and is filled first"
        return do.ReplyWaiting(request, have, want, reason)

    def _repairing(self, gen: Generation) -> str:
        """Returns why the quarantined shards of a generation are not made again yet."""
        reason = (
            f"{len(gen.repairs)} shards that are damaged or hold excluded records are made again"
        )
        if self._lack_room(gen):
            keepers = [f"lease {each.id} of job {each.job}" for each in self._keepers_of(gen)[:3]]
            held = f", or for the end of {', '.join(keepers)}" if keepers else ""
            return f"{reason}: they wait for {gen.footprint} bytes under cache.limit{held}"
        failed = next((each.pause.why for each in gen.repairs.values() if each.pause.why), "")
        return f"{reason}: {failed}" if failed else reason

    # --- an epoch begins

    def boundary(self, dataset: Dataset, now: float) -> None:
        """Retires shards as an epoch begins, if new shards can replace them."""
        gen = dataset.generation
        dataset.was_held = False
        if dataset.rules.pin:
            return
        if chosen := dataset.rotation.boundary(self.figures(dataset, now), gen.table.live()):
            # Before the marks, but no mark waits for it: if the disk refuses the figures and the daemon
            # is killed, they are those of the boundary before.
            self._out.append(dataset.keep_figures())
            gen.retire(chosen)

    def figures(self, dataset: Dataset, now: float) -> Boundary:
        """Returns the figures of a rotation at this moment."""
        gen, room = dataset.generation, self._room
        return Boundary(
            now=now,
            rules=dataset.rules,
            live=gen.table.live_bytes,
            shards=gen.table.num_live,
            held=gen.table.live_bytes + gen.reserved,
            share=room.share(dataset),
            first=room.first(dataset),
            footprint=gen.footprint,
            full=room.is_full(dataset),
            feeds=not self._restraint.spent
            and (not gen.is_whole or gen.supplements.lacks_room or room.owes_room(dataset)),
            page=room.page_lacks(dataset),
        )

    # --- the life of a lease

    def add(self, state: LeaseState, epochs: Iterable[int] = ()) -> None:
        """A lease is made, or a start found it. `epochs`: further epochs whose lease it is."""
        lease = state.lease
        self.by_id[lease.id] = state
        for epoch in (lease.epoch, *epochs):
            self._by_epoch[lease.dataset, lease.job, epoch] = lease.id
        if dataset := self._room.datasets.get(lease.dataset):
            dataset.leases += 1
            dataset.epoch = max(dataset.epoch, lease.epoch)
        if gen := self.generation_of(lease):
            gen.table.hold(lease)

    def generation_of(self, lease: Lease) -> Generation | None:
        """The generation of a lease, if it is on disk and has the same S."""
        gen = self._room.by_id.get(GenerationId(lease.dataset, lease.generation))
        return gen if gen and gen.table.streams == lease.streams else None

    def written(self, lease: str) -> None:
        """A manifest is on disk: the waiting ranks may lock it, if all of its shards are still live."""
        if (state := self.by_id.get(lease)) is None:
            return
        state.written = True
        gen = self.generation_of(state.lease)
        shards = gen.table.find(state.lease.intervals) if gen else None
        if shards is not None and shards.versions == state.lease.versions:
            self._reply_granted(state)
        else:
            self._reply_waiting(state, "a shard of the set was quarantined")
            self._out.append(do.EndLease(lease))

    def refused(self, lease: str, reason: str, now: float, may_repeat: bool) -> None:
        """The disk refused a manifest: the ranks of a job that has a set repeat the set, unless its files
        cannot be found."""
        if (state := self.by_id.get(lease)) is None:
            return
        self.ended(lease)
        last = self._repeated(state.lease, reason, now) if may_repeat else None
        if last is not None:
            last.requests |= dict.fromkeys(state.requests, True)
        else:
            self._reply_waiting(state, reason)

    def _reply_waiting(self, state: LeaseState, reason: str) -> None:
        self._out += [do.ReplyWaiting(each, 0, 0, reason) for each in state.requests]
        state.requests.clear()

    def holds(self, request: str, lease: str, rank: int) -> None:
        state = self.by_id.get(lease)
        if state is None:
            message = f"lease {lease} has ended: acquire again"
            self._out.append(do.ReplyRefused(request, "lease-lost", message))
        elif not 0 <= rank < state.lease.ranks:
            message = f"rank {rank}: expected 0 to {state.lease.ranks - 1}"
            self._out.append(do.ReplyRefused(request, "bad-request", message))
        else:
            if rank not in state.held_by:
                state.held_by.add(rank)
                self._out.append(do.MarkLease(lease, rank))
            if dataset := self._room.datasets.get(state.lease.dataset):
                dataset.was_held = True
            self._out.append(do.ReplyDone(request))

    def delivered(self, lease: str, fraction: float) -> None:
        state = self.by_id.get(lease)
        dataset = self._room.datasets.get(state.lease.dataset) if state else None
        if state and dataset and dataset.generation is self.generation_of(state.lease):
            part = min(max(fraction, 0.0), 1.0) * state.allocated / state.lease.ranks
            dataset.rotation.delivered += part

    def unheld(self, lease: str, now: float) -> None:
        """No process locks the manifest. A lease that could no longer be granted ends without grace."""
        if (state := self.by_id.get(lease)) is None:
            return
        if not state.stands(now) or (state.written and self._is_barred(state.lease)):
            self._out.append(do.EndLease(lease))

    def _is_barred(self, lease: Lease) -> bool:
        """Whether a lease could no longer be granted."""
        dataset, gen = self._room.datasets.get(lease.dataset), self.generation_of(lease)
        if dataset is None or gen is None or gen.split != dataset.rules.split:
            return True
        return gen.table.has_quarantined(lease.intervals) or self._has_excluded(lease)

    def ended(self, lease: str) -> None:
        """The manifest is deleted: files that no lease names any more are unlinked."""
        if (state := self.by_id.pop(lease, None)) is None:
            return
        for epoch in [epoch for epoch, name in self._by_epoch.items() if name == lease]:
            del self._by_epoch[epoch]
        if dataset := self._room.datasets.get(state.lease.dataset):
            dataset.leases -= 1
        if gen := self.generation_of(state.lease):
            gen.table.let_go(state.lease)
            gen.unlink_unheld()
