"""cachecd's policy in simulated time: its real decisions, over a simulated link, disk and workers."""

from __future__ import annotations

import numpy as np

from cachecd.model import StreamId
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from tests.bench.growth.fashion import TRAIN
from tests.bench.growth.pace import Numbers
from tests.policy.cache import A, Cache
from tests.policy.workers import OVERHEAD, Object

IN_OBJECT = 100  # pictures
_IN_SHARD = 150
_RETRY = 0.1  # seconds until a client that has to wait asks again
_SLACK = 3  # bytes of a shard's footprint that tests/policy/simulated.py adds


class SimulatedCache(Cache):
    """A cache with room for `share` of the pictures. A picture is a record of one byte.

    `tests/policy` drives the policy in the same way. Here the workers get a record for each `1 / link`
    seconds, by turns; everything else takes no time.
    """

    def __init__(self, share: float, first: int, seed: int, link: float) -> None:
        self._link, self._turn = link, 0
        self._epoch, self._lease = 0, ""
        self._budget = 0  # records that the link has brought and no worker has taken
        self.num_fetched = 0
        capacity = _IN_SHARD + OVERHEAD
        shards = -(-TRAIN * share // _IN_SHARD)
        super().__init__(
            units=0,
            limit=int(shards * (capacity + _SLACK)),
            shard_size=capacity,
            first=first,
            streams=8,
            seed=seed,
        )
        order = np.random.default_rng(seed).permutation(TRAIN // IN_OBJECT)
        self._firsts = [int(number) * IN_OBJECT for number in order]
        self.sources["a"] = {
            f"{unit:04}": Object(unit, (1,) * IN_OBJECT) for unit in range(len(order))
        }
        self.directory(A).list(sorted(self.sources["a"]), 1 << 30)
        self.send(self.listed(A))
        self.carry_out_all()

    def carry_out_all(self) -> None:
        """Carries out all commands; workers do nothing."""
        while self.pending:
            for event in self.carry_out(self.pending.pop(0)):
                self.send(event)

    def fetch_until(self, now: float) -> None:
        """Gives the workers what the link brings until `now`."""
        for _ in range(int(now * self._link) - int(self.now * self._link)):
            self._fetch_one()
        self.now = now

    def _fetch_one(self) -> None:
        """Gives one record to the next worker that can take a record."""
        names = sorted(self.workers)
        for place in range(len(names)):
            name = names[(self._turn + place) % len(names)]
            if self._work(name):
                self._turn = self._turn + place + 1
                self.num_fetched += 1
                return

    def _work(self, name: StreamId) -> bool:
        """Lets the worker go on until it has taken a record. Returns False if it cannot."""
        worker = self.workers.get(name)
        while worker and (worker.granted or worker.draft):
            before = len(worker.draft.records) if worker.draft else 0
            draft = worker.draft
            events = list(worker.work(1))
            took = (worker.draft or draft) and len((worker.draft or draft).records) > before
            for event in events:
                self.send(event)
            self.carry_out_all()
            if took:
                return True
            if not events and worker.draft is draft and draft is not None and not draft.lanes:
                return False
            worker = self.workers.get(name)
        return False

    def next_epoch(self, now: float) -> Numbers:
        """The pictures of the next epoch's set. Fetches until there is a set; `self.now` is then later."""
        self.now = max(self.now, now)
        asked = f"{self._epoch}"
        while not isinstance(reply := self._acquire(asked), do.ReplyGranted):
            self.fetch_until(self.now + _RETRY)
        lease = reply.lease
        self.send(ev.RankHolds(f"held{asked}", lease, 0))
        self.carry_out_all()
        self.send(ev.Delivered(lease, 1.0))
        if self._lease:
            self.send(ev.LeaseUnheld(self._lease))
        self.carry_out_all()
        self._lease, self._epoch = lease, self._epoch + 1
        return self._numbers(lease)

    def _acquire(self, asked: str) -> object:
        self.send(ev.AcquireAsked(asked, "a", "job", self._epoch, 0, 1))
        self.carry_out_all()
        return self.replies.pop(asked)

    def _numbers(self, lease: str) -> Numbers:
        shards, streams = self.disk.directories[A].shards, self.disk.manifests[lease].streams
        numbers = [
            self._firsts[unit] + ordinal
            for stream, first, last in self.disk.manifests[lease].intervals
            for j in range(first, last + 1)
            if (shard := shards.get((j * (streams + 1) + stream, 0)))
            for unit, _, ordinal, _ in shard.records
        ]
        return np.array(numbers, np.int32)
