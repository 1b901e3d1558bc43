"""Which walk a dataset is on, by its configuration, and what the catalog knows of that and other walks.

A walk is a listing, a seed and a generation: they decide which units come when. Another configuration is
another walk. The walk before is parked, with all that it owes, and goes on where it was when the
configuration is what it was: so a mistake in the configuration costs nothing once it is mended.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import structlog

from cachecd.catalog import Catalog
from cachecd.generations import numbered
from cachecd.index import Index
from cachecd.model import EXCLUDED, SetAside, ShardId
from cachecd.reconcile import Found
from cachecd.rules import DatasetRules

_log = structlog.get_logger("cachecd.daemon")


@dataclass(slots=True)
class Standing:
    """What the catalog says of a dataset, before the disk is looked at.

    `listings`: of each generation the listing that numbers its units, "" if nobody knows it. `used`: the
    highest number that any walk gave a shard. `delivered`: what trainers were given, as each walk's plan
    has it (LiveShards.delivered): shards stay where the walk changes. `excluded`: what a person took out,
    where another walk over the same listing begins now. `lost`: the catalog knows nothing; sidecars may.
    `returned`: this walk was left, and nothing was saved of it since; what went of its shards meanwhile
    nobody has noted. `overtaken`: and another one has made shards of its generation.
    """

    rules: DatasetRules
    listings: dict[str, str] = field(default_factory=dict)
    used: int = 0
    egress: int = 0
    delivered: list[dict[str, Any]] = field(default_factory=list)
    excluded: list[SetAside] = field(default_factory=list)
    lost: bool = False
    returned: bool = False
    overtaken: bool = False


def turn_to(catalog: Catalog, index: Index, rules: DatasetRules) -> Standing:
    """Has the catalog give the plan of the walk that is configured now, if it ever had it, and keep that
    of the walk before. Repeatable, wherever it was interrupted."""
    name = rules.name
    plans = {"": saved} if (saved := catalog.plan(name)) else {}
    plans |= catalog.parked(name)
    if not plans:
        return Standing(rules, lost=True)
    listings: dict[str, str] = dict.fromkeys(catalog.generations(name), "")
    for plan in plans.values():
        listings |= {plan["generation"]: plan["index"], **plan["listings"]}
    rules = replace(rules, generation=numbered(rules.generation, index.id, listings))
    walk, excluded = walk_of(rules, index), []
    before = {key: saved[key] for key in walk} if saved else None
    if before:
        catalog.on_walk(name, walk_name(before))
    if before and before != walk:
        taken_out = excluded_among(catalog.set_aside(name))
        if before["index"] == index.id:
            excluded = [a for a in catalog.set_aside(name) if a.unit in taken_out]
        else:
            # By their numbers they cannot be found any more.
            catalog.bar(name, holders_of(catalog, name, taken_out, str(before["generation"])))
    if before != walk:
        catalog.turn(name, walk_name(before) if before else None, walk_name(walk))
    mine = saved if before == walk else plans.get(walk_name(walk))
    return Standing(
        rules,
        listings,
        max(plan["plan"]["next_number"] for plan in plans.values()) - 1,
        max(plan["egress"] for plan in plans.values()),
        [plan["delivered"] for plan in plans.values()],
        excluded,
        returned=mine is not None and "parked" in mine,
        overtaken=mine is not None and _overtaken(mine, plans.values()),
    )


def _overtaken(plan: dict[str, Any], plans: Iterable[dict[str, Any]]) -> bool:
    """Whether another of these plans gave numbers after this one's to shards of its generation."""
    return any(
        (other["generation"], other["index"]) == (plan["generation"], plan["index"])
        and other["plan"]["next_number"] > plan["plan"]["next_number"]
        for other in plans
    )


def walk_of(rules: DatasetRules, index: Index) -> dict[str, Any]:
    """What decides in which order the units come; what is not told is None."""
    return {"index": index.id, "seed": rules.seed, "generation": rules.generation}


def walk_name(walk: dict[str, Any]) -> str:
    """Names a walk among those that are parked."""
    return hashlib.sha256(json.dumps(walk, sort_keys=True).encode()).hexdigest()[:16]


def bar_misnumbered(found: Found, standing: Standing, catalog: Catalog, name: str) -> None:
    """Shards of one generation name their units by one listing. A shard that does not, as from a copy of
    another cache, is barred; the generation's listing is noted, where only sidecars know it."""
    places = []
    for place, kept in enumerate(found.kept):
        if kept.adopted is None:
            continue
        listing = kept.adopted.get("index", "")
        generation = kept.shard.generation
        standing.listings[generation] = standing.listings.get(generation) or listing
        if standing.listings[generation] != listing:
            places.append(place)
    _bar(found, places, catalog, name, "shards of another listing are not leased")


def bar_unknown(found: Found, standing: Standing, catalog: Catalog, index: Index) -> None:
    """Where the catalog was lost, and a listing with it, nobody knows what the shards hold that name their
    units by that listing: all of them are barred, if a person has ever taken something out."""
    rules = standing.rules
    if not standing.lost or not catalog.excluded(*rules.excluded_names):
        return
    directory, there, places = index.path.parent, {index.id: True}, []
    for place, kept in enumerate(found.kept):
        listing = (kept.adopted or {}).get("index", "")
        if listing not in there:
            its = Index.by_id(directory, rules.name, listing)
            there[listing] = its is not None
            if its is not None:
                its.close()
        if not there[listing] and not kept.barred:
            places.append(place)
    why = "shards of a lost listing are not leased: they may hold what was excluded"
    _bar(found, places, catalog, rules.name, why)


def bar_repeating(found: Found, catalog: Catalog, rules: DatasetRules) -> None:
    """Where the catalog was lost, a shard that was given up while a lease had it may stand beside those
    that took its place. Of the configured generation the plan finds them."""
    places = {kept.shard.id.number: place for place, kept in enumerate(found.kept)}
    again = []
    for generation in {kept.shard.generation for kept in found.kept} - {rules.generation}:
        units = np.sort(np.concatenate([*catalog.units_held(rules.name, generation, ())]))
        often = np.unique(units[1:][units[1:] == units[:-1]]).tolist()
        again += [places[number] for number in repeating(catalog, rules.name, generation, often)]
    why = "shards that hold what others hold too are not leased"
    _bar(found, again, catalog, rules.name, why)


def repeating(catalog: Catalog, name: str, generation: str, often: Iterable[int]) -> list[int]:
    """The shards of a generation that hold a whole unit which another, of a lower number, holds too.
    `often`: the units that several hold something of."""
    cut = {part.unit for part in catalog.parts_held(name, generation, ())}
    suspects = set(often) - cut
    holders = catalog.holders(name, suspects, (generation,)) if suspects else ()
    seen: set[int] = set()
    again = []
    for number in sorted(number for some in holders for number in some):
        units, _ = catalog.held(ShardId(name, number))
        mine = suspects.intersection(units.tolist())
        if mine & seen:
            again.append(number)
        else:
            seen |= mine
    return again


def _bar(found: Found, places: list[int], catalog: Catalog, name: str, why: str) -> None:
    """The shards at these places of what was found, and says so."""
    for place in places:
        found.kept[place] = replace(found.kept[place], barred=True)
    if places:
        _log.warning(why, dataset=name, shards=len(places))
        catalog.bar(name, [found.kept[place].shard.id.number for place in places])


def excluded_among(asides: Iterable[SetAside]) -> set[int]:
    """The units of these that a person has taken out."""
    return {aside.unit for aside in asides if aside.reason == EXCLUDED}


def holders_of(catalog: Catalog, name: str, units: set[int], generation: str) -> list[int]:
    """The shards of a generation that hold records of these; all are looked at, if there are any units."""
    found = catalog.holders(name, units, (generation,)) if units else ()
    return [number for some in found for number in some]
