"""Progress of a listing, for the status. Pure: the caller gives the times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Progress:
    """The running listing (`began`: when it began, 0 if none runs) and the last one that ended. Times are
    seconds of a monotonic clock. `objects`: how many objects the store has listed. `failed`: why the last
    attempt failed, or ""."""

    began: float = 0.0
    ended: float = 0.0
    took: float = 0.0
    objects: int = 0
    failed: str = ""

    def begin(self, now: float) -> None:
        self.began, self.objects = now, 0

    def end(self, now: float) -> None:
        self.ended, self.took = now, now - self.began
        self.began, self.failed = 0.0, ""

    def status(self, now: float) -> dict[str, Any]:
        """As the status document has it."""
        seconds = now - self.began if self.began else self.took
        return {
            "running": bool(self.began),
            "for_s": round(now - self.began, 1) if self.began else 0.0,
            "objects": self.objects,
            "objects_per_second": round(self.objects / seconds) if seconds > 0 else 0,
            "ended_ago_s": round(now - self.ended, 1) if self.ended else None,
            "took_s": round(self.took, 1),
            "failed": self.failed,
        }
