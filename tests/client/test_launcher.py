import json
import os
import socket

import pytest

from cachecd_client.errors import CallerError
from cachecd_client.launcher import job_id, local_ranks
from tests.core.processes import run_program

CLUSTER = {
    "chief": ["a:1"],
    "worker": ["b:1", "a:2", "b:2", "[::1]:3"],
    "ps": ["a:3"],
    "evaluator": ["a:4"],
}


def tf_config(kind: str, index: int) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": {"type": kind, "index": index}})}


@pytest.mark.parametrize(
    ("kind", "index", "place"),
    [
        ("chief", 0, (0, 2)),
        ("worker", 0, (0, 2)),
        ("worker", 1, (1, 2)),
        ("worker", 3, (0, 1)),
        ("ps", 0, (0, 1)),
    ],
)
def test_tensorflows_workers_at_one_host_are_its_ranks_and_one_job(kind, index, place):
    environ = tf_config(kind, index)
    assert local_ranks(environ) == place
    assert local_ranks({**environ, "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}) == (3, 4)
    jobs = {name: job_id(tf_config(*name)) for name in [("chief", 0), ("worker", 0)]}
    together = {("chief", 0): ("chief", 0), ("worker", 1): ("chief", 0)}
    together |= {("worker", 0): ("worker", 0), ("worker", 2): ("worker", 0)}
    assert job_id(environ) == jobs.get(together.get((kind, index)), job_id({}))


def slurm(tasks: str, node: int, local: int) -> dict[str, str]:
    return {
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_NODEID": f"{node}",
        "SLURM_LOCALID": f"{local}",
    }


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        (slurm("1", 0, 0), (0, 1)),
        (slurm("2(x3),1", 2, 1), (1, 2)),
        (slurm("2(x3),1", 3, 0), (0, 1)),
        # A batch script, and torchrun as the one task of each node.
        ({"SLURM_TASKS_PER_NODE": "8", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}, (0, 1)),
        ({**slurm("1(x2)", 1, 0), "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}, (3, 8)),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, (2, 4)),
        ({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", **slurm("1", 0, 0)}, (1, 2)),
        ({"LOCAL_RANK": "2", "LOCAL_SIZE": "4"}, (2, 4)),  # DeepSpeed's
    ],
)
def test_ranks_are_those_that_other_launchers_tell(environ, place):
    assert local_ranks(environ) == place


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (slurm("2", 1, 0), "SLURM_STEP_TASKS_PER_NODE is '2', SLURM_NODEID is '1'"),
        ({"LOCAL_RANK": "1"}, "LOCAL_WORLD_SIZE is not set"),
        ({"LOCAL_RANK": "one"}, "LOCAL_RANK is 'one', expected an integer"),
        ({"TF_CONFIG": "nothing"}, "TF_CONFIG is 'nothing', expected `cluster`"),
    ],
)
def test_contradictory_ranks_are_refused(environ, message):
    with pytest.raises(CallerError, match=message):
        local_ranks(environ)


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        ({"TORCHELASTIC_RUN_ID": "resnet", "SLURM_JOB_ID": "7"}, "resnet"),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7"}, "slurm-7"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2"}, "slurm-7.2"),
        ({"PMIX_NAMESPACE": "prterun-a-7@1", "PBS_JOBID": "12.head"}, "mpi-prterun-a-7@1"),
        ({"PBS_JOBID": "12.head"}, "pbs-12.head"),
    ],
)
def test_the_job_is_the_launchers(environ, job):
    assert job_id(environ) == job


def test_a_process_alone_is_its_own_job():
    assert job_id({}).startswith(f"{socket.gethostname()}-{os.getpid()}-")
    assert job_id({}) == job_id({})


def test_ranks_without_a_run_id_share_one_job_named_by_their_parent():
    program = "from cachecd_client.launcher import job_id; print(job_id())"
    # What torchrun gives its ranks when nobody named the run.
    environ = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "2"}
    jobs = {run_program(program, **environ, LOCAL_RANK=rank).stdout.strip() for rank in "01"}
    assert len(jobs) == 1
    assert jobs.pop().startswith(f"{socket.gethostname()}-{os.getpid()}-")
