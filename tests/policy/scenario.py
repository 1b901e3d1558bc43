"""Random events for the policy: sources that change, jobs, kills, faults. A scenario is a seed."""

from __future__ import annotations

import math
import random
from collections import Counter

from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.policy import Policy
from cachecd.policy.values import GenerationId, Lease, Rules
from tests.policy.simulated import Simulated, manifest_length
from tests.policy.workers import Directory, Object

DAY = 86400.0
SLACK = 100_000  # for manifests, which take nothing here
# How often each kind of event comes.
WILD = {
    "work": 160, "command": 160, "list": 25, "job": 90, "kill": 14, "leave": 8, "change": 18,
    "fault": 14, "damage": 14, "exclude": 8, "limit": 5, "configure": 5, "fail": 2, "death": 6,
    "refuse": 8, "time": 20, "page": 12,
}  # fmt: skip


class Scenario(Simulated):
    """A cache with its sources and jobs. A subclass checks what is promised."""

    def check_pass(self, event: ev.Published) -> None:
        """A shard was published."""

    def check_supplement(self, about: do.MakeSupplement | ev.ShardSealed) -> None:
        """A supplement is to be made, or was made."""

    def check_set(self, lease: Lease, new: bool) -> None:
        """A lease was granted, `new` or once more; `held` is to have the shards that it names."""

    def check_rotation(self, event: ev.Event, commands: list[do.Command]) -> None:
        """These commands follow from an event; there is one dataset."""

    def check_files(self) -> None:
        """Something happened."""

    def __init__(self, seed: int, wait: bool = False, speed: int | None = None) -> None:
        super().__init__()
        self.rng = rng = random.Random(seed)
        self.now, self.requests, self.etags, self.epochs = 0.0, 0, 0, Counter()
        self.capacity = rng.choice([12, 25, 50])
        shards = rng.randint(5, 14) if rng.random() < 0.85 else rng.randint(20, 50)
        sets = [["a"], ["a"], ["a", "b"], ["a", "val"], ["a", "b", "val"]]
        self.names = ["a"] if wait else rng.choice(sets)
        self.limit = self.whole_limit = (
            (self.capacity + 3) * shards * len(self.names) * (20 if wait else 1)
        )
        self.before_cut = 0  # what there was, and what was granted, when the limit was lowered
        self.generations = -1
        self.boots, self.excluded = 0, set()  # keys that the policy said are excluded
        self.pages: dict[str, int] = {}  # what each dataset's listing waits to write
        self.faulty = rng.choice([0, 0, 0.1]) if not wait else 0
        self.rules: dict[str, Rules] = {}
        for name in self.names:
            part = rng.choice([0.05, 0.2, 0.4, 0.6, 0.8, 0.9, 0.99, 1.1, 1.3, 1.6, 2, 3])
            share = part if name != "val" else 4
            self.make_source(name, (self.capacity + 3) * shards / max(share, 0.2 if wait else 0))
            unit = self.capacity + 3
            self.rules[name] = Rules(
                name, "", rng.choice([1, unit, unit * shards // 4, unit * shards * 2]), self.capacity,
                refresh=rng.choice([0.05, 0.25, 0.5, 1.0]), pin=name == "val", seed=seed,
                streams=rng.randint(1, 8), awaits_classes=rng.random() < 0.1,
            )  # fmt: skip
            if wait:
                first, more = unit * rng.randint(1, 4), unit * rng.randint(1, 3)
                self.rules[name] = self.rules[name]._replace(wait=True, first=first, per_epoch=more)
            elif rng.random() < 0.2:
                self.rules[name] = self.rules[name]._replace(per_epoch=rng.choice([1, unit * 2]))
            self.new_generation(name)
        self.passes: dict[tuple[object, ...], int] = {}
        self.held: dict[str, list[object]] = {}  # the shards that each granted lease named
        self.jobs: dict[tuple[str, str], str] = {}  # (dataset, job) -> the lease that it holds
        # Bytes since the last boundary that retired something, and what that retired.
        self.delivered, self.sealed_bytes = Counter(), Counter()
        self.retired: dict[int, int] = {}
        self.counted = Counter(), Counter()  # both, when that boundary began
        self.failed: dict[
            tuple[object, ...], tuple[int, float]
        ] = {}  # days that a unit waits, since when
        self.replies: dict[str, do.Command] = {}
        if speed is not None:
            self.rng = random.Random(speed)
        self.start()

    def make_source(self, name: str, size: float) -> None:
        c = self.capacity
        styles = [(max(1, c / 50), c / 5), (c / 5, 2 * c), (c / 50 + 1, 3 * c), (c, 2 * self.limit)]
        self.style = styles[0 if name == "val" else self.rng.randrange(4)]
        source, total = self.sources.setdefault(name, {}), 0
        while total < size and len(source) < 300:
            source[f"{len(source):04d}"] = made = self.new_object(4 * size)
            total += sum(made.records)

    def grow_source(self) -> None:
        """As many objects again, at most, are new."""
        for name, source in self.sources.items():
            self.style = (1, self.capacity / 2)
            for key in list(source)[: self.rng.choice([0, 3, 300])] if name != "val" else ():
                source[f"{key}-new"] = self.new_object()

    def new_object(self, most: float = math.inf) -> Object:
        low, high = self.style
        size = min(math.exp(self.rng.uniform(math.log(low), math.log(high))), most)
        records = [0]
        while sum(records) < max(1, size):
            left = max(1, int(size) - sum(records))
            records.append(self.rng.randint(1, max(1, min(self.capacity // 3, left))))
        self.etags += 1
        fault = (True, 0) if self.rng.random() < self.faulty else None
        return Object(self.etags, tuple(records[1:]), fault)

    def new_generation(self, name: str) -> None:
        count = self.generations = self.generations + 1
        split = self.rules[name].split if self.rng.random() < 0.8 else f"split: {count}"
        self.rules[name] = rules = self.rules[name]._replace(generation=f"{count:03d}", split=split)
        block = self.rng.choice([2, 8, 16, 32, 64])
        self.disk.directories[GenerationId(name, rules.generation)] = Directory(split, block, rules)

    def start(self) -> None:
        """A start, also after a kill: from the disk alone."""
        for name, directory in self.disk.directories.items():
            for shard in directory.shards.values():
                if not shard.sidecar:  # as if never made: its records may come again
                    for record in shard.records:
                        self.passes.pop((name, *record[:3]), None)
        if any(isinstance(command, do.KeepFigures) for command in self.pending):
            self.delivered.update(self.counted[0])  # the last boundary left no trace
            self.sealed_bytes.update(self.counted[1])
        self.policy = Policy(manifest_length)
        self.failed.clear()
        rules = tuple(self.rules.values())
        self.boots += 1
        self.send(ev.Configured(self.limit + SLACK, rules, block=1, boot=f"{self.boots}-"))
        for event in list(self.found()):
            self.send(event)
        self.pass_time(0)
        self.send(ev.Started())

    # --- events and commands

    def send(self, event: ev.Event) -> list[do.Command]:
        """Reports an event, and checks what is promised at every instant."""
        if isinstance(event, ev.Published):
            self.check_pass(event)
        if isinstance(event, ev.ShardSealed):
            self.check_supplement(event)
        commands = self.policy.handle(event, self.now)
        for command in commands:
            if isinstance(command, do.MakeSupplement):
                self.check_supplement(command)
            if isinstance(
                command, do.ReplyGranted | do.ReplyWaiting | do.ReplyRefused | do.ReplyDone
            ):
                assert command.request not in self.replies, "a request has one reply"
                self.replies[command.request] = command
            else:
                self.pending.append(command)
        if len(self.names) == 1:
            self.check_rotation(event, commands)
        self.check_files()
        return commands

    def write_page(self, name: str) -> bool:
        """The listing of a dataset asks for the room of its next page, and writes the page."""
        generation = GenerationId(name, self.rules[name].generation)
        is_reserved = self.policy.reserve(generation, self.pages[name], 0, must_fit=True)
        if is_reserved:
            self.other += self.pages.pop(name)
            assert self.used() <= self.limit, "the limit is kept"
            self.send(ev.Measured(self.other, SLACK))
        else:
            self.send(ev.Tick())
        return is_reserved

    def run_command(self, refuse: bool = False) -> bool:
        """Carries out one of the commands; those of one stream are in order."""
        if not self.pending:
            return False
        index = self.rng.randrange(min(len(self.pending), 8))
        stream = getattr(self.pending[index], "stream", None)
        figures = [n for n, c in enumerate(self.pending) if isinstance(c, do.KeepFigures)]
        if figures:  # before the marks, as all writes are in order
            index, stream, refuse = figures[0], None, False
        if stream is not None:
            index = next(
                i for i, c in enumerate(self.pending) if getattr(c, "stream", None) == stream
            )
        command = self.pending.pop(index)
        if isinstance(command, do.EndLease) and command.lease in self.jobs.values():
            return True  # somebody locks it
        is_publish = isinstance(command, do.PublishShard)
        if refuse and (stream is None or is_publish) and not isinstance(command, do.EndLease):
            events = [ev.DiskRefused(command, "no space left")]
        else:
            before = self.used()
            events = self.carry_out(command)
            assert self.used() <= self.most(before), "the limit is kept"
        for event in events:
            if isinstance(event, ev.CommandDone) and isinstance(event.command, do.EndLease):
                self.held.pop(event.command.lease, None)
            self.send(event)
        return True

    def most(self, before: int) -> int:
        """The bytes that may be used. Above a limit that was lowered, a copy of which no record is left
        still has a sidecar, beside the file that leases keep."""
        shards = (s for d in self.disk.directories.values() for (_, v), s in d.shards.items() if v)
        empty = sum(shard.size for shard in shards if not shard.records)
        return max(self.limit, self.before_cut + empty, before)

    def work(self, steps: int) -> bool:
        """A worker goes on with one stream, a supplement, or a shard that is made again."""
        todo = [*self.workers, *self.making, *self.remaking]
        if not todo:
            return False
        chosen, before = self.rng.choice(sorted(todo, key=repr)), self.used()
        if isinstance(chosen, do.RemakeShard):
            for event in self.remake(chosen):
                self.send(event)
            return True
        worker = self.workers.get(chosen)
        events = list(worker.work(steps)) if worker else [self.supplement(chosen)]
        assert self.used() <= self.most(before), "the limit is kept"
        for event in events:
            self.send(event)
        return bool(events) or (worker is not None and bool(worker.draft))

    def list(self, name: str, count: int) -> None:
        generation = GenerationId(name, self.rules[name].generation)
        self.disk.directories[generation].list(sorted(self.sources[name]), count)
        self.send(self.listed(generation))

    def ask(self, make: type[ev.Event], *args: object) -> do.Command | None:
        """Sends a request and waits for its reply as long as the disk works."""
        self.requests += 1
        request = f"{self.requests}"
        self.send(make(request, *args))
        while request not in self.replies and self.pending:
            self.run_command()
        return self.replies.get(request)

    def train(self, name: str, job: str, whole: bool = False) -> bool:
        """A job takes the set of its next epoch, then gives back the one before."""
        epoch, before = self.epochs[name, job], self.jobs.get((name, job))
        if before and before in self.held:
            fraction = 1.0 if whole else self.rng.choice([0, 0.1, 0.5, 1])
            self.delivered[name] += fraction * sum(shard.size for shard in self.held[before])
            self.send(ev.Delivered(before, fraction))
        written = set(self.disk.manifests)  # by a daemon that was killed before its reply, too
        reply = self.ask(ev.AcquireAsked, name, job, epoch)
        if isinstance(reply, do.ReplyRefused) and reply.code == "split-changed":
            self.leave((name, job))
        if not isinstance(reply, do.ReplyGranted):
            return False
        self.check_set(self.disk.manifests[reply.lease], reply.lease not in written)
        self.epochs[name, job] += 1
        self.jobs[name, job] = reply.lease
        self.ask(ev.RankHolds, reply.lease, 0)
        if before:
            self.send(ev.LeaseUnheld(before))
        return True

    def leave(self, key: tuple[str, str]) -> None:
        if lease := self.jobs.pop(key, None):
            self.send(ev.LeaseUnheld(lease))

    def pass_time(self, seconds: float) -> None:
        """Time passes: the daemon measures, probes leases, and ticks."""
        self.now += seconds
        self.send(ev.Measured(self.other, SLACK))
        for lease in set(self.disk.manifests) - set(self.jobs.values()):
            self.send(ev.LeaseUnheld(lease))
        self.send(ev.Tick())

    def fill(self, rounds: int) -> None:
        """Some undisturbed epochs."""
        for _ in range(rounds):
            for name in self.names:
                self.work(200)
                self.list(name, 30)
                self.train(name, "j", whole=True)
            while self.run_command():
                pass

    def wild(self) -> None:
        """One event of any kind."""
        rng, name = self.rng, self.rng.choice(self.names)
        source = self.sources[name]
        generation = GenerationId(name, self.rules[name].generation)
        directory = self.disk.directories[generation]
        key = rng.choice(sorted(source)) if source else ""
        match rng.choices([*WILD], [*WILD.values()])[0]:
            case "work":
                for _ in range(rng.choice([1, 1, 4])):
                    self.work(rng.choice([1, 5, 30, 200]))
            case "command":
                for _ in range(rng.choice([1, 1, 4, 20])):
                    self.run_command()
            case "list" if directory.first or rng.random() < 0.2:
                self.list(name, rng.choice([1, 3, 10, 100]))
            case "job":
                self.train(name, rng.choice(["j", "j", "j", "k", "slow"]))
            case "kill":
                if rng.random() < 0.3:  # no kill
                    self.send(ev.Draining())
                    while self.run_command():
                        pass
                self.start()
            case "leave" if self.jobs:
                self.leave(rng.choice(sorted(self.jobs)))
            case "change":
                change = rng.choice(["new", "gone", "rewritten"])
                if change == "gone" and len(source) > 2:
                    del source[key]
                elif change != "gone":
                    new = f"{rng.randrange(10000):04d}x"
                    source[key if change == "rewritten" and key else new] = self.new_object()
            case "fault" if key:
                old, passing = source[key], rng.random() < 0.7
                fault = (passing, rng.randrange(len(old.records)))
                heals = old.fault and old.fault[0]
                source[key] = Object(old.etag, old.records, None if heals else old.fault or fault)
            case "damage":
                self.damage(*rng.choice(sorted(self.disk.directories.items())))
            case "exclude" if key:
                if isinstance(self.ask(ev.ExcludeAsked, name, (key,)), do.ReplyDone):
                    self.excluded.add((name, key))
            case "limit":
                least = 5 * (self.capacity + 3) * len(self.names)
                cut = max(int(self.limit * 0.6), least)
                self.limit = cut if self.limit == self.whole_limit else self.whole_limit
                # Copies without excluded records take what was kept back for them, a footprint of each
                # dataset, above the limit too.
                kept = (self.capacity + 3) * len(self.names)
                self.before_cut = self.used() + self.promised() + kept
                self.send(ev.Configured(self.limit + SLACK, tuple(self.rules.values()), block=1))
            case "configure":
                generations = [g.name for g in self.disk.directories if g.dataset == name]
                self.new_generation(name)
                if rng.random() < 0.5:
                    old = rng.choice(generations)
                    split = self.disk.directories[GenerationId(name, old)].split
                    self.rules[name] = self.rules[name]._replace(generation=old, split=split)
                self.start()
            case "fail" if directory.keys:
                directory.close()
                self.send(self.listed(generation))
            case "death" if self.workers:
                stream = rng.choice(sorted(self.workers))
                draft = self.workers[stream].draft
                unit = draft.lanes[0][0].unit if draft and draft.lanes else None
                self.lose_worker(stream)
                cause = rng.choice(["worker", "worker", "source", "disk"])
                self.send(ev.StreamFailed(stream, cause, "it died", unit, rng.random() < 0.5))
            case "refuse":
                self.run_command(refuse=True)
            case "page" if self.other < self.capacity:
                self.pages.setdefault(name, rng.randint(1, self.capacity // 4))
                self.write_page(name)
            case "time":
                self.pass_time(rng.choice([0.1, 1, 60, DAY]))

    def damage(self, name: GenerationId, directory: Directory) -> None:
        if directory.shards:
            number, version = self.rng.choice(sorted(directory.shards))
            shard = directory.shards[number, version]
            shard.intact, shard.sidecar = False, shard.sidecar and self.rng.random() < 0.7
            self.requests += 1
            self.send(ev.DamageReported(f"{self.requests}", name, number, version))
