"""How a lease's shards were made, told to its run; and what such a run says, held against what is here.

What is taken up is decided by the policy; here are the catalog's and the listing's parts in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from cachecd.asking import far_numbers, no_set, unsure, within
from cachecd.catalog import Catalog
from cachecd.dataset import DatasetState
from cachecd.events import Event
from cachecd.grant import LeaseState
from cachecd.index import Index
from cachecd.model import Assignment, Ranges, ShardId, UnitSlice
from cachecd.parts import Part, slices_of
from cachecd.recipe import Recipe, digest_of
from cachecd.saving import PlanSaver
from cachecd.wanted import ShardsRecalled
from cachecd_client import protocol

# A shard's recipe takes 0.3 ms to read and to pack.
_SHARDS_AT_ONCE = 64
# New units of one Recall: what they take, 40 us each, keeps others waiting. The rest is asked for again.
_UNITS_AT_ONCE = 8192
_SETS = 16  # of so many runs parts come by turns
_HOW = (
    "the set cannot be made again as it was: resume='continue' goes on with another one; if this cache "
    "began before the trainer asked, an empty cache.dir may do"
)


class Recalling:
    """Answers AskRecipes and Recall."""

    def __init__(
        self,
        catalog: Catalog,
        saver: PlanSaver,
        indexes: Mapping[str, Index],
        datasets: Mapping[str, DatasetState],
        leases: Mapping[str, LeaseState],
        ask: Callable[[Event, str], protocol.Reply],
    ) -> None:
        self._catalog = catalog
        self._saver = saver
        self._indexes = indexes
        self._datasets = datasets
        self._leases = leases
        self._ask = ask
        # Of sets that are being recalled, the latest ones, which of their shards are here as they were.
        self._same: dict[tuple[str, Ranges], set[int]] = {}

    def answer(self, request: protocol.AskRecipes | protocol.Recall) -> protocol.Reply:
        """DiskError where the disk fails."""
        if isinstance(request, protocol.AskRecipes):
            return self._recipes(request)
        if request.dataset not in self._datasets:
            return protocol.Refused(
                request.id, "unknown-dataset", f"no dataset {request.dataset!r}"
            )
        try:
            return self._recall(request)
        except _GoneError as error:
            return protocol.Refused(request.id, "set-gone", f"{error}; {_HOW}")
        except ValueError as error:
            return protocol.Refused(request.id, "bad-request", str(error))

    def _recipes(self, request: protocol.AskRecipes) -> protocol.Reply:
        state = self._leases.get(request.lease)
        if state is None or state.lease.dataset not in self._datasets:
            return protocol.Refused(request.id, "lease-lost", f"lease {request.lease} has ended")
        if self._saver.behind:
            return protocol.Refused(request.id, "bad-request", "the catalog's disk refuses")
        numbers = protocol.numbers_of(state.lease.shards)
        some = [n for n in numbers if n >= request.first][:_SHARDS_AT_ONCE]
        name = state.lease.dataset
        return protocol.Recipes(request.id, [self._recipe(ShardId(name, n)) for n in some])

    def _recipe(self, shard: ShardId) -> str:
        dataset = self._datasets[shard.dataset]
        live = dataset.live.get(shard.number)
        found = self._catalog.recipe(shard)
        if live is None or found is None or live.shard.generation not in dataset.numbered_alike:
            return ""
        sealed = live.shard
        units = Recipe.packed(found, self._indexes[shard.dataset].segments)
        return Recipe(shard.number, sealed.records, sealed.data_bytes, sealed.digest, units).text

    def _recall(self, request: protocol.Recall) -> protocol.Reply:
        name = request.dataset
        dataset, index = self._datasets[name], self._indexes[name]
        named = tuple((pair[0], pair[-1]) for pair in request.shards if pair)
        if wrong := no_set(named, dataset.plan.next_number):
            raise ValueError(wrong)
        if request.generation != dataset.rules.generation:
            raise _GoneError(
                f"the set is of generation {request.generation}, this daemon makes "
                f"{dataset.rules.generation}: source, transform or generation are configured otherwise"
            )
        last = named[-1][1] if named else 0
        if far := far_numbers(last, dataset):
            if not (waiting := unsure(dataset)):
                raise ValueError(far)
            return self._ask(ShardsRecalled(request.id, name, (), 0, last, waiting), request.id)
        same = self._same.pop((name, named), set())
        self._same[name, named] = same
        while len(self._same) > _SETS:
            del self._same[next(iter(self._same))]
        # Those too that a daemon took up which was killed since.
        same |= {n for n in dataset.recall.numbers if within(n, named)}
        wanted: list[tuple[Recipe, tuple[Part, ...]]] = []
        numbers: set[int] = set()
        waiting, units = "", 0
        for text in request.recipes:
            recipe = Recipe.of_text(text)
            if not within(recipe.number, named):
                raise ValueError(f"a recipe of shard {recipe.number}, which is not of the set")
            if recipe.number in numbers:
                raise ValueError(f"two recipes of shard {recipe.number}")
            numbers.add(recipe.number)
            if not self._is_new(dataset, recipe):
                same.add(recipe.number)
                continue
            if units >= _UNITS_AT_ONCE:
                waiting = "the recipes are taken up part by part"
                break
            parts = recipe.parts(index.segments)
            if parts is None or (dataset.rules.awaits and not index.complete):
                if index.complete:
                    raise _GoneError("the source lists fewer units than it did")
                waiting = f"listing the source: {len(index)} units so far"
                wanted.clear()
                break
            units += len(parts)
            wanted.append((recipe, parts))
        wanted.sort(key=lambda each: each[0].number)
        assignments = tuple(self._assignment(dataset, *each, index) for each in wanted)
        self._check_others(dataset, same, assignments)
        event = ShardsRecalled(request.id, name, assignments, request.num_bytes, last, waiting)
        reply = self._ask(event, request.id)
        if isinstance(reply, protocol.Done):
            same |= numbers
        return reply

    def _is_new(self, dataset: DatasetState, recipe: Recipe) -> bool:
        """Whether nothing is known of the shard here; _GoneError if it is another one, or has gone."""
        number, plan = recipe.number, dataset.plan
        if number in plan.open:
            if digest_of(plan.open[number].units) != recipe.digest:
                raise _GoneError(f"shard {number} is being made here of other units")
            return False
        if number >= plan.next_number:
            return True
        live = dataset.live.get(number)
        if live is None or not live.served:
            raise _GoneError(f"shard {number} was here, and is gone or going")
        sealed = live.shard
        if sealed.digest != recipe.digest:
            raise _GoneError(f"shard {number} was made here of other units")
        if (sealed.records, sealed.data_bytes) != (recipe.records, recipe.data_bytes):
            raise _GoneError(
                f"shard {number} has {sealed.records} records of {sealed.data_bytes} bytes here, and had "
                f"{recipe.records} of {recipe.data_bytes}, made of the same units"
            )
        return False

    def _assignment(
        self, dataset: DatasetState, recipe: Recipe, parts: tuple[Part, ...], index: Index
    ) -> Assignment:
        units = slices_of(parts, index.unit)
        if digest_of(units) != recipe.digest:
            raise _GoneError(
                f"shard {recipe.number} was made of units that the source does not list any more with the "
                "same keys and sizes"
            )
        shard = ShardId(dataset.rules.name, recipe.number)
        return Assignment(shard, dataset.rules.generation, units)

    def _check_others(
        self, dataset: DatasetState, ours: set[int], assignments: tuple[Assignment, ...]
    ) -> None:
        """_GoneError if another shard than `ours` of the set has records of these: a later set would have
        them twice."""
        units = np.array(sorted({u.unit for a in assignments for u in a.units}), np.uint64)
        begins = {u.unit: u.ordinal for a in reversed(assignments) for u in a.units}
        there = dataset.plan.partly_held(units.tolist())  # mostly none: then no shard is looked at
        for number in [n for n in dataset.live if n not in ours] if there else ():
            other = dataset.live[number]
            # No set has shards of two generations.
            if other.released or other.shard.generation != dataset.rules.generation:
                continue
            held, parts = self._catalog.held(ShardId(dataset.rules.name, number))
            stops = {part.unit: part.stop for part in parts}
            for unit in held[np.isin(held, units)].tolist():
                if not 0 < stops.get(unit, 0) <= begins[unit]:
                    raise _GoneError(
                        f"shard {number}, which is not of the set, has records of it too"
                    )
        for number, open_one in dataset.plan.open.items():
            if number not in ours and any(u.unit in begins for u in open_one.units):
                raise _GoneError(f"shard {number}, which is being made, has records of the set too")
        wanted: dict[int, list[UnitSlice]] = {}
        for unit_slice in (u for a in assignments for u in a.units):
            wanted.setdefault(unit_slice.unit, []).append(unit_slice)
        for left in dataset.plan.left_over if wanted else ():
            same = wanted.get(left.unit, [])
            # What one of them begins with is taken from there.
            begun = any(each.ordinal == left.ordinal for each in same)
            if not begun and any(_overlap(each, left) for each in same):
                raise _GoneError(f"what is left to do of {left.key!r} is cut here otherwise")


def _overlap(one: UnitSlice, other: UnitSlice) -> bool:
    """Whether two parts of a unit have records in common."""
    first, second = sorted((one, other), key=lambda part: part.ordinal)
    return not 0 < first.stop <= second.ordinal


class _GoneError(Exception):
    """Why the set cannot be had again."""
