"""Limits that are refused before anything is fetched, with the value that would do."""

from __future__ import annotations

import re

import pytest

from cachecd.errors import LimitTooSmallError
from cachecd.policy.fit import describe_epoch, refuse_small_limit
from cachecd.policy.values import Rules

MIB = 1 << 20
TRAIN = Rules("train", "g", first=8 * MIB, shard_size=MIB)
VAL = Rules("val", "g", first=MIB, shard_size=MIB, pin=True)


def refusal(limit, *rules, sizes=None):
    """Key and value that would do, in MiB; None if the limit is large enough."""
    try:
        refuse_small_limit(limit, rules, sizes or {})
    except LimitTooSmallError as error:
        key, mib = re.findall(r"^(\S+): found .* at least (\d+)MiB \(", str(error))[0]
        return key, int(mib)
    return None


@pytest.mark.parametrize(
    ("rules", "sizes"),
    [
        ([TRAIN], {}),
        ([TRAIN._replace(first=1)], {}),
        ([TRAIN, VAL], {}),
        ([TRAIN, VAL], {"val": 100 * MIB}),
        ([VAL], {"val": 100 * MIB}),
    ],
)
def test_the_value_named_would_do_and_one_mib_less_would_not(rules, sizes):
    key, value = refusal(MIB, *rules, sizes=sizes)
    assert key == "cache.limit"
    assert refusal(value * MIB, *rules, sizes=sizes) is None
    assert refusal((value - 1) * MIB, *rules, sizes=sizes) == (key, value)


def test_a_pinned_set_has_to_fit_beside_the_first_set():
    assert refusal(64 * MIB, TRAIN, VAL) is None, "the size is not known yet"
    assert refusal(64 * MIB, TRAIN, VAL, sizes={"val": 30 * MIB}) is None
    _, value = refusal(64 * MIB, TRAIN, VAL, sizes={"val": 60 * MIB})
    assert 60 + 8 < value < 90


def test_the_limit_of_one_dataset_is_named_by_its_key():
    small = TRAIN._replace(limit=4 * MIB)
    assert refusal(1 << 40, small, VAL) == ("datasets.train.limit", 12)
    assert refusal(1 << 40, small._replace(limit=12 * MIB), VAL) is None


@pytest.mark.parametrize(
    ("held", "records", "refresh", "sentence"),
    [
        (
            2034,
            6011,
            0.25,
            "holds about 2,000 of about 6,000 records (34%); an epoch reads these records, and about a "
            "quarter of them are replaced each epoch",
        ),
        (
            2034,
            None,
            0.1,
            "holds about 2,000 records; an epoch reads these records, and about 10% of",
        ),
        (9000, 6011, 0.25, "holds all of about 6,000 records: every epoch has all of them"),
    ],
)
def test_an_epoch_is_described_in_a_sentence(held, records, refresh, sentence):
    assert sentence in describe_epoch(1 << 30, held, records, refresh)
