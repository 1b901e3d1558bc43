"""A small cache, of which a test carries out the commands when it wants to."""

from __future__ import annotations

from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.policy import Policy
from cachecd.policy.values import GenerationId, Rules
from tests.policy.simulated import Simulated, manifest_length
from tests.policy.workers import Directory, Object

A = GenerationId("a", "one")
DAY = 86400.0
# Shards of 10 bytes with their sidecar; two records of 4 fit. A footprint is 3 more.
RULES = Rules("a", "one", first=20, shard_size=10, streams=1)
FOOTPRINT = 13


class Cache(Simulated):
    """A cache whose commands are carried out when the test wants it."""

    def __init__(self, units: int = 8, limit: int = 1000, **rules: object) -> None:
        super().__init__()
        self.now, self.replies, self.limit = 0.0, {}, limit
        self.rules = {"a": RULES._replace(**rules)}
        self.sources["a"] = {f"{n:03d}": Object(n, (4,)) for n in range(units)}
        self.disk.directories[A] = Directory("", 1000, self.rules["a"])
        self.start()

    def start(self, **bounds: object) -> None:
        self.policy = Policy(manifest_length)
        self.configure(**bounds)
        for event in list(self.found()):
            self.send(event)
        self.send(ev.Measured(0, 100_000))
        self.send(ev.Started())

    def configure(self, **bounds: object) -> None:
        rules = tuple(self.rules.values())
        self.send(ev.Configured(self.limit + 100_000, rules, block=1, boot=f"{self.now}", **bounds))

    def send(self, event: ev.Event) -> list[do.Command]:
        commands = self.policy.handle(event, self.now)
        for command in commands:
            if hasattr(command, "request"):
                self.replies[command.request] = command
            else:
                self.pending.append(command)
        return commands

    def run(self, but: tuple[type, ...] = ()) -> None:
        """Carries out all commands but some, and has the workers work, until nothing happens."""
        moved = True
        while moved:
            moved = False
            for command in [c for c in self.pending if not isinstance(c, but)]:
                self.pending.remove(command)
                for event in self.carry_out(command):
                    self.send(event)
                moved = True
            for name in [*self.workers, *self.making]:
                worker = self.workers.get(name)
                events = list(worker.work(100)) if worker else [self.supplement(name)]
                for event in events:
                    self.send(event)
                    moved = True
            for command in list(self.remaking):
                for event in self.remake(command):
                    self.send(event)
                moved = True

    def list_all(self, name: GenerationId = A) -> None:
        self.directory(name).list(sorted(self.sources[name.dataset]), 1 << 30)
        self.send(self.listed(name))
        self.run()

    def acquire(self, epoch: int, job: str = "job", rank: int = 0, ranks: int = 1, **more: object):
        self.send(ev.AcquireAsked(f"{job}{epoch}.{rank}", "a", job, epoch, rank, ranks, **more))
        self.run()
        return self.replies[f"{job}{epoch}.{rank}"]

    def hold(self, lease: str, rank: int = 0) -> None:
        self.send(ev.RankHolds("held", lease, rank))
        self.run()

    def epoch(self, epoch: int, job: str = "job") -> str:
        """Takes the set of an epoch, holds it, delivers it, and gives it back."""
        lease = self.acquire(epoch, job).lease
        self.hold(lease)
        self.send(ev.Delivered(lease, 1.0))
        return lease

    def end(self, lease: str) -> None:
        self.send(ev.LeaseUnheld(lease))
        self.run()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.send(ev.Measured(0, 100_000))
        self.send(ev.Tick())
        self.run()

    def live(self, name: GenerationId = A) -> list[int]:
        return sorted(number for number, _ in self.disk.directories[name].live())

    def under_way(self, *kinds: type) -> list[do.Command]:
        return [command for command in self.pending if isinstance(command, kinds)]


def a_whole_cache(**more: object) -> Cache:
    cache = Cache(**more)
    cache.list_all()
    assert cache.live() == [0, 2, 4, 6]  # two records each; stream 1 makes supplements
    return cache


def a_full_cache(**more: object) -> Cache:
    cache = Cache(units=100, limit=8 * FOOTPRINT, **more)
    cache.list_all()
    return cache
