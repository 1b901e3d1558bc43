"""Which shard the scrub reads next, and when one that cannot be read is given up."""

from __future__ import annotations

import pytest

from cachecd.model import ShardId
from cachecd.rounds import Rounds


def shards(*numbers: int) -> list[ShardId]:
    return [ShardId("train", number) for number in numbers]


def anything(shard: ShardId) -> bool:
    return True


def taken(rounds: Rounds, there: list[ShardId], count: int) -> list[int]:
    """The numbers of the next `count` shards, each of which can be read."""
    found = []
    for _ in range(count):
        shard = rounds.next(lambda: there, there.__contains__)
        assert shard is not None
        rounds.was_read(shard)
        found.append(shard.number)
    return found


def test_the_next_shard_is_the_one_verified_longest_ago():
    rounds = Rounds()
    there = shards(3, 1, 2)
    assert taken(rounds, there, 7) == [1, 2, 3, 1, 2, 3, 1]


def test_shards_that_were_sealed_meanwhile_are_next_after_the_round():
    rounds = Rounds()
    there = shards(5, 6, 7)
    assert taken(rounds, there, 1) == [5]
    there += [ShardId("eval", 1), *shards(8)]
    assert taken(rounds, there, 7) == [6, 7, 5, 6, 7, 1, 8]


def test_shards_that_are_gone_or_out_of_service_are_passed_over():
    rounds = Rounds()
    there = shards(1, 2, 3, 4)
    assert taken(rounds, there, 1) == [1]
    there.remove(ShardId("train", 2))
    there.remove(ShardId("train", 1))
    assert taken(rounds, there, 4) == [3, 4, 3, 4]


def test_a_start_in_the_middle_still_reads_every_shard_in_a_round():
    assert taken(Rounds(0.5), shards(1, 2, 3, 4), 8) == [3, 4, 1, 2, 3, 4, 1, 2]
    assert taken(Rounds(0.999), shards(1, 2), 2) == [2, 1]


def test_an_empty_cache_has_no_next_and_one_that_fills_has():
    rounds = Rounds(0.7)
    assert rounds.next(list, anything) is None
    assert rounds.progress == 0
    assert rounds.next(lambda: shards(1), lambda shard: False) is None
    assert taken(rounds, shards(1), 2) == [1, 1]


def test_a_shard_that_stays_unreadable_while_others_can_be_read_is_given_up_at_the_third_try():
    rounds = Rounds()
    there = shards(1, 2, 3, 4, 5, 6)
    bad = there[1]
    tries = []
    for _ in range(10):
        shard = rounds.next(lambda: there, there.__contains__)
        assert shard is not None
        if shard != bad:
            rounds.was_read(shard)
            continue
        tries.append(rounds.could_not_be_read(bad))
        if tries[-1]:
            break
        assert rounds.unreadable == 1
    assert tries == [False, False, True]
    assert rounds.unreadable == 0
    assert rounds.verified < len(there), "well before the round is over"


def test_a_shard_that_can_be_read_again_is_forgiven():
    rounds = Rounds()
    there = shards(1, 2)
    bad = there[0]
    for _ in range(5):
        for _ in range(2):
            assert not rounds.could_not_be_read(bad)
            rounds.was_read(there[1])
        rounds.was_read(bad)
        assert rounds.unreadable == 0


@pytest.mark.parametrize("count", [1, 2, 5])
def test_when_nothing_can_be_read_nothing_is_given_up(count: int):
    rounds = Rounds()
    there = shards(*range(count))
    for _ in range(100):
        shard = rounds.next(lambda: there, anything)
        assert shard is not None
        assert not rounds.could_not_be_read(shard)
    assert rounds.unreadable == len(rounds._order) == count
