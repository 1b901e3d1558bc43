"""What the launcher of a training run says about this process: its job, its rank on this node."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Mapping

from cachecd_client.errors import CallerError


def local_ranks(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """(rank, world): this process's rank among the ranks on this node, and how many there are.

    From LOCAL_RANK and LOCAL_WORLD_SIZE, which torchrun and its kin set; or else, by TensorFlow's
    TF_CONFIG, this worker's place among those at the same host; (0, 1) without either. CallerError if
    they contradict each other.
    """
    if "LOCAL_RANK" not in environ and "LOCAL_WORLD_SIZE" not in environ and "TF_CONFIG" in environ:
        workers, own = _tf_workers(environ)
        return (workers.index(own), len(workers)) if own else (0, 1)
    rank, world = (_integer(environ, "LOCAL_RANK", 0), _integer(environ, "LOCAL_WORLD_SIZE", 1))
    if not 0 <= rank < world:
        found = environ.get("LOCAL_WORLD_SIZE", "not set")
        raise CallerError(
            f"LOCAL_RANK is {rank} and LOCAL_WORLD_SIZE is {found}: expected 0 <= rank < world; "
            "set LOCAL_WORLD_SIZE to the number of ranks on this node"
        )
    return rank, world


def job_id(environ: Mapping[str, str] = os.environ) -> str:
    """A name for this launch of the training run, the same in all its ranks on this node.

    The launcher's own id where it gives one (torchrun, Slurm, Ray, PBS, LSF), or the addresses of
    TensorFlow's workers where several are at one host. Without one, the process that started the
    ranks names them: ranks have one parent, and a process alone is its own job. The start time tells
    a process from an earlier one with the same number.
    """
    # torchrun without --rdzv-id says "none", in every run alike.
    if (run := environ.get("TORCHELASTIC_RUN_ID", "")) not in ("", "none"):
        return run
    if job := environ.get("SLURM_JOB_ID"):
        # Two steps of one allocation are two launches.
        step = environ.get("SLURM_STEP_ID")
        return f"slurm-{job}.{step}" if step else f"slurm-{job}"
    for variable, scheduler in (("RAY_JOB_ID", "ray"), ("PBS_JOBID", "pbs"), ("LSB_JOBID", "lsf")):
        if job := environ.get(variable):
            return f"{scheduler}-{job}"
    if "TF_CONFIG" in environ and local_ranks(environ)[1] > 1:
        # Its workers need have no parent in common, but each knows where all of them listen.
        return "tf-" + hashlib.sha256(" ".join(_tf_workers(environ)[0]).encode()).hexdigest()[:16]
    pid = os.getppid() if local_ranks(environ)[1] > 1 else os.getpid()
    return f"{socket.gethostname()}-{pid}-{_start_time(pid)}"


def _tf_workers(environ: Mapping[str, str]) -> tuple[list[str], str]:
    """(addresses, own): those that train at this task's host by TF_CONFIG, and this task's.

    No addresses, and "", for a task that does not train with others, such as an evaluator.
    """
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
            f"TF_CONFIG is {environ['TF_CONFIG']!r}, expected the addresses of all tasks as `cluster`, "
            f"and this one's type and index as `task`: {error!r}"
        ) from error


def _integer(environ: Mapping[str, str], variable: str, default: int) -> int:
    text = environ.get(variable, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise CallerError(f"{variable} is {text!r}, expected an integer") from None


def _start_time(pid: int) -> str:
    """Clock ticks from boot to the process's start: field 22 of /proc/PID/stat."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The second field, the command, may itself hold spaces and parentheses.
            return stat.read().rpartition(b")")[2].split()[19].decode()
    except OSError:
        return "0"  # a parent that may not be looked at; its number still tells ranks apart
