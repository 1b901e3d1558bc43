"""The shuffle window that a lease fixes."""

from __future__ import annotations

import pytest

from cachecd.model import Lease
from cachecd.recovery import manifest_of

SHARD = 1 << 10


def window(shards: int, of: int | None) -> int | None:
    lease = Lease(
        "x", "train", "job", 0, "g", ((1, 3), (7, shards + 3)), 9, shards * SHARD, 0, False, ""
    )
    return manifest_of(lease, {("train", "g"): {"version": 1}}, of).window


@pytest.mark.parametrize("of", [None, 10_000_000 * SHARD])
def test_the_window_of_a_lease_is_of_no_more_shards_than_a_process_can_map(of):
    assert window(200_000, of) == 16_384 * SHARD


def test_a_set_that_fits_into_the_window_of_the_configuration_has_none():
    assert window(16_384, 16_384 * SHARD) is None
    assert window(16_384, 16_384 * SHARD - 1) == 16_384 * SHARD - 1
