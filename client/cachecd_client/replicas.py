"""Which processes hold a part of one replica of the model, and so need the same records: by their mesh."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cachecd_client.errors import CallerError, ReplicasDifferError

# Dimensions along which processes take different records, by the names that torch's documentation,
# torchtitan, Accelerate, Lightning, MaxText and EasyLM give them; and those along which they take the same.
# `ep` and `expert` are neither: torchtitan and Megatron borrow them from the data-parallel ones, MaxText
# from either kind.
_WHOLE = frozenset(("batch", "data", "data_parallel", "dp"))
_DATA = _WHOLE | {
    *("ddp", "dp_replicate", "dp_shard", "fsdp", "hsdp", "replica", "replicate", "shard"),
}
_MODEL = frozenset(
    (
        *("tp", "tensor", "tensor_parallel", "model", "model_parallel", "mp"),
        *("pp", "pipe", "pipeline", "pipeline_parallel", "stage"),
        *("cp", "context", "context_parallel", "sp", "seq", "sequence", "sequence_parallel"),
    )
)


@dataclass(frozen=True)
class Replica:
    """The replica that this process holds, or holds a part of, of how many there are.

    `holders`: the replica of each process, where the mesh says it (JAX).
    """

    number: int
    count: int
    holders: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Sharing:
    """How the processes of a run share their nodes' sets: each list of processes reads one set.

    `replicas`: those among which this process's set is divided. `count`: all there are.
    """

    sets: list[list[int]]
    replicas: list[int]
    count: int

    @classmethod
    def of(cls, own: tuple[int, int], numbers: Sequence[int], nodes: Sequence[int]) -> Sharing:
        """By each process's replica and node; `own` are this process's.

        Nodes that hold parts of one replica have to read one set, and so have the other replicas there.
        """
        of_node: dict[int, int] = {}  # a node of those that read one set
        while (merged := _merged(of_node, numbers, nodes)) != of_node:
            of_node = merged
        sets: dict[int, list[int]] = {}
        for process, node in enumerate(nodes):
            sets.setdefault(of_node[node], []).append(process)
        mine = {numbers[process] for process in sets[of_node[own[1]]]}
        return cls(list(sets.values()), sorted(mine), len(set(numbers)))


def _merged(
    of_node: Mapping[int, int], numbers: Sequence[int], nodes: Sequence[int]
) -> dict[int, int]:
    least: dict[int, int] = {}
    for number, node in zip(numbers, nodes, strict=True):
        at = of_node.get(node, node)
        least[number] = min(at, least.get(number, at))
    merged: dict[int, int] = {}
    for number, node in zip(numbers, nodes, strict=True):
        merged[node] = min(least[number], merged.get(node, least[number]))
    return merged


def replica_of(mesh: Any) -> Replica:
    """By a torch DeviceMesh, a jax.sharding.Mesh, or a JAX sharding of the batches.

    A mesh's dimensions are known by their names. A DeviceMesh is that of all processes, or the slice of
    the whole data-parallel dimension. CallerError for a name that is not known, for a process that is not
    in the mesh, and where processes hold some of the same rows and some others.
    """
    torch_mesh: Any = getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", ())
    if isinstance(mesh, torch_mesh):
        return _by_torch(mesh)
    jax: Any = sys.modules.get("jax")
    if jax is not None and isinstance(mesh, jax.sharding.Mesh):
        data = tuple(
            name
            for name, size in mesh.shape.items()
            if size > 1 and _is_data(str(name), "the sharding of the batches as mesh=")
        )
        mesh = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(data))
    if jax is not None and isinstance(mesh, jax.sharding.Sharding):
        return _by_jax(mesh, jax.process_index(), jax.process_count())
    raise CallerError(
        f"mesh={mesh!r}, expected a torch DeviceMesh, a jax.sharding.Mesh, or a JAX sharding of the batches"
    )


def keras_distribution() -> Any:
    """What Keras distributes over several processes, None if it does not."""
    library = sys.modules.get("keras.distribution")
    current = getattr(library, "distribution", lambda: None)()
    return current if getattr(current, "num_processes", 1) > 1 else None


def refuse_keras_replicas() -> None:
    """CallerError if by Keras processes hold one model replica: without their rank they would take
    different records."""
    if (current := keras_distribution()) is None:
        return
    processes = current.num_processes
    replicas = getattr(current, "num_model_replicas", processes)
    if replicas < processes:
        raise CallerError(
            f"{type(current).__name__} has {processes} processes for {replicas} replicas of the model: "
            "those that hold one replica need the same records, and would read different ones; give "
            "mesh= to epochs() or FileSet, or rank= and world=, the replica's number on the node and how "
            "many there are"
        )


def _is_data(name: str, instead: str) -> bool:
    """Whether processes along this dimension take different records. CallerError if nobody knows."""
    if name == "fsdp" and "torchtitan" in sys.modules:
        raise CallerError(
            "mesh=: torchtitan's 'fsdp' holds context parallelism too, whose processes need the same "
            "records: give the 'batch' or 'dp' mesh by which it loads data"
        )
    if name not in _DATA | _MODEL:
        raise CallerError(
            f"mesh=: processes along {name!r} may take different records or the same: give {instead}, or "
            "give loaders rank= and world=, the replica's number and how many there are; known are "
            f"{', '.join(sorted(_DATA))}, which take different ones, and {', '.join(sorted(_MODEL))}"
        )
    return name in _DATA


def _by_torch(mesh: Any) -> Replica:
    import torch.distributed as dist

    names, place = mesh.mesh_dim_names, mesh.get_coordinate()
    if names is None:
        raise CallerError(
            "mesh=: its dimensions have no names, expected mesh_dim_names such as ('dp', 'tp')"
        )
    if place is None:
        raise CallerError(f"mesh=: process {dist.get_rank()} is not in it, expected one that is")
    processes = dist.get_world_size()
    if mesh.size() != processes and not (len(names) == 1 and names[0] in _WHOLE):
        raise CallerError(
            f"mesh=: its dimensions {', '.join(names)} have {mesh.size()} of {processes} processes, so it "
            "does not say which of the others hold the same replica: give the mesh of all, or its slice "
            f"by one of {', '.join(sorted(_WHOLE))}"
        )
    number, count = 0, 1
    for name, at, size in zip(names, place, mesh.shape, strict=True):
        if size > 1 and _is_data(name, "a mesh that names it otherwise"):
            number, count = number * size + at, count * size
    return Replica(number, count)


def rows_of(sharding: Any, shape: tuple[int, ...]) -> dict[int, frozenset[int]]:
    """The rows of an array of this shape that each process holds. ValueError if it does not divide."""
    held: dict[int, set[int]] = {}
    for device, indices in sharding.devices_indices_map(shape).items():
        rows = indices[0].indices(shape[0]) if indices else (0, 1, 1)
        held.setdefault(device.process_index, set()).update(range(*rows))
    return {process: frozenset(rows) for process, rows in held.items()}


def _by_jax(sharding: Any, own: int, processes: int) -> Replica:
    devices = len(sharding.device_set)
    axes = max(1, len(getattr(sharding, "spec", ())))
    try:
        held = rows_of(sharding, (devices,) * axes)
    except ValueError as error:
        raise CallerError(f"mesh={sharding}: {error}") from error
    if own not in held or len(held) != processes:
        raise CallerError(
            f"mesh=: it has devices of the processes {sorted(held)}, expected those of all {processes}"
        )
    different = sorted(set(held.values()), key=min)
    if sum(map(len, different)) != len(frozenset().union(*different)):
        raise CallerError(
            f"mesh={sharding}: processes hold some of the same rows of each batch and some others, so "
            "they can take neither the same records nor different ones"
        )
    holders = {process: different.index(rows) for process, rows in held.items()}
    return Replica(holders[own], len(different), holders)


def node_of(endpoint: str) -> int:
    """A number of the node, as processes see it that share the daemon at this address."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read()
    except OSError:
        boot = ""
    path = os.path.realpath(endpoint.removeprefix("ipc://"))
    return number_of((boot, socket.gethostname(), path))


def number_of(value: object) -> int:
    """A number, below 2**62, of a plain value: of two values another, as far as anybody will see."""
    return int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:8], "big") >> 2


def refuse_different(
    gathered: Callable[[int, str], Sequence[int]],
    sets: Sequence[Sequence[int]] | None,
    said: Mapping[str, object],
    remedies: Mapping[str, str],
) -> None:
    """ReplicasDifferError, on all processes, if of those that read one set one says something else.

    `sets`: which processes read one; None: all.
    """
    for what, value in said.items():
        found = gathered(number_of(value), what)
        for processes in [range(len(found))] if sets is None else sets:
            first, *others = processes
            if differing := [process for process in others if found[process] != found[first]]:
                raise ReplicasDifferError(
                    f"processes {first} and {differing[0]} hold parts of one replica, or of replicas that "
                    f"divide one set, and {what} is not the same there (here: {value}): they would read "
                    f"different records for one batch; {remedies[what]}"
                )
