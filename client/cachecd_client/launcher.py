"""Reads the job of this process, and its rank on this node, from the launcher's variables."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Mapping

from cachecd_client.errors import CallerError

# Local rank and size: Open MPI; MPICH and Intel MPI; Horovod.
_RANK_AND_WORLD = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
)
_JOBS = (
    ("PMIX_NAMESPACE", "mpi"),  # differs for each mpirun
    ("RAY_JOB_ID", "ray"),
    ("PBS_JOBID", "pbs"),
    ("LSB_JOBID", "lsf"),
)
# Job steps of srun have this variable. A batch script has variables with the numbers of the allocation,
# but is one process.
_SLURM_TASKS = "SLURM_STEP_TASKS_PER_NODE"


def local_ranks(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Returns (rank, world): the rank of this process on this node, and the number of ranks on this node.

    Uses the first of these that exists: LOCAL_RANK and LOCAL_WORLD_SIZE, which torchrun and similar
    launchers set; the workers on this host in TensorFlow's TF_CONFIG; the variables of mpirun, horovodrun
    or srun. Returns (0, 1) if none exists. CallerError for impossible values.
    """
    if "LOCAL_RANK" in environ or "LOCAL_WORLD_SIZE" in environ:
        # DeepSpeed's name for LOCAL_WORLD_SIZE.
        by_deepspeed = "LOCAL_WORLD_SIZE" not in environ and "LOCAL_SIZE" in environ
        world = "LOCAL_SIZE" if by_deepspeed else "LOCAL_WORLD_SIZE"
        return _place(environ, "LOCAL_RANK", world)
    if "TF_CONFIG" in environ:
        workers, own = _tf_workers(environ)
        return (workers.index(own), len(workers)) if own else (0, 1)
    for rank, world in _RANK_AND_WORLD:
        if rank in environ and world in environ:
            return _place(environ, rank, world)
    return _slurm_task(environ) if _SLURM_TASKS in environ else (0, 1)


def job_id(environ: Mapping[str, str] = os.environ) -> str:
    """Returns a name for this launch of the training run, the same in all ranks on this node.

    The name is the launcher's id (torchrun, Slurm, Open MPI, Ray, PBS, LSF), or a hash of the addresses
    of TensorFlow's workers if several are on one host. Otherwise several ranks have the name of their
    parent process, and a single process has its own name. The name has the start time, because numbers of
    processes are reused.
    """
    # Without --rdzv-id, torchrun sets "none" in every run.
    if (run := environ.get("TORCHELASTIC_RUN_ID", "")) not in ("", "none"):
        return run
    if job := environ.get("SLURM_JOB_ID"):
        # Two steps of one allocation are two launches.
        step = environ.get("SLURM_STEP_ID")
        return f"slurm-{job}.{step}" if step else f"slurm-{job}"
    for variable, scheduler in _JOBS:
        if job := environ.get(variable):
            return f"{scheduler}-{job}"
    if "TF_CONFIG" in environ and local_ranks(environ)[1] > 1:
        # Workers may have different parents, but each has the addresses of all workers.
        return "tf-" + hashlib.sha256(" ".join(_tf_workers(environ)[0]).encode()).hexdigest()[:16]
    pid = os.getppid() if local_ranks(environ)[1] > 1 else os.getpid()
    return f"{socket.gethostname()}-{pid}-{_start_time(pid)}"


def _tf_workers(environ: Mapping[str, str]) -> tuple[list[str], str]:
    """Returns (addresses, own) from TF_CONFIG: the training tasks on this task's host, and this task.
    Returns ([], "") if the task does not train, for example an evaluator."""
    try:
        config = json.loads(environ["TF_CONFIG"] or "{}")
        cluster, task = config.get("cluster", {}), config.get("task", {})
        if task.get("type") not in ("chief", "worker") or not cluster:
            return [], ""
        own = cluster[task["type"]][int(task["index"])]
        host = own.rpartition(":")[0]
        training = [*cluster.get("chief", []), *cluster.get("worker", [])]
        return [address for address in training if address.rpartition(":")[0] == host], own
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CallerError(
            f"TF_CONFIG is {environ['TF_CONFIG']!r}, expected `cluster` with the addresses of all tasks, "
            f"and `task` with the type and index of this task: {error!r}"
        ) from error


def _place(environ: Mapping[str, str], rank: str, world: str) -> tuple[int, int]:
    place, places = _integer(environ, rank, 0), _integer(environ, world, 1)
    if not 0 <= place < places:
        value = environ.get(world, "not set")
        raise CallerError(
            f"{rank} is {place} and {world} is {value}: expected 0 <= rank < world; "
            "set LOCAL_WORLD_SIZE to the number of ranks on this node, and LOCAL_RANK"
        )
    return place, places


def _slurm_task(environ: Mapping[str, str]) -> tuple[int, int]:
    """Returns (rank, world) on this node for a task that srun started. SLURM_STEP_TASKS_PER_NODE is
    "5,4(x3)" for five tasks on the first node and four on each of the next three nodes (srun(1), "Output
    environment variables")."""
    tasks: list[int] = []
    try:
        for run in environ[_SLURM_TASKS].split(","):
            count, _, times = run.rstrip(")").partition("(x")
            tasks += [int(count)] * int(times or 1)
        rank, world = int(environ["SLURM_LOCALID"]), tasks[int(environ["SLURM_NODEID"])]
    except (LookupError, ValueError):
        rank, world = 0, 0
    if not 0 <= rank < world:
        names = (_SLURM_TASKS, "SLURM_NODEID", "SLURM_LOCALID")
        values = ", ".join(f"{name} is {environ.get(name, 'not set')!r}" for name in names)
        raise CallerError(
            f"{values}: expected the tasks of each node such as 5,4(x3), the number of this node, and the "
            "number of this task on the node. Or set LOCAL_RANK and LOCAL_WORLD_SIZE"
        )
    return rank, world


def _integer(environ: Mapping[str, str], variable: str, default: int) -> int:
    text = environ.get(variable, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise CallerError(f"{variable} is {text!r}, expected an integer") from None


def _start_time(pid: int) -> str:
    """Returns the clock ticks from boot to the process's start: field 22 of /proc/PID/stat."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The second field, the command, may itself hold spaces and parentheses.
            return stat.read().rpartition(b")")[2].split()[19].decode()
    except OSError:
        return "0"  # another user's process may be hidden; then only the number identifies it
