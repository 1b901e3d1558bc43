"""Runs resume under the same random interleavings, and nothing that the policy promises suffers."""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from cachecd.wanted import ReplyMissing
from tests import test_state_machine as machine
from tests.resuming import ResumingWorld

LATEST = st.integers(1, 4)


class Resumed(machine.Policy):
    """As in `Policy`, and disks are lost, and runs ask for the sets that they had."""

    world: ResumingWorld
    played_by = ResumingWorld

    @precondition(lambda self: self.world.past)
    @rule(latest=LATEST, exact=st.booleans())
    def a_run_resumes(self, latest, exact):
        which = max(len(self.world.past) - latest, 0)
        _, reply = self.world.ask_again(which, "resumed")
        if exact and isinstance(reply, ReplyMissing) and reply.shards:
            self.world.recall(which, reply)

    @precondition(lambda self: self.world.past)
    @rule(latest=LATEST, steps=st.integers(0, 20))
    def a_disk_is_lost_and_a_run_resumes(self, latest, steps):
        self.world.lose_disk()
        self.world.work(steps)
        self.a_run_resumes(latest, True)


TestResumed = Resumed.TestCase
TestResumed.settings = settings(
    machine.TestPolicy.settings,
    max_examples=int(os.environ.get("CACHECD_POLICY_EXAMPLES", "12")),
)
