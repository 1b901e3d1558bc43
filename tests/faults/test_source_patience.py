"""The figures of patience: retries that do not multiply, and a pace that yields and recovers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd.stores.retry import Budget, Pace, Retry

MOMENTS = st.floats(0.0, 5.0)
STEPS = st.lists(st.tuples(st.sampled_from(["retry", "success"]), MOMENTS), max_size=300)


@settings(deadline=None)
@given(steps=STEPS, capacity=st.integers(1, 20))
def test_retries_never_exceed_the_budget_whatever_succeeds_and_fails(
    steps: list[tuple[str, float]], capacity: int
):
    budget = Budget(float(capacity), per_success=0.2, per_second=1.0)
    now, retries, successes = 0.0, 0, 0
    for what, later in steps:
        now += later
        if what == "success":
            budget.succeeded(now)
            successes += 1
        else:
            retries += budget.take(now)
        assert retries <= capacity + 0.2 * successes + now + 1e-6


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["success", "throttled", "silence"]),
        MOMENTS,  # since the event before
        MOMENTS,  # how long the request had been under way
        st.floats(0.0, 1e6),  # Retry-After
    ),
    max_size=200,
)


@settings(deadline=None)
@given(events=EVENTS, most=st.integers(1, 64))
def test_the_pace_stays_between_one_and_most_and_recovers_by_successes_alone(
    events: list[tuple[str, float, float, float]], most: int
):
    pace, now = Pace(most), 0.0
    for what, later, took, after in events:
        now += later
        before = pace.limit
        if what == "success":
            pace.succeeded()
            assert before <= pace.limit <= before + 1
        elif what == "throttled":
            pace.overloaded(now, now - took, after)
            assert max(1.0, before / 2) <= pace.limit <= before
            assert pace.not_before <= now + Pace.LONGEST
        assert 1 <= pace.allowed <= most
    for _ in range(most * most + 1):  # a success raises it by a part of one
        pace.succeeded()
    assert pace.allowed == most


def test_what_was_under_way_when_the_pace_was_halved_does_not_halve_it_again():
    pace = Pace(32)
    for _ in range(32):
        pace.overloaded(now=10.0, began=9.0)
    assert pace.allowed == 16
    pace.overloaded(now=11.0, began=10.5)
    assert pace.allowed == 8


@settings(deadline=None)
@given(failures=st.integers(1, 10**6), chance=st.floats(0, 1, exclude_max=True))
def test_a_pause_is_never_longer_than_the_longest(failures: int, chance: float):
    retry = Retry(first=0.5, longest=8.0)
    assert 0 <= retry.pause(failures, chance) <= min(8.0, 0.5 * 2.0 ** min(failures - 1, 40))
