"""The promises of the policy, under random events (scenario.py), with a simulated disk (simulated.py).

A scenario is a seed. First come events of all kinds, kills included; then calm, in which everything
promised must come. The long form: CACHECD_POLICY_RUNS=2000 [CACHECD_POLICY_SEED=0].
"""

from __future__ import annotations

import math
import os
from collections import Counter
from itertools import pairwise

from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.values import GenerationId, Lease
from tests.policy.scenario import DAY, SLACK, Scenario
from tests.policy.workers import Object

RUNS = int(os.environ.get("CACHECD_POLICY_RUNS", "10"))
SEED = int(os.environ.get("CACHECD_POLICY_SEED", "0"))
EVENTS = 100


class Promises(Scenario):
    """What is promised, in the words of docs/semantics.md."""

    def check_pass(self, event: ev.Published) -> None:
        """Every record at most once a pass."""
        directory, s = self.directory(event.stream), event.stream.index
        shard = directory.shards[event.number, 0]
        self.sealed_bytes[event.stream.dataset] += shard.size
        for record in shard.records if s < directory.shape.streams else ():
            named = (GenerationId(event.stream.dataset, event.stream.generation), *record[:3])
            assert self.passes.get(named, -1) < shard.after.pass_, "a record twice in a pass"
            self.passes[named] = shard.after.pass_

    def check_set(self, lease: Lease, new: bool) -> None:
        """No record twice in a set, none that is excluded, no quarantined shard, no other split.

        A set that is granted once more is the same, whatever was found or excluded since.
        """
        generation = GenerationId(lease.dataset, lease.generation)
        directory, versions = self.disk.directories[generation], dict(lease.versions)
        assert directory.split == self.rules[lease.dataset].split, (
            "no lease crosses a change of split"
        )
        numbers = [j * (lease.streams + 1) + s for s, first, last in lease.intervals
                   for j in range(first, last + 1)]  # fmt: skip
        names = [(number, versions.get(number, 0)) for number in numbers]
        assert not new or not set(names) & set(directory.bad), "no quarantined shard is leased"
        shards = self.held[lease.id] = [directory.shards[name] for name in names]
        records = Counter(record[:3] for shard in shards for record in shard.records)
        assert max(records.values()) == 1, "no set names a record twice"
        keys = {(lease.dataset, directory.keys[unit]) for unit, _, _ in records}
        assert not new or not keys & self.excluded, "no lease names an excluded record"
        assert lease.num_records == len(records)
        configured = self.rules[lease.dataset].generation
        newer = [name for name, d in self.disk.directories.items() if d.live().keys() - d.bad
                 and name.dataset == lease.dataset and d.split == directory.split
                 and lease.generation < name.name != configured and d.contradiction is not None
                 and not any(getattr(c, "generation", None) == name for c in self.pending)]  # fmt: skip
        assert lease.generation == configured or not newer, "the newest generation is leased"

    def check_supplement(self, about: do.MakeSupplement | ev.ShardSealed) -> None:
        """A unit whose supplement failed waits for a day, then two, up to a week."""
        directory, closing = self.directory(about.stream), do.CloseStream(about.stream)
        if isinstance(about, do.MakeSupplement):
            until = [
                self.failed.get((about.stream, piece.unit), (0, 0))[1] for piece in about.pieces
            ]
            assert max(until) <= self.now, "a supplement is tried again too early"
        elif about.stream.index == directory.shape.streams and closing not in self.pending:
            left, made = self.left, self.sealed.get(about.stream, ())
            for unit in {record[0] for _, shard in made for record in shard.records} - left:
                self.failed.pop((about.stream, unit), None)
            for unit in {skip.unit for skip in about.skipped} - left:
                days = min(7, self.failed.get((about.stream, unit), (0, 0))[0] + 1)
                self.failed[about.stream, unit] = days, self.now + days * DAY

    def check_files(self) -> None:
        """Leased files stay."""
        there = {id(shard) for d in self.disk.directories.values() for shard in d.shards.values()}
        for lease, shards in self.held.items():
            assert all(id(shard) in there for shard in shards), f"a file of {lease} is gone"

    def check_rotation(self, event: ev.Event, commands: list[do.Command]) -> None:
        """A boundary retires no more than `refresh`, nor more than was delivered, nor more than the link
        refills: what was sealed, or twice what the last boundary retired. One shard may go."""
        name, retired = self.names[0], {}
        generation = GenerationId(name, self.rules[name].generation)
        directory = self.disk.directories[generation]
        for command in commands:
            if isinstance(command, do.MarkRetired | do.Unlink) and command.generation == generation:
                retired |= {
                    n: directory.shards[n, directory.newest()[n]].size for n, _ in command.names
                }
        # But supplements, which may also retire for a stream's sake.
        size = sum(
            retired[n] for n in retired if directory.shape.split(n)[0] < directory.shape.streams
        )
        if isinstance(event, ev.AcquireAsked) and size:
            shard = self.capacity + 3
            if self.limit == self.whole_limit:
                refilled = max(self.sealed_bytes[name], 2 * sum(self.retired.values()), shard)
                assert size <= max(self.rules[name].refresh * self.limit, shard), (
                    "the floor is kept"
                )
                # For a page of the listing, beside the room that is kept back; one shard for its rest.
                page = self.pages[name] + 2 * shard if name in self.pages else 0
                delivered = self.delivered[name] + 1e-6
                assert size <= max(delivered, page), "nothing goes before it was delivered"
                assert size <= max(refilled, page), "no more goes than the link refills"
            self.counted = self.delivered.copy(), self.sealed_bytes.copy()
            self.retired = {}
            self.delivered[name] = self.sealed_bytes[name] = 0
        self.retired |= retired

    # --- calm

    def cached(self, name: str) -> set[tuple[int, int, int]]:
        """The records of live shards of the configured generation."""
        directory = self.disk.directories[GenerationId(name, self.rules[name].generation)]
        return {record[:3] for shard in directory.live().values() for record in shard.records}

    def usable(self, name: str) -> set[tuple[int, int, int]]:
        """The records that can be read."""
        directory = self.disk.directories[GenerationId(name, self.rules[name].generation)]
        usable = set()
        final = {(skip.unit, skip.etag) for shard in directory.live().values()
                 for skip in shard.skipped if not skip.passing}  # fmt: skip
        for unit, key in enumerate(directory.keys):
            found = self.sources[name].get(key)
            if found and key not in self.disk.excluded and (unit, found.etag) not in final:
                stop = found.fault[1] if found.fault else len(found.records)
                usable |= {(unit, found.etag, ordinal) for ordinal in range(stop)}
        return usable

    def calm(self) -> None:
        """No more trouble: every usable record comes into the cache, whatever its state was."""
        for job in sorted(self.jobs):
            self.leave(job)
        self.limit = self.whole_limit
        self.send(ev.Configured(self.limit + SLACK, tuple(self.rules.values()), block=1))
        for source in self.sources.values():
            for key, old in source.items():
                if old.fault and old.fault[0]:
                    source[key] = Object(old.etag, old.records)
        for name in self.names:
            self.list(name, 1 << 30)
        least = 5 * (self.capacity + 3)
        needs = {name: 1.3 * sum(sum(o.records) for o in self.sources[name].values()) + 12 * least
                 for name in self.names if self.rules[name].pin}  # fmt: skip
        if sum(needs.values()) + least * len(self.names) + self.capacity > self.limit:
            return  # the limit is too small for the pinned dataset: refused at a start
        seen = {name: self.cached(name) for name in self.names}
        idle = rounds = 0
        while self.pages or any(self.lacks(name, seen[name]) for name in self.names):
            rounds += 1
            assert rounds < 5000, "no end"
            moved = sum(map(self.write_page, list(self.pages))) > 0
            for _ in range(30):
                moved = self.work(1000) or moved
                commands = 0
                while self.run_command():
                    moved, commands = True, commands + 1
                    assert commands < 20_000, "commands follow each other without end"
            for name in self.names:
                seen[name] |= self.cached(name)
                self.train(name, "calm", whole=True)
            if rounds % 10 == 0 or not moved:
                for name in self.names:
                    self.list(name, 1 << 30)
                self.pass_time(8 * DAY)
            idle = 0 if moved else idle + 1
            lacks = [len(self.lacks(n, seen[n])) for n in self.names]
            assert idle < 60, f"stuck: {lacks}, pages {self.pages}"

    def lacks(self, name: str, seen: set[tuple[int, int, int]]) -> set[tuple[int, int, int]]:
        """Usable records that were not cached since the calm began; a unit may stay in an older version."""
        live = {(unit, etag) for unit, etag, _ in self.cached(name)}
        older = {unit for unit, etag in live if (found := self.sources[name].get(
            self.key(name, unit))) is None or found.etag != etag}  # fmt: skip
        return {record for record in self.usable(name) - seen if record[0] not in older}

    def key(self, name: str, unit: int) -> str:
        return self.disk.directories[GenerationId(name, self.rules[name].generation)].keys[unit]


def run(seed: int) -> None:
    scenario = Promises(seed)
    scenario.fill(scenario.rng.choice([0, 10, 40]))
    for _ in range(EVENTS):
        scenario.wild()
    scenario.calm()
    scenario.grow_source()
    scenario.calm()


def test_promises_hold_under_random_events():
    for seed in range(SEED, SEED + RUNS):
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def check_wait(scenario: Promises, lease: Lease, records: frozenset[tuple[int, int, int]]) -> None:
    """Epoch k's set is of each stream its shards below ceil((first + k per_epoch) / (S shard_size)), or all
    records of the stream."""
    directory, rules = scenario.disk.directories[GenerationId("a", "000")], scenario.rules["a"]
    size = rules.first + lease.epoch * rules.per_epoch
    target = math.ceil(size / (lease.streams * rules.shard_size))
    numbers = Counter(s for s, first, last in lease.intervals for _ in range(first, last + 1))
    assert all(last < target for _, _, last in lease.intervals), "the set is too large"
    for s in range(lease.streams):
        if numbers[s] < target:
            units = {
                unit for block in range(len(directory.ends)) for unit in directory.order(s, block)
            }
            lacks = scenario.usable("a") - records
            assert not units & {unit for unit, _, _ in lacks}, "the set is too small"


def sets_of_a_wait_run(seed: int, speed: int) -> list[frozenset[tuple[int, int, int]]]:
    """The records of each epoch's set with `grow.wait`, where all of them fit; `speed` decides the order of
    events, kills included."""
    scenario, sets = Promises(seed, wait=True, speed=speed), []
    rng, patience = scenario.rng, scenario.rng.uniform(0.01, 0.2)
    for _ in range(20_000):
        if len(sets) == 6:
            break
        what = rng.random()
        if what < 0.5:
            scenario.work(rng.choice([1, 30, 200]))
        elif what < 0.9:
            scenario.run_command()
        elif what < 0.95 and not scenario.disk.directories[("a", "000")].completed:
            scenario.list("a", rng.choice([1, 10, 100]))
        elif what < 0.955:
            scenario.start()
        elif rng.random() < patience and scenario.train("a", "job"):
            held = scenario.held[scenario.jobs["a", "job"]]
            sets.append(frozenset(record[:3] for shard in held for record in shard.records))
            check_wait(scenario, scenario.disk.manifests[scenario.jobs["a", "job"]], sets[-1])
    return sets


def test_with_wait_sets_do_not_depend_on_speed():
    for seed in range(SEED, SEED + max(3, RUNS // 20)):
        one, two = sets_of_a_wait_run(seed, 1), sets_of_a_wait_run(seed, 2)
        assert len(one) == len(two) == 6, f"seed {seed}: stuck"
        assert one == two, f"seed {seed}"
        assert all(a <= b for a, b in pairwise(one)), "sets grow"
