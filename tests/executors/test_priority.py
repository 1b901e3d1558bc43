"""Who goes first where there is not enough processor time for all."""

from __future__ import annotations

import os
from pathlib import Path

from tests.executors.bench import bench, until

NICE = max(5, os.getpriority(os.PRIO_PROCESS, 0))


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
