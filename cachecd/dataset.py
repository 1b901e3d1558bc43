"""One dataset's shards, growth and rotation: the figures that the policy decides by. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cachecd.contradictions import Contradictions
from cachecd.doubt import Doubt
from cachecd.errors import DiskError
from cachecd.excluded import Excluded
from cachecd.generations import same_split
from cachecd.live import LiveShards
from cachecd.model import (
    EXCLUDED,
    Assignment,
    Held,
    Lease,
    Outcome,
    SetAside,
    Shard,
    UnitName,
    UnitSlice,
)
from cachecd.pause import LONGEST, Pause
from cachecd.plan import Plan
from cachecd.progress import Progress
from cachecd.rate import Rate
from cachecd.rules import DatasetRules
from cachecd.second_chance import SecondChances
from cachecd.shardtable import Numbers, ShardSet
from cachecd.unitcount import Units
from cachecd.walk import Walk

_TRIES_PER_UNIT = 2


@dataclass(slots=True)
class Making:
    """A shard that is being made, or with its outcome, being published."""

    fetched_bytes: int = 0
    outcome: Outcome | None = None


@dataclass(slots=True)
class DatasetState:
    """Everything the policy knows of one dataset.

    `debt`: allocated bytes that rotation has freed and the sampler has not refilled; with the retired
    shards still there, never more than `refresh` of the capacity. `allowed`: data bytes the dataset may
    hold before the next epoch boundary. `evicted`: data bytes of this generation's shards that are gone;
    `gaps`: of those among them that have older ones before them. `listings`: of each generation that
    had shards when the daemon started, and of the current one, the listing that numbers its units.
    `was_leased`: the current generation was. `twice`: what a start found to hold a unit that another
    shard holds too.
    """

    rules: DatasetRules
    plan: Plan
    live: LiveShards = field(init=False)
    making: dict[int, Making] = field(default_factory=dict)
    retry: dict[int, float] = field(default_factory=dict)  # number -> not before
    tries: dict[tuple[int, int | None], int] = field(default_factory=dict)
    killed: set[tuple[int, int | None]] = field(default_factory=set)  # by want of memory, it seems
    described: bool = False
    listed: bool = False
    unlisted: str = ""  # why the listing does not get on
    listing: Progress = field(default_factory=Progress)
    exhausted: bool = False
    allowed: float = 0
    debt: int = 0
    sealed_since_boundary: int = 0
    last_retired: int = 0
    refilled: int = 0  # allocated bytes that were sealed since then
    evicted: int = 0
    evicted_shards: int = 0
    gaps: dict[int, int] = field(default_factory=dict)
    in_vain: dict[str, int] = field(default_factory=dict)  # job -> epoch that nobody ever held
    turn: int = 0  # of its latest shard among all datasets' shards
    source: Pause = field(default_factory=Pause)
    second_chances: SecondChances = field(init=False)
    egress: int = 0  # bytes fetched in all
    excluded: Excluded = field(default_factory=Excluded)
    rate: Rate = field(default_factory=Rate)
    began_at: int | None = None  # the place in the source that a resumed run named last
    listings: dict[str, str] = field(default_factory=dict)
    was_leased: bool = False
    twice: tuple[int, ...] = ()
    doubt: Doubt = field(default_factory=Doubt)
    contradictions: Contradictions = field(default_factory=Contradictions)

    def __post_init__(self) -> None:
        self.live = LiveShards(self.rules.name)
        self.allowed = self._least_allowed()
        self.second_chances = SecondChances(self.rules.pin)

    def _least_allowed(self) -> float:
        unbounded = self.rules.pin or (self.rules.per_epoch is None and not self.rules.wait)
        return float("inf") if unbounded else self.rules.first

    def change(self, rules: DatasetRules) -> None:
        """New sizes while running; what is cached stays allowed, and the generation is what it is."""
        self.rules = replace(rules, generation=self.rules.generation)
        self.allowed = max(self._least_allowed(), self.data())

    def assign(self, now: float) -> Assignment | None:
        """The plan's next shard, if there is any at present; a listing that the disk does not give
        back stops the dataset like a source that is not there."""
        try:
            found = self.plan.assign()
        except DiskError as error:
            self.source.begin(now, str(error))
            return None
        if isinstance(found, Assignment):
            return found
        # Blocked or exhausted: either way only a finished or an unlinked shard, or a longer
        # listing, changes it, and each of these clears the mark.
        self.exhausted = True
        return None

    # --- figures

    def data(self, generation: str | None = None) -> int:
        """Data bytes of served shards, of one generation or of the current one."""
        return self.live.served(generation or self.rules.generation).data_bytes

    @property
    def whole(self) -> bool:
        """Everything the source has is in live, sound shards, or set aside."""
        busy = self.has_work or self.making or self.excluded.sought
        return self.listed and not busy and self.being_verified is None

    @property
    def being_verified(self) -> int | None:
        """A shard of the current generation that is out of service while its report is looked into."""
        return self.live.verifying(self.rules.generation)

    @property
    def numbered_alike(self) -> list[str]:
        """The generations whose shards name their units by the current listing."""
        listing = self.listings.get(self.rules.generation)
        return [name for name, its in self.listings.items() if its == listing]

    @property
    def waits_for(self) -> str:
        """Why nothing is sampled though nothing is wrong; "" if something is, or could be."""
        return "" if self.listed or self.plan.num_units else self.rules.awaits

    @property
    def has_work(self) -> bool:
        """Whether something could be made if there were room."""
        return self.plan.has_work or bool(self.retry)

    @property
    def takes_more(self) -> bool:
        """Whether room is all that it lacks to be given more work: nothing speaks against its source's
        records, and it may grow."""
        held = self.made() if self.rules.wait else self.data()
        may = bool(self.retry) or (self.plan.has_work and held < self.allowed)
        return may and not self.contradicted

    # --- which set an epoch gets

    def generation_to_lease(self, needed: int) -> str | None:
        """The newest generation that can be leased: the current one once it is ready, else an old
        one that is still here, unless it is withheld; None if there is none yet. Once the current one was
        leased, no old one is."""
        if self.ready(needed):
            return self.rules.generation
        if self.was_leased:
            return None
        withheld = [name for name in self.live.generations if not self.may_lease(name)]
        old = self.live.superseded(self.rules.generation, *withheld)
        if self.rules.pin or not len(old):
            return None
        return self.live[int(old[-1])].shard.generation

    def may_lease(self, generation: str) -> bool:
        """Whether a lease may be of this generation: not if it holds out other units than are
        configured now, for what is held out now is among its records."""
        return same_split(generation, self.rules.generation)

    @property
    def withheld(self) -> Numbers:
        """The shards, oldest first, that no lease may name although nothing is wrong with them."""
        return self.live.superseded(*filter(self.may_lease, self.live.generations))

    def ready(self, needed: int) -> bool:
        """Whether the current generation can be leased for an epoch that needs `needed` bytes."""
        served = self.live.served(self.rules.generation).shards > 0
        if self.rules.pin:
            return served and self.whole
        if not self.rules.wait or needed == 0:
            return served and (self.data() >= needed or self.whole)
        walked = self._walk()
        return bool(walked.served.any()) and (walked.data_bytes >= needed or self.whole)

    def made(self) -> int:
        """Data bytes of all shards that the current generation ever had."""
        return self.evicted + self.live.data_bytes(self.rules.generation)

    def needed(self, epoch: int) -> int:
        """Data bytes that the set of this epoch needs."""
        if self.rules.wait:
            return self.rules.first + epoch * (self.rules.per_epoch or 0)
        return self.rules.first

    def choose(self, epoch: int, generation: str) -> ShardSet:
        """An epoch's set."""
        if not self.rules.wait or generation != self.rules.generation:
            return self.live.served_set(generation)
        # Exactly the plan's shards for this epoch, however fast the link was.
        chosen = self._walk().first(self.needed(epoch))
        # The oldest of them may never be made: there is no room.
        return self.live.set_of(chosen) if len(chosen) else self.live.served_set(generation)

    def allow_after(self, lease: Lease) -> None:
        """Lets the dataset grow by what the epoch of this lease may add to its set."""
        if self.rules.per_epoch is not None:
            after = lease.num_bytes + self.rules.per_epoch
            if self.rules.wait:
                after = self.needed(lease.epoch + 1)
            self.allowed = max(self.allowed, after)

    def _walk(self) -> Walk:
        """The current generation's shards in the plan's order, up to the first that is still to be made
        or being verified. What was evicted before the oldest one is not among them."""
        suspect = self.being_verified
        open_ones = [*self.making, *self.retry, *([] if suspect is None else [suspect])]
        end = min(open_ones, default=None)
        before = self.evicted - sum(self.gaps.values())
        return self.live.walk(self.rules.generation, self.gaps, end, before)

    def evict(self, shard: Shard) -> None:
        """The shard is gone, from `live` too."""
        if shard.generation != self.rules.generation:
            return
        self.evicted += shard.data_bytes
        self.evicted_shards += 1
        self.gaps[shard.id.number] = shard.data_bytes
        there = [] if self.live.first is None else [self.live.first]
        oldest = min((*there, *self.plan.open), default=None)
        self.gaps = {n: s for n, s in self.gaps.items() if oldest is not None and n > oldest}

    # --- rotation

    def to_retire(
        self, generation: str, capacity: int, floor: int, excess: int, comes: bool, taken: bool
    ) -> Numbers:
        """Which shards of the leased generation an epoch boundary retires at the limit, oldest first.

        Only while there is something to put in their place; together with what was retired and not
        refilled never more than `refresh` of the capacity; no more than the link has shown it can refill;
        no shard of the current generation that nobody has read; and never so many that less than `floor`
        data bytes stay. `excess`: so much must go, read or not, and whether or not anything `comes`
        instead. `taken`: others have what was freed last.
        """
        live, none = self.live, np.zeros(0, np.int64)
        if self.rules.pin:
            return none
        # Those of a generation that is over were not retired to be refilled.
        current = self.rules.generation
        owed = self.debt + live.retired_allocated(current if generation == current else None)
        proven = self.sealed_since_boundary
        if owed == 0:
            # All caught up: the link may do more than it was asked for; one shard at least, since a
            # cache at its limit has nothing else to measure the link by.
            smallest = live.oldest_allocated(generation)
            more = 0 if taken and excess <= 0 else 2 * self.last_retired
            proven = max(proven, more, smallest)
            if self.source.failing and excess <= 0:
                proven = smallest  # enough to find out whether anything comes
        quota = min(int(self.rules.refresh * capacity) - owed, proven)
        if quota <= 0:  # what is missing takes a look at every unit of the source
            return none
        missing = self.plan.missing_bytes if self.plan.has_work else len(self.retry)
        coming = missing if comes else 0
        if self.rules.wait:
            coming = min(coming, int(min(self.allowed, float(1 << 62))) - self.made())
        if coming <= 0 and excess <= 0:
            return none
        # No more than what could come in its place, and the rest of a shard.
        quota = min(quota, max(coming, excess) + live.most_allocated(generation))
        # Of a generation that another replaces, nobody waits until all of it was read once more.
        must = excess if generation == current else quota
        return live.oldest(generation, quota, floor, must)

    @property
    def preparing(self) -> bool:
        """Whether an old generation is served until the current one is ready."""
        return self.leasable not in (None, self.rules.generation)

    @property
    def idle(self) -> Numbers:
        """The shards that no lease names any more although nothing is wrong with them, oldest first: of
        generations that another has taken the place of."""
        if len(self.live.generations) < 2 and not len(self.live.superseded(self.rules.generation)):
            return np.zeros(0, np.int64)
        return self.live.superseded(self.rules.generation, self.leasable or "")

    @property
    def leasable(self) -> str | None:
        """The generation of a lease that is granted now, None if there is none yet."""
        return self.generation_to_lease(self.needed(0))

    # --- the source

    def begin_listing(self, complete: bool) -> None:
        """A run begins that lists the source; `complete`: it was listed to its end before."""
        self.doubt.begin(complete)
        self.source.refused = self.doubt.reason

    def listed_on(self, complete: bool, fresh: bool, now: float) -> bool:
        """The listing has gone on; `fresh`: the store has just given it. Returns whether that is to be
        saved."""
        self.plan.extend(complete)
        self.unlisted = ""
        self.listed, self.exhausted = complete, False
        if not fresh:
            return False
        known = self.doubt.ended(complete)
        self.source.refused = self.doubt.reason
        self.source.end()
        self.second_chances.listed(now)
        return known

    def relisted(self, gone: Units, back: Units, now: float) -> tuple[int, ...]:
        """A whole listing has not shown the units `gone`, and has shown again those that are `back`.
        Returns those of them that had been set aside, and are not any more: the listing knows better."""
        changed = np.concatenate([np.asarray(gone, np.int64), np.asarray(back, np.int64)])
        again = changed[self.plan.aside(changed)] if len(changed) else changed
        self.plan.gone(gone)
        self.plan.back(back)
        self.exhausted = False
        return self._take_back(again.tolist(), now)

    def listing_stopped(
        self, reason: str, stuck: bool, down: bool, now: float, doubted: bool = False
    ) -> None:
        """The listing has failed: the units listed so far are sampled, and if the listing is `stuck`, again
        and again. While the source is `doubted`, no unit is sampled."""
        self.unlisted = reason
        if doubted:
            self.doubt.raised(reason)
        else:
            self.doubt.unlisted()
        self.source.refused = self.doubt.reason
        if down:
            self.source.begin(now, reason)
        if stuck:
            self.plan.make_do()
            self.exhausted = False

    def made_of(self, number: int, outcome: Outcome, now: float) -> Outcome:
        """A shard tells what can be read. While nobody knows whether this is the right store, what cannot
        be read may pass."""
        if self.doubt.unsure:
            asides = tuple(replace(aside, passing=True) for aside in outcome.set_aside)
            outcome = replace(outcome, set_aside=asides)
        self.second_chances.gave_up(outcome.set_aside, now)
        return outcome

    def found_aside(self, asides: Sequence[SetAside]) -> None:
        """What a start found set aside, beside what it found in shards."""
        held = self.plan.num_units - self.plan.num_waiting - self.plan.num_aside
        self.contradictions.found(asides, held, self.evicted_shards > 0)

    @property
    def contradicted(self) -> str:
        """Why nothing more is made though the source works: most records contradict the schema. Of a small
        dataset that is known once all of it was looked at."""
        doubts = self.contradictions
        certain = doubts.suspected and (doubts.enough or self.whole)
        return doubts.told(self.rules.name) if certain else ""

    def may_ask(self, now: float) -> bool:
        """Whether another shard may be started, as far as the source is concerned: not while it is
        paused, and after that one at a time until something comes."""
        if self.source.stops(now) or self.contradicted:
            return False
        waiting = any(not m.fetched_bytes and m.outcome is None for m in self.making.values())
        return not (self.source.failing and waiting)

    def try_again(self, now: float) -> tuple[int, ...]:
        """Takes back the units set aside whose time for another try has come."""
        if units := self._take_back(self.second_chances.take(now), now):
            self.exhausted = False
        return units

    def _take_back(self, units: Sequence[int], now: float) -> tuple[int, ...]:
        """Those of these units that are not set aside any more: not what a person has excluded, nor what a
        shard holds an earlier part of. That would seem to be there whole, and its rest is in no queue:
        it is tried when that part is gone."""
        if not units:
            return ()
        units = [unit for unit in units if unit not in self.excluded.numbers]
        kept = set(self.plan.partly_held(units))
        self.second_chances.put_off(kept, now)
        again = tuple(unit for unit in units if unit not in kept)
        self.plan.take_back(again)
        return again

    def give_back(self, held: Held) -> None:
        """A shard is lost that held this: what no other has comes again at once."""
        self.plan.give_back(held.units, held.parts)
        self.exhausted = False

    # --- what a person has taken out

    def exclude(
        self, units: tuple[UnitSlice, ...]
    ) -> tuple[tuple[SetAside, ...], tuple[UnitName, ...]]:
        """Sets these units aside for good, under whatever number they are listed again, by these names."""
        self.excluded.add(units)
        numbers = {unit.unit for unit in units}
        self.plan.set_aside(numbers)
        left = {(u.unit, u.ordinal) for u in self.plan.left_over if u.unit in numbers}
        self.plan.drop(left)
        asides = {unit.unit: SetAside(unit.unit, unit.key, EXCLUDED) for unit in units}
        for number in self.plan.open.keys() - self.making.keys():
            asides |= {aside.unit: aside for aside in self.take_out(number)}
            if number in self.retry:
                self._try_at(self.retry[number], number)
        return tuple(asides.values()), tuple(unit.name for unit in units)

    def take_out(self, number: int) -> tuple[SetAside, ...]:
        """Takes the excluded units out of an open assignment that nobody is at."""
        units = self.excluded.among(self.plan.open[number].units)
        self.excluded.add(units)
        asides = tuple(SetAside(unit.unit, unit.key, EXCLUDED) for unit in units)
        for aside in asides:
            self.plan.without(number, aside)
        return asides

    def _try_at(self, when: float, number: int) -> None:
        """A shard is made again then, or, if all of it is excluded, done with at once: nobody has to wait
        for what is not fetched."""
        units = self.plan.open[number].units
        unwanted = len(self.excluded.among(units)) == len(units)
        self.retry[number] = 0.0 if unwanted else when

    # --- the link

    def fetched(self, amount: int, now: float) -> None:
        """Counts bytes that just arrived."""
        self.egress += amount
        self.rate.add(amount, now)

    def lost_worker(
        self, number: int, unit: int | None, reason: str, passing: bool, now: float
    ) -> SetAside | None:
        """A worker died on shard `number`, while it worked on `unit`: the shard is made again after a
        while; a unit on which two died is taken out of it and returned, for a while where one of them
        was killed for a reason that is `passing`."""
        tries = self.tries[number, unit] = self.tries.get((number, unit), 0) + 1
        if passing:
            self.killed.add((number, unit))
        self.source.note(now, reason)
        self._try_at(now + min(0.25 * 2 ** min(tries, 10), LONGEST), number)
        named = next((u for u in self.plan.open[number].units if u.unit == unit), None)
        if named is None or tries < _TRIES_PER_UNIT:
            return None
        aside = SetAside(named.unit, named.key, reason, (number, unit) in self.killed)
        self.second_chances.gave_up((aside,), now)
        self.plan.without(number, aside)
        self.retry[number] = now
        return aside
