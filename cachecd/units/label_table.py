"""Joins the labels of a separate table to the units of a listing."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.config import SourceConfig
from cachecd.model import ObjectInfo, encoded
from cachecd.stores.answers import without_secrets
from cachecd.units.tables import TableRow
from cachecd.units.unit_table import BadRowError, UnitTable, key_of, text_of

_log = logging.getLogger(__name__)

_COLUMNS = ("key", "url", "label")
_BATCH = 1 << 14  # rows


def labelled(
    source: SourceConfig, url: str, pages: Iterator[list[ObjectInfo]], *, is_whole: bool
) -> Iterator[list[ObjectInfo]]:
    """Yields the units with the labels of the table at `url`. Needs 20 bytes of memory for each row."""
    table = read_labels(source, url)
    without = 0
    for page in pages:
        labels = table.labels_of([unit.key for unit in page])
        without += labels.count("")
        yield [replace(u, label=label) for u, label in zip(page, labels, strict=True)]
    if is_whole and (without or table.unused):
        _log.warning(
            "%s: %d units have no row in the table, and %d rows have no unit",
            without_secrets(url),
            without,
            table.unused,
        )


class LabelTable:
    """Finds labels by key. Has the sorted digests of the keys, and the number of each key's label."""

    def __init__(self, digests: NDArray[Any], numbers: NDArray[Any], names: Sequence[str]) -> None:
        order = np.argsort(digests, kind="stable")  # if a key has several rows, the first counts
        self._digests, self._numbers = digests[order], numbers[order]
        self._names = [*names, ""]
        self._used = np.zeros(len(order), np.bool_)

    @property
    def unused(self) -> int:
        """Returns the number of rows that no unit has used."""
        return int(len(self._used) - self._used.sum())

    def labels_of(self, keys: Sequence[str]) -> list[str]:
        """Returns the label of each key, "" for a key without a label."""
        if not len(self._digests):
            return [""] * len(keys)
        digests = _digests(keys)
        at = np.searchsorted(self._digests, digests).clip(max=len(self._digests) - 1)
        known = self._digests[at] == digests
        self._used[at[known]] = True
        return [self._names[number] for number in np.where(known, self._numbers[at], -1)]


def read_labels(source: SourceConfig, url: str) -> LabelTable:
    """Reads the whole table at `url`."""
    table, numbers_of = UnitTable(source, url), dict[str, int]()
    digests, numbers = [_digests(())], [np.zeros(0, np.int32)]
    rows = table.rows(_COLUMNS, partial(_key_and_label, source))
    while batch := list(islice(rows, _BATCH)):
        table.good += len(batch)
        digests.append(_digests(key for key, _ in batch))
        own = [numbers_of.setdefault(label, len(numbers_of)) for _, label in batch]
        numbers.append(np.array(own, np.int32))
    table.end()
    return LabelTable(np.concatenate(digests), np.concatenate(numbers), list(numbers_of))


def _key_and_label(source: SourceConfig, row: TableRow) -> tuple[str, str]:
    key, label = key_of(source, row.fields), text_of(row.fields, "label")
    if not label:
        raise BadRowError("the row has no label")
    return key, label


def _digests(keys: Iterable[str]) -> NDArray[Any]:
    """BLAKE2b-128 of each key: among 10**8 keys, the chance of two equal digests is 10**-23."""
    digests = b"".join([blake2b(encoded(key), digest_size=16).digest() for key in keys])
    return np.frombuffer(digests, "S16")
