"""Whether a contender delivers the records: the right ones, whole, each once, in equal batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.bench import data
from tests.bench.data import RecordSet

Batch = Any  # a dict of feature name -> arrays, in whatever form the contender has them
Passes = Callable[[], Iterator[Batch]]


class DeliveryError(AssertionError):
    """A contender did not deliver what the others must deliver."""


@dataclass(frozen=True)
class Verified:
    records: int
    whole: bool


def verify(passes: Passes, records: RecordSet, *, seconds: float, tails: int) -> Verified:
    """Looks at the batches of one pass, for `seconds` at most; DeliveryError says what is wrong.

    `tails`: how many workers may each have dropped a last batch that was not full.
    """
    seen: list[NDArray[np.int64]] = []
    whole = True
    until = time.monotonic() + seconds
    for batch in passes():
        seen.append(_check(batch, records))
        if time.monotonic() > until:
            whole = False
            break
    labels = np.concatenate(seen) if seen else np.empty(0, np.int64)
    if len(np.unique(labels)) != len(labels):
        raise DeliveryError("a record was delivered twice in a pass")
    if len(labels) and not (labels.min() >= 0 and labels.max() < records.num_records):
        raise DeliveryError(f"labels from {labels.min()} to {labels.max()}")
    missing = records.num_records - len(labels)
    if whole and missing > tails * (records.batch_size - 1):
        raise DeliveryError(f"{missing} of {records.num_records} records are missing from a pass")
    if len(labels) > 2 * records.batch_size and np.array_equal(labels, np.sort(labels)):
        raise DeliveryError("the records came in the order in which they are stored")
    return Verified(len(labels), whole)


def _check(batch: Batch, records: RecordSet) -> NDArray[np.int64]:
    """The labels of the batch, if all of it belongs to them."""
    labels = np.asarray(batch["label"])
    images = np.asarray(batch["image"])
    rows = records.batch_size
    _equal("labels", (labels.shape, labels.dtype.name), ((rows,), "int64"))
    _equal("images", (images.shape, images.dtype.name), ((rows, *records.case.shape), "uint8"))
    flat = np.ascontiguousarray(images).reshape(rows, -1)
    for part in (flat[:, :8], flat[:, -8:]):
        if not np.array_equal(np.ascontiguousarray(part).view(np.int64)[:, 0], labels):
            raise DeliveryError("an image does not belong to its label")
    if not np.array_equal(images[0], data.image(records.case, int(labels[0]))):
        raise DeliveryError(f"the image of record {labels[0]} is not the one that was written")
    return labels.copy()


def _equal(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise DeliveryError(f"{what}: {found}, expected {expected}")
