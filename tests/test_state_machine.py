"""The policy under random interleavings of events: the promises hold after every one of them."""

from __future__ import annotations

import dataclasses

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from cachecd import events as ev
from cachecd.dataset import DatasetRules
from cachecd.model import Outcome, SetAside, UnitSlice
from tests.world import FOOTPRINT, RECORDS_PER_UNIT, SHARD_SIZE, Units, World, full

JOBS = ("a", "b")
DATASETS = ("eval", "train", "zeta")


class Policy(RuleBasedStateMachine):
    """Samplers, disk, trainers and source do as they please; World.check watches."""

    world: World

    @initialize(
        shards=st.integers(8, 14),
        workers=st.integers(1, 4),
        per_epoch=st.sampled_from([None, 0, SHARD_SIZE]),
        refresh=st.sampled_from([0.25, 0.5, 1.0]),
        pinned=st.integers(0, 6),
        units=st.integers(0, 60),
    )
    def start(self, shards, workers, per_epoch, refresh, pinned, units):
        size = 20 << 10
        self.world = World(
            shards * FOOTPRINT,
            {
                DatasetRules(
                    "train", "g", first=SHARD_SIZE, per_epoch=per_epoch, refresh=refresh
                ): Units([size] * units),
                DatasetRules("eval", "g", first=SHARD_SIZE, pin=True): Units([size] * pinned),
                DatasetRules("zeta", "g", first=SHARD_SIZE, limit=3 * FOOTPRINT): Units(
                    [9000] * 30
                ),
            },
            workers,
        )
        self.epochs = dict.fromkeys([(d, j) for d in DATASETS for j in JOBS], 0)

    def pick(self, items, data):
        return data.draw(st.sampled_from(sorted(items)))

    @rule(dataset=st.sampled_from(DATASETS), job=st.sampled_from(JOBS), ranks=st.integers(1, 2))
    def acquire_next_epoch(self, dataset, job, ranks):
        epoch = self.epochs[dataset, job]
        reply = self.world.acquire(dataset, job, epoch, 0, ranks)
        if isinstance(reply, ev.ReplyGranted):
            self.epochs[dataset, job] = epoch + 1

    @precondition(lambda self: self.world.manifests)
    @rule(data=st.data())
    def a_holder_dies(self, data):
        self.world.drop(self.pick(self.world.manifests, data))

    @precondition(lambda self: self.world.making)
    @rule(data=st.data())
    def a_shard_is_made(self, data):
        self.world.make(self.pick(self.world.making, data))

    @precondition(lambda self: self.world.making)
    @rule(data=st.data(), keep=st.integers(0, 3), aside=st.booleans())
    def a_shard_is_made_in_part(self, data, keep, aside):
        shard = self.pick(self.world.making, data)
        assignment = self.world.making[shard]
        written, rest = assignment.units[:keep], list(assignment.units[keep:])
        bad: tuple[SetAside, ...] = ()
        if rest and aside:
            bad = (SetAside(rest[0].unit, rest[0].key, "bad"),)
            rest = rest[1:]
        if rest and rest[0].ordinal + 1 < RECORDS_PER_UNIT and written:
            split = rest[0]  # its first record still went in
            rest[0] = UnitSlice(split.unit, split.key, split.size, "", split.ordinal + 1)
            written = (*written, split)
        outcome = full(dataclasses.replace(assignment, units=written))
        outcome = dataclasses.replace(outcome, remainder=tuple(rest), set_aside=bad)
        if not written:
            outcome = Outcome(0, 0, 0, 0, 0, 0.0, tuple(rest), bad)
        self.world.make(shard, outcome)

    @precondition(lambda self: self.world.making)
    @rule(data=st.data(), cause=st.sampled_from(["source", "disk", "worker", "unit"]))
    def a_shard_fails(self, data, cause):
        shard = self.pick(self.world.making, data)
        unit = self.world.making[shard].units[0].unit if cause == "unit" else None
        self.world.fail(shard, "worker" if cause == "unit" else cause, unit)

    @precondition(lambda self: self.world.publishing)
    @rule(data=st.data(), fails=st.integers(0, 5))
    def a_shard_is_published(self, data, fails):
        shard = self.pick(self.world.publishing, data)
        if fails == 0:
            self.world.fail(shard, "disk")
        else:
            self.world.publish(shard)

    @precondition(lambda self: self.world.unlinking)
    @rule(data=st.data())
    def a_shard_is_unlinked(self, data):
        self.world.unlink(self.pick(self.world.unlinking, data))

    @precondition(lambda self: self.world.disk)
    @rule(data=st.data(), sound=st.booleans())
    def a_reader_reports_corruption(self, data, sound):
        shard = self.pick(self.world.disk, data)
        self.world.feed(ev.CorruptReported(shard))
        if shard in self.world.verifying:
            self.world.verified(shard, sound)

    @rule(seconds=st.sampled_from([0.25, 5.0, 120.0]))
    def time_passes(self, seconds):
        self.world.tick(seconds)

    @rule(more=st.integers(1, 10))
    def the_source_gains_objects(self, more):
        plan = self.world.state.datasets["train"].plan
        plan._units.append([20 << 10] * more)
        self.world.feed(ev.Listed("train", len(plan._units), complete=True))

    def teardown(self):
        """No starvation: when faults stop, what can be made is made, and every gauge comes to rest."""
        if not hasattr(self, "world"):
            return
        w = self.world
        for lease in list(w.manifests):
            w.drop(lease)
        for _ in range(8):  # failed shards wait for their turn
            w.tick(120.0)
            w.settle()
        assert not w.making
        assert w.state.ledger.reserved == 0
        assert not w.state.leases
        for name, dataset in w.state.datasets.items():
            stuck = w.state._room.stuck(dataset)
            assert stuck or not dataset.retry, f"{name}: a failed shard is never tried again"
            assert not any(s.retired or s.barred for s in dataset.live.values())
            reached = dataset.data() >= dataset.rules.first
            assert reached or dataset.whole or stuck, f"{name} starves"
            records = sum(len(r) for s, r in w.disk.items() if s.dataset == name)
            if dataset.whole and not dataset.evicted_shards:
                there = dataset.plan.num_units - dataset.plan.num_aside
                assert records >= there * RECORDS_PER_UNIT, f"{name}: records were lost"


TestPolicy = Policy.TestCase
TestPolicy.settings = settings(
    max_examples=300,
    stateful_step_count=50,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
