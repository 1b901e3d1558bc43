"""The promises of the policy, kept account of a second time and as simply as can be.

`World` tells a `Model` what is commanded and what came of it. Of `State`, its ledger, room and plan the
model knows no more than its last part asks the world for. It remembers every shard with its records
(unit, ordinal), and every lease, and asserts after each step what docs/semantics.md promises.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cachecd.events import SavePlan
from cachecd.ledger import METADATA_SLACK
from cachecd.model import Assignment, Lease, Shard, ShardId
from cachecd.parts import part_of
from cachecd.rules import DatasetRules
from tests.units import FOOTPRINT, RECORDS_PER_UNIT, Records

if TYPE_CHECKING:
    from tests.world import World


@dataclass
class Sealed:
    shard: Shard
    records: Records
    retired: bool = False
    barred: bool = False
    suspect: bool = False
    delivered: int = 0  # thousandths of its records, over all leases
    rotated: bool = False  # retired to make room, not because its generation is over

    @property
    def served(self) -> bool:
        return not (self.retired or self.barred or self.suspect)


@dataclass
class Account:
    """One dataset. `history`: data bytes of every shard that its generation ever had, by number."""

    rules: DatasetRules
    shards: dict[int, Sealed] = field(default_factory=dict)
    open: dict[int, Records] = field(default_factory=dict)
    history: dict[int, int] = field(default_factory=dict)
    aside: set[int] = field(default_factory=set)
    excluded: set[int] = field(default_factory=set)
    # Units of which rotation has taken a part, and which come again when the rest has gone too.
    torn: set[int] = field(default_factory=set)
    unfilled: int = 0  # room that rotation has freed and no shard has taken
    sealed_since: int = 0  # since rotation last had its turn
    last_rotated: int = 0
    in_vain: dict[str, int] = field(
        default_factory=dict
    )  # of each job the last epoch that nobody held
    lost: bool = False  # a restart without its catalog: what was gone before is not known

    def served(self) -> list[Sealed]:
        return [s for _, s in sorted(self.shards.items()) if s.served]

    def data(self) -> int:
        current = self.rules.generation
        return sum(s.shard.data_bytes for s in self.served() if s.shard.generation == current)


class Model:
    """`limit` and `metadata` as the ledger has them, slack included; `free`: of the file system."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.limit, self.metadata = world.limit, METADATA_SLACK
        self.free = float("inf")
        self.of: dict[str, Account] = {}
        self.leases: dict[str, Lease] = {}
        self.reserved: set[ShardId] = set()
        self.going: set[ShardId] = set()  # to be unlinked
        self.marks: list[Sealed] = []
        self.turns: list[Lease] = []  # epochs that begin with this event
        self.asked = ""  # the dataset that it asks for
        self.satisfied = False  # whether it got a new set
        self.ever_held: set[str] = set()
        self.was_beyond: dict[str, int] = {}  # of each dataset, what it held beyond its share
        self.was_full = False  # whether there was no room when an epoch was asked for
        self.most_used = 0  # what usage may be at most: not beyond the limit by anything done here

    # --- bytes

    def used(self) -> int:
        on_disk = sum(s.shard.allocated for a in self.of.values() for s in a.shards.values())
        return self.metadata + on_disk + len(self.reserved) * FOOTPRINT

    def used_by(self, name: str) -> int:
        on_disk = sum(s.shard.allocated for s in self.of[name].shards.values())
        return on_disk + FOOTPRINT * sum(s.dataset == name for s in self.reserved)

    def changed(self, limit: int, metadata: int, free: float) -> None:
        """Somebody else moved a bound, or wrote."""
        self.limit, self.metadata, self.free = limit, metadata, free
        self.most_used = max(self.limit, self.used())

    def restarted(self) -> None:
        """What the daemon had in hand is gone."""
        for name, account in self.of.items():  # what a kill cut short went all the same
            went = sum(s.shard.allocated for s in self.marks if s.shard.id.dataset == name)
            account.last_rotated = max(account.last_rotated, went)
        for unfinished in (self.reserved, self.going, self.marks, self.turns):
            unfinished.clear()

    # --- shards

    def started(self, assignment: Assignment, records: Records) -> None:
        shard, account = assignment.shard, self.of[assignment.shard.dataset]
        assert assignment.units, "an assignment of nothing was started"
        assert assignment.generation == account.rules.generation
        self._forgive()  # others may start what then would seem to be on its way
        assert shard not in self.reserved, "a shard is made twice at once"
        assert shard.number not in account.shards, "a shard number was used twice"
        self.reserved.add(shard)
        assert self.used() <= self.limit, "a reservation exceeds the limit"
        assert len(self.reserved) * FOOTPRINT <= self.free, "the file system has no such room"
        if account.rules.limit is not None:
            assert self.used_by(shard.dataset) <= account.rules.limit, "beyond its own limit"
        begun_before = shard.number in account.open
        assert begun_before or shard.number > max(account.history, default=0), "a number goes back"
        if not (account.rules.pin or begun_before or self.pins_whole()):
            assert account.data() < account.rules.first, "pinned datasets come first"
        for number, others in account.open.items():
            assert number == shard.number or not others & records, "a record is being made twice"
        current = (s for s in account.shards.values() if not s.barred)
        for sealed in current:
            if sealed.shard.generation == account.rules.generation and not account.lost:
                assert not sealed.records & records, "a record is made that is there already"
        account.open[shard.number] = records

    def failed(self, shard: ShardId) -> None:
        self.reserved.remove(shard)

    def made_nothing(self, shard: ShardId) -> None:
        self.reserved.remove(shard)
        del self.of[shard.dataset].open[shard.number]

    def planned(self, change: SavePlan) -> None:
        """Units were set aside or taken back; of an assignment that nobody is at, what is set aside by
        hand is taken out, and nothing may be left of it."""
        account, name = self.of[change.dataset], change.dataset
        account.aside -= set(change.again)
        account.aside |= {a.unit for a in change.set_aside}
        for aside in change.set_aside:
            for number, records in account.open.items():
                if ShardId(name, number) not in self.reserved:
                    records -= self.all_of(aside.unit)
        if change.done is not None and change.shard is None and change.done in account.open:
            account.open[change.done] = set()

    def published(self, shard: Shard, records: Records) -> None:
        account = self.of[shard.id.dataset]
        self.reserved.remove(shard.id)
        account.open.pop(shard.id.number)
        account.shards[shard.id.number] = Sealed(shard, records)
        account.history[shard.id.number] = shard.data_bytes
        account.unfilled = max(0, account.unfilled - shard.allocated)
        account.sealed_since += shard.allocated
        account.torn -= {u for u, _ in records if self.all_of(u) <= records}

    def unlinking(self, shard: ShardId) -> None:
        sealed = self.of[shard.dataset].shards[shard.number]
        assert sealed.retired or sealed.barred, "a shard is removed that nothing speaks against"
        for lease in self.leases.values():
            named = lease.dataset == shard.dataset and lease.names(shard.number)
            assert not named, "a shard is removed that a lease names"
        self.going.add(shard)

    def unlinked(self, shard: ShardId) -> None:
        account = self.of[shard.dataset]
        self.going.remove(shard)
        gone = account.shards.pop(shard.number)
        if not gone.barred:  # what was corrupt has come again by itself
            account.torn |= {u for u, _ in gone.records if not self.all_of(u) <= gone.records}
        # Of a generation that another has taken the place of nothing was to be refilled.
        current = account.rules.generation
        over = gone.shard.generation != current and self.leasable(shard.dataset) in ("", current)
        account.unfilled += gone.shard.allocated if gone.rotated and not over else 0

    def barred(self, shard: ShardId) -> None:
        assert self.of[shard.dataset].shards[shard.number].barred, "barred though it is sound"

    def retired(self, shard: ShardId) -> None:
        sealed = self.of[shard.dataset].shards[shard.number]
        assert sealed.served, "retired twice, or out of service already"
        sealed.retired = True
        self.marks.append(sealed)

    def verified(self, shard: ShardId, sound: bool) -> None:
        sealed = self.of[shard.dataset].shards[shard.number]
        sealed.suspect, sealed.barred = False, not sound

    # --- leases

    def granted(self, lease: Lease) -> None:
        account = self.of[lease.dataset]
        assert lease.id not in self.leases
        self.leases[lease.id] = lease
        if account.in_vain.pop(lease.job, None) != lease.epoch:  # else it is no new epoch
            self.turns.append(lease)
        named = [n for a, b in lease.shards for n in range(a, b + 1)]
        assert named, "a lease of nothing"
        assert set(named) <= account.shards.keys(), "a lease names a shard not on disk"
        sealed_ones = [account.shards[n] for n in named]
        assert all(s.served for s in sealed_ones), "a lease names a shard that is out of service"
        assert {s.shard.generation for s in sealed_ones} == {lease.generation}, "mixed generations"
        assert lease.num_records == sum(s.shard.records for s in sealed_ones)
        every = [record for s in sealed_ones for record in s.records]
        assert account.lost or len(every) == len(set(every)), "a record is in the set twice"
        assert account.excluded.isdisjoint(u for u, _ in every), "a set has what was excluded"
        rules = account.rules
        everything = [s for s in account.served() if s.shard.generation == lease.generation]
        if lease.generation == rules.generation and rules.wait:
            self._exact(account, lease, named)
        else:
            assert sealed_ones == everything, "an epoch sees everything that is sealed"
        if rules.pin:
            assert lease.generation == rules.generation
            assert self.whole(lease.dataset), "a pinned set was leased before it was whole"

    def _exact(self, account: Account, lease: Lease, named: list[int]) -> None:
        needed = account.rules.first + lease.epoch * (account.rules.per_epoch or 0)
        exact: list[int] = []
        total = 0
        for number, data in sorted(account.history.items()):
            if total >= needed:
                break
            exact.append(number)
            total += data
        if total < needed or account.lost:
            return  # it is all there is
        there = [n for n in exact if n in account.shards and account.shards[n].served]
        suspect = [n for n in exact if n in account.shards and account.shards[n].suspect]
        assert not suspect, "a shard of the set is being verified"
        assert named == there if there else len(named) == 1, "not the plan's shards"

    def ended(self, lease: str) -> None:
        over = self.leases.pop(lease)
        if lease not in self.ever_held:
            self.of[over.dataset].in_vain[over.job] = over.epoch

    def held(self, lease: str) -> None:
        self.ever_held.add(lease)

    def delivered(self, lease: str, share: int) -> None:
        for number, sealed in self.of[self.leases[lease].dataset].shards.items():
            sealed.delivered += share * self.leases[lease].names(number)

    # --- after every event

    def whole(self, name: str) -> bool:
        """Every record that the source has is in a shard of this generation, or set aside."""
        return self.missing(name) == set()

    def missing(self, name: str) -> Records | None:
        """The records that are not; None if the source is not listed."""
        account = self.of[name]
        there: Records = set()
        for s in account.shards.values():
            if s.shard.generation == account.rules.generation and not (s.barred or s.suspect):
                there |= s.records
        left_out = account.aside if account.rules.pin else account.aside | account.torn
        source = self.source(name)
        return None if source is None else {r for r in source if r[0] not in left_out} - there

    def pins_whole(self) -> bool:
        """Every pinned set is whole, and none of its shards is being looked into: that one may prove
        to be missing."""
        pinned = {n: a for n, a in self.of.items() if a.rules.pin}
        looked_into = any(
            s.suspect and s.shard.generation == a.rules.generation
            for a in pinned.values()
            for s in a.shards.values()
        )
        return not looked_into and all(map(self.whole, pinned))

    def event(self, asked: str) -> None:
        """One is about to be handled, which asks for a set of this dataset."""
        self.asked = asked
        if asked:
            self.was_full = asked not in self.of or self.full(asked)
        self.was_beyond = {name: self.beyond(name) for name in self.of}

    def step(self) -> None:
        assert self.used() <= max(self.limit, self.most_used), "the limit is exceeded"
        self.most_used = max(self.limit, min(self.most_used, self.used()))
        marks, self.marks = self.marks, []
        turns, self.turns = self.turns, []
        self.satisfied = bool(turns)
        for name, account in self.of.items():
            self._rotation(account, marks, [g for g in turns if g.dataset == name])
        self._forgive()

    def _forgive(self) -> None:
        """What no shard can fill, or none will come to fill, is owed no longer."""
        for name, account in self.of.items():
            own = any(shard.dataset == name for shard in self.reserved)
            still = not self.reserved and not self.going and self.full(name)
            if account.unfilled and (still or (not own and self.whole(name))):
                account.unfilled = 0

    def nothing_is_begun(self, name: str, ever: bool = False) -> None:
        """No shard is being made, and no fault stands in the way. `ever`: nothing comes of waiting either,
        and nobody holds a lease."""
        account = self.of[name]
        rules, held = account.rules, account.data()
        may = float(rules.first)
        if rules.pin or (rules.per_epoch is None and not rules.wait):
            may = float("inf")
        elif rules.wait:
            held = sum(account.history.values())
        for lease in self.leases.values():
            if lease.dataset == name and rules.per_epoch is not None:
                after = rules.first + (lease.epoch + 1) * rules.per_epoch
                may = max(may, after if rules.wait else lease.num_bytes + rules.per_epoch)
        if not rules.pin and not self.pins_whole():
            may = min(may, rules.first)
        if any(s.suspect for s in account.shards.values()):
            return  # it may have what else would be missing
        missing = self.missing(name)
        wants = held < may and missing != set() and bool(self.source(name))
        starves = wants and not self.full(name)
        assert not starves, (
            f"{name} starves: it holds {held} bytes; {self.why(name, missing or set())}"
        )
        own = float("inf") if rules.limit is None else rules.limit - self.used_by(name)
        if ever and wants and own >= FOOTPRINT:
            assert not self.idle(), f"{name} stands still beside {len(self.idle())} idle shards"

    def idle(self) -> list[Sealed]:
        """The shards of generations that no lease will have any more."""
        return [
            s
            for name, account in self.of.items()
            for s in account.served()
            if s.shard.generation not in (account.rules.generation, self.leasable(name))
        ]

    def _rotation(self, account: Account, marks: list[Sealed], turns: list[Lease]) -> None:
        name, current = account.rules.name, account.rules.generation
        mine = [s for s in marks if s.shard.id.dataset == name]
        wanted = self.asked not in ("", name) and not self.satisfied and not account.rules.pin
        leased = {g.generation for g in turns} or {self.leasable(name)}
        # Of a generation that no lease will have any more: that is not rotation.
        rotated = [s for s in mine if s.shard.generation in leased | {current}]
        if rotated:
            assert turns or wanted, "retired though no epoch began, and nobody waits for its room"
            assert not account.rules.pin, "a pinned shard was retired"
            assert self.was_full, "the cache shrinks before the limit"
            # What a dataset has beyond its share must go, read or not; and so may a superseded generation.
            must = self.was_beyond[name]
            for sealed in sorted(rotated, key=lambda s: s.shard.id.number):
                over = must > 0 or sealed.shard.generation != current
                assert over or sealed.delivered >= 1000, "a shard goes that nobody has read"
                must -= sealed.shard.allocated
            for of in {s.shard.generation for s in rotated}:
                youngest = max(s.shard.id.number for s in rotated if s.shard.generation == of)
                stay = [s.shard.id.number for s in account.served() if s.shard.generation == of]
                assert all(number > youngest for number in stay), "not the oldest"
            left = {s.shard.generation for s in account.served()}
            assert leased <= left, "nothing is left of what is leased"
        for sealed in rotated:
            sealed.rotated = True
        if (turns or rotated) and current in leased:
            for s in account.shards.values():
                s.rotated = s.rotated and s.shard.generation == current
        amount = sum(s.shard.allocated for s in rotated)
        gone = account.unfilled + sum(
            s.shard.allocated for s in account.shards.values() if s.retired and s.rotated
        )
        others = self.used() - self.used_by(name)
        own = account.rules.limit if account.rules.limit is not None else self.limit
        capacity = min(max(self.limit - others, self.used_by(name)), max(own, self.used_by(name)))
        if amount:
            assert gone <= account.rules.refresh * capacity, "more goes than refresh allows"
            if gone > amount:  # the link has not caught up
                assert amount <= account.sealed_since, "more goes than the link refilled"
            else:
                largest = max(s.shard.allocated for s in rotated)
                most = max(account.sealed_since, 2 * account.last_rotated, largest)
                assert amount <= most, "more goes than twice what last went"
            account.last_rotated = amount
        if turns or rotated:
            account.sealed_since = 0

    # --- what the world says

    def source(self, name: str) -> Records | None:
        if name not in self._world.listed:
            return None
        units = set(range(len(self._world.sources[name]))) - self._world.gone.get(name, set())
        return {record for unit in units for record in self.all_of(unit)}

    def full(self, name: str) -> bool:
        dataset = self._world.state.datasets.get(name)
        return dataset is not None and not self._world.state._room.fits(dataset)

    def beyond(self, name: str) -> int:
        dataset = self._world.state.datasets.get(name)
        return 0 if dataset is None else self._world.state._room.excess(dataset)

    def leasable(self, name: str) -> str:
        dataset = self._world.state.datasets[name]
        return dataset.leasable or dataset.rules.generation

    def why(self, name: str, missing: Records) -> str:
        dataset, units = self._world.state.datasets[name], sorted({unit for unit, _ in missing})
        plan, account = dataset.plan, self.of[name]
        told = {
            "missing": sorted(missing),
            "held": plan.partly_held(units),
            "aside": [unit for unit in units if plan.aside([unit])[0]],
            "left over": [part_of(u) for u in plan.left_over if u.unit in units],
            "in shards": {n: s.records & missing for n, s in account.shards.items()},
            "open": {n: [part_of(u) for u in a.units] for n, a in plan.open.items()},
            "making": sorted(dataset.making),
            "retry": dataset.retry,
            "allowed": dataset.allowed,
            "exhausted": dataset.exhausted,
            "has work": dataset.has_work,
            "lost": account.lost,
            "torn": account.torn,
        }
        return "; ".join(f"{what}: {found}" for what, found in told.items())

    def all_of(self, unit: int) -> Records:
        return {(unit, ordinal) for ordinal in range(RECORDS_PER_UNIT)}
