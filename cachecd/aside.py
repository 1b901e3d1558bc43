"""The units set aside, as `status` tells of them and the log does when it happens."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from cachecd.events import SavePlan
from cachecd.model import SetAside
from cachecd.unittext import for_the_log

_log = structlog.get_logger("cachecd.daemon")


class Asides(dict[str, list[SetAside]]):
    """By dataset, each list in the order in which its units were given up."""

    def found(self, dataset: str, asides: Iterable[SetAside]) -> None:
        """What a start found."""
        self[dataset] = list(asides)

    def changed(self, command: SavePlan) -> None:
        """Units were given up, or are tried again."""
        known = self[command.dataset]
        if command.again:
            again = set(command.again)
            known[:] = [aside for aside in known if aside.unit not in again]
        for aside in command.set_aside:
            key = for_the_log(aside.key)
            _log.warning("unit set aside", dataset=command.dataset, key=key, why=aside.reason)
            known.append(aside)
