"""Takes up a dataset where the last run left it: shards, plan and counters -> the policy's state."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import structlog

from cachecd.catalog import Catalog, SavedPlan
from cachecd.dataset import DatasetState
from cachecd.errors import DiskError
from cachecd.generations import numbered
from cachecd.index import Index
from cachecd.layout import Layout
from cachecd.leases import age_of, end, in_use, read_manifests
from cachecd.live import flags_of
from cachecd.model import EXCLUDED, Assignment, Held, Lease, SetAside, ShardId
from cachecd.parts import Part, gaps, part_of, slices_of
from cachecd.plan import Plan
from cachecd.reconcile import Found, Kept, find_shards, outcome_of
from cachecd.rules import DatasetRules
from cachecd.saving import PlanSaver
from cachecd.shardtable import ROW, Rows
from cachecd.sidecarwalk import (
    Begin,
    begun_in,
    cut_units,
    offsets_in,
    speaks_of,
    start_over,
)
from cachecd.standing import (
    Standing,
    bar_misnumbered,
    bar_repeating,
    bar_unknown,
    excluded_among,
    repeating,
    turn_to,
    walk_of,
)
from cachecd.state import State
from cachecd_client import resources
from cachecd_client._core import Sidecar
from cachecd_client.protocol import Manifest

_log = structlog.get_logger("cachecd.daemon")


@dataclass(slots=True)
class Recovered:
    """A dataset as it was found; `schemas` by generation."""

    state: DatasetState
    found: Found
    schemas: dict[str, dict[str, Any]]


def recover(
    layout: Layout,
    catalog: Catalog,
    index: Index,
    rules: DatasetRules,
    shard_size: int,
    state: State,
    progress: Callable[[int, int], None] = lambda read, of: None,
) -> Recovered:
    """Reconciles disk and catalog, and adds the dataset to the policy.

    The saved plan is continued if it still speaks of the same units in the same order. If it does not,
    it is parked, and another one begins, or goes on if it was parked earlier: so a mistake in the
    configuration costs nothing once it is mended. Shards whose units are numbered by another listing are
    of another generation than what is made from now on: no set has both. `progress` is as for
    `find_shards`.
    """
    name = rules.name
    (layout.shards / name).mkdir(exist_ok=True)
    standing = turn_to(catalog, index, rules)
    found = find_shards(layout, catalog, name, standing.used, in_use(layout, name), progress)
    bar_unknown(found, standing, catalog, index)
    dataset = take_up(found, standing, catalog, index, shard_size, state)
    return Recovered(dataset, found, _schemas(layout, catalog, dataset, found))


def take_up(
    found: Found, standing: Standing, catalog: Catalog, index: Index, shard_size: int, state: State
) -> DatasetState:
    """Adds a dataset to the policy, with what was found of it on disk and in the catalog."""
    rules = standing.rules
    name = rules.name
    bar_misnumbered(found, standing, catalog, name)
    if standing.lost:
        generation = numbered(rules.generation, index.id, standing.listings)
        rules = replace(rules, generation=generation)
        bar_repeating(found, catalog, rules)
    saved = catalog.plan(name)
    plan = Plan(name, rules.generation, index, rules.seed, shard_size, rules.interleave)
    dataset = DatasetState(rules, plan)
    there = {kept.shard.generation for kept in found.kept} | {*found.known[0]}
    dataset.listings = {n: told for n, told in standing.listings.items() if n in there}
    dataset.listings[rules.generation] = index.id
    if saved:
        plan.restore(saved["plan"], _open_assignments(catalog, index, name))
        plan.extend(index.complete)  # what was listed and not yet planned
        if standing.used >= plan.next_number:  # by another walk, while this one was parked
            plan.overtake(standing.used)
        dataset.debt, dataset.last_retired = saved["debt"], saved["last_retired"]
        dataset.evicted, dataset.evicted_shards = saved["evicted"], saved["evicted_shards"]
        dataset.gaps = dict(saved["gaps"])
    else:
        plan.extend(index.complete)
        start_over(plan, found, index, standing.used, standing.lost)
    plan.gone(index.gone.numbers())
    dataset.egress = max(standing.egress, catalog.egress(name))
    state.add_dataset(dataset)
    mine = [k for k in found.kept if not k.barred and speaks_of(k, plan, index)]
    begun = begun_in(mine)
    _adopt_known(found, dataset, catalog, state)
    state.adopt_shards(name, *_rows(found.kept))
    for kept in found.kept:
        _adopt(kept, dataset, catalog, index, begun)
    plan.drop(begun | _begun_anew(mine, plan, catalog))
    if standing.overtaken:
        _take_up_again(plan)
    for delivered in standing.delivered:
        dataset.live.deliver_again(delivered)
    # Shards may be marked and what they owe not saved yet; older generations' are no debt.
    owed = dataset.live.retired_allocated(rules.generation, but_barred=True)
    dataset.debt = max(dataset.debt, owed)
    for shard, retired in found.gone:
        dataset.evict(shard)
        if retired and shard.generation == rules.generation:
            dataset.debt += shard.allocated
    dataset.excluded.names.update(catalog.excluded(*rules.excluded_names))
    dataset.excluded.sought = bool(dataset.excluded.names)
    asides, let_in = _asides(catalog, dataset, index, None if saved else standing.excluded)
    plan.set_aside(aside.unit for aside in asides)
    dataset.excluded.numbers.update(excluded_among(asides))
    if rules.pin or not saved or standing.returned or let_in:
        lost = _parts_lost(found, plan, catalog, index)
        plan.give_back((), slices_of(lost, index.unit))
    plan.recount()
    dataset.second_chances.found(asides)
    # Shards of this listing and this generation were made of what it lists.
    dataset.doubt.known = saved["known"] if saved else index.complete and bool(mine)
    dataset.was_leased = bool(saved and saved["was_leased"])
    dataset.twice = _holding_twice(dataset, catalog)
    # Assignments that were open are done again, under their own numbers.
    dataset.retry = dict.fromkeys(plan.open, 0.0)
    dataset.listed = index.complete
    if not saved or standing.overtaken:
        # Last: up to here the next start begins where this one did; from here on it goes on with this.
        catalog.start_over(saved_plan(dataset, index), None if saved else asides)
    elif found.gone or mine or standing.returned or saved["listings"] != dataset.listings:
        catalog.save_progress(saved_plan(dataset, index))
    catalog.forget_adopted(name)
    return dataset


def _take_up_again(plan: Plan) -> None:
    """What the plan has in hand another walk may have made since: of units that shards hold parts of it
    goes, what no shard holds comes with all that was lost; of others it stays."""
    in_hand = plan.let_go()
    held = set(plan.partly_held([unit.unit for unit in in_hand]))
    plan.resume([unit for unit in in_hand if unit.unit not in held])


def _asides(
    catalog: Catalog, dataset: DatasetState, index: Index, known: list[SetAside] | None
) -> tuple[list[SetAside], set[int]]:
    """The units that are set aside, of those `known` or of the catalog's; and the units that a person took
    out and let in again since, by an edit of excluded.jsonl."""
    asides = catalog.set_aside(dataset.rules.name) if known is None else known
    taken_out = [index.unit(a.unit) for a in asides if a.reason == EXCLUDED and a.unit < len(index)]
    let_in = {u.unit for u in taken_out} - {u.unit for u in dataset.excluded.among(taken_out)}
    if let_in and known is None:
        catalog.save_progress(saved_plan(dataset, index), again=let_in)
    return [aside for aside in asides if aside.unit not in let_in], let_in


def _holding_twice(dataset: DatasetState, catalog: Catalog) -> tuple[int, ...]:
    """As `repeating`, of the current generation."""
    name, generation = dataset.rules.name, dataset.rules.generation
    return tuple(repeating(catalog, name, generation, dataset.plan.several_hold()))


def _parts_lost(found: Found, plan: Plan, catalog: Catalog, index: Index) -> list[Part]:
    """Of units that were cut: the parts that no sound shard of this generation holds, and nobody has in
    hand. From a pinned set nothing goes but what is damaged; and of a walk that starts over, nobody knows
    what went and what was still to come."""
    others = {kept.shard.id.number for kept in found.kept}
    parts = catalog.parts_held(plan.dataset, plan.generation, others)
    ours: list[Kept] = []
    for kept in found.kept:
        mine = kept.shard.generation == plan.generation
        if mine and not kept.barred and (kept.adopted is None or speaks_of(kept, plan, index)):
            ours.append(kept)
            parts += kept.parts
    in_hand = [*plan.left_over, *(u for a in plan.open.values() for u in a.units)]
    parts += map(part_of, in_hand)
    cut = {part.unit for part in parts if part.ordinal or part.stop}
    offsets = offsets_in(ours)
    return [
        part._replace(offset=offsets.get((part.unit, part.ordinal), 0))
        for part in gaps(part for part in parts if part.unit in cut)
    ]


def _open_assignments(catalog: Catalog, index: Index, name: str) -> list[Assignment]:
    return [
        Assignment(ShardId(name, number), generation, slices_of(units, index.unit))
        for number, generation, units in catalog.assignments(name)
    ]


def _adopt_known(found: Found, dataset: DatasetState, catalog: Catalog, state: State) -> None:
    """Adds the shards that are as the catalog has them, and the units that it says all shards hold, but
    those whose assignments are open."""
    name, opened = dataset.rules.name, dataset.plan.open
    state.adopt_shards(name, *found.known)
    done = {k.shard.id.number for k in found.kept if k.shard.id.number in opened}
    for units in catalog.units_held(name, dataset.plan.generation, done):
        dataset.plan.hold(units)


def _begun_anew(kept: list[Kept], plan: Plan, catalog: Catalog) -> set[Begin]:
    """Of what the plan has left over, the units whose beginnings these shards hold: the plan is older than
    they are."""
    wanted = {unit.unit for unit in plan.left_over if not unit.ordinal}
    numbers = {shard.shard.id.number for shard in kept}
    if not (wanted and numbers):
        return set()
    begun: set[Begin] = set()
    for some in catalog.holders(plan.dataset, wanted, (plan.generation,)):
        for number in numbers.intersection(some):
            units, parts = catalog.held(ShardId(plan.dataset, number))
            later = {part.unit for part in parts if part.ordinal}
            begun |= {(unit, 0) for unit in wanted.intersection(units.tolist()) - later}
    return begun


def _rows(kept: list[Kept]) -> tuple[list[str], Rows]:
    generations = sorted({k.shard.generation for k in kept})
    rows = [
        (
            k.shard.id.number, k.shard.records, k.shard.data_bytes, k.shard.allocated,
            generations.index(k.shard.generation), 0, flags_of(k.retired, k.barred), k.shard.digest, 0,
        )
        for k in kept
    ]  # fmt: skip
    return generations, np.array(rows, ROW)


def _adopt(
    kept: Kept,
    dataset: DatasetState,
    catalog: Catalog,
    index: Index,
    begun: set[Begin],
) -> None:
    """Tells the plan of a shard that the policy has, and that a sidecar vouches for; but not which units
    it holds, unless its assignment is open."""
    shard, plan = kept.shard, dataset.plan
    if shard.id.number >= plan.next_number:
        speaks = not kept.barred and speaks_of(kept, plan, index)
        plan.overtake(shard.id.number, cut_units([kept], index, begun) if speaks else ())
    if kept.barred or shard.generation != plan.generation:
        return  # its units come again
    if shard.id.number in plan.open:
        assert kept.written is not None, "the sidecar of one whose assignment is open was read"
        outcome = outcome_of(plan.open[shard.id.number], kept)
        plan.finish(shard.id.number, outcome, kept.written.units.tolist())
        catalog.save_progress(saved_plan(dataset, index), done=shard.id.number)


def held_by(
    catalog: Catalog, saver: PlanSaver, dataset: DatasetState, index: Index, shard: ShardId
) -> Held:
    """What the plan counts this shard for; DiskError if that is not known now.

    The catalog alone knows, and a shard whose row is not saved yet would seem to hold none: they would
    never be fetched again.
    """
    if saver.behind:
        raise DiskError(f"the catalog is behind: what {shard} holds is not known")
    if dataset.live[shard.number].shard.generation != dataset.plan.generation:
        return Held()
    units, parts = catalog.held(shard)
    return Held(units.tolist(), slices_of(parts, index.unit))


def saved_plan(dataset: DatasetState, index: Index) -> SavedPlan:
    """What the catalog keeps of a dataset beside its shards."""
    fields = {
        **walk_of(dataset.rules, index),
        "listings": dataset.listings,
        "plan": dataset.plan.to_json(),
        "debt": dataset.debt,
        "last_retired": dataset.last_retired,
        "evicted": dataset.evicted,
        "evicted_shards": dataset.evicted_shards,
        "gaps": list(dataset.gaps.items()),
        "egress": dataset.egress,
        "known": dataset.doubt.known,
        "was_leased": dataset.was_leased,
        "delivered": dataset.live.delivered,
    }
    rules, opened = dataset.rules, tuple(dataset.plan.open.values())
    return SavedPlan(rules.name, fields, opened, rules.excluded_as)


def _schemas(
    layout: Layout, catalog: Catalog, dataset: DatasetState, found: Found
) -> dict[str, dict[str, Any]]:
    """The schema of each generation that has shards, and of the current one if it is known."""
    name = dataset.rules.name
    schemas = dict(found.schemas)
    examples = {k.shard.generation: k.shard.id for k in found.kept if not k.barred}
    generations, rows = found.known
    for place, first in zip(*np.unique(rows["generation"], return_index=True), strict=True):
        examples[generations[place]] = ShardId(name, int(rows["number"][first]))
    for generation in {*examples, dataset.rules.generation}:
        if known := catalog.schema(name, generation):
            schemas[generation] = known
            continue
        schema = schemas.get(generation) or _schema_on_disk(layout, examples.get(generation))
        if schema:
            schemas[generation] = schema
            catalog.save_schema(name, generation, schema)
    dataset.described = dataset.rules.generation in schemas
    return schemas


def _schema_on_disk(layout: Layout, shard: ShardId | None) -> dict[str, Any] | None:
    """As a shard's sidecar has it; the catalog may have missed it when its disk was full."""
    if shard is None:
        return None
    path = layout.sidecar(layout.shard(shard))
    schema: dict[str, Any] | None = json.loads(Sidecar.read(str(path)).meta).get("schema")
    return schema


def lease_of(manifest: Manifest) -> Lease:
    """The lease that a manifest on disk stands for."""
    return Lease(
        id=manifest.lease,
        dataset=manifest.dataset,
        job=manifest.job,
        epoch=manifest.epoch,
        generation=manifest.generation,
        shards=tuple((first, last) for first, last in manifest.shards),
        num_records=manifest.num_records,
        num_bytes=manifest.num_bytes,
        seed=manifest.seed,
        pinned=manifest.pinned,
        fingerprint=manifest.fingerprint,
        walk=manifest.walk,
        cursor=manifest.cursor,
    )


def recover_leases(layout: Layout, state: State, now: float) -> list[str]:
    """Takes up every manifest on disk; a line for each that is damaged.

    A damaged manifest that somebody holds may name any shard: until it ends, all stay. One that
    nobody holds goes: whoever was granted it cannot read it either. Nor could anybody read by one of
    shards that are gone: a power failure may bring back a manifest that was deleted before they were.
    """
    found, damaged = read_manifests(layout)
    lines = []
    for manifest in found:
        lease, path = lease_of(manifest), layout.manifest(manifest.lease)
        dataset = state.datasets.get(lease.dataset)
        if dataset and not dataset.live.has_all(lease.shards) and end(path):
            lines.append(f"{path}: it names shards that are gone (nobody holds it: removed)")
            continue
        state.adopt_lease(lease, now, age_of(path))
        if lease.dataset in state.datasets:
            # A shard of its that is lost must not come back as another under the same number.
            plan = state.datasets[lease.dataset].plan
            highest = max((last for _, last in lease.shards), default=0)
            if highest >= plan.next_number:
                plan.overtake(highest)
    for bad in damaged:
        fate = "held"
        if not bad.held:
            try:
                removed = end(bad.path)
            except DiskError as error:  # the next start tries again
                fate = str(error)
            else:
                fate = "nobody holds it: removed" if removed else "held"
        lines.append(f"{bad.path}: {bad.why} ({fate})")
        name = bad.dataset
        if bad.held and name in state.datasets:
            everything = ((1, max(state.datasets[name].live, default=0)),)
            lease = Lease(bad.path.stem, name, "(damaged)", 0, "", everything, 0, 0, 0, False, "")
            state.adopt_lease(lease, now, age_of(bad.path))
    return lines


def manifest_of(
    lease: Lease, schemas: Mapping[tuple[str, str], dict[str, Any]], window: int | None
) -> Manifest:
    """The lease as its holders read it; `window` None: half of the memory of this process's cgroup."""
    shards = sum(last - first + 1 for first, last in lease.shards)
    return Manifest(
        version=1,
        lease=lease.id,
        dataset=lease.dataset,
        job=lease.job,
        epoch=lease.epoch,
        generation=lease.generation,
        shards=[[first, last] for first, last in lease.shards],
        num_records=lease.num_records,
        num_bytes=lease.num_bytes,
        seed=lease.seed,
        window=resources.window_of(lease.num_bytes, shards, window),
        pinned=lease.pinned,
        fingerprint=lease.fingerprint,
        schema=schemas[lease.dataset, lease.generation],
        walk=lease.walk,
        cursor=lease.cursor,
    )
