"""Looks whether leases are held: by the locks on their manifests, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from cachecd.acquire import LeaseState
from cachecd.complaints import Complaints
from cachecd.errors import DiskError
from cachecd.events import Event, LeaseUnheld
from cachecd.layout import Layout
from cachecd.leases import probe


class Probes:
    """Feeds LeaseUnheld for each lease that nobody holds. What the disk refuses is noted, and tried again
    with the next probe."""

    def __init__(
        self,
        layout: Layout,
        known: Mapping[str, LeaseState],
        complaints: Complaints,
        check: Callable[[], None],
        feed: Callable[[Event], None],
    ) -> None:
        """`check` is called first: a manifest that was moved away may be held."""
        self._layout = layout
        self._known = known
        self._complaints = complaints
        self._check = check
        self._feed = feed

    def all(self) -> None:
        self.these(list(self._known))

    def granted(self, dataset: str, job: str, epoch: int) -> None:
        """So that a job that was launched again under its name gets no set of the one that ended."""
        asked = dataset, job, epoch
        leases = [state.lease for state in self._known.values()]
        if same := [one.id for one in leases if (one.dataset, one.job, one.epoch) == asked]:
            self.these(same)

    def these(self, names: Iterable[str]) -> None:
        """Leases by name."""
        with self._complaints.hearing("leases not probed"):
            self._check()
            for lease, manifest in self._layout.manifests(names):
                try:
                    held = probe(manifest)
                except DiskError as error:
                    self._complaints.refused("lease not probed", lease, str(error))
                    continue
                self._complaints.works("lease not probed", lease)
                if not held and lease in self._known:
                    self._feed(LeaseUnheld(lease))
