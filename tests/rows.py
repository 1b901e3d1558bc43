"""What a catalog keeps of the policy, in memory: as `Catalog`, without its file, and as fast as the rest.

Plans go through JSON, as on their way to the disk, so nothing of the running policy survives in here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.catalog import SavedPlan
from cachecd.errors import DiskError
from cachecd.model import SetAside, Shard, ShardId, UnitName
from cachecd.parts import Part, part_of, parts_written
from cachecd.reconcile import Found, Kept, Written
from tests.units import Records


@dataclass(frozen=True)
class ShardRow:
    shard: Shard
    retired: bool
    barred: bool


class Rows:
    """Every writing method is done or not; while `refuses`, it is not, and DiskError is raised."""

    def __init__(self) -> None:
        self.refuses = False
        self.rows: dict[ShardId, tuple[ShardRow, NDArray[np.uint64], Sequence[Part]]] = {}
        self._plans: dict[str, str] = {}
        self._open: dict[tuple[str, int], tuple[str, list[Part]]] = {}
        self._aside: dict[tuple[str, int], SetAside] = {}
        self._excluded: set[tuple[str, UnitName]] = set()

    def egress(self, dataset: str) -> int:
        return 0

    def _write(self) -> None:
        if self.refuses:
            raise DiskError("the catalog's disk refuses")

    # --- reading

    def plan(self, dataset: str) -> dict[str, Any] | None:
        return json.loads(self._plans[dataset]) if dataset in self._plans else None

    def parked(self, dataset: str) -> dict[str, dict[str, Any]]:
        names = [name for name in self._plans if name.startswith(f"{dataset}@")]
        return {name.partition("@")[2]: json.loads(self._plans[name]) for name in names}

    def generations(self, dataset: str) -> set[str]:
        return {row.shard.generation for s, (row, *_) in self.rows.items() if s.dataset == dataset}

    def held(self, shard: ShardId) -> tuple[NDArray[np.uint64], Sequence[Part]]:
        return self.rows[shard][1:] if shard in self.rows else (np.zeros(0, np.uint64), ())

    def units_held(
        self, dataset: str, generation: str, without: Container[int]
    ) -> Iterator[NDArray[np.uint64]]:
        for shard, (row, units, _) in self.rows.items():
            mine = shard.dataset == dataset and row.shard.generation == generation
            if mine and not row.barred and shard.number not in without:
                yield units

    def forget_adopted(self, dataset: str) -> None:
        """Nothing of it is here: sidecars are looked at anew at each start."""

    def parts_held(self, dataset: str, generation: str, without: Container[int]) -> list[Part]:
        return [
            part
            for shard, (row, _, parts) in self.rows.items()
            if shard.dataset == dataset and row.shard.generation == generation
            if not row.barred and shard.number not in without
            for part in parts
        ]

    def assignments(self, dataset: str) -> list[tuple[int, str, list[Part]]]:
        return [(n, *row) for (name, n), row in sorted(self._open.items()) if name == dataset]

    def set_aside(self, dataset: str) -> list[SetAside]:
        return [aside for (name, _), aside in sorted(self._aside.items()) if name == dataset]

    def excluded(self, *datasets: str) -> list[UnitName]:
        return sorted({unit for name, unit in self._excluded if name in datasets})

    def let_in(self, dataset: str, numbers: Iterable[int]) -> None:
        self._excluded -= {(dataset, (f"key-{number}", 0)) for number in numbers}

    def excluded_units(self, dataset: str) -> set[int]:
        """Their numbers, as `Units` names them."""
        return {int(key.removeprefix("key-")) for key, _ in self.excluded(dataset)}

    def holders(
        self, dataset: str, units: Container[int], generations: Container[str]
    ) -> list[list[int]]:
        found = [
            shard.number
            for shard, (row, held, _) in self.rows.items()
            if shard.dataset == dataset and row.shard.generation in generations
            if not row.barred and any(int(u) in units for u in held)
        ]
        return [found]

    def find_shards(
        self,
        dataset: str,
        used: int,
        disk: Mapping[ShardId, Records],
        meta: Mapping[ShardId, dict[str, Any]],
    ) -> Found:
        """As `reconcile.find_shards`: a row without files goes, files without one come back."""
        found = Found()
        opened = {number for number, _, _ in self.assignments(dataset)}
        for shard in sorted(s for s in self.rows.keys() | disk.keys() if s.dataset == dataset):
            if shard not in disk:
                row = self.rows[shard][0]
                if row.retired or row.barred:
                    found.gone.append((row.shard, row.retired))
                self.remove(shard)
            elif shard in self.rows and shard.number <= used and shard.number not in opened:
                row, units, parts = self.rows[shard]
                found.kept.append(Kept(row.shard, row.retired, row.barred, parts=parts))
            else:
                records = sorted(disk[shard])
                units, first = np.unique([u for u, _ in records], return_index=True)
                units, firsts = units.astype(np.uint64), np.array([o for _, o in records])[first]
                row = self.rows[shard][0] if shard in self.rows else None
                marks = (row.retired, row.barred) if row else (False, False)
                stops = dict(meta[shard].get("stops", ()))
                parts = parts_written(units, firsts, meta[shard]["remainder"], stops)
                walk = {**meta[shard], "most": int(units.max(initial=0))}
                written = Written(units, 0) if shard.number in opened else None
                kept = Kept(meta[shard]["shard"], *marks, walk, parts, written)
                self.rows[shard] = (ShardRow(kept.shard, *marks), units, parts)
                found.kept.append(kept)
        return found

    # --- writing

    def save_progress(
        self,
        plan: SavedPlan,
        done: int | None = None,
        shard: Shard | None = None,
        units: Sequence[int] | NDArray[np.uint64] = (),
        parts: Sequence[Part] = (),
        set_aside: Iterable[SetAside] = (),
        again: Iterable[int] = (),
        barred: int | None = None,
        excluded: Iterable[UnitName] = (),
        removed: int | None = None,
    ) -> None:
        self._write()
        if done is not None:
            self._open.pop((plan.dataset, done), None)
        for a in plan.open:
            self._open[plan.dataset, a.shard.number] = (a.generation, [*map(part_of, a.units)])
        if shard is not None:
            held = np.sort(np.asarray(units, np.uint64))
            self.rows[shard.id] = (ShardRow(shard, False, False), held, parts)
        if (marked := ShardId(plan.dataset, barred or 0)) in self.rows:
            row, *rest = self.rows[marked]
            self.rows[marked] = (dataclasses.replace(row, barred=True), *rest)
        self.rows.pop(ShardId(plan.dataset, removed or 0), None)
        for unit in again:
            self._aside.pop((plan.dataset, unit), None)
        self._aside.update(((plan.dataset, aside.unit), aside) for aside in set_aside)
        self._excluded |= {(plan.dataset, name) for name in excluded}
        self._plans[plan.dataset] = json.dumps(plan.fields)

    def retire(self, dataset: str, numbers: Iterable[int]) -> None:
        self._write()
        for shard in (ShardId(dataset, number) for number in numbers):
            if shard in self.rows:
                row, *rest = self.rows[shard]
                self.rows[shard] = (dataclasses.replace(row, retired=True), *rest)

    def remove(self, shard: ShardId) -> None:
        self._write()
        self.rows.pop(shard, None)

    def start_over(self, plan: SavedPlan, asides: Iterable[SetAside] | None = ()) -> None:
        self._write()
        name = plan.dataset
        self._plans[name] = json.dumps(plan.fields)
        self._open = {k: v for k, v in self._open.items() if k[0] != name}
        if asides is not None:
            self._aside = {k: v for k, v in self._aside.items() if k[0] != name}
            self._aside.update(((name, aside.unit), aside) for aside in asides)

    def bar(self, dataset: str, numbers: Iterable[int]) -> None:
        self._write()
        for shard in (ShardId(dataset, number) for number in numbers):
            if shard in self.rows:
                row, *rest = self.rows[shard]
                self.rows[shard] = (dataclasses.replace(row, barred=True), *rest)

    def on_walk(self, dataset: str, walk: str) -> None:
        """Here units set aside move with their plan."""

    def turn(self, dataset: str, before: str | None, to: str) -> None:
        self._write()
        if before is not None:
            order = [plan.get("parked", 0) for plan in self.parked(dataset).values()]
            plan = {**json.loads(self._plans[dataset]), "parked": 1 + max(order, default=0)}
            self._plans[dataset] = json.dumps(plan)
            self._move(dataset, f"{dataset}@{before}")
        self._move(f"{dataset}@{to}", dataset)
        plans = self.parked(dataset)
        for old in sorted(plans, key=lambda name: plans[name]["parked"])[:-2]:
            self._move(f"{dataset}@{old}", None)

    def _move(self, old: str, new: str | None) -> None:
        if old in self._plans:
            self._plans[new or ""] = self._plans.pop(old)
        for table in (self._open, self._aside):
            for key in [key for key in table if key[0] == old]:
                table[new or "", key[1]] = table.pop(key)  # type: ignore[index, assignment]
        if new is None:
            self._plans.pop("")
            self._open = {key: row for key, row in self._open.items() if key[0]}
            self._aside = {key: row for key, row in self._aside.items() if key[0]}
