"""How fast bytes arrive, smoothed. Pure: the times are the caller's."""

from __future__ import annotations

from dataclasses import dataclass

_CONSTANT = 5.0  # seconds


@dataclass(slots=True)
class Rate:
    """Bytes per second, by an exponential average of half life _CONSTANT."""

    value: float = 0
    at: float = 0
    began: float = 0

    def begin(self, now: float) -> None:
        """Bytes are asked for; unless they were before."""
        if not self.began:
            self.began = self.at = now

    def add(self, amount: int, now: float) -> None:
        """So many bytes just arrived."""
        self.begin(now)
        keep = 0.5 ** ((now - self.at) / _CONSTANT)
        self.value = self.value * keep + amount * (0.6931 / _CONSTANT)
        self.at = now

    def now(self, now: float) -> float:
        """As it is at this time."""
        if not self.began or now <= self.began:
            return 0.0
        # A young average has not seen enough to be divided by its whole weight.
        seen = 1.0 - 0.5 ** ((now - self.began) / _CONSTANT)
        return float(self.value * 0.5 ** ((now - self.at) / _CONSTANT) / seen)
