"""What was delivered of a dataset's shards, in the few bytes that are saved with each plan. Pure."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.shardtable import ALL, Numbers, numbers_of, ranges_of

_MOST_RANGES = 1_000
_MOST_BYTES = 16 << 10
_EIGHTHS = 8


def packed(numbers: Numbers, delivered: NDArray[np.int16]) -> dict[str, Any]:
    """For `unpacked`, at the next start: which ranges of shards, and what was delivered of each shard, in
    eighths. That is rounded down as far as it takes to keep this short: to what was delivered whole, and to
    the oldest shards, which are replaced next."""
    eighths = delivered.astype(np.int64) * _EIGHTHS // ALL
    some = np.flatnonzero(eighths)
    if not len(some):
        return {}
    between = slice(some[0], min(some[-1] + 1, some[0] + _MOST_BYTES * 8))
    named = ranges_of(numbers[between])[:_MOST_RANGES]
    count = sum(last - first + 1 for first, last in named)
    few = eighths[between][:count].astype(np.uint8)
    whole = few == _EIGHTHS
    told = [zlib.compress(each.tobytes(), 1) for each in (np.packbits(whole), few * ~whole)]
    if sum(map(len, told)) > _MOST_BYTES:
        told.pop()
    return {"shards": named, "eighths": [b64encode(one).decode() for one in told]}


def unpacked(saved: Mapping[str, Any]) -> tuple[Numbers, NDArray[np.int64]]:
    """The numbers of the shards, ascending, and how many thousandths were delivered of each."""
    numbers = numbers_of(saved.get("shards", ()))
    eighths = np.zeros(len(numbers), np.int64)
    for of_whole, text in zip((True, False), saved.get("eighths", ()), strict=False):
        told = np.frombuffer(zlib.decompress(b64decode(text)), np.uint8)
        eighths += np.unpackbits(told, count=len(numbers)) * _EIGHTHS if of_whole else told
    return numbers, eighths * ALL // _EIGHTHS
