"""A run's figures in what Keras logs of each epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from cachecd_client.meter import Meter
from cachecd_client.report import EpochReport


class TelemetryCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Adds what the data cost to the logs of each epoch of `fit`, beside loss and metrics.

    So it is in `History`, and in what callbacks that come after this one log: TensorBoard, CSVLogger.
    It has no hook for batches, for which Keras would wait for the device.
    """

    def __init__(self, report: Callable[[], EpochReport], *, prefix: str = "data_") -> None:
        """report: `epoch.report`, or over several epochs `lambda: cache.report("train")`.
        prefix: of the names, which docs/telemetry.md explains."""
        super().__init__()
        self._meter = Meter(report, prefix)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Keras calls it."""
        found = self._meter.read()
        if logs is not None:
            logs.update(found)
