"""A configured dataset: its rules, its generations, and the figures of growth. Pure."""

from __future__ import annotations

import math
from collections import OrderedDict

from cachecd.policy.generation import Generation
from cachecd.policy.pause import Pause
from cachecd.policy.rotation import Rotation
from cachecd.policy.values import Resume, Rules

_MOST_JOBS = 1024  # of which the latest epoch is remembered


class Dataset:
    """`older`: the dataset's other generations, newest first; read-only. `leases`: how many leases name any
    of them. `epoch`: the highest that was granted. `was_held`: a set was held since the last boundary."""

    def __init__(self, rules: Rules, generation: Generation) -> None:
        self.rules = rules
        self.generation = generation
        self.older: list[Generation] = []
        self.rotation = Rotation()
        self.source = Pause()
        self.leases = 0
        self.epoch = -1
        self.was_held = False
        self.resume: Resume | None = None  # where a generation without a shard is to begin
        self._latest: OrderedDict[str, int] = OrderedDict()

    def is_new(self, job: str, epoch: int) -> bool:
        """Whether this job asks for this epoch for the first time."""
        new = self._latest.get(job) != epoch
        self._latest[job] = epoch
        self._latest.move_to_end(job)
        if len(self._latest) > _MOST_JOBS:
            self._latest.popitem(last=False)
        return new

    # --- grow.wait

    def target(self, epoch: int) -> int:
        """How many shards of each stream an epoch's set has, with `grow.wait`."""
        shape = self.generation.blocks.shape
        size = self.rules.first + epoch * (self.rules.per_epoch or 0)
        return math.ceil(size / (shape.streams * shape.capacity))

    def waits(self, epoch: int, share: int) -> bool:
        """Whether `grow.wait` has an effect on an epoch's set: nothing was retired, and the set fits into
        the share. `share`: the dataset's, without its cap."""
        gen = self.generation
        if not self.rules.wait or gen.shape is None:
            return False
        oldest = ((stream.next, gen.table.oldest_live(stream.index)) for stream in gen.streams)
        retired = any(count and first != 0 for count, first in oldest)
        shards = gen.shape.streams * self.target(epoch) + 2
        return not retired and shards * gen.footprint <= share

    def may_grow(self, j: int, first: int, share: int) -> bool:
        """Whether `grow` lets a stream make its shard j now. `first`: what counts of `grow.first`."""
        gen, rules = self.generation, self.rules
        if rules.pin or not gen.table.num_live:
            return True
        if self.waits(self.epoch + 1, share):
            return j < self.target(self.epoch + 1)
        if rules.per_epoch is None or gen.table.live_bytes + gen.reserved < first:
            return True
        added = self.rotation.sealed + gen.reserved + gen.footprint
        return added <= max(rules.per_epoch, gen.footprint)
