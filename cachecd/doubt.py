"""Whether a dataset's source is the store that was listed before. Pure.

A mistyped endpoint may lead to a store of the same keys with other contents. What is fetched by then fails,
since ETags differ, and such a failure says nothing of the object.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Doubt:
    """`known`: the source was listed to its end since the generation began, so that there is something to
    compare it with. `unsure`: this run has not compared it yet. `reason`: why nothing is to be fetched; ""
    if something may be."""

    known: bool = False
    unsure: bool = False
    reason: str = ""

    def begin(self, complete: bool) -> None:
        """A run begins, which lists the source. Of a generation that is new, nothing is fetched by a
        `complete` listing of before: its objects may have been rewritten, which is why it is new."""
        if self.known:
            self.unsure = True
        elif complete:
            self.reason = "the source is listed anew first"

    def unlisted(self) -> None:
        """It cannot be listed now: then what was listed before has to do."""
        if not self.unsure:
            self.reason = ""

    def raised(self, reason: str) -> None:
        """The listing shows other contents."""
        self.reason = reason

    def ended(self, complete: bool) -> bool:
        """The listing has ended without doubt; `complete`: it came to its end, now or earlier. Returns
        whether the source is known now and was not before."""
        self.reason, self.unsure = "", False
        before, self.known = self.known, self.known or complete
        return self.known and not before
