"""Looks up the units of one stream, in pages, in the order in which the stream reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cachecd.listing.permutation import BlockOrder
from cachecd.listing.table import MOST_AT_ONCE, Table
from cachecd.model import Shape, Unit, less_excluded


@dataclass(frozen=True, slots=True)
class Page:
    """Units of a stream at consecutive places of one block, from (block, place) on.

    An excluded unit is None, and the stream skips it. `more`: "listed" if the stream has units after this
    page, in this block or in later blocks, else "end".
    """

    block: int
    place: int
    units: tuple[Unit | None, ...]
    more: Literal["listed", "end"]


def units_of(
    table: Table,
    shape: Shape,
    stream: int,
    block: int,
    place: int,
    count: int = MOST_AT_ONCE,
    excluded: Mapping[str, frozenset[str]] = {},
) -> Page:
    """Returns the next units of a stream from (block, place) on: at most `count`, all from one block.
    `count` is at most MOST_AT_ONCE. A place after a block's last unit means the next block's first unit.

    Reads only synced blocks. DiskError, DamagedError.
    """
    ends = table.ends
    while block < len(ends) and place >= shape.units_in(stream, block, ends):
        block, place = block + 1, 0
    if block == len(ends):
        return Page(block, place, (), "end")
    last = min(place + count, shape.units_in(stream, block, ends))
    order = BlockOrder(shape.seed, block, ends)
    numbers = [order.unit(shape.g_of(stream, block, p, ends)) for p in range(place, last)]
    units = tuple(less_excluded(unit, excluded) for unit in table.units(numbers))
    following = shape.units_of(stream, ends) - shape.units_of(stream, ends[: block + 1])
    more = following or last < shape.units_in(stream, block, ends)
    return Page(block, place, units, "listed" if more else "end")
