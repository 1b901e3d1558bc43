"""A run's figures in the loggers of Lightning's Trainer."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from cachecd_client.meter import Meter
from cachecd_client.report import EpochReport

# One code under two names, whose classes are not each other's.
_NAMES = ("lightning.pytorch", "pytorch_lightning")


class TelemetryCallback:
    """Logs what the data costs, every `trainer.log_every_n_steps` steps, to all of the trainer's loggers.

    An instance is a Callback of whichever package the script has imported by then, `lightning` or
    `pytorch_lightning`; of the one that is installed if it has imported none.
    """

    def __new__(cls, *_: Any, **__: Any) -> TelemetryCallback:
        """An instance of a class that is this one and Lightning's."""
        loaded = [name for name in _NAMES if name in sys.modules] or [_installed()]
        bases = (importlib.import_module(name).Callback for name in loaded)
        made: TelemetryCallback = object.__new__(type(cls.__name__, (cls, *bases), {}))
        return made

    def __init__(self, report: Callable[[], EpochReport], *, prefix: str = "data/") -> None:
        """report: `epoch.report`, or over several epochs `lambda: cache.report("train")`.
        prefix: of the names, which docs/telemetry.md explains."""
        super().__init__()
        self._meter = Meter(report, prefix)
        self._steps = 0

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Lightning calls it."""
        if trainer.global_step == self._steps:
            return  # a batch whose gradients are accumulated
        self._steps = trainer.global_step
        # What Lightning puts the loss at: `global_step` counts each of several optimizers.
        step = trainer.fit_loop.epoch_loop._batches_that_stepped
        every = trainer.log_every_n_steps  # 0: nothing is logged
        if not every or (step + 1) % every:
            return
        found = self._meter.read()
        for logger in trainer.loggers:
            logger.log_metrics(found, step=step)


def _installed() -> str:
    for name in _NAMES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return name
    raise ImportError("this callback needs Lightning: pip install lightning, or pytorch-lightning")
