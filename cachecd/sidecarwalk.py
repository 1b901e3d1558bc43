"""What sidecars say of the walk, for a start whose catalog does not, or not any more.

A sidecar names units by their numbers in a listing, and says where the walk of a generation was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cachecd.index import Index
from cachecd.model import MOST_CURSOR, Assignment, UnitSlice
from cachecd.parts import Part, digest_of, slices_of
from cachecd.plan import Plan
from cachecd.reconcile import Found, Kept

Begin = tuple[int, int]  # unit, and the ordinal of the first record


def meta_of(assignment: Assignment, plan: Plan, index: Index) -> dict[str, Any]:
    """What the sidecar is to say of the walk, for a start that knows no more than that."""
    shard, stops = assignment.shard, [[u.unit, u.stop] for u in assignment.units if u.stop]
    return {
        "dataset": shard.dataset,
        "number": shard.number,
        "generation": assignment.generation,
        "index": index.id,
        "cursor": plan.cursor,
        "digest": f"{digest_of(assignment.units):016x}",
        **({"stops": stops} if stops else {}),
    }


def speaks_of(kept: Kept, plan: Plan, index: Index) -> bool:
    """Whether the shard is of this plan's walk: it is of the generation, and its unit numbers are those
    of this listing."""
    walk = kept.adopted or {}
    of_listing = walk.get("most", -1) < len(index) and walk.get("index") == index.id
    return of_listing and kept.shard.generation == plan.generation


def begun_in(kept: Iterable[Kept]) -> set[Begin]:
    """Unit and first ordinal of every part of a unit that these shards hold, and that is not its
    beginning."""
    return {(part.unit, part.ordinal) for shard in kept for part in shard.parts if part.ordinal}


def cut_units(kept: Iterable[Kept], index: Index, begun: set[Begin]) -> list[UnitSlice]:
    """Units whose beginning is in a shard that says that it did not fit whole, and whose rest is in
    no other: without a saved plan nobody would fetch it. Each part once, up to what another shard begins
    with: several shards say of one part that it did not fit if it was assigned to one after the other.
    """
    later: dict[int, list[int]] = {}
    for unit, ordinal in begun:
        later.setdefault(unit, []).append(ordinal)
    cut: dict[Begin, Part] = {}
    for shard in kept:
        for left in (shard.adopted or {}).get("remainder", ()):
            part = Part(*left)
            if part.ordinal and (part.unit, part.ordinal) not in begun:
                ends = [*later.get(part.unit, ()), *([part.stop] if part.stop else [])]
                stop = min((end for end in ends if end > part.ordinal), default=0)
                cut.setdefault((part.unit, part.ordinal), part._replace(stop=stop))
    return list(slices_of(cut.values(), index.unit))


def offsets_in(kept: Iterable[Kept]) -> dict[Begin, int]:
    """Where in their units parts begin of which these shards say that they did not fit: without that, what
    comes before them is fetched once more."""
    remainders = ((shard.adopted or {}).get("remainder", ()) for shard in kept)
    parts = [Part(*left) for remainder in remainders for left in remainder]
    return {(part.unit, part.ordinal): part.offset for part in parts}


def start_over(plan: Plan, found: Found, index: Index, used: int, lost: bool) -> None:
    """Numbers go on after every number ever `used`; the walk where the youngest sidecar of it says, if
    the catalog is `lost`, else at its beginning."""
    highest = max(used, int(found.known[1]["number"].max(initial=0)))
    highest = max([highest, *(k.shard.id.number for k in found.kept)])
    mine = [kept for kept in found.kept if lost and kept.adopted and speaks_of(kept, plan, index)]
    cursor = (mine[-1].adopted or {}).get("cursor", 0) if mine else 0
    known = isinstance(cursor, int) and 0 <= cursor < MOST_CURSOR
    plan.skip_to(highest, cursor if known else 0)
