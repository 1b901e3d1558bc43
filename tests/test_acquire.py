"""How long a grant stands without a lock."""

from __future__ import annotations

import pytest

from cachecd import events as ev
from cachecd.acquire import GRACE, LeaseState
from cachecd.ledger import Ledger
from cachecd.model import Lease
from cachecd.state import State

LEASE = Lease("l", "train", "job", 0, "g", ((1, 2),), 2, 2, 1, False, "f")


@pytest.fixture
def granted() -> LeaseState:
    return LeaseState(LEASE, grace_until=GRACE, since=0.0)


def test_after_a_restart_no_rank_that_says_it_holds_ends_the_grace_of_the_others(granted):
    """Who was granted the lease by the daemon before is not known: its ranks may all be about to
    lock it."""
    for rank in range(4):
        granted.held_by.add(rank)
    assert granted.stands_without_lock(GRACE - 0.1)
    assert not granted.stands_without_lock(GRACE)


def test_after_a_restart_a_rank_that_asks_tells_how_many_there_are(granted):
    granted.asked(1, 2, now=0.0)
    granted.held_by |= {0, 1}
    assert not granted.stands_without_lock(1.0)


def test_a_lease_found_by_a_restart_stands_for_a_fresh_grace_and_keeps_its_age():
    state = State(Ledger(1 << 30, 1 << 20), 1 << 20, workers=1, boot="b")
    state.adopt_lease(LEASE, now=100.0, age=3600.0)
    assert state.leases["l"].since == 100.0 - 3600.0
    assert state.handle(ev.RankHolds("r", "l", 0), 101.0) == [ev.ReplyDone("r")]
    assert state.handle(ev.LeaseUnheld("l"), 100.0 + GRACE - 0.1) == []
    assert state.handle(ev.LeaseUnheld("l"), 100.0 + GRACE) == [ev.EndLease("l")]
