"""What the configuration says of one dataset, as the policy decides by it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

AWAITS_CLASSES = (
    "classes are numbered when the listing has come to its end, and nothing is sampled before; "
    "label.classes in the configuration names them and ends the wait"
)


@dataclass(frozen=True, slots=True)
class DatasetRules:
    """What the configuration says of one dataset, in bytes. `awaits`: why no unit may be sampled before
    all are listed, "" if units may. `interleave`: how many units a shard mixes. `source`: its URL.
    `held_out_of`: the dataset whose split holds this one out, "" if none does."""

    name: str
    generation: str
    first: int
    per_epoch: int | None = None
    wait: bool = False
    refresh: float = 0.25
    pin: bool = False
    limit: int | None = None
    seed: int = 0
    awaits: str = ""
    interleave: int = 1
    source: str = ""
    held_out_of: str = ""

    @property
    def excluded_as(self) -> str:
        """Under which name it is kept what a person takes out: both sides of a split have one, so that
        whatever is held out later, what was taken out is on neither side."""
        return self.held_out_of or self.name

    @property
    def excluded_names(self) -> tuple[str, ...]:
        """Under which names something may be kept that it is to do without."""
        return (self.name, self.held_out_of) if self.held_out_of else (self.name,)
