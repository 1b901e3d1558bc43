"""Directories that are moved away or replaced while the daemon runs."""

from __future__ import annotations

import pytest

from cachecd.daemon.ground import Ground
from cachecd.errors import DiskError


def test_ground_that_stays_is_fine(tmp_path):
    (tmp_path / "leases").mkdir()
    ground = Ground([tmp_path, tmp_path / "leases"])
    (tmp_path / "leases" / "a").touch()
    ground.check()


def test_directory_that_is_moved_away_or_replaced_is_named(tmp_path):
    leases = tmp_path / "leases"
    leases.mkdir()
    ground = Ground([leases])
    leases.rename(tmp_path / "elsewhere")
    with pytest.raises(DiskError, match=r"leases is gone .*put back what was there"):
        ground.check()
    leases.mkdir()
    with pytest.raises(DiskError, match=r"leases was replaced"):
        ground.check()
    leases.rmdir()
    (tmp_path / "elsewhere").rename(leases)
    ground.check()
