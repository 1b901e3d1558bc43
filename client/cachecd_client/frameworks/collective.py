"""Gathers numbers from all processes of a run, with a collective of the framework that trains."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

#: Sends some numbers to all processes that train. Returns the numbers of all processes, in rank order.
AllGather = Callable[[tuple[int, ...]], Sequence[Sequence[int]]]


def gathering(world: int) -> AllGather | None:
    """Returns the collective of a run with more than `world` processes; None if there is no such run. A
    framework that is not imported does not train here."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return _by_torch if dist.get_world_size() > world else None
    jax: Any = sys.modules.get("jax")
    # process_count() makes JAX reserve devices, so it is not called if JAX is only imported.
    if jax is not None and getattr(jax.distributed, "is_initialized", lambda: True)():
        return _by_jax if jax.process_count() > world else None
    return None


def _by_torch(numbers: tuple[int, ...]) -> list[list[int]]:
    import torch
    import torch.distributed as dist

    # "cpu:gloo,cuda:nccl": the devices that have a backend.
    kinds = [each.partition(":")[0] for each in dist.get_backend_config().split(",")]
    device = "cpu" if "cpu" in kinds else kinds[0]
    own = torch.tensor(numbers, dtype=torch.int64, device=device)
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    return [each.tolist() for each in every]


def _by_jax(numbers: tuple[int, ...]) -> list[list[int]]:
    import numpy as np
    from jax.experimental import multihost_utils

    # Two halves, because JAX would narrow 64-bit numbers.
    halves = np.array([divmod(number, 1 << 31) for number in numbers], np.int32)
    every = multihost_utils.process_allgather(halves)
    return [[(int(high) << 31) + int(low) for high, low in row] for row in every]
