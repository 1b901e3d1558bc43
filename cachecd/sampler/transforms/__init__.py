"""Transforms records before they are cached, with the user's functions and the ready-made steps.

A step takes a record (feature -> value) and returns a record, None to drop it, or an iterable of records.
Steps over groups, which take many records together, are in groups.py.
"""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from cachecd.config import TransformStep
from cachecd.errors import RecordError, UnitError
from cachecd.model import SAMPLE, sample_name
from cachecd.sampler.meter import METER
from cachecd.sampler.usercode import Guest, imported
from cachecd.stores.backend import is_shortage
from cachecd.stores.extras import extra

Record = Mapping[str, Any]
Item = Record | RecordError
"""A record, or the error of a record that cannot be used. The record's bytes alone cause the error."""

_END = object()


def name_of(item: Item) -> str:
    """Returns the name of the sample, or "" if it has none."""
    return item.sample if isinstance(item, RecordError) else sample_name(item.get(SAMPLE))


def named(error: RecordError, item: Item) -> RecordError:
    """Adds the sample's name to the error, if the record has one."""
    error.sample = error.sample or name_of(item)
    return error


def copied(record: Record) -> dict[str, Any]:
    """Returns a record that keeps its values if user code changes `record`, or the values in it, later."""
    return {
        name: copy.copy(value) if isinstance(value, (np.ndarray, bytearray, list)) else value
        for name, value in record.items()
    }


def build(steps: Sequence[TransformStep]) -> Callable[[Record], Iterator[Record]] | None:
    """Returns the steps as one function from a record to the results; None if there are no steps.
    ConfigError if a function cannot be imported.

    The function yields results in order, and computes each when it is requested. If a step raises, the
    record is tried once more; results of the first try are not repeated. If the second try raises too:
    RecordError with the step and the user's line, or UnitError if the machine had no memory left.
    """
    if not steps:
        return None
    guest = Guest()
    chain = [_Step(step, guest) for step in steps]

    def attempt(record: Record) -> Iterator[Record]:
        results: Iterable[Record] = (copied(record),)  # a step may change it, and then fail
        for step in chain:
            results = step.over(results)
        return iter(results)

    def transform(record: Record) -> Iterator[Record]:
        yielded = 0
        first: UnitError | None = None
        while True:
            try:
                for result in itertools.islice(attempt(record), yielded, None):
                    yielded += 1
                    yield result
                return
            except UnitError as error:
                if first is not None:
                    # The first try may have changed the record's values, so its reason is reported.
                    if isinstance(first.__cause__, MemoryError) or is_shortage(first):
                        raise first from error
                    raise RecordError(str(first)) from error
                first = error

    return transform


class _Step:
    def __init__(self, step: TransformStep, guest: Guest) -> None:
        self._name = step.name
        self._call = _function(step)
        self._run = functools.partial(guest.call, step.name)

    def over(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            # The step's own code may run in its call or, if it is a generator, in each `next`.
            run: Callable[[Callable[[], Any]], Any] = self._run
            if METER.on:
                run = self._timed
                METER.passed(self._name, 1)
            results = run(lambda: self._iterable(self._call(record)))  # noqa: B023
            while (result := run(lambda: next(results, _END))) is not _END:  # noqa: B023
                if isinstance(result, Mapping):
                    yield result
                elif result is not None:
                    raise self._misreturned(result)

    def _timed(self, code: Callable[[], Any]) -> Any:
        if not METER.on:  # the step of filling ended between two results
            return self._run(code)
        before = METER.enter(self._name)
        try:
            return self._run(code)
        finally:
            METER.enter(before)

    def _iterable(self, result: Any) -> Iterator[Any]:
        if result is None or isinstance(result, Mapping):
            return iter((result,))
        if isinstance(result, (str, bytes)) or not isinstance(result, Iterable):
            raise self._misreturned(result)
        return iter(result)

    def _misreturned(self, result: object) -> UnitError:
        return UnitError(
            f"{self._name} returned {type(result).__name__}, expected a dict, None or an iterable of "
            "dicts"
        )


def _function(step: TransformStep) -> Callable[[Record], Any]:
    if ":" in step.name:
        return imported(step.name, "transform", "function")
    with extra("audio" if step.name == "decode_audio" else "images", f"transform {step.name}"):
        module = importlib.import_module(f"cachecd.sampler.transforms.{step.name}")
    if step.name == "class_map":
        return cast("Callable[[Record], Any]", module.ClassMap(**step.argument))
    return functools.partial(getattr(module, step.name), **step.argument)
