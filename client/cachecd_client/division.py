"""What becomes of records that fill no batch, and what cannot be divided among ranks. Pure."""

from __future__ import annotations

from typing import Literal

from cachecd_client._core import Division
from cachecd_client.errors import CallerError
from cachecd_client.options import flag

#: What becomes of the records that do not fill a batch on every rank: they are left out; they make a
#: short batch; they make a batch that is filled up with rows that are no records.
Last = Literal["drop", "short", "pad"]


def last_of(drop_last: bool | None, pad_last: bool | None, default: bool) -> Last:
    """By these options, of which `drop_last` is `default` if nobody says. CallerError for both."""
    pads = pad_last is not None and flag("pad_last", pad_last)
    if drop_last is not None:
        drop_last = flag("drop_last", drop_last)
        if drop_last and pads:
            raise CallerError(
                "drop_last=True, pad_last=True: expected one of them; what is left out is not filled up"
            )
    if pads:
        return "pad"
    return "drop" if (default if drop_last is None else drop_last) else "short"


def divide(
    records: int, batch_size: int, world: int, last: Last, nodes: tuple[int, int] | None = None
) -> Division:
    """One pass over a set. `nodes`: records of the nodes that have the fewest and the most, if there are
    others.

    CallerError, on every rank alike, if there is no step, or if some rank would have no record for one.
    """
    if not records:
        raise CallerError(
            "the set has no records: its files are empty, so there is nothing to read"
        )
    try:
        division = Division(records, batch_size, world, last, nodes)
    except ValueError as error:
        raise CallerError(
            f"{error}; pad_last=True fills up with rows that `_valid` masks, drop_last=True leaves out "
            "what does not fill a batch"
        ) from error
    if not division.steps:
        least = records if nodes is None else min(records, nodes[0])
        raise CallerError(
            f"{least} records over {world} ranks make no batch of {batch_size}: choose a smaller "
            "batch_size, or drop_last=False"
        )
    return division
