"""What a loader's passes met that is corrupt, and what is said of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from cachecd_client.reading import CorruptRecord

log = logging.getLogger("cachecd")


class Losses:
    """What a loader's passes met that is corrupt. It is the reader's, and so refers to no loader."""

    def __init__(self, report: Callable[[Sequence[CorruptRecord]], None]) -> None:
        self._report = report
        self._met = 0
        self._first: CorruptRecord | None = None

    def __call__(self, records: Sequence[CorruptRecord]) -> None:
        # A damaged sidecar costs no record.
        lost = [record for record in records if not record[2].startswith("sidecar: ")]
        self._met += len(lost)
        if lost and self._first is None:
            self._first = lost[0]
        self._report(records)

    def tell(self, each_once: bool) -> None:
        """Of the pass that is over, in the log: a warning where each record was to come once."""
        if self._first is None:
            return
        path, offset, why = self._first
        log.log(
            logging.WARNING if each_once else logging.INFO,
            "this pass met %d corrupt records, and others of this rank came in their place%s; the first is "
            "at byte %d of %s: %s",
            self._met,
            ", so figures over the pass lack them and count those twice (on_corrupt='raise' ends it "
            "instead)" * each_once,
            offset, path, why,
        )  # fmt: skip
        self._met, self._first = 0, None
