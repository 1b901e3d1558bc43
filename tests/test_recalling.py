"""What a daemon says of how shards were made, and what another one makes of it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachecd import events as ev
from cachecd.catalog import Catalog
from cachecd.dataset import DatasetState, Making
from cachecd.index import Index
from cachecd.ingest import finish
from cachecd.ledger import Ledger, footprint
from cachecd.model import Assignment, ObjectInfo, Outcome, Shard, ShardId
from cachecd.parts import Part, slices_of
from cachecd.plan import Plan
from cachecd.recall import PATIENCE, Recall
from cachecd.recalling import Recalling
from cachecd.recipe import Recipe, digest_of, packed_parts, unpacked_parts
from cachecd.recovery import saved_plan
from cachecd.rules import DatasetRules
from cachecd.saving import PlanSaver
from cachecd.segments import Segments
from cachecd.state import State
from cachecd_client import protocol
from tests.units import Units, full

SHARD_SIZE = 64 << 10
OBJECTS = [ObjectInfo(f"{number:04d}", 20_000) for number in range(30)]  # three to a shard


class Machine:
    """A cache directory and what answers of its daemon, but for samplers: shards are made by `make`."""

    def __init__(self, root: Path, objects: list[ObjectInfo] = OBJECTS, listed: int = 30) -> None:
        root.mkdir()
        self.index = Index.open(root, "train", "s")
        self.index.append(objects[:listed])
        if listed >= len(objects):
            self.index.finish()
        self.catalog = Catalog(root / "catalog")
        self.state = State(Ledger(1 << 30, footprint(SHARD_SIZE)), SHARD_SIZE, 0, "b")
        self.rules = DatasetRules("train", "1-a", first=SHARD_SIZE)
        plan = Plan("train", "1-a", self.index, 0, SHARD_SIZE)
        plan.extend(self.index.complete)
        self.dataset = DatasetState(self.rules, plan)
        self.dataset.described = True
        self.dataset.listings["1-a"] = self.index.id
        self.state.add_dataset(self.dataset)
        saver = PlanSaver(self.catalog, lambda name: saved_plan(self.dataset, self.index))
        self.recalling = Recalling(
            self.catalog,
            saver,
            {"train": self.index},
            self.state.datasets,
            self.state.leases,
            self._ask,
        )
        self.saver = saver
        self.now = 0.0

    def _ask(self, event: ev.Event, request: str) -> protocol.Reply:
        answer = None
        for command in self.state.handle(event, self.now):
            match command:
                case ev.SavePlan():
                    self.saver.save(command)
                case ev.ReplyDone(id):
                    answer = protocol.Done(id)
                case ev.ReplyWaiting(id, reason=reason):
                    answer = protocol.Waiting(id, 0, 0, 0.0, reason)
                case ev.ReplyRefused(id, code, message):
                    answer = protocol.Refused(id, code, message)
        assert answer is not None
        return answer

    def make(self, times: int = 1) -> None:
        """The next shards, or those that were recalled."""
        for _ in range(times):
            number = min(self.dataset.retry, default=0)
            assignment = self.dataset.plan.open[number] if number else self.dataset.plan.assign()
            assert isinstance(assignment, Assignment)
            self.dataset.retry.pop(number, None)
            self.catalog.save_progress(saved_plan(self.dataset, self.index))
            self.seal(assignment, full(assignment))

    def seal(self, assignment: Assignment, outcome: Outcome) -> None:
        number = assignment.shard.number
        units = sorted({u.unit for u in assignment.units})
        parts = self.dataset.plan.finish(number, outcome, units)
        digest = digest_of(assignment.units)
        shard = Shard(assignment.shard, "1-a", outcome.records, outcome.data_bytes, 8192, digest)
        self.dataset.live.add(shard)
        plan = saved_plan(self.dataset, self.index)
        self.catalog.save_progress(plan, number, shard, units, parts)

    def lease(self) -> ev.Command:
        (granted,) = (
            command
            for command in self.state.handle(ev.AcquireAsked("r", "train", "job", 0), 0.0)
            if isinstance(command, ev.WriteManifest)
        )
        return granted.lease

    def recipes(self, lease: str, first: int = 1) -> list[str]:
        reply = self.recalling.answer(protocol.AskRecipes("r", lease, first))
        assert isinstance(reply, protocol.Recipes)
        return reply.recipes

    def recall(
        self, recipes: list[str], generation: str = "1-a", num_bytes: int = 1
    ) -> protocol.Reply:
        shards = [[int(recipes[0].split(" ")[0]), int(recipes[-1].split(" ")[0])]]
        request = protocol.Recall("r", "train", generation, shards, num_bytes, recipes)
        return self.recalling.answer(request)

    def close(self) -> None:
        self.index.close()
        self.catalog.close()


@contextlib.contextmanager
def machines(root: Path) -> Iterator[Callable[..., Machine]]:
    """Makes them, in folders of their own, and closes them."""
    with contextlib.ExitStack() as made:
        folders = map(str, itertools.count())
        yield lambda *arguments: made.enter_context(
            contextlib.closing(Machine(root / next(folders), *arguments))
        )


@pytest.fixture
def machine(tmp_path):
    with machines(tmp_path) as make:
        yield make


@pytest.fixture
def first(machine) -> tuple[list[str], str]:
    """The recipes of a set of four shards, and its fingerprint."""
    one = machine()
    one.make(4)
    lease = one.lease()
    assert one.recipes(lease.id, 3) == one.recipes(lease.id)[2:]
    return one.recipes(lease.id), lease.fingerprint


def test_a_set_that_is_made_again_by_its_recipes_has_its_fingerprint(machine, first):
    recipes, fingerprint = first
    other = machine()
    assert other.recall(recipes[1:]) == protocol.Done("r")
    assert other.recall(recipes[1:]) == protocol.Done("r"), "told twice is told once"
    other.make(3)
    whole = machine()
    whole.recall(recipes)
    whole.make(4)
    assert whole.lease().fingerprint == fingerprint
    assert other.lease().fingerprint != fingerprint
    assert other.recipes(next(iter(other.state.leases))) == recipes[1:]


def test_a_shard_that_is_being_made_or_there_of_the_same_units_is_taken_as_it_is(machine, first):
    recipes, _ = first
    other = machine()
    other.make(1)
    other.dataset.plan.assign()
    assert other.recall(recipes) == protocol.Done("r")
    assert sorted(other.dataset.plan.open) == [2, 3, 4]


def refused(reply: protocol.Reply) -> str:
    assert isinstance(reply, protocol.Refused), reply
    assert reply.code == "set-gone"
    return reply.message


def test_units_that_are_listed_otherwise_are_refused(machine, first):
    recipes, _ = first
    rewritten = [dataclasses.replace(o, size=o.size + 1) for o in OBJECTS]
    said = refused(machine(rewritten).recall(recipes))
    assert "does not list any more with the same keys and sizes" in said
    assert "fewer units" in refused(machine(OBJECTS[:3], 3).recall(recipes))


def test_while_the_source_is_listed_a_recall_waits_and_nothing_else_is_begun(machine, first):
    recipes, _ = first
    other = machine(OBJECTS, 10)
    assert isinstance(other.recall(recipes), protocol.Waiting)
    assert other.dataset.recall.awaits(1, PATIENCE - 1)
    assert not other.dataset.recall.awaits(1, PATIENCE), "the run has gone away"
    assert not other.dataset.recall.awaits(5, 0.0), "the set has four"
    other.index.append(OBJECTS[10:])
    other.index.finish()
    other.dataset.listed_on(True, True, 0.0)
    assert other.recall(recipes) == protocol.Done("r")


def parts_of_a_unit(machine) -> list[str]:
    """Recipes of two shards over which a unit is cut."""

    def text(number: int, part: Part) -> str:
        units = slices_of([part], machine.index.unit)
        packed = Recipe.packed([part], machine.index.segments)
        return Recipe(number, 1, 1, digest_of(units), packed).text

    return [text(1, Part(0, 0, 0)), text(2, Part(0, 2, 10_000))]


@pytest.mark.parametrize("meanwhile", ["another run recalls", "the daemon is killed"])
def test_a_recall_goes_on_with_its_next_part_whatever_was_between(machine, meanwhile):
    one = machine()

    def recall(shards: list[list[int]], recipe: str) -> protocol.Reply:
        return one.recalling.answer(protocol.Recall("r", "train", "1-a", shards, 1, [recipe]))

    first, second = parts_of_a_unit(one)
    assert recall([[1, 2]], first) == protocol.Done("r")
    if meanwhile == "another run recalls":
        assert recall([[1, 1]], first) == protocol.Done("r")
    else:
        one.recalling._same.clear()
    assert recall([[1, 2]], second) == protocol.Done("r")


def test_of_two_runs_that_recall_the_later_numbers_are_kept():
    recall = Recall()
    recall.awaited(100, 0.0)
    recall.awaited(50, 1.0)
    assert recall.awaits(61, 2.0)
    recall.awaited(50, 2 * PATIENCE)
    assert not recall.awaits(61, 2 * PATIENCE), "the first has gone away"


def test_a_number_of_another_shard_is_refused(machine, first):
    recipes, _ = first
    other = machine()
    parts = Recipe.of_text(recipes[0]).parts(other.index.segments)
    other.dataset.plan.set_aside([parts[0].unit])
    other.make(1)
    assert "shard 1 was made here of other units" in refused(other.recall(recipes))
    other.dataset.live[1].barred = True
    assert "was here, and is gone or going" in refused(other.recall(recipes))


def test_a_shard_that_came_out_otherwise_is_refused(machine, first):
    recipes, _ = first
    other = machine()
    assignment = other.dataset.plan.assign()
    other.catalog.save_progress(saved_plan(other.dataset, other.index))
    other.seal(assignment, dataclasses.replace(full(assignment), records=1))
    assert "made of the same units" in refused(other.recall(recipes))


def test_records_that_another_shard_has_are_refused(machine, first):
    """As of a small source that was gone through before: a later set would have them twice."""
    recipes, _ = first
    other = machine()
    other.make(1)
    said = refused(other.recall([recipes[0].replace("1 ", "9 ", 1)]))
    assert "shard 1, which is not of the set, has records of it too" in said


def test_another_generation_or_no_room_or_no_recipe_is_said(machine, first):
    recipes, _ = first
    other = machine()
    assert "generation 2-b" in refused(other.recall(recipes, "2-b"))
    reply = other.recall(recipes, num_bytes=2 << 30)
    assert (reply.code, "raise cache.limit" in reply.message) == ("impossible", True)
    for text in ("1 2 3 4 !", "1 2", f"1 2 3 4 {recipes[0].split(' ')[4][:12]}"):
        request = protocol.Recall("r", "train", "1-a", [[1, 1]], 1, [text])
        reply = other.recalling.answer(request)
        assert reply.code == "bad-request"
        assert reply.message.startswith("no recipe")


def test_of_a_shard_whose_row_is_lost_the_recipe_is_not_known(machine):
    one = machine()
    one.make(2)
    lease = one.lease()
    one.catalog.remove(ShardId("train", 2))
    known, lost = one.recipes(lease.id)
    assert known
    assert lost == ""


def test_of_shards_that_name_their_units_by_another_listing_no_recipe_is_known(machine):
    one = machine()
    one.make(2)
    lease = one.lease()
    one.dataset.listings |= {"1-a": "another", "2-a": one.index.id}
    one.dataset.rules = dataclasses.replace(one.rules, generation="2-a")
    assert one.recipes(lease.id) == ["", ""]


def test_of_several_sources_units_are_named_by_source_and_ordinal():
    """However their listings fell among each other."""
    one, other = Segments(2), Segments(2)
    for segments, order in ((one, (0, 1, 0)), (other, (1, 0, 0))):
        for source in order:
            segments.add(source, 10)
    parts = (Part(3, 0, 0), Part(12, 0, 0, 5), Part(25, 2, 100))
    recipe = Recipe(7, 3, 100, 1 << 62, Recipe.packed(parts, one))
    read = Recipe.of_text(recipe.text)
    assert read == recipe
    assert read.parts(other) == (Part(13, 0, 0), Part(2, 0, 0, 5), Part(25, 2, 100))
    other = Segments(2)
    other.add(0, 20)
    assert read.parts(other) is None, "the other source is not listed yet"


def test_a_recipe_takes_as_many_bytes_a_unit_as_its_number_has():
    parts = [Part(number * 7919 % (1 << 23), 0, 0) for number in range(4096)]
    blob = packed_parts(parts)
    assert unpacked_parts(blob) == parts
    assert len(blob) < 3.3 * len(parts)


# --- what recalled shards leave over


def plan_of(units: int = 40) -> Plan:
    plan = Plan("train", "1-a", Units([20_000] * units), 0, SHARD_SIZE)
    plan.extend()
    return plan


def assignment(plan: Plan, number: int, *parts: tuple[int, int, int]) -> Assignment:
    units = (
        dataclasses.replace(plan._units.unit(unit), ordinal=ordinal, stop=stop)
        for unit, ordinal, stop in parts
    )
    return Assignment(ShardId("train", number), "1-a", tuple(units))


def test_what_a_recalled_shard_leaves_over_is_handed_out_unless_another_begins_with_it():
    plan, recall = plan_of(), Recall()
    shards = [
        assignment(plan, 5, (1, 0, 0), (2, 0, 0), (3, 0, 0)),
        assignment(plan, 7, (2, 1, 0), (3, 0, 0)),
    ]
    recall.take(plan, shards)
    assert plan.next_number == 8
    rest = (
        dataclasses.replace(shards[0].units[0], ordinal=2),
        dataclasses.replace(shards[0].units[1], ordinal=1),
        shards[0].units[2],
    )
    outcome = Outcome(3, 100, 1, 1, 1, 1.0, rest)
    elsewhere = recall.elsewhere(plan, 5, outcome)
    assert elsewhere == {(2, 1), (3, 0)}
    plan.finish(5, outcome, [1, 2])
    plan.drop(elsewhere)
    assert [(u.unit, u.ordinal) for u in plan.left_over] == [(1, 2)]


def test_what_was_left_over_before_is_not_handed_out_if_a_recalled_shard_begins_with_it():
    plan, recall = plan_of(), Recall()
    head = plan.assign()
    assert isinstance(head, Assignment)
    cut = dataclasses.replace(head.units[0], ordinal=2)
    plan.finish(1, Outcome(1, 1, 1, 1, 1, 1.0, (cut,)), [u.unit for u in head.units])
    recall.take(plan, [Assignment(ShardId("train", 5), "1-a", (cut,))])
    assert plan.left_over == []


def test_what_is_recalled_survives_a_restart_with_what_belongs_to_it():
    plan, recall = plan_of(), Recall()
    shards = [assignment(plan, 5, (1, 0, 0)), assignment(plan, 7, (1, 2, 0))]
    recall.take(plan, shards)
    saved, told = plan.to_json(), recall.to_json()["recalled"]
    again, after = plan_of(0), Recall()
    again._units = plan._units
    again.restore(saved, plan.open.values())
    after.restore(told, again, [])
    rest = (dataclasses.replace(shards[0].units[0], ordinal=2),)
    assert after.elsewhere(again, 5, Outcome(2, 1, 1, 1, 1, 1.0, rest)) == {(1, 2)}


def test_a_shard_that_is_made_again_leaves_nothing_that_another_has_begun(machine):
    dataset = machine().dataset
    first = assignment(dataset.plan, 5, (1, 0, 0))
    dataset.recall.take(dataset.plan, [first, assignment(dataset.plan, 7, (1, 2, 0))])
    dataset.making[5] = Making()
    rest = dataclasses.replace(first.units[0], ordinal=2)
    finish(dataset, 5, Outcome(2, 1, 1, 1, 1, 1.0, (rest,)), units=[1])
    assert dataset.plan.left_over == []
