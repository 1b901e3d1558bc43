"""The worker processes of a configuration: samplers and listers."""

from __future__ import annotations

from cachecd.config import Config
from cachecd.executors.lister import ProcessLister
from cachecd.executors.local import LocalExecutor
from cachecd.executors.process import Bounds
from cachecd.sampler.messages import Setup
from cachecd_client import resources


def executor_of(config: Config, offline: bool) -> LocalExecutor:
    """Returns the executor of the workers; it has no workers if `offline`. cache.dir must exist."""
    sampler = config.sampler
    return LocalExecutor(
        worker_setup(config),
        0 if offline else sampler.workers,
        sampler.python,
        silence=sampler.unit_timeout,
        name=_name(config),
    )


def lister_of(config: Config, *, is_owner: bool = True) -> ProcessLister:
    """Returns the lister of the sources. `is_owner`: the caller owns cache.dir, so processes that a killed
    owner left are ended."""
    sampler = config.sampler
    name = _name(config) if is_owner else ""
    bounds = lister_bounds(config)
    return ProcessLister(sampler.connections, sampler.python, name, bounds, path=sampler.path)


def lister_bounds(config: Config) -> Bounds:
    """Returns the limits of each lister process, which are the limits of a worker."""
    return Bounds(_memory(config), config.sampler.unit_timeout)


def worker_setup(config: Config) -> Setup:
    """The first message to each worker; the connections are divided among them."""
    return Setup(
        datasets={name: d.model_dump(mode="json") for name, d in config.datasets.items()},
        connections=max(1, config.sampler.connections // config.sampler.workers),
        bandwidth=config.sampler.bandwidth,
        path=[str(folder) for folder in config.sampler.path],
        memory=_memory(config),
    )


def _memory(config: Config) -> int:
    """Bytes of memory that each worker may take."""
    return config.sampler.memory or resources.memory() // 2 // config.sampler.workers


def _name(config: Config) -> str:
    """Returns the name of this cache directory's processes, the same wherever the directory is mounted."""
    status = config.cache.dir.stat()
    return f"{status.st_dev:x}-{status.st_ino:x}"
