"""Logs the progress of first listings and first fills, one line a minute."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import structlog

from cachecd.policy.dataset import Dataset
from cachecd.policy.policy import Policy
from cachecd.quantities import progress_text

_FIRST, _EVERY = 10.0, 60.0  # seconds until the first line, and between two lines
_RATED = 10  # notes, one a second, over which the rate is computed

_log = structlog.get_logger("cachecd.daemon")


@dataclass(slots=True)
class _Subject:
    """`due`: when the next line is due. `samples`: times and what was done then."""

    due: float
    samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_RATED))


class ProgressLog:
    """Call `note` once a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._subjects: dict[tuple[str, str], _Subject] = {}

    def note(self, policy: Policy, listed: Mapping[str, int]) -> None:
        """Logs the progress of each dataset, if it is due. `listed`: the objects that the present listing
        of each dataset has listed."""
        now, found = self._clock(), set[tuple[str, str]]()
        for name, dataset in policy.datasets.items():
            for what, done, total, unit in _unfinished(policy, dataset, listed.get(name, 0)):
                found.add((name, what))
                subject = self._subjects.setdefault((name, what), _Subject(now + _FIRST))
                subject.samples.append((now, done))
                if now >= subject.due:
                    subject.due = now + _EVERY
                    then, before = subject.samples[0]
                    rate = (done - before) / (now - then) if now > then else 0.0
                    text = progress_text(done, total, rate, unit) or "nothing yet"
                    _log.info(what, dataset=name, progress=text)
        self._subjects = {name: each for name, each in self._subjects.items() if name in found}


def _unfinished(
    policy: Policy, dataset: Dataset, objects: int
) -> Iterator[tuple[str, float, float, str]]:
    """Yields what a dataset still waits for: its name, how much is done, of how much, and the unit."""
    gen = dataset.generation
    if gen.is_whole or policy.restraint.offline:
        return
    if gen.blocks.is_growing:
        yield "listing the source", objects, 0, "objects"
    first = gen.source_bytes if dataset.rules.pin and gen.completed else policy.room.first(dataset)
    if gen.table.live_bytes < first or dataset.rules.pin:
        yield "filling", gen.table.live_bytes, first, "bytes"
