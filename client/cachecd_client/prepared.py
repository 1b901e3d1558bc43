"""The option `prepare`: a function of the caller makes each batch, in threads and ahead of the loop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from cachecd_client.ahead import Ahead, Source
from cachecd_client.columns import Bytes, Ragged, RaggedBytes
from cachecd_client.errors import SchemaError
from cachecd_client.schema import NUMERIC_DTYPES, Feature

Batch = dict[str, Any]
Prepare = Callable[[Batch, np.random.Generator], Mapping[str, Any]]

_NUMBERS = NUMERIC_DTYPES - {"bfloat16"}  # which NumPy itself does not have
_THREADS = 2
_AHEAD = _THREADS + 1  # batches that are with the threads, or wait for their turn


class Prepared(Ahead):
    """The batches of a pass, each prepared in a thread ahead of the loop."""

    def __init__(
        self,
        source: Source,
        prepare: Callable[[Batch, int], Batch],
        finish: Callable[[Batch], Batch],
    ) -> None:
        """`prepare` gets a batch and its number, in a thread; `finish` gets the result at its turn."""
        super().__init__(source, _AHEAD)
        self._prepare = prepare
        self._finish = finish
        self._threads = ThreadPoolExecutor(_THREADS, "cachecd-prepare")

    def close(self) -> None:
        """Hands out no batch more, and ends the threads: waits for calls of `prepare` that run."""
        super().close()
        if os.getpid() == self._process:
            self._threads.shutdown(cancel_futures=True)
        self._pending.clear()

    def _send(self, batch: Batch, number: int) -> Future[Batch]:
        return self._threads.submit(self._prepare, batch, number)

    def _receive(self, sent: Future[Batch]) -> Batch:
        began = time.monotonic()
        try:
            prepared = sent.result()
        except CancelledError:
            raise RuntimeError("closed") from None
        finally:
            self._waited += time.monotonic() - began
        return self._finish(prepared)


def call(prepare: Prepare, batch: Batch, random: np.random.Generator) -> Batch:
    """The columns that `prepare` returns, as arrays that every framework takes. SchemaError if a value is
    not an array with a row for each row of the batch."""
    rows = len(next(iter(batch.values()), ()))
    made = prepare(batch, random)
    if not isinstance(made, Mapping) or not all(isinstance(name, str) for name in made):
        raise SchemaError(
            f"prepare returned a {type(made).__name__}, expected a dict of name -> column"
        )
    return {name: _column(name, value, rows) for name, value in made.items()}


def _column(name: str, value: Any, rows: int) -> Any:
    numbers = isinstance(value, np.ndarray) and value.ndim and value.dtype.name in _NUMBERS
    if not numbers and not isinstance(value, (Bytes, Ragged, RaggedBytes)):
        array = isinstance(value, np.ndarray)
        found = f"{value.dtype}{list(value.shape)}" if array else type(value).__name__
        raise SchemaError(
            f"prepare returned {found} as {name!r}, expected an array of numbers [{rows}, ...], or a column"
        )
    if len(value) != rows:
        raise SchemaError(f"prepare returned {len(value)} rows of {name!r}, expected {rows}")
    # As every framework takes it.
    return np.require(value, value.dtype.newbyteorder("="), ["C", "W"]) if numbers else value


def feature_of(name: str, column: Any, bfloat16: bool) -> Feature:
    """The feature that has this column. `bfloat16`: uint16 numbers are bfloat16."""
    if isinstance(column, np.ndarray):
        dtype = column.dtype.name
        dtype = "bfloat16" if bfloat16 and dtype == "uint16" else dtype
        return Feature(name, "bytes", dtype, column.shape[1:], raw=True)
    if isinstance(column, Ragged):
        return Feature(name, "bytes", column.values.dtype.name, None)
    return Feature(name, "bytes", "bytes", () if isinstance(column, Bytes) else None)
