"""Half a minute of the soak, in the long form (CACHECD_LONG=1); `python -m tests.soak` takes any time."""

from __future__ import annotations

import sys

import pytest

from tests.soak.__main__ import soak


@pytest.mark.long
@pytest.mark.timeout(900)
def test_under_random_faults_nothing_is_lost_altered_or_left_behind(tmp_path):
    minutes = 0.5
    found = soak(tmp_path, minutes, 20, lambda line: sys.stderr.write(f"{line}\n"))
    assert found["wrong"] == []
    assert sum(found["injected"].values()) >= 10 * minutes
    assert all(counts["epochs"] >= 3 for counts in found["jobs"].values())
