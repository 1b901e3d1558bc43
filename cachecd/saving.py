"""Saves what the policy has decided, in order; what a failing disk refuses is saved later."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import structlog

from cachecd.catalog import Catalog, SavedPlan
from cachecd.complaints import Complaints
from cachecd.errors import DiskError
from cachecd.events import MarkShards, SavePlan
from cachecd.pause import Pause

_log = structlog.get_logger("cachecd.disk")
_WHAT = "catalog not written"


class PlanSaver:
    """The catalog's rows follow the policy's state, at once or when the disk allows it again."""

    def __init__(
        self,
        catalog: Catalog,
        plan_of: Callable[[str], SavedPlan],
        complaints: Complaints | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`plan_of`: a dataset's plan as it is now."""
        self._catalog = catalog
        self._plan_of = plan_of
        self._complaints = complaints
        self._clock = clock
        self._waiting: deque[SavePlan | MarkShards] = deque()
        self._pause = Pause(shortest=0.1)

    @property
    def behind(self) -> bool:
        """Whether something is not saved yet."""
        return bool(self._waiting)

    @property
    def reason(self) -> str:
        """Why something is not saved yet, for people; "" if nothing failed."""
        return self._pause.reason

    def save(self, command: SavePlan | MarkShards) -> None:
        """Saves this, after all that waits. Never raises."""
        self._waiting.append(command)
        self.catch_up()

    def begin(self, dataset: str) -> None:
        """Saves the dataset's plan as it is now, after all that waits. DiskError if that fails: then
        nothing may be begun that the saved plan does not know."""
        self.catch_up()
        if self._waiting:
            raise DiskError(self._pause.reason)
        self._catalog.save_progress(self._plan_of(dataset))

    def catch_up(self) -> None:
        """Saves what waits, unless that has just failed. Never raises."""
        if self._clock() < self._pause.until:
            return
        try:
            while self._waiting:
                try:
                    self._save(self._waiting[0])
                except DiskError:
                    raise
                except Exception:
                    # It would fail again, and nothing that comes after it would ever be saved.
                    _log.exception(
                        "not saved, and never will be", what=str(self._waiting[0])[:2000]
                    )
                self._waiting.popleft()
        except DiskError as error:
            self._pause.begin(self._clock(), str(error))
            if self._complaints:
                self._complaints.refused(_WHAT, "", str(error))
        else:
            self._pause.end()
            if self._complaints:
                self._complaints.works(_WHAT, "")

    def _save(self, command: SavePlan | MarkShards) -> None:
        if isinstance(command, MarkShards):
            self._catalog.retire(command.dataset, command.numbers)
            return
        plan = self._plan_of(command.dataset)
        self._catalog.save_progress(
            plan,
            command.done,
            command.shard,
            command.units,
            command.parts,
            command.set_aside,
            command.again,
            command.barred,
            command.excluded,
            command.removed,
        )
