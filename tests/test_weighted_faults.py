"""What goes wrong with several sources, as the shortest story that shows it."""

from __future__ import annotations

from dataclasses import replace

from cachecd import events as ev
from cachecd.dataset import DatasetState
from cachecd.ledger import METADATA_SLACK, Ledger
from cachecd.model import Outcome, ShardId, UnitSlice
from cachecd.plan import Plan
from cachecd.rules import DatasetRules
from cachecd.sourcewalk import SourceRules
from cachecd.state import State
from cachecd.status import document
from tests.sources import Kind, Several, work
from tests.units import FOOTPRINT, SHARD_SIZE

TWO = (SourceRules(), SourceRules())


def plan_of(units: Several) -> Plan:
    return Plan("train", "g", units, 17, SHARD_SIZE, TWO)


def listed(*kinds: Kind) -> Several:
    units = Several(kinds)
    units.go_on(10**6)
    return units


class Policy:
    """A daemon's policy over two sources, one shard at a time."""

    def __init__(self, units: Several, *, pin: bool = False) -> None:
        self.state = State(Ledger(METADATA_SLACK + 99 * FOOTPRINT, FOOTPRINT), SHARD_SIZE, 1, "b")
        rules = DatasetRules("train", "g", 1, sources=TWO, pin=pin)
        self.dataset = DatasetState(rules, plan_of(units))
        self.dataset.described = True
        self.state.add_dataset(self.dataset)
        self.asked = ev.Listed("train", len(units), complete=True)

    def started(self, event: ev.Event, now: float) -> tuple[UnitSlice, ...]:
        """What is asked for then."""
        starts = [c for c in self.state.handle(event, now) if isinstance(c, ev.StartShard)]
        return starts[0].assignment.units if starts else ()

    def away(self, number: int, source: int) -> ev.ShardMade:
        """Nothing of the shard can be read."""
        rest = self.dataset.plan.open[number].units
        nothing = Outcome(0, 0, 0, 0, 0, 0.0, rest, unreachable=((source, "no route"),))
        return ev.ShardMade(ShardId("train", number), nothing)


def test_units_of_a_source_that_is_away_keep_no_other_source_waiting():
    # Units that fill a shard: the first is of the first source alone.
    policy = Policy(listed(Kind(9, size=SHARD_SIZE), Kind(9, size=SHARD_SIZE)))
    first = policy.started(policy.asked, 0.0)
    assert {unit.key[0] for unit in first} == {"0"}
    second = policy.started(policy.away(1, 0), 1.0)
    assert {unit.key[0] for unit in second} == {"1"}


def test_of_a_set_that_waits_for_a_source_that_is_away_it_is_said_why():
    policy = Policy(listed(Kind(3, size=SHARD_SIZE), Kind(0)), pin=True)
    assert policy.started(policy.asked, 0.0)
    policy.started(policy.away(1, 0), 1.0)
    asked = ev.AcquireAsked("r", "train", "job", 0, 0, 1)
    (reply,) = (c for c in policy.state.handle(asked, 1.5) if isinstance(c, ev.ReplyWaiting))
    assert reply.reason == "no route"


def test_of_sources_that_are_all_away_it_is_said_that_nothing_comes():
    policy = Policy(listed(Kind(9, size=SHARD_SIZE), Kind(9, size=SHARD_SIZE)))
    policy.started(policy.asked, 0.0)

    def stopped() -> str:
        found: str = document(policy.state, {}, 1.0)["datasets"]["train"]["stopped"]
        return found

    policy.started(policy.away(1, 0), 1.0)
    assert stopped() == ""
    policy.started(policy.away(2, 1), 1.0)
    assert stopped() == "no route; no route"


def test_what_each_source_has_given_is_known_though_a_shard_that_overtook_is_not_applied():
    units = listed(Kind(100), Kind(100))
    for _ in range(2):
        plan = plan_of(units)
        plan.extend()
        plan.assign()
        done = work(units, plan.open[1])
        plan.overtake(3)  # its first two are still being made
        again = plan_of(units)
        again.restore(plan.to_json(), plan.open.values())
        assert again.records == [0, 0]
        again.finish(1, done.outcome, sorted(done.made), done.made)
        assert sum(again.records) == done.outcome.records


def test_what_a_sidecar_has_beside_its_records_shows_in_no_later_shard():
    # Its text has units' numbers, which depend on how the listings fell among each other.
    def shards(beside: int) -> list[tuple[UnitSlice, ...]]:
        units = listed(Kind(3000, written=1700), Kind(3000, records=7, size=90, written=110))
        plan, found = plan_of(units), []
        plan.extend()
        for number in range(1, 60):
            plan.assign()
            found.append(plan.open[number].units)
            done = work(units, plan.open[number])
            size = done.outcome.sidecar_bytes + beside
            outcome = replace(done.outcome, sidecar_bytes=size)
            plan.finish(number, outcome, sorted(done.made), done.made)
        return found

    assert shards(1000) == shards(1500)
