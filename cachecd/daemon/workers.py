"""Makes the executor and the lister of a configuration, which start the worker processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from cachecd.config import Config
from cachecd.disk.layout import Layout
from cachecd.executors import Executor
from cachecd.executors.lister import ProcessLister
from cachecd.executors.local import LocalExecutor
from cachecd.executors.process import Bounds
from cachecd.sampler.messages import Grant, Setup
from cachecd_client import resources


@contextlib.contextmanager
def executor_of(config: Config, offline: bool) -> Iterator[Executor]:
    """Returns the executor. Its processes are launched already, unless `offline`; the caller starts and
    closes it. cache.dir must exist. ConfigError if no process can be launched."""
    sampler, layout = config.sampler, Layout(config.cache.dir)

    def path_of(grant: Grant) -> Path:
        stream = grant.stream
        shards = layout.generation(stream.dataset, stream.generation)
        return shards.temporary(grant.number, grant.version)

    executor = LocalExecutor(
        worker_setup(config),
        0 if offline else sampler.workers,
        sampler.python,
        path_of,
        silence=sampler.unit_timeout,
        name=_name(config),
    )
    try:
        executor.launch()
        yield executor
    finally:
        executor.abandon()


def lister_of(config: Config, *, is_owner: bool = True) -> ProcessLister:
    """Returns the lister of the sources. `is_owner`: the caller owns cache.dir, so the lister ends
    processes that a killed owner left."""
    sampler = config.sampler
    name = _name(config) if is_owner else ""
    bounds = lister_bounds(config)
    return ProcessLister(sampler.connections, sampler.python, name, bounds, path=sampler.path)


def lister_bounds(config: Config) -> Bounds:
    """Returns the limits of each lister process. They are the limits of a worker."""
    return Bounds(worker_memory(config), config.sampler.unit_timeout)


def worker_setup(config: Config) -> Setup:
    """Returns the first message to each worker. The workers share the connections."""
    return Setup(
        datasets={name: d.model_dump(mode="json") for name, d in config.datasets.items()},
        connections=max(1, config.sampler.connections // config.sampler.workers),
        bandwidth=config.sampler.bandwidth,
        path=[str(folder) for folder in config.sampler.path],
        memory=worker_memory(config),
    )


def worker_memory(config: Config) -> int:
    """Returns the bytes that each worker may use."""
    return config.sampler.memory or resources.memory() // 2 // config.sampler.workers


def _name(config: Config) -> str:
    """Returns the name of this cache's processes. It does not depend on where the directory is mounted."""
    status = config.cache.dir.stat()
    return f"{status.st_dev:x}-{status.st_ino:x}"
