"""A run's figures in TensorBoard, by the writer that the trainer has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cachecd_client.errors import CallerError
from cachecd_client.meter import Meter
from cachecd_client.options import integer
from cachecd_client.report import EpochReport


class TelemetryWriter:
    """Writes what the data costs the run as scalars, beside the loss.

    Nothing is measured for it: a step that does not write costs a comparison.
    """

    def __init__(
        self,
        writer: Any,
        report: Callable[[], EpochReport],
        *,
        every: int = 50,
        prefix: str = "data/",
    ) -> None:
        """writer: what has `add_scalar`, as torch.utils.tensorboard.SummaryWriter and tensorboardX's, or
            what tf.summary.create_file_writer makes. It stays the caller's to flush and to close.
        report: `epoch.report`, or over several epochs `lambda: cache.report("train")`.
        every: steps from one point of the curves to the next; each stands for the steps since the last.
        prefix: of the tags; docs/telemetry.md explains the names.

        CallerError if it is no such writer.
        """
        self._every = integer("every", every, 1)
        self._meter = Meter(report, prefix)
        if hasattr(writer, "add_scalar"):
            self._add = writer.add_scalar
        elif hasattr(writer, "as_default"):
            self._add = _tensorflow(writer)
        else:
            raise CallerError(
                f"writer={writer!r}, expected a SummaryWriter of torch.utils.tensorboard or of tf.summary"
            )

    def step(self, number: int) -> None:
        """Step `number`, as the loss counts, is done; writes if that is a multiple of `every`."""
        if number % self._every == 0:
            self.write(number)

    def write(self, number: int) -> None:
        """Writes now, at step `number`."""
        for name, value in self._meter.read().items():
            self._add(name, value, number)


def _tensorflow(writer: Any) -> Callable[[str, float, int], None]:
    import tensorflow as tf

    def add(tag: str, value: float, step: int) -> None:
        with writer.as_default():
            tf.summary.scalar(tag, value, step)

    return add
