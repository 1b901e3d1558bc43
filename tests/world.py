"""A world in memory for the policy: carries commands out when told to, and watches the promises.

It plays the disk (with a catalog that may refuse, a file system that may fill up, and kills between any
two commands), the samplers and the trainers; `policy_model.Model` says after every event whether the
promises hold. What `restart` finds goes through the same `take_up` as in the daemon.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Container
from typing import Any

import numpy as np

from cachecd import events as ev
from cachecd.acquire import GRACE
from cachecd.catalog import SavedPlan
from cachecd.errors import DiskError
from cachecd.ledger import METADATA_SLACK, Ledger
from cachecd.model import Assignment, Held, Lease, Outcome, SetAside, Shard, ShardId
from cachecd.parts import digest_of, part_of
from cachecd.reconcile import Found
from cachecd.recovery import held_by, saved_plan, take_up
from cachecd.restraint import Restraint
from cachecd.rules import DatasetRules
from cachecd.saving import PlanSaver
from cachecd.sidecarwalk import meta_of
from cachecd.standing import turn_to
from cachecd.state import State
from tests.policy_model import Account, Model, Sealed
from tests.rows import Rows
from tests.units import FOOTPRINT, SHARD_SIZE, Records, Units, mixed, records_of


class KilledError(Exception):
    """The daemon's process is gone between two commands."""


class World:
    """Drives a State and plays the disk, the samplers and the trainers."""

    model_type: type[Model] = Model

    def __init__(
        self,
        limit: int,
        datasets: dict[DatasetRules, Units],
        workers: int = 2,
        unlisted: frozenset[str] | set[str] = frozenset(),
    ) -> None:
        self.now = 0.0
        self.limit = METADATA_SLACK + limit
        self.workers = workers
        self.rules = {rules.name: rules for rules in datasets}
        self.sources = {rules.name: units for rules, units in datasets.items()}
        self.listed = self.sources.keys() - unlisted
        # The disk
        self.rows = Rows()
        self.disk: dict[ShardId, Records] = {}
        self.meta: dict[ShardId, dict[str, Any]] = {}  # sidecars, and what `stat` says of shards
        self.manifests: dict[str, Lease] = {}
        self.metadata = 0
        self.spare: float | None = None  # what others leave of the file system, if it has an end
        self.refuses: set[str] = set()  # "manifest", "catalog"
        # Trainers
        self.locks: dict[str, set[int]] = {}
        self.gone: dict[str, set[int]] = {}  # units that the source lists no more
        self.told: set[str] = set()  # leases of which somebody said what was delivered
        self.replies: dict[str, ev.Command] = {}
        self.requests = 0
        self.set_aside: list[SetAside] = []
        self.ever: set[str] = set()
        self.boots = 0
        self.restraint = Restraint()
        self.broken = False  # a promise did not hold
        self.reads_at_once = True  # trainers are given all of a lease as soon as they have it
        self.kill_after: int | None = None  # so many commands more
        self.model = self.model_type(self)
        for name, rules in self.rules.items():
            self.sources[name].complete = name in self.listed
            self.model.of[name] = Account(rules)
        self.restart()

    # --- the daemon's process

    def restart(self, *, lost_catalog: bool = False) -> None:
        """Kills the daemon, if one runs, and starts another on what is on disk."""
        self.events: deque[ev.Event] = deque()
        self.making: dict[ShardId, Assignment] = {}
        self.begun: set[ShardId] = set()  # whose temporary file has its room on the file system
        self.publishing: dict[ShardId, tuple[Outcome, Assignment]] = {}
        self.unlinking: list[ShardId] = []
        self.verifying: list[ShardId] = []
        self.failed_manifests: set[str] = set()
        self.kill_after = None
        self.refuses.clear()
        self.rows.refuses = False
        if lost_catalog:
            self.rows = Rows()
        self.boots += 1
        ledger, boot = Ledger(self.limit, FOOTPRINT), f"{self.boots}b"
        self.state = State(ledger, SHARD_SIZE, self.workers, boot, restraint=self.restraint)
        # A clock that lets no pause matter: what the disk allows again is saved at once.
        self.saver = PlanSaver(self.rows, self._saved_plan, clock=itertools.count(0, 100).__next__)
        self.model.restarted()
        for name, rules in self.rules.items():
            standing = turn_to(self.rows, self.sources[name], rules)
            found = self.rows.find_shards(name, standing.used, self.disk, self.meta)
            dataset = take_up(
                found, standing, self.rows, self.sources[name], SHARD_SIZE, self.state
            )
            dataset.described = True
            self._known(name, found, lost_catalog)
        self.model.ever_held |= self.manifests.keys()
        for lease in self.manifests.values():
            self.state.adopt_lease(lease, self.now)
        found: list[ev.Event] = [self._measured()]
        for name, dataset in self.state.datasets.items():
            # Without the catalog nobody knows what was retired; then units may be there twice.
            assert not dataset.twice or self.model.of[name].lost
            found.append(ev.HoldersFound(name, dataset.twice))
            if units := dataset.excluded.numbers:
                found.append(ev.HoldersFound(name, tuple(self._holders(name, units))))
        for name in self.listed:
            found.append(ev.Listed(name, complete=True))
        for name in self.rules:
            if excluded := sorted(self.rows.excluded_units(name)):
                units = tuple(map(self.sources[name].unit, excluded))
                found.append(ev.UnitsExcluded(name, units))
                found.append(ev.HoldersFound(name, self._holders(name, excluded)))
            self.model.of[name].excluded = set(excluded)
            found.append(ev.ExclusionsKnown(name))
        self.feed(*found)
        self.saver.catch_up()

    def _known(self, name: str, found: Found, lost: bool) -> None:
        """What the model goes by after a restart: what the catalog and the plan say."""
        old, dataset = self.model.of[name], self.state.datasets[name]
        account = self.model.of[name] = Account(dataset.rules, lost=old.lost or lost)
        for kept in found.kept:
            shard, records = kept.shard, self.disk[kept.shard.id]
            before = old.shards.get(shard.id.number)
            delivered = before.delivered if before else 0
            account.shards[shard.id.number] = Sealed(
                shard, records, kept.retired, kept.barred, delivered=delivered, rotated=kept.retired
            )
            if shard.generation == account.rules.generation:
                account.history[shard.id.number] = shard.data_bytes
        if old.rules.generation == account.rules.generation and not lost:
            account.history.update(old.history)
        account.open = {n: records_of(a.units) for n, a in dataset.plan.open.items()}
        account.torn = old.torn
        account.aside = {aside.unit for aside in self.rows.set_aside(name)}
        account.unfilled, account.last_rotated = dataset.debt, dataset.last_retired

    def _saved_plan(self, name: str) -> SavedPlan:
        return saved_plan(self.state.datasets[name], self.sources[name])

    def configure(self, rules: DatasetRules, units: Units) -> None:
        """One more dataset, from the next start on."""
        self.rules[rules.name], self.sources[rules.name] = rules, units
        self.listed = {*self.listed, rules.name}
        self.model.of[rules.name] = Account(rules)

    # --- events

    def feed(self, *events: ev.Event) -> None:
        """What the promises say of rest holds after the last of them."""
        handling = bool(self.events)
        self.events.extend(events)
        if handling:
            return  # whoever feeds the first one handles the rest after it
        try:
            while self.events:
                asked = self.events[0]
                self.model.event(asked.dataset if isinstance(asked, ev.AcquireAsked) else "")
                for command in self.state.handle(self.events[0], self.now):
                    self._carry_out(command)
                self.model.step()
                self.events.popleft()
            self.check()
        except KilledError:
            self.restart()
        except Exception:
            self.broken = True
            raise

    def _carry_out(self, command: ev.Command) -> None:
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after < 0:
                raise KilledError
        match command:
            case ev.StartShard(assignment):
                self._start(assignment)
            case ev.PublishShard(shard, outcome):
                self.publishing[shard] = (outcome, self.making.pop(shard))
            case ev.SavePlan(name, set_aside=aside, barred=barred):
                self.set_aside += aside
                self.model.planned(command)
                if barred is not None:
                    self.model.barred(ShardId(name, barred))
                self.saver.save(command)
            case ev.UnlinkShard(shard):
                self.model.unlinking(shard)
                self.unlinking.append(shard)
            case ev.VerifyShard(shard):
                self.model.of[shard.dataset].shards[shard.number].suspect = True
                self.verifying.append(shard)
            case ev.WriteManifest(lease):
                assert lease.id not in self.ever, "a lease name was used twice"
                self.ever.add(lease.id)
                self.model.granted(lease)
                self.locks[lease.id] = set()
                if "manifest" in self.refuses:
                    self.failed_manifests.add(lease.id)
                    self.model.ended(lease.id)
                    self.events.append(ev.LeaseEnded(lease.id))
                else:
                    self.manifests[lease.id] = lease
            case ev.EndLease(lease):
                if not self.locks[lease] and "manifest" not in self.refuses:
                    del self.manifests[lease], self.locks[lease]
                    self.model.ended(lease)
                    self.events.append(ev.LeaseEnded(lease))
            case ev.MarkShards(name, marked):
                for shard in (ShardId(name, number) for number in marked):
                    self.model.retired(shard)
                self.saver.save(command)
            case ev.ReplyGranted(request, lease) if lease in self.failed_manifests:
                self.replies[request] = ev.ReplyWaiting(request, 0, 0, 0.0, "the disk refuses")
            case _:
                self.replies[command.request] = command

    def _start(self, assignment: Assignment) -> None:
        shard = assignment.shard
        self.model.started(assignment, records_of(assignment.units))
        self.making[shard] = assignment
        try:
            self.saver.begin(shard.dataset)
        except DiskError as error:
            self.making.pop(shard)
            self.model.failed(shard)
            self.events.append(ev.ShardFailed(shard, "disk", str(error)))

    def exclude(self, name: str, numbers: list[int]) -> None:
        """A person takes units out; the catalog must not be behind."""
        self.feed(ev.UnitsExcluded(name, tuple(map(self.sources[name].unit, numbers))))
        self.feed(ev.HoldersFound(name, self._holders(name, numbers)))
        # What is noted of it: a daemon may be killed before it does.
        self.model.of[name].excluded = self.rows.excluded_units(name)

    def let_in(self, name: str, numbers: list[int]) -> None:
        """A person lets units in again: stops the daemon, edits excluded.jsonl, and starts it."""
        self.rows.let_in(name, numbers)
        self.restart()

    def relist(self, name: str, gone: set[int], back: set[int]) -> None:
        """A whole listing has not shown units that it knew, and has shown others again."""
        self.gone[name] = self.gone.get(name, set()) - back | gone
        numbers = [np.array(sorted(units), np.int64) for units in (gone, back)]
        self.feed(ev.Relisted(name, *numbers))

    def _holders(self, name: str, units: Container[int]) -> list[int]:
        (found,) = self.rows.holders(name, units, self.state.datasets[name].numbered_alike)
        return found

    # --- what trainers do

    def acquire(
        self, dataset: str, job: str, epoch: int, rank: int = 0, world: int = 1
    ) -> ev.Command:
        self.requests += 1
        request = str(self.requests)
        self.feed(ev.AcquireAsked(request, dataset, job, epoch, rank, world))
        reply = self.replies.pop(request, None)
        if reply is None:
            return ev.ReplyWaiting(request, 0, 0, 0.0, "the daemon was killed")
        if isinstance(reply, ev.ReplyGranted) and reply.lease in self.manifests:
            self.locks[reply.lease].add(rank)
            self.model.held(reply.lease)
            self.requests += 1
            self.feed(ev.RankHolds(str(self.requests), reply.lease, rank))
            if self.reads_at_once:
                self.deliver(reply.lease)
        return reply

    def deliver(self, lease: str, share: int = 1000) -> None:
        """Trainers are given so many thousandths of a lease's records."""
        if lease not in self.manifests:
            return
        self.told.add(lease)
        shards = self.manifests[lease].shards
        self.model.delivered(lease, share)
        self.requests += 1
        request = str(self.requests)
        self.feed(ev.Delivered(request, lease, shards, (share,) * len(shards)))

    def drop(self, lease: str) -> None:
        """All holders of the lease die; the next probe finds out, at the latest after the grace."""
        self.locks[lease].clear()
        self.now += GRACE
        self.feed(ev.LeaseUnheld(lease))

    def let_go(self, lease: str) -> None:
        """As `drop`, but they live, and say first that they read all of it, unless they said otherwise."""
        if not self.locks[lease]:
            return  # there is nobody to say it
        if lease not in self.told:
            self.deliver(lease)
        self.drop(lease)

    # --- what samplers and the disk do

    def make(self, shard: ShardId, outcome: Outcome | None = None) -> None:
        assignment = self.making[shard]
        outcome = outcome or mixed(assignment)
        if not outcome.records:
            del self.making[shard]
            self.begun.discard(shard)
            self.model.made_nothing(shard)
        self.feed(ev.ShardMade(shard, outcome))

    def publish(self, shard: ShardId) -> None:
        outcome, assignment = self.publishing.pop(shard)
        self.begun.discard(shard)
        gone = set(records_of(outcome.remainder))
        gone |= {r for a in outcome.set_aside for r in self.model.all_of(a.unit)}
        records = records_of(assignment.units) - gone
        known = outcome.data_bytes, outcome.allocated, digest_of(assignment.units)
        sealed = Shard(shard, assignment.generation, len(records), *known)
        self.disk[shard] = records
        plan = self.state.datasets[shard.dataset].plan
        self.meta[shard] = {
            "shard": sealed,
            **meta_of(assignment, plan, self.sources[shard.dataset]),
            "remainder": [*map(part_of, outcome.remainder)],
        }
        self.model.published(sealed, records)
        self.feed(ev.ShardPublished(sealed, sorted({unit for unit, _ in records})))

    def fail(
        self, shard: ShardId, cause: str, unit: int | None = None, passing: bool = False
    ) -> None:
        self.making.pop(shard, None)
        self.publishing.pop(shard, None)
        self.begun.discard(shard)
        self.model.failed(shard)
        self.feed(ev.ShardFailed(shard, cause, "it failed", unit, passing))

    def unlink(self, shard: ShardId) -> None:
        held = self._held_by(shard)
        self.disk.pop(shard, None)
        self.meta.pop(shard, None)
        self.unlinking.remove(shard)
        self.model.unlinked(shard)
        self.feed(ev.ShardUnlinked(shard, held.units))

    def verified(self, shard: ShardId, sound: bool) -> None:
        try:
            held = self._held_by(shard)
        except DiskError:  # it is tried again
            return
        self.verifying.remove(shard)
        wanted = shard.number not in self.state.datasets[shard.dataset].excluded.shards
        self.model.verified(shard, sound and wanted)
        self.feed(ev.ShardVerified(shard, sound, held))

    def found_corrupt(self, shard: ShardId) -> None:
        self.feed(ev.CorruptReported(shard))
        self.verified(shard, sound=False)

    def _held_by(self, shard: ShardId) -> Held:
        dataset, units = self.state.datasets[shard.dataset], self.sources[shard.dataset]
        return held_by(self.rows, self.saver, dataset, units, shard)

    def occupied(self) -> int:
        """Bytes of all shards on the disk."""
        return sum(meta["shard"].allocated for meta in self.meta.values())

    def measure(self) -> None:
        self.feed(self._measured())
        self.saver.catch_up()

    def _measured(self) -> ev.Event:
        spare = float("inf")
        if self.spare is not None:
            spare = self.spare - self.occupied() - len(self.begun) * FOOTPRINT
        self.model.changed(self.limit, self.metadata + METADATA_SLACK, spare)
        return ev.MetadataMeasured(self.metadata, spare)

    def reconfigure(self, limit: int, *rules: DatasetRules) -> None:
        """`limit` as the ledger has it."""
        self.limit = limit
        self.rules.update({rule.name: rule for rule in rules})
        self.model.changed(limit, self.model.metadata, self.model.free)
        self.state.reconfigure(limit, self.rules.values())
        for name, dataset in self.state.datasets.items():
            self.model.of[name].rules = dataset.rules
        self.tick(0)

    def repair(self) -> None:
        self.refuses.clear()
        self.rows.refuses = False
        self.measure()

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.feed(ev.Tick())

    def settle(self, *, rounds: int = 10_000) -> None:
        """The world does all it was asked to, without a fault, until nothing is left to do."""
        assert self.work(rounds), "the policy never comes to rest"

    def work(self, steps: int) -> bool:
        """So many steps of what it was asked to, without a fault; whether nothing is left to do."""
        for _ in range(steps):
            known = not self.saver.behind  # which units a shard holds
            if self.unlinking and known:
                self.unlink(self.unlinking[0])
            elif self.verifying and known:
                self.verified(self.verifying[0], sound=True)
            elif self.publishing:
                self.publish(min(self.publishing))
            elif self.making:
                self.make(min(self.making))
            else:
                return True
        return False

    # --- the promises

    def check(self) -> None:
        """The ledger says what the model says: no byte is counted twice, forgotten, or reserved for
        a shard that nobody makes. And nothing stands still without a reason."""
        ledger = self.state.ledger
        assert ledger.used + ledger.reserved == self.model.used()
        idle = not (self.making or self.publishing or self.state.rests(self.now))
        if idle and self.now >= self.state.disk.until:
            for name, dataset in self.state.datasets.items():
                failed = any(not_before > self.now for not_before in dataset.retry.values())
                if self.now >= dataset.source.until and not (failed or dataset.contradicted):
                    self.model.nothing_is_begun(name)
        assert self.making.keys() | self.publishing.keys() == self.model.reserved


# --- one dataset, as most tests want it
UNIT = 16 << 10  # three of these, with their overhead, make a shard


def train(**changes) -> DatasetRules:
    return DatasetRules("train", "1-a", **{"first": SHARD_SIZE, **changes})


def world(shards: int = 8, units: int = 1000, workers: int = 2, **rules) -> World:
    return World(shards * FOOTPRINT, {train(**rules): Units([UNIT] * units)}, workers)


def granted(reply: ev.Command) -> str:
    assert isinstance(reply, ev.ReplyGranted), reply
    return reply.lease


def numbers(w: World, lease: str) -> list[int]:
    return [n for a, b in w.manifests[lease].shards for n in range(a, b + 1)]
