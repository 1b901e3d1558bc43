"""Labels from a table of their own, joined to what a store lists."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from cachecd.config import SourceConfig
from cachecd.model import ObjectInfo, encoded
from cachecd.sampler.manifest import BadRowError, Told, key_of, rows_of, text_of
from cachecd.sampler.tables import BadRow
from cachecd.stores.answers import without_secrets
from cachecd.stores.backend import Backend

_log = logging.getLogger(__name__)

_COLUMNS = ("key", "url", "label")
_BATCH = 1 << 14  # rows


class LabelledBackend:
    """A store that lists its objects with the labels of a table. Takes 20 bytes of memory for each row
    while it lists."""

    def __init__(self, backend: Backend, source: SourceConfig) -> None:
        self.where = backend.where
        self.find, self.read, self.tail = backend.find, backend.read, backend.tail
        self.glimpse = backend.glimpse
        self._backend = backend
        self._source = source

    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        assert self._source.label is not None, "the configuration has one"
        url = self._source.label.manifest
        assert url is not None, "the configuration has one"
        table = read_labels(self._source, url)
        without = 0
        for page in self._backend.list(start_after):
            labels = table.of([unit.key for unit in page])
            without += labels.count("")
            yield [replace(u, label=label) for u, label in zip(page, labels, strict=True)]
        if not start_after and (without or table.unused):
            _log.warning(
                "%s: %d units have no row in it, and %d of its rows have no unit",
                without_secrets(url),
                without,
                table.unused,
            )


class LabelTable:
    """Labels by key: sorted digests of the keys, and the number of each one's label."""

    def __init__(
        self, digests: NDArray[np.uint64], numbers: NDArray[np.int32], names: Sequence[str]
    ) -> None:
        # Stable: of several rows of a key, the first counts.
        order = np.lexsort((digests[:, 1], digests[:, 0]))
        self._high, self._low = digests[order, 0], digests[order, 1]
        self._numbers = numbers[order]
        self._names = names
        self._used = np.zeros(len(order), np.bool_)

    @property
    def unused(self) -> int:
        """Rows that nobody has asked for."""
        return int(len(self._used) - self._used.sum())

    def of(self, keys: Sequence[str]) -> list[str]:
        """The label of each key, "" for one that has none."""
        asked = _digests(keys)
        at = np.searchsorted(self._high, asked[:, 0])
        labels = []
        for place, (high, low) in zip(at.tolist(), asked.tolist(), strict=True):
            while place < len(self._high) and self._high[place] == high and self._low[place] != low:
                place += 1
            if place < len(self._high) and self._high[place] == high:
                self._used[place] = True
                labels.append(self._names[self._numbers[place]])
            else:
                labels.append("")
        return labels


def read_labels(source: SourceConfig, url: str) -> LabelTable:
    """The whole table."""
    told, numbers_of = Told(url), dict[str, int]()
    digests: list[NDArray[np.uint64]] = [np.zeros((0, 2), np.uint64)]
    numbers: list[NDArray[np.int32]] = [np.zeros(0, np.int32)]
    rows = _labels(source, told)
    while some := list(islice(rows, _BATCH)):
        told.good += len(some)
        digests.append(_digests(key for key, _ in some))
        found = [numbers_of.setdefault(label, len(numbers_of)) for _, label in some]
        numbers.append(np.array(found, np.int32))
    told.end()
    return LabelTable(np.concatenate(digests), np.concatenate(numbers), list(numbers_of))


def _labels(source: SourceConfig, told: Told) -> Iterator[tuple[str, str]]:
    for row in rows_of(source, told.url, _COLUMNS):
        if isinstance(row, BadRow):
            told.bad(row.place, row.why)
            continue
        try:
            key, label = key_of(source, row.fields), text_of(row.fields, "label")
        except BadRowError as error:
            told.bad(row.place, str(error))
            continue
        if label:
            yield key, label
        else:
            told.bad(row.place, "it has no label")


def _digests(keys: Iterable[str]) -> NDArray[np.uint64]:
    """BLAKE2b-128 of each key, [n, 2]: among 10**8 keys, two alike have a chance of 10**-23."""
    digests = b"".join([blake2b(encoded(key), digest_size=16).digest() for key in keys])
    return np.frombuffer(digests, "<u8").reshape(-1, 2)
