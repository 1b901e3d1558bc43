"""Saves what the plans have moved on by, in order; what a failing disk refuses is saved later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import structlog

from cachecd.catalog import Catalog, SavedPlan
from cachecd.errors import DiskError
from cachecd.events import SavePlan

_log = structlog.get_logger("cachecd.saving")


class PlanSaver:
    """The catalog's rows follow the policy's state, at once or when the disk allows it again."""

    def __init__(self, catalog: Catalog, plan_of: Callable[[str], SavedPlan]) -> None:
        """`plan_of`: a dataset's plan as it is now."""
        self._catalog = catalog
        self._plan_of = plan_of
        self._waiting: deque[SavePlan] = deque()

    @property
    def behind(self) -> bool:
        """Whether something is not saved yet."""
        return bool(self._waiting)

    def save(self, command: SavePlan | None = None) -> None:
        """Saves this, after all that waits. Never raises."""
        if command is not None:
            self._waiting.append(command)
        try:
            while self._waiting:
                self._save(self._waiting[0])
                self._waiting.popleft()
        except DiskError as error:
            _log.warning("plan not saved", why=str(error), waiting=len(self._waiting))

    def _save(self, command: SavePlan) -> None:
        plan = self._plan_of(command.dataset)
        self._catalog.save_progress(
            plan, command.done, command.shard, command.units, command.set_aside
        )
