"""Half a minute of the soak, while everything else runs beside it."""

from __future__ import annotations

import os
import sys

import pytest

from tests.soak.__main__ import soak


@pytest.mark.timeout(900)
def test_under_random_faults_nothing_is_lost_altered_or_left_behind(tmp_path):
    """CACHECD_SOAK_MINUTES and CACHECD_SOAK_SEED choose another one."""
    minutes = float(os.environ.get("CACHECD_SOAK_MINUTES", "0.5"))
    seed = int(os.environ.get("CACHECD_SOAK_SEED", "20"))
    found = soak(tmp_path, minutes, seed, lambda line: sys.stderr.write(f"{line}\n"))
    assert found["wrong"] == []
    assert sum(found["injected"].values()) >= 10 * minutes
    assert all(counts["epochs"] >= 3 for counts in found["jobs"].values())
