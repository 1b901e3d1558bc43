"""Directories that are moved away or replaced while the daemon runs."""

from __future__ import annotations

import pytest

from cachecd.daemon.directory_check import DirectoryCheck
from cachecd.errors import DiskError


def test_ground_that_stays_is_fine(tmp_path):
    (tmp_path / "leases").mkdir()
    check = DirectoryCheck([tmp_path, tmp_path / "leases"])
    (tmp_path / "leases" / "a").touch()
    check.check()


def test_directory_that_is_moved_away_or_replaced_is_named(tmp_path):
    leases = tmp_path / "leases"
    leases.mkdir()
    check = DirectoryCheck([leases])
    leases.rename(tmp_path / "elsewhere")
    with pytest.raises(DiskError, match=r"leases is gone .*put back what was there"):
        check.check()
    leases.mkdir()
    with pytest.raises(DiskError, match=r"leases was replaced"):
        check.check()
    leases.rmdir()
    (tmp_path / "elsewhere").rename(leases)
    check.check()
