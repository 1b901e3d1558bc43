"""What the machine can do at all: no reader of records can be far above these."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tests.bench.contenders.contract import Contender
from tests.bench.data import RecordSet
from tests.bench.delivery import Batch, Passes

_RING_BYTES = 64 << 20  # as much as our reader makes ahead


class Memcpy(Contender):
    """One thread copies the bytes of all shards, batch by batch, from memory into a ring of buffers."""

    name = "memcpy"
    family = "baseline"

    @contextmanager
    def open(self, records: RecordSet) -> Iterator[Passes]:
        source = np.concatenate([np.fromfile(file, np.uint8) for file in records.files])
        size = (
            len(source) * records.batch_size // records.num_records
        )  # of a batch, framing included
        ring = [np.ones(size, np.uint8) for _ in range(max(2, _RING_BYTES // size))]
        begin, into = source.ctypes.data, [buffer.ctypes.data for buffer in ring]

        def copy() -> Iterator[Batch]:
            batch = {"label": range(records.batch_size)}
            for number in range(records.num_records // records.batch_size):
                ctypes.memmove(into[number % len(into)], begin + number * size, size)
                yield batch

        yield copy


CONTENDERS: list[Contender] = [Memcpy()]
