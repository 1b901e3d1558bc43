"""Handles acquires: chooses the set of a job's epoch, or the reason to wait, and begins epochs. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from itertools import takewhile

from cachecd.policy import commands as do
from cachecd.policy.dataset import Dataset
from cachecd.policy.events import AcquireAsked
from cachecd.policy.generation import Generation
from cachecd.policy.leases import GRACE, Leases, LeaseState
from cachecd.policy.pause import Pause, Restraint
from cachecd.policy.room import Room
from cachecd.policy.rotation import Boundary, HeldLease
from cachecd.policy.shard_table import ShardSet
from cachecd.policy.values import GenerationId, Lease, Resume, Rules, split_change

Reply = do.ReplyWaiting | do.ReplyRefused


class Acquire:
    """Answers the requests of ranks. `new_name` returns a name that is unique across restarts.
    `manifest_length` returns the bytes of a lease's manifest. Commands are appended to `out`."""

    def __init__(
        self, room: Room, disk: Pause, restraint: Restraint, leases: Leases,
        new_name: Callable[[], str], manifest_length: Callable[[Lease], int], out: list[do.Command],
    ) -> None:  # fmt: skip
        self.block = 4096
        self._manifest_length = manifest_length
        self._room, self._disk, self._restraint, self._leases = room, disk, restraint, leases
        self._new_name, self._out = new_name, out

    def acquire(self, event: AcquireAsked, now: float) -> None:
        """Answers a rank, at once or when the manifest is written."""
        if refusal := self._refusal(event):
            self._out.append(do.ReplyRefused(event.request, *refusal))
            return
        dataset = self._room.datasets[event.dataset]
        known = self._leases.of(event.dataset, event.job, event.epoch)
        # A job that starts again with another number of ranks gets another lease.
        is_same = known is not None and known.lease.ranks == event.local_world_size
        state = known if known and is_same else self._make(dataset, event, now)
        if isinstance(state, LeaseState):
            self._leases.request(state, event.request, event.epoch, event.local_rank, now)
        else:
            self._out.append(state)

    def _refusal(self, event: AcquireAsked) -> tuple[str, str] | None:
        """Returns the code and the message of a refusal if the request can never be granted, else
        None."""
        if (dataset := self._room.datasets.get(event.dataset)) is None:
            names = ", ".join(sorted(self._room.datasets))
            message = f"no dataset {event.dataset!r}; this daemon serves {names}"
            return "unknown-dataset", message
        for state in self._leases.of_job(event.dataset, event.job):
            lease = state.lease
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

    def _make(self, dataset: Dataset, event: AcquireAsked, now: float) -> LeaseState | Reply:
        """Returns the lease of a new epoch, or the reply to a rank that gets no lease."""
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
            return self._leases.repeat(lease, why, now) or do.ReplyWaiting(event.request, 0, 0, why)
        self._leases.add(state)
        self._out.append(do.WriteManifest(lease))
        return state

    def _choose(
        self, dataset: Dataset, event: AcquireAsked, now: float
    ) -> tuple[Generation, ShardSet] | Reply:
        """Returns the set of a new epoch, or the reason why there is none."""
        if event.resume is not None:
            self._note_resume(dataset, event.resume)
            if (again := self._set_again(dataset, event.resume)) is not None:
                return again  # not a new epoch, so nothing rotates
        is_new = dataset.epochs.get(event.job) != event.epoch
        dataset.epochs[event.job] = event.epoch
        if is_new and dataset.was_held:
            self.boundary(dataset, now)
        gen, rules, upto = dataset.generation, dataset.rules, self._upto(dataset, event.epoch)
        if upto is not None and _lacks_shards(gen, upto):
            dataset.epoch = max(dataset.epoch, event.epoch - 1)
        if (ready := self._ready_set(dataset, event.job, event.epoch)) is not None:
            return ready
        whole = int(gen.estimate) if math.isfinite(gen.estimate) else 0  # 0: no figure yet
        listed = whole or (gen.source_bytes if gen.completed else 0)  # a small source has no more
        want = whole if rules.pin else min(rules.first, listed or rules.first)
        return self._not_ready(dataset, event.request, want if upto is None else 0)

    def is_leasable(self, dataset: Dataset) -> bool:
        """Whether a job that begins now would get a set."""
        return self._ready_set(dataset, "", 0) is not None

    def _upto(self, dataset: Dataset, epoch: int) -> int | None:
        """Returns the number of shards of each stream that the epoch's set needs by `grow.wait`, or None
        if the set does not obey it."""
        if not dataset.rules.wait:
            return None
        share = self._room.uncapped_share(dataset)
        return dataset.target(epoch) if dataset.awaits_set(epoch, share) else None

    def _ready_set(
        self, dataset: Dataset, job: str, epoch: int
    ) -> tuple[Generation, ShardSet] | None:
        """Returns the set that an epoch of the job may lease now, or None. Changes nothing."""
        gen, rules, upto = dataset.generation, dataset.rules, self._upto(dataset, epoch)
        older = [
            each
            for each in dataset.older
            if each.may_lease(rules.split) and each.table.num_live and not rules.pin
        ]
        if upto is not None:
            is_ready = bool(self._restraint.spent) or not _lacks_shards(gen, upto)
        else:
            is_ready = self._is_ready(dataset, job, bool(older))
        is_ready = is_ready and gen.contradiction == ""
        identity = gen.id.name.partition("-")[0]  # HASH-2 replaces HASH, whose listing is damaged
        twins = [each for each in older if each.id.name.partition("-")[0] == identity]
        if twins and twins[0].table.live_bytes > gen.table.live_bytes:
            gen, upto = twins[0], None
        elif not is_ready and older:
            gen, upto = older[0], None
        shards = gen.table.select(upto)
        is_ready = is_ready or gen is not dataset.generation
        return (gen, shards) if shards.records and is_ready else None

    def _is_ready(self, dataset: Dataset, job: str, has_older: bool) -> bool:
        """Whether the configured generation may be leased. Ignores `grow.wait`."""
        gen = dataset.generation
        if dataset.rules.pin:
            # If these shards need the space of the job's own lease, the job would wait for itself.
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
        return [self._leases.by_id[name].lease for name in gen.table.keepers(gen.repairs)]

    def _lack_room(self, gen: Generation) -> bool:
        """Whether lack of room keeps all quarantined shards from being replaced."""
        return not gen.remaking and not any(self._room.next_version(gen, n) for n in gen.repairs)

    def _note_resume(self, dataset: Dataset, resume: Resume) -> None:
        """If the generation never sealed a shard, it takes sampling seed, S and place of a resumed
        run."""
        gen = dataset.generation
        takes_one = gen.is_fresh and not gen.writes_shape and dataset.resume is None
        if takes_one and resume.generation == gen.id.name:
            dataset.resume = resume

    def _set_again(self, dataset: Dataset, resume: Resume) -> tuple[Generation, ShardSet] | None:
        """Returns the set of a resumed run, if all of its shards are live."""
        gen = self._room.by_id.get(GenerationId(dataset.rules.name, resume.generation))
        if gen is None or not gen.may_lease(dataset.rules.split):
            return None
        if len(gen.streams) != resume.streams:
            return None
        shards = gen.table.find(resume.intervals) if resume.intervals else None
        same = shards is not None and f"{shards.digest:016x}" == resume.fingerprint
        return (gen, shards) if shards is not None and same else None

    def _not_ready(self, dataset: Dataset, request: str, want: int) -> Reply:
        """Returns the reply to a rank that gets no lease: Waiting with a reason, or Refused if waiting
        does not help."""
        gen, name, room = dataset.generation, dataset.rules.name, self._room
        have, spent, message = gen.table.live_bytes, self._restraint.spent, ""
        if gen.contradicted:
            return do.ReplyRefused(request, "contradicted", gen.contradicted)
        retiring = sum(each.table.total - each.table.live_bytes for each in room.generations)
        if gen.completed and not gen.units:
            message = (
                f"the source of {name} has no objects, or its split or partition selects none: there "
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
        if not reason and gen.blocks.is_growing:
            reason = dataset.waits_for or "the source is being listed"
        elif not reason and gen.repairs:
            reason = self._repairing(gen)
        elif not reason and filling and not dataset.rules.pin:
            reason = f"{filling[0]} is pinned and is filled first"
        return do.ReplyWaiting(request, have, want, reason)

    def _repairing(self, gen: Generation) -> str:
        """Returns why the quarantined shards of a generation are not replaced yet."""
        reason = (
            f"{len(gen.repairs)} shards that are damaged or hold excluded records must be replaced"
        )
        if self._lack_room(gen):
            keepers = [f"lease {each.id} of job {each.job}" for each in self._keepers_of(gen)[:3]]
            held = f", or for the end of {', '.join(keepers)}" if keepers else ""
            return f"{reason}: they wait for {gen.footprint} bytes under cache.limit{held}"
        failed = next((each.pause.why for each in gen.repairs.values() if each.pause.why), "")
        return f"{reason}: {failed}" if failed else reason

    # --- an epoch begins

    def boundary(self, dataset: Dataset, now: float) -> None:
        """Retires shards when an epoch begins, if new shards can replace them."""
        gen = dataset.generation
        dataset.was_held = False
        if dataset.rules.pin:
            return
        at = self.at(dataset, now)
        # If a shard is retired while its next version is made, the version is deleted at once.
        live = takewhile(lambda shard: shard[0] not in gen.remaking, gen.table.live())
        if chosen := dataset.rotation.boundary(at, live):
            # The figures are written before the marks. If the disk refuses them and the daemon is killed,
            # a start restores the figures of the previous boundary.
            self._out.append(dataset.keep_figures())
            excess = "its dataset is above its share" if at.occupied > at.share else "rotation"
            gen.retire(chosen, f"{excess}: an epoch began, and the oldest shards make room")

    def at(self, dataset: Dataset, now: float) -> Boundary:
        """Returns the current figures of a dataset, for rotation."""
        gen, room = dataset.generation, self._room
        kept = gen.table.kept_bytes()
        return Boundary(
            now=now,
            rules=dataset.rules,
            live=gen.table.live_bytes,
            shards=gen.table.num_live,
            occupied=gen.table.live_bytes + gen.reserved,
            share=room.share(dataset),
            first=room.first(dataset),
            footprint=gen.footprint,
            full=room.is_full(dataset),
            feeds=not self._restraint.spent
            and (not gen.is_whole or gen.supplements.lacks_room or room.owes_room(dataset)),
            page=room.page_lacks(dataset),
            leases=tuple(
                HeldLease(name, each.lease.job, kept.get(name, 0))
                for name, each in self._leases.by_id.items()
                if (each.lease.dataset, each.lease.generation) == gen.id
            ),
        )


def _lacks_shards(gen: Generation, upto: int) -> bool:
    """Whether a stream has made fewer shards than this, and can make more."""
    return any(s.next < upto and not gen.is_whole_stream(s) for s in gen.streams)


def new_lease(
    rules: Rules, event: AcquireAsked, gen: Generation, shards: ShardSet, serial: str
) -> Lease:
    """Returns the lease of these shards. `serial` makes its name unique. The fingerprint is the sum of
    the digests of all records, so it does not depend on versions."""
    shape = gen.blocks.shape
    job = hashlib.sha256(event.job.encode()).hexdigest()[:8]
    # The text has a version, so that the order of an epoch never drifts.
    order = f"cachecd-epoch-order-1:{rules.seed}:{event.epoch}".encode()
    return Lease(
        id=f"{rules.name}.{event.epoch}.{job}.{serial}",
        dataset=rules.name,
        generation=gen.id.name,
        job=event.job,
        epoch=event.epoch,
        streams=shape.streams,
        intervals=shards.intervals,
        versions=shards.versions,
        num_records=shards.records,
        num_bytes=shards.data_bytes,
        fingerprint=f"{shards.digest:016x}",
        seed=int.from_bytes(hashlib.sha256(order).digest()[:8], "little"),
        sampling_seed=shape.seed,
        pinned=rules.pin,
        ranks=event.local_world_size,
        place=gen.place,
        source_records=gen.source_records,
        num_skipped=shards.passed,
    )
