"""Calls the user's class, which names the units of a source and reads their records (format `python`).

class Recordings:
    def __init__(self, rate): ...               # the source's `options`
    def units(self): ...                        # or units(self, store); or __len__; or neither
    def read(self, unit, store): ...            # records: dicts, in an order that stays the same; a
                                                # RecordError in place of a record that cannot be used
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from cachecd import model
from cachecd.config import SourceConfig
from cachecd.enumerated import unlistable
from cachecd.errors import ConfigError, RecordError, SourceUnreachableError
from cachecd.model import ObjectInfo
from cachecd.sampler.usercode import BlamedError, Guest, imported
from cachecd.sampler.view import StoreView

T = TypeVar("T")
Record = Mapping[str, Any] | RecordError

# The assumed size of a unit whose size the class does not give.
UNSIZED = 1 << 20
_END = object()


class NamedUnit(str):
    """The name of the unit that `read` gets; its number, if `units` gives only a count. `begin` and `size`:
    the bytes of the object with this name, if a listing or a manifest gives them. `label`: the class of the
    unit, if a manifest gives it."""

    begin: int
    size: int
    label: str

    @staticmethod
    def of(unit: model.Unit) -> NamedUnit:
        made = NamedUnit(unit.key)
        made.begin, made.size, made.label = unit.begin, unit.size, unit.label
        return made


class UserReader:
    """An object of the user's class. An error of its code is raised as BlamedError, but an error of a store
    is raised unchanged."""

    def __init__(self, source: SourceConfig) -> None:
        """ConfigError if the class does not exist. SourceUnreachableError if its constructor fails."""
        assert source.reader is not None, "the configuration requires a reader"
        self._name = source.reader
        self._guest = Guest()
        make = imported(source.reader, "reader", "class")
        try:
            self._reader = self._guest.call(self._name, lambda: make(**source.options))
        except BlamedError as error:
            raise SourceUnreachableError(str(error)) from error
        if not callable(getattr(self._reader, "read", None)):
            raise ConfigError(f"reader {self._name}: has no method read(unit, store)")

    def units(self, store: StoreView) -> Iterator[ObjectInfo] | None:
        """Returns all units in the order of the class; None if the class does not name units. BlamedError
        if the class raises. SourceUnreachableError if it gives an invalid unit."""
        method = getattr(self._reader, "units", None)
        if method is not None:
            arguments = (store,) if _takes_one(method) else ()
            returned = self._guarded("units", lambda: method(*arguments))
        elif hasattr(self._reader, "__len__"):
            returned = self._guarded("__len__", lambda: len(self._reader))
        else:
            return None
        return self._enumerate(returned)

    def read(self, unit: NamedUnit, store: StoreView) -> Generator[Record, None, None]:
        """Yields the unit's records. Each record is made when it is requested."""
        results = self._guarded("read", lambda: self._records(self._reader.read(unit, store)))
        try:
            while (record := self._guarded("read", lambda: next(results, _END))) is not _END:
                if not isinstance(record, (Mapping, RecordError)):
                    raise BlamedError(
                        f"{self._name}.read gave {type(record).__name__}, expected dicts"
                    )
                yield record
        finally:
            if (close := getattr(results, "close", None)) is not None:
                self._guarded("read", close)

    def _records(self, returned: Any) -> Iterator[Any]:
        if isinstance(returned, (str, bytes, Mapping)) or not isinstance(returned, Iterable):
            raise BlamedError(
                f"{self._name}.read returned {type(returned).__name__}, expected an iterable of dicts, "
                "such as a generator"
            )
        return iter(returned)

    def _enumerate(self, returned: Any) -> Iterator[ObjectInfo]:
        if (count := _number(returned)) is not None:
            yield from (ObjectInfo(str(number), UNSIZED) for number in range(count))
            return
        if isinstance(returned, (str, bytes, Mapping)) or not isinstance(returned, Iterable):
            raise self._invalid(returned)
        units = self._guarded("units", lambda: iter(returned))
        while (one := self._guarded("units", lambda: next(units, _END))) is not _END:
            unit = self._unit(one)
            if (reason := unlistable(unit)) is not None:
                raise SourceUnreachableError(f"{self._name}.units gave an invalid unit: {reason}")
            yield unit

    def _unit(self, given: Any) -> ObjectInfo:
        if (name := given if isinstance(given, str) else _number(given)) is not None:
            return ObjectInfo(str(name), UNSIZED)
        if isinstance(given, Mapping) and isinstance(name := given.get("name"), str):
            size, label = _number(given.get("size", UNSIZED)), given.get("label", "")
            if size is not None and isinstance(label, str):
                return ObjectInfo(name, size, label=label)
        raise self._invalid(given)

    def _invalid(self, returned: Any) -> SourceUnreachableError:
        shown = repr(returned)
        return SourceUnreachableError(
            f"{self._name}.units gave {shown if len(shown) < 100 else shown[:100] + '...'}, expected a "
            'count, or names, or dicts such as {"name": "a", "size": 1000}'
        )

    def _guarded(self, method: str, code: Callable[[], T]) -> T:
        return self._guest.call(f"{self._name}.{method}", code)


def _number(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _takes_one(method: Callable[..., Any]) -> bool:
    try:
        inspect.signature(method).bind(None)
    except (TypeError, ValueError):
        return False
    return True
