"""What the configuration says of one dataset, as the policy decides by it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cachecd.sourcewalk import SourceRules

AWAITS_CLASSES = (
    "classes are numbered when the listing has come to its end, and nothing is sampled before; "
    "label.classes in the configuration names them and ends the wait"
)
AWAITS_STRATA = (
    "stratify: the classes' shares are known when the listing has come to its end, and nothing is sampled "
    "before"
)


@dataclass(frozen=True, slots=True)
class DatasetRules:
    """What the configuration says of one dataset, in bytes. `awaits_classes`: no unit may be had before
    all are listed. So it is with `stratify`, which has each class in its share all along the walk."""

    name: str
    generation: str
    first: int
    per_epoch: int | None = None
    wait: bool = False
    refresh: float = 0.25
    pin: bool = False
    limit: int | None = None
    seed: int = 0
    awaits_classes: bool = False
    sources: tuple[SourceRules, ...] = (SourceRules(),)
    stratify: bool = False

    @property
    def several(self) -> bool:
        """Whether it has several sources."""
        return len(self.sources) > 1

    @property
    def awaits(self) -> str:
        """Why nothing may be sampled before the listing has come to its end; "" if it may."""
        stratified = AWAITS_STRATA if self.stratify else ""
        return AWAITS_CLASSES if self.awaits_classes else stratified
