"""Units poured side by side: in which order, and what becomes of them where the shard ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from cachecd.errors import UnitError
from cachecd.model import UnitSlice
from cachecd.sampler.draft import Draft
from cachecd.sampler.mixing import mix
from cachecd_client._core import Sidecar
from cachecd_client.schema import Feature, Schema

SCHEMA = Schema((Feature("x", "bytes", "bytes", ()),))


class Fakes:
    """Units of so many records of given sizes; one of a size below 0 is bad."""

    def __init__(self, draft: Draft, units: list[UnitSlice], sizes: list[list[int]]) -> None:
        self.draft, self.units, self.sizes = draft, units, sizes
        self.failed: list[int] = []
        self.most_open = self.open = self.running = 0
        self.at = -1

    def begin(self, place: int) -> AsyncGenerator[tuple[int, int], None]:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        return self.pour(self.units[place])

    async def pour(self, unit: UnitSlice) -> AsyncGenerator[tuple[int, int], None]:
        self.running += 1
        try:
            for ordinal, size in enumerate(self.sizes[unit.unit]):
                yield ordinal, 1000 * ordinal
                if size < 0:
                    raise UnitError("bad")
                if not self.draft.add({"x": bytes(size)}, unit.unit, ordinal):
                    yield ordinal, 1000 * ordinal
                    return
        finally:
            self.running -= 1

    def work(self, place: int) -> None:
        self.at = place

    def reached(self, place: int, position: tuple[int, int]) -> None:
        assert (place, position[1]) == (self.at, 1000 * position[0])

    def ended(self, place: int, error: UnitError | None) -> None:
        self.open -= 1
        if error is not None:
            self.failed.append(place)


def poured(
    folder: Path,
    sizes: list[list[int]],
    lanes: int,
    capacity: int = 1 << 20,
    most_open: float = float("inf"),
) -> tuple[list[tuple[int, int]], tuple[UnitSlice, ...], Fakes]:
    """(unit, ordinal) of the shard's records, what is left, and what was said."""
    draft = Draft(str(folder / "shard"), capacity, SCHEMA, lambda _: None, {})
    units = [UnitSlice(n, str(n), sum(map(abs, of))) for n, of in enumerate(sizes)]
    fakes = Fakes(draft, units, sizes)
    rest = asyncio.run(mix(units, fakes, draft, lanes, (), most_open))
    assert fakes.running == 0, "what was begun is closed"
    draft.seal(rest)
    sidecar = Sidecar.read(str(folder / "shard.idx"))
    return list(zip(sidecar.units.tolist(), sidecar.ordinals.tolist(), strict=True)), rest, fakes


def test_one_lane_pours_one_unit_after_the_other(tmp_path):
    records, rest, _ = poured(tmp_path, [[10] * 3, [10] * 2], lanes=1)
    assert (records, rest) == ([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)], ())


def test_lanes_take_turns_and_go_on_with_the_next_unit(tmp_path):
    records, rest, _ = poured(tmp_path, [[10] * 3, [10], [10] * 2], lanes=2)
    assert (records, rest) == ([(0, 0), (1, 0), (0, 1), (2, 0), (0, 2), (2, 1)], ())


def test_each_lane_gives_as_many_bytes_whatever_the_size_of_its_records(tmp_path):
    records, rest, _ = poured(tmp_path, [[10_000] * 50, [1000] * 500], lanes=2, capacity=200 << 10)
    counts = Counter(unit for unit, _ in records)
    assert abs(10_000 * counts[0] - 1000 * counts[1]) < 15_000
    assert [(u.unit, u.ordinal, u.offset) for u in rest] == [
        (unit, counts[unit], 1000 * counts[unit]) for unit in (0, 1)
    ]


def test_what_is_left_is_in_its_order_begun_or_not(tmp_path):
    sizes = [[20_000] * 9 for _ in range(6)]
    records, rest, _ = poured(tmp_path, sizes, lanes=3, capacity=200 << 10)
    assert [u.unit for u in rest] == list(range(6))
    assert [u.ordinal for u in rest] == [4, 3, 3, 0, 0, 0]
    assert len(records) == 10


def test_a_unit_that_fails_gives_its_lane_to_the_next_and_keeps_what_it_gave(tmp_path):
    records, rest, fakes = poured(tmp_path, [[10, 10, -1, 10], [10] * 4, [10]], lanes=2)
    assert {r for r in records if r[0] == 0} == {(0, 0), (0, 1)}
    assert (2, 0) in records
    assert fakes.failed == [0]
    assert rest == ()


@pytest.mark.parametrize(("most", "open_at_once"), [(250, 2), (10, 1), (1e9, 4)])
def test_no_more_is_open_than_may_be_but_one_unit(tmp_path, most, open_at_once):
    records, _, fakes = poured(tmp_path, [[100]] * 9, lanes=4, most_open=most)
    assert sorted(unit for unit, _ in records) == list(range(9))
    assert fakes.most_open == open_at_once


def test_a_mixed_shard_ends_a_little_early_between_two_records(tmp_path):
    capacity = 1 << 20
    _, rest, _ = poured(tmp_path, [[1000] * 999] * 2, lanes=2, capacity=capacity)
    size = (tmp_path / "shard").stat().st_size + (tmp_path / "shard.idx").stat().st_size
    assert capacity * 0.985 < size < capacity * 0.995
    assert all(u.offset for u in rest)
