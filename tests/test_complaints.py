"""What is refused at present, as people are shown it."""

from __future__ import annotations

from cachecd.complaints import Complaints


def test_what_nobody_tries_again_is_shown_for_a_while_and_what_is_retried_until_it_works():
    now = [100.0]
    complaints = Complaints(lambda: now[0])
    complaints.refused("lease not written", "", "no inodes", 10.0)
    assert complaints.reason == "no inodes"
    complaints.refused("plan not saved", "", "no space")
    now[0] += 9.9
    assert complaints.reason == "no inodes; no space"
    complaints.refused("lease not written", "", "no inodes", 10.0)  # somebody asks still
    now[0] += 9.9
    assert complaints.reason == "no inodes; no space"
    now[0] += 0.2
    assert complaints.reason == "no space"
    complaints.works("plan not saved", "")
    assert complaints.reason == ""
