"""How fast bytes arrive, smoothed. Pure: the times are the caller's."""

from __future__ import annotations

from dataclasses import dataclass

_CONSTANT = 5.0  # seconds


@dataclass(slots=True)
class Rate:
    """Bytes per second, by an exponential average of half life _CONSTANT. `began`: when the first bytes
    arrived."""

    value: float = 0
    at: float = 0
    began: float = 0

    def add(self, amount: int, now: float) -> None:
        """So many bytes just arrived."""
        self.began = self.began or now
        self.value = self._decayed(now) + amount * (0.6931 / _CONSTANT)
        self.at = now

    def now(self, now: float) -> float:
        """As it is at this time."""
        if not self.began or now <= self.began:
            return 0.0
        # A young average has not seen enough to be divided by its whole weight.
        return self._decayed(now) / float(1.0 - 0.5 ** ((now - self.began) / _CONSTANT))

    def _decayed(self, now: float) -> float:
        return float(self.value * 0.5 ** ((now - self.at) / _CONSTANT))
