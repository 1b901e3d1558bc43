"""Whether a dataset's sources are the stores that were listed before. Pure.

A mistyped endpoint may lead to a store of the same keys with other contents. What is fetched by then fails,
since ETags differ, and such a failure says nothing of the object.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Doubt:
    """`known`: all sources were listed to their ends since the generation began, so that there is something
    to compare them with. `unsure`: the sources, by their places, that this run has not compared yet.
    `reasons`: why one of them seems to be another store."""

    known: bool = False
    unsure: set[int] = field(default_factory=set)
    reasons: dict[int, str] = field(default_factory=dict)

    def begin(self, sources: int, complete: bool) -> None:
        """A run begins, which lists all of them. Of a generation that is new, nothing is fetched by a
        `complete` listing of before: its objects may have been rewritten, which is why it is new."""
        if self.known:
            self.unsure.update(range(sources))
        elif complete:
            self.reasons = dict.fromkeys(range(sources), "the source is listed anew first")

    def unlisted(self, source: int) -> None:
        """It cannot be listed now: then what was listed before has to do."""
        if source not in self.unsure:
            self.reasons.pop(source, None)

    def raised(self, source: int, reason: str) -> None:
        """The listing of one of them shows other contents."""
        self.reasons[source] = reason

    def ended(self, source: int, complete: bool) -> bool:
        """One of them was listed to its end and is what it was, or may be anything; `complete`: all of them
        were, by now or earlier. Returns whether all are known now that were not."""
        self.reasons.pop(source, None)
        self.unsure.discard(source)
        before, self.known = self.known, self.known or complete
        return self.known and not before

    @property
    def reason(self) -> str:
        """Why nothing is to be fetched; "" if something may be."""
        return next(iter(self.reasons.values()), "")
