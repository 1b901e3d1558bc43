"""How far the listing of a source is, for people. Pure: the times are the caller's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Progress:
    """Of the listing that is under way (`began`: when, 0 if none is) and of the last one that came to
    its end. Times are seconds of a monotonic clock. `objects` were named by the store so far, or in all;
    `failed` is why the last attempt failed, "" if it did not. Of several sources each has one of
    the `parts`."""

    began: float = 0.0
    ended: float = 0.0
    took: float = 0.0
    objects: int = 0
    failed: str = ""
    parts: list[Progress] = field(default_factory=list)

    def begin(self, now: float) -> None:
        self.began, self.objects = now, 0

    def end(self, now: float) -> None:
        self.ended, self.took = now, now - self.began
        self.began, self.failed = 0.0, ""

    def divide(self, sources: int) -> list[Progress]:
        """One for each of several sources."""
        self.parts = [Progress() for _ in range(sources)]
        return self.parts

    def status(self, now: float) -> dict[str, Any]:
        """As the status document has it."""
        if self.parts:
            return _together([part.status(now) for part in self.parts])
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


def _together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    ended = [part["ended_ago_s"] for part in parts]
    return {
        "running": any(part["running"] for part in parts),
        "for_s": max(part["for_s"] for part in parts),
        "objects": sum(part["objects"] for part in parts),
        "objects_per_second": sum(part["objects_per_second"] for part in parts),
        "ended_ago_s": None if None in ended else min(ended),
        "took_s": max(part["took_s"] for part in parts),
        "failed": "; ".join(part["failed"] for part in parts if part["failed"]),
    }
