"""Who goes first where there is not enough processor time for all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.executors.bench import bench, until

NICE = max(5, os.getpriority(os.PRIO_PROCESS, 0))
GIVE_WAY = "from cachecd.sampler.child import give_way; give_way()"


def autogroup(process: int | str = "self") -> str:
    """The niceness of its session, for kernels that share out by sessions; those of init's have none."""
    file = Path(f"/proc/{process}/autogroup")
    said = file.read_text().split() if file.exists() else []
    return said[-1] if said else ""


async def test_samplers_and_what_they_start_give_way_to_whoever_computes(tmp_path: Path):
    file = tmp_path / "child"
    environ = {**os.environ, "CHILD_FILE": str(file)}

    spawn = "tests.sampler.steps:spawn_and_wait"
    async with bench(tmp_path, transform=spawn, environ=environ) as b:
        b.submit(1, b"x")
        await until(lambda: file.exists() and file.read_text())
        [sampler] = b.executor.pids
        threads = [int(tid) for tid in os.listdir(f"/proc/{sampler}/task")]
        child = int(file.read_text())
        assert len(threads) > 1
        for one in (*threads, child):
            assert os.sched_getscheduler(one) == os.SCHED_BATCH
            assert os.getpriority(os.PRIO_PROCESS, one) == NICE
        assert autogroup(sampler) in (str(NICE), "")
        # Where memory is short, the kernel takes it before the trainer.
        assert int(Path(f"/proc/{sampler}/oom_score_adj").read_text()) >= 800


def test_a_process_in_somebody_elses_session_leaves_that_as_it_is():
    before = autogroup()
    code = f"import os; {GIVE_WAY}; print(os.sched_getscheduler(0), os.getpriority(0, 0))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == [str(os.SCHED_BATCH), str(NICE)]
    assert autogroup() == before


def test_whoever_was_started_with_less_gets_no_more():
    code = f"import os; os.nice(19); {GIVE_WAY}; print(os.getpriority(0, 0))"
    idle = f"import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); {GIVE_WAY}; "
    for prepared, expected in (
        (code, "19"),
        (f"{idle} print(os.sched_getscheduler(0))", f"{os.SCHED_IDLE}"),
    ):
        said = subprocess.run(
            [sys.executable, "-c", prepared], capture_output=True, text=True, check=True
        )
        assert said.stdout.strip() == expected
