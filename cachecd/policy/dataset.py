"""A configured dataset: its rules, its generations, and the figures of growth. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cachecd.policy import commands as do
from cachecd.policy.generation import Generation
from cachecd.policy.pause import Pause
from cachecd.policy.rotation import Rotation
from cachecd.policy.values import Figures, GenerationId, Resume, Rules


class Dataset:
    """`leases`: how many leases name a generation of the dataset. `epoch`: the highest granted epoch.
    `was_held`: a set was held since the last boundary. `epochs`: the last epoch that each job requested.
    `resume`: where a generation without a shard begins."""

    def __init__(
        self,
        rules: Rules,
        generation: Generation,
        by_id: Mapping[GenerationId, Generation],
        figures: Figures,
    ) -> None:
        self.rules = rules
        self.generation = generation
        self._by_id = by_id
        self.rotation = Rotation.restored(figures)
        self.source = Pause()
        self.leases = 0
        self.epoch = -1
        self.was_held = False
        self.epochs: dict[str, int] = {}
        self.resume: Resume | None = None

    @property
    def older(self) -> list[Generation]:
        """The other generations of the dataset, newest first; read-only."""
        name = self.rules.name
        return [
            gen for gen in self._by_id.values() if gen.id.dataset == name and not gen.is_configured
        ]

    def keep_figures(self) -> do.KeepFigures:
        """Returns the command that stores the figures of rotation durably."""
        return do.KeepFigures(self.rules.name, self.rotation.figures())

    @property
    def waits_for(self) -> str:
        """Returns why the streams do not start yet, or ""."""
        if not self.generation.blocks.is_growing or self.generation.blocks.ends:
            return ""
        if self.rules.awaits_classes:
            return (
                "the source is being listed: without label.classes, classes are numbered when the listing "
                "ends, and nothing is sampled before"
            )
        return "the source is being listed"

    # --- grow.wait

    def target(self, epoch: int) -> int:
        """With `grow.wait`, returns the number of shards of each stream in an epoch's set."""
        shape = self.generation.blocks.shape
        size = self.rules.first + epoch * (self.rules.per_epoch or 0)
        return math.ceil(size / (shape.streams * shape.capacity))

    def awaits_set(self, epoch: int, share: int) -> bool:
        """Whether an epoch's set obeys `grow.wait`: no shard was retired yet, and the set fits into the
        share. `share`: the dataset's share, without its cap."""
        gen = self.generation
        if not self.rules.wait or gen.shape is None:
            return False
        retired = any(s.next and gen.table.oldest_live(s.index) != 0 for s in gen.streams)
        shards = gen.shape.streams * self.target(epoch) + 2
        return not retired and shards * gen.footprint <= share

    def may_grow(self, j: int, first: int, share: int) -> bool:
        """Whether a stream may make its shard j now, by the rules of `grow`. `first`: the part of
        `grow.first` that counts. `share`: the dataset's share, without its cap."""
        gen, rules = self.generation, self.rules
        if rules.pin or not (gen.table.num_live or gen.reserved):
            return True
        if self.awaits_set(self.epoch + 1, share):
            return j < self.target(self.epoch + 1)
        if rules.per_epoch is None or gen.table.live_bytes + gen.reserved < first:
            return True
        if self.epoch < 0:
            return False  # growth begins with the first epoch
        sealed = min(self.rotation.sealed, gen.table.live_bytes - first)  # bytes beyond `first`
        return sealed + gen.reserved + gen.footprint <= max(rules.per_epoch, gen.footprint)
