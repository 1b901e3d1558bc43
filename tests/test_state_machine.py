"""The policy under random interleavings of everything that can happen to it.

`policy_model.Model` says after every event whether the promises hold; what is added here is that nobody
waits for ever. The long form, other events on every run:

    CACHECD_POLICY_EXAMPLES=20000 CACHECD_POLICY_STEPS=100 pytest -n0 --timeout=0 THIS_FILE
"""

from __future__ import annotations

import dataclasses
import os
import re

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from cachecd import events as ev
from cachecd.model import Outcome, SetAside
from cachecd.preflight import minimum
from cachecd.rules import DatasetRules
from tests.units import RECORDS_PER_UNIT, full
from tests.world import FOOTPRINT, SHARD_SIZE, Units, World

JOBS = ("a", "b")
DATASETS = ("eval", "train", "zeta")
SIZE = 20 << 10


class Policy(RuleBasedStateMachine):
    """Samplers, disk, trainers, source and administrator do as they please."""

    world: World
    played_by: type[World] = World

    @initialize(
        more=st.integers(0, 8),
        workers=st.integers(1, 4),
        first=st.integers(1, 3),
        per_epoch=st.sampled_from([None, 0, SHARD_SIZE]),
        wait=st.booleans(),
        refresh=st.sampled_from([0.25, 0.5, 1.0]),
        pinned=st.integers(0, 6),
        units=st.integers(0, 60),
        unlisted=st.sets(st.sampled_from(DATASETS), max_size=1),
        interleave=st.sampled_from([1, 4, 16]),
    )
    def start(
        self, more, workers, first, per_epoch, wait, refresh, pinned, units, unlisted, interleave
    ):
        first *= SHARD_SIZE
        wait = wait and per_epoch is not None
        rules = (
            DatasetRules(
                "train", "1", first, per_epoch, wait=wait, refresh=refresh, interleave=interleave
            ),
            DatasetRules("eval", "1", first=SHARD_SIZE, pin=True, interleave=interleave),
            DatasetRules("zeta", "1", first=SHARD_SIZE, refresh=0.5, limit=4 * FOOTPRINT),
        )
        least = minimum(rules, SHARD_SIZE) - minimum((), SHARD_SIZE)
        sizes = ([SIZE] * units, [SIZE] * pinned, [9000] * 30)
        listings = {r: Units(size) for r, size in zip(rules, sizes, strict=True)}
        self.world = self.played_by(least + more * FOOTPRINT, listings, workers, unlisted)
        self.least = self.world.limit
        self.epochs = dict.fromkeys([(d, j) for d in DATASETS for j in JOBS], 0)

    def pick(self, items, data):
        return data.draw(st.sampled_from(sorted(items)))

    # --- trainers

    @rule(dataset=st.sampled_from(DATASETS), job=st.sampled_from(JOBS), world=st.integers(1, 3),
          skip=st.sampled_from([0, 0, 0, 2]))  # fmt: skip
    def acquire_next_epoch(self, dataset, job, world, skip):
        epoch = self.epochs[dataset, job] + skip
        reply = self.world.acquire(dataset, job, epoch, 0, world)
        if isinstance(reply, ev.ReplyGranted):
            self.epochs[dataset, job] = epoch + 1

    @rule(dataset=st.sampled_from(DATASETS), job=st.sampled_from(JOBS), rank=st.integers(0, 2))
    def a_late_rank_acquires(self, dataset, job, rank):
        epoch = max(0, self.epochs[dataset, job] - 1)
        first = self.world.acquire(dataset, job, epoch, 0, 3)
        second = self.world.acquire(dataset, job, epoch, rank, 3)
        if isinstance(first, ev.ReplyGranted) and first.lease in self.world.manifests:
            assert getattr(second, "lease", first.lease) == first.lease

    @rule(dataset=st.sampled_from(DATASETS), job=st.sampled_from(JOBS))
    def a_job_name_is_used_again(self, dataset, job):
        self.epochs[dataset, job] = 0

    @rule(dataset=st.sampled_from(DATASETS))
    def a_rank_asks_and_dies_before_it_locks(self, dataset):
        self.world.feed(ev.AcquireAsked("dead", dataset, "dead", 0, 0, 1))
        self.world.replies.pop("dead", None)

    @precondition(lambda self: self.world.manifests)
    @rule(data=st.data())
    def holders_die(self, data):
        self.world.drop(self.pick(self.world.manifests, data))

    @rule(at_once=st.booleans())
    def trainers_read_otherwise(self, at_once):
        self.world.reads_at_once = at_once

    @precondition(lambda self: self.world.manifests)
    @rule(data=st.data(), share=st.sampled_from([0, 100, 500, 999, 1000]))
    def trainers_are_given_some_of_a_lease(self, data, share):
        self.world.deliver(self.pick(self.world.manifests, data), share)

    @precondition(lambda self: self.world.manifests)
    @rule(data=st.data())
    def holders_let_go(self, data):
        self.world.let_go(self.pick(self.world.manifests, data))

    @precondition(lambda self: self.world.manifests)
    @rule(data=st.data())
    def a_probe_finds_no_lock(self, data):
        lease = self.pick(self.world.manifests, data)
        if not self.world.locks[lease]:
            self.world.feed(ev.LeaseUnheld(lease))

    @precondition(lambda self: self.world.disk)
    @rule(data=st.data())
    def a_reader_reports_corruption(self, data):
        self.world.feed(ev.CorruptReported(self.pick(self.world.disk, data)))

    # --- samplers and the source

    @precondition(lambda self: self.world.making)
    @rule(data=st.data())
    def a_shard_is_begun(self, data):
        shard = self.pick(self.world.making, data)
        self.world.begun.add(shard)
        self.world.feed(ev.ShardProgressed(shard, 1000))

    @precondition(lambda self: self.world.making)
    @rule(data=st.data())
    def a_shard_is_made(self, data):
        self.world.make(self.pick(self.world.making, data))

    @precondition(lambda self: self.world.making)
    @rule(data=st.data(), keep=st.integers(0, 3), aside=st.booleans(), cut=st.integers(1, 4))
    def a_shard_is_made_in_part(self, data, keep, aside, cut):
        shard = self.pick(self.world.making, data)
        assignment = self.world.making[shard]
        written, rest = assignment.units[:keep], list(assignment.units[keep:])
        bad: tuple[SetAside, ...] = ()
        if rest and aside:
            bad = (SetAside(rest[0].unit, rest[0].key, "bad", passing=keep % 2 == 0),)
            rest = rest[1:]
        for nth, split in enumerate(rest[:cut]):
            if split.ordinal + 1 < (split.stop or RECORDS_PER_UNIT) and written:
                # Its first record still went in.
                rest[nth] = dataclasses.replace(split, ordinal=split.ordinal + 1)
                written = (*written, split)
        outcome = full(dataclasses.replace(assignment, units=written))
        outcome = dataclasses.replace(outcome, remainder=tuple(rest), set_aside=bad)
        if not written:
            outcome = Outcome(0, 0, 0, 0, 0, 0.0, tuple(rest), bad)
        self.world.make(shard, outcome)

    @precondition(lambda self: self.world.making)
    @rule(data=st.data(), cause=st.sampled_from(["source", "disk", "worker", "unit", "stranger"]))
    def a_shard_fails(self, data, cause):
        shard = self.pick(self.world.making, data)
        units = {"unit": self.world.making[shard].units[0].unit, "stranger": 10**6}
        unit = units.get(cause)
        self.world.fail(shard, cause if unit is None else "worker", unit)

    @rule(more=st.integers(1, 10), name=st.sampled_from(DATASETS))
    def the_source_gains_objects(self, more, name):
        if name in self.world.listed:
            self.world.sources[name].append([SIZE] * more)
            self.world.feed(ev.Listed(name, complete=True))

    @rule(name=st.sampled_from(DATASETS), fails=st.booleans())
    def a_source_is_listed(self, name, fails):
        if fails:
            self.world.feed(ev.ListingStopped(name, "not today"))
        elif name not in self.world.listed:
            self.world.listed |= {name}
            self.world.sources[name].complete = True
            self.world.feed(ev.Listed(name, complete=True))

    # --- the disk

    @precondition(lambda self: self.world.publishing)
    @rule(data=st.data(), fails=st.integers(0, 5))
    def a_shard_is_published(self, data, fails):
        shard = self.pick(self.world.publishing, data)
        if fails == 0:
            self.world.fail(shard, "disk")
        else:
            self.world.publish(shard)

    @precondition(lambda self: self.world.unlinking and not self.world.saver.behind)
    @rule(data=st.data())
    def a_shard_is_unlinked(self, data):
        self.world.unlink(self.pick(self.world.unlinking, data))

    @precondition(lambda self: self.world.verifying)
    @rule(data=st.data(), sound=st.booleans())
    def a_shard_is_verified(self, data, sound):
        self.world.verified(self.pick(self.world.verifying, data), sound)

    @rule(what=st.sampled_from(["manifest", "catalog"]))
    def the_disk_refuses(self, what):
        self.world.refuses.add(what)
        self.world.rows.refuses = "catalog" in self.world.refuses

    @rule()
    def the_disk_is_repaired(self):
        self.world.repair()

    @rule(blocks=st.integers(0, 40), spare=st.one_of(st.none(), st.integers(0, 20)))
    def the_disk_is_measured(self, blocks, spare):
        self.world.metadata = blocks * 4096
        self.world.spare = None if spare is None else spare * FOOTPRINT
        self.world.measure()

    # --- the administrator

    @precondition(lambda self: not (self.world.saver.behind or self.world.rows.refuses))
    @rule(data=st.data(), name=st.sampled_from(DATASETS), again=st.booleans())
    def a_unit_is_excluded_or_let_in_again(self, data, name, again):
        w = self.world
        if again and (excluded := w.model.of[name].excluded):
            number = self.pick(excluded, data)
            w.let_in(name, [number])
        elif len(w.sources[name]):
            w.exclude(name, [data.draw(st.integers(0, len(w.sources[name]) - 1))])

    @rule(
        more=st.integers(-2, 8),
        first=st.integers(1, 3),
        per_epoch=st.sampled_from([None, 0, SHARD_SIZE]),
        refresh=st.sampled_from([0.25, 0.5, 1.0]),
        own=st.sampled_from([None, 3, 6]),
    )
    def the_configuration_is_reloaded(self, more, first, per_epoch, refresh, own):
        train, zeta = self.world.rules["train"], self.world.rules["zeta"]
        if train.wait and per_epoch is None:
            per_epoch = 0
        change = {"first": first * SHARD_SIZE, "per_epoch": per_epoch, "refresh": refresh}
        self.world.reconfigure(
            self.least + more * FOOTPRINT,
            dataclasses.replace(train, **change),
            dataclasses.replace(zeta, limit=own and own * FOOTPRINT),
        )

    @rule(lost=st.integers(0, 9))
    def the_daemon_is_restarted(self, lost):
        self.world.restart(lost_catalog=lost == 9)

    @rule(commands=st.integers(0, 6))
    def the_daemon_is_killed_in_the_midst(self, commands):
        self.world.kill_after = commands

    @rule(name=st.sampled_from(DATASETS))
    def a_new_generation_is_configured(self, name):
        rules = self.world.rules[name]
        if int(rules.generation) < 3:
            following = str(int(rules.generation) + 1)
            self.world.rules[name] = dataclasses.replace(rules, generation=following)
            self.world.restart()

    @rule(seconds=st.sampled_from([0.25, 5.0, 120.0, 4000.0]))
    def time_passes(self, seconds):
        self.world.tick(seconds)

    # --- and sometimes all goes well

    @rule(steps=st.integers(5, 60))
    def the_world_works(self, steps):
        self.world.work(steps)

    @rule(dataset=st.sampled_from(DATASETS), job=st.sampled_from(JOBS), steps=st.integers(0, 60))
    def an_epoch_passes(self, dataset, job, steps):
        before = [
            i for i, m in self.world.manifests.items() if (m.dataset, m.job) == (dataset, job)
        ]
        self.acquire_next_epoch(dataset, job, 1, 0)
        for lease in before:
            if lease in self.world.manifests:
                self.world.locks[lease].clear()
                self.world.feed(ev.LeaseUnheld(lease))
        self.world.work(steps)

    @rule(dataset=st.sampled_from(DATASETS), steps=st.integers(5, 60))
    def two_epochs_pass(self, dataset, steps):
        self.an_epoch_passes(dataset, "a", steps)
        self.an_epoch_passes(dataset, "a", steps)

    # --- nobody waits for ever

    def come_to_rest(self):
        for _ in range(12):  # failed shards wait for their turn
            self.world.tick(120.0)
            self.world.settle()
            if not any(d.retry for d in self.world.state.datasets.values()):
                return

    def answer(self, dataset, job):
        """What a job hears in the end, in a world without faults."""
        for _ in range(30):
            reply = self.world.acquire(dataset, job, 0)
            if not isinstance(reply, ev.ReplyWaiting):
                return reply
            self.come_to_rest()
        return reply

    def ask(self, dataset, job):
        """Granted in the end, or refused with a figure that would do."""
        for _ in range(3):
            reply = self.answer(dataset, job)
            if isinstance(reply, ev.ReplyGranted):
                return
            if isinstance(reply, ev.ReplyWaiting):
                assert "until lease" in reply.reason, f"{dataset}: waits for ever: {reply}"
                return
            if not (found := re.search(r"raise (\S+) from \d+ to about (\d+)", reply.message)):
                empty = not self.world.model.source(dataset)
                held = {u for u, _ in self.world.model.source(dataset)}
                aside = held <= self.world.model.of[dataset].aside
                assert empty or aside, f"{dataset}: refused without a figure: {reply.message}"
                return
            if found[1] == "cache.limit":
                self.world.reconfigure(int(found[2]))
            else:
                own = dataclasses.replace(self.world.rules[dataset], limit=int(found[2]))
                self.world.reconfigure(self.world.limit, own)
            self.come_to_rest()
        raise AssertionError(f"{dataset}: the figures do not do: {reply}")

    def teardown(self):
        if not hasattr(self, "world") or self.world.broken:
            return
        w = self.world
        w.kill_after = None
        w.spare = None
        w.repair()
        for name in DATASETS:
            self.a_source_is_listed(name, fails=False)
        self.come_to_rest()
        for name in DATASETS:
            self.ask(name, "asks while others hold")
        for lease in list(w.manifests):
            w.drop(lease)
        self.come_to_rest()
        for name in DATASETS:
            self.ask(name, "asks alone")
        for lease in list(w.manifests):
            w.drop(lease)
        self.come_to_rest()
        before = None
        while before != (before := set(w.disk)):
            self.come_to_rest()
        for name, dataset in w.state.datasets.items():
            if not (dataset.contradicted or dataset.retry or w.state.rests(w.now)):
                w.model.nothing_is_begun(name, ever=True)
        assert not w.making
        assert w.state.ledger.reserved == 0
        assert not w.state.leases
        for name, dataset in w.state.datasets.items():
            full_up = not w.state._room.fits(dataset)
            assert full_up or not dataset.retry, f"{name}: a failed shard is never tried again"
            assert not any(s.retired or s.barred for s in dataset.live.values())
            held = dataset.made() if dataset.rules.wait else dataset.data()
            reached = held >= dataset.rules.first
            assert reached or dataset.whole or full_up, f"{name} starves"
            account = w.model.of[name]
            assert not dataset.whole or w.model.whole(name) or account.lost, "records were lost"


LONG = "CACHECD_POLICY_EXAMPLES" in os.environ
TestPolicy = Policy.TestCase
TestPolicy.settings = settings(
    max_examples=int(os.environ.get("CACHECD_POLICY_EXAMPLES", "40")),
    stateful_step_count=int(os.environ.get("CACHECD_POLICY_STEPS", "30")),
    derandomize=not LONG,  # in CI the same every time
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    # Interpreting a long run takes longer shrunk than not.
    phases=(Phase.generate,) if LONG else (Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
