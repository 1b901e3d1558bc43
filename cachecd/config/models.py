"""The configuration, version 1, as frozen models.

The meaning, the default and the bounds of each key are here and in dataset.py, and nowhere else: the JSON
schema, `cachecd check` and docs/configuration.md follow from them. After loading, sizes are bytes,
durations are seconds and rates are bytes per second. A model's JSON form (`model_dump(mode="json")`)
validates back to an equal model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_serializer, model_validator

from cachecd.config.dataset import DatasetConfig
from cachecd.config.section import SectionModel, conflict
from cachecd.config.values import (
    AbsolutePath,
    Directory,
    Duration,
    Integer,
    PositiveSize,
    Rate,
    Size,
    SizeOrPercent,
    SocketAddress,
)
from cachecd.quantities import approximate_size, format_size

_MIN_SHARD: Final = 64 << 10
_MAX_SHARD: Final = 4 << 30


def default_endpoint(environ: Mapping[str, str] = os.environ) -> str:
    """Returns the default socket of a daemon: the user's own, or the service's."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    return f"ipc://{runtime}/cachecd/cachecd.sock" if runtime else "ipc:///run/cachecd/cachecd.sock"


class CacheConfig(SectionModel):
    """Where the shards are, and how much room they may take."""

    dir: AbsolutePath = Field(
        description=(
            "Directory of the cache, on a local disk, for one daemon. ~ is the daemon's home. "
            "Trainers need permission to read it."
        )
    )
    limit: SizeOrPercent = Field(
        description=(
            "Disk the cache may use at most: a size, or a share of its file system such as 80%. "
            "Everything in the directory counts, in allocated blocks."
        ),
        examples=["500GiB", "80%"],
    )
    shard_size: Size = Field(
        64 << 20,
        description=(
            "Size of one shard file, from 64KiB to 4GiB. Small shards start training sooner and "
            "rotate in finer steps; large shards are fewer files."
        ),
        examples=["64MiB"],
    )
    reserve_free: Size = Field(
        0,
        description="Room to leave free on the file system, whatever the limit allows.",
        examples=["20GiB"],
    )
    window: Size | None = Field(
        None,
        gt=0,
        description=(
            "Bytes of shards that a trainer reads at random at a time, at most 16,384 shards. A "
            "larger set is shuffled within a sliding window, because random access to more than "
            "the memory holds is very slow. Set it if trainers on several machines must read in "
            "the same order. Left out: half of the memory of the daemon's cgroup."
        ),
        examples=["32GiB"],
    )

    @model_validator(mode="after")
    def _one_shard_fits(self) -> CacheConfig:
        if not _MIN_SHARD <= self.shard_size <= _MAX_SHARD:
            raise conflict(
                ("shard_size",),
                f"found {format_size(self.shard_size)}, expected from {format_size(_MIN_SHARD)} to "
                f"{format_size(_MAX_SHARD)}",
            )
        if isinstance(self.limit, int) and self.limit < self.shard_size:
            raise conflict(
                ("limit",),
                f"found {format_size(self.limit)}, expected at least one shard "
                f"(cache.shard_size is {format_size(self.shard_size)})",
                too_small=True,
            )
        return self


class SamplerConfig(SectionModel):
    """The processes that fetch, prepare and write."""

    workers: Integer = Field(
        2,
        ge=1,
        le=1024,
        description=(
            "Processes. More help if the transform takes the time. Leave the trainer its cores."
        ),
    )
    connections: Integer = Field(
        32,
        ge=1,
        le=65536,
        description=(
            "Requests in flight to the store, over all workers. More help with small objects and "
            "distant stores."
        ),
    )
    bandwidth: Rate | None = Field(
        None,
        description="Part of the link to use at most. Left out: all of it.",
        examples=["600MB/s"],
    )
    python: AbsolutePath | None = Field(
        None,
        description=(
            "Interpreter of the workers, with the transform's module. Left out: the daemon's own."
        ),
        examples=["/home/me/project/.venv/bin/python"],
    )
    path: tuple[Directory, ...] = Field(
        (),
        description=(
            "Folders of your modules that are not installed. Workers search them first, then the "
            "daemon's working directory, PYTHONPATH and installed packages. A relative folder is "
            "relative to the configuration file. Most of Python's own modules cannot be replaced."
        ),
        examples=[["."]],
    )
    memory: PositiveSize | None = Field(
        None,
        description=(
            "Memory that one worker may take. The daemon ends a worker that takes more, and the "
            "unit in hand is tried once more. Mapped files, and processes that a transform starts, "
            "do not count. Left out: half of the memory of the daemon's cgroup, divided among the "
            "workers."
        ),
        examples=["4GiB"],
    )
    unit_timeout: Duration = Field(
        600.0,
        description=(
            "How long a transform may take for one record. The daemon ends a worker that is silent "
            "for longer, and the unit in hand is tried once more. Imports may take two minutes, or "
            "this time if it is longer."
        ),
        examples=["2m"],
    )
    egress_limit: PositiveSize | None = Field(
        None,
        description=(
            "Bytes to fetch in all, over restarts. At the limit the daemon fetches nothing more, "
            "and training goes on with what is cached."
        ),
        examples=["10TiB"],
    )
    idle: Duration | None = Field(
        None,
        description=(
            "Fetch nothing if no job had a lease for so long; the next acquire resumes. Left out: "
            "fetch whether or not a job trains."
        ),
        examples=["30m"],
    )

    @model_validator(mode="after")
    def _each_worker_has_a_connection(self) -> SamplerConfig:
        if self.connections < self.workers:
            raise conflict(
                ("connections",),
                f"found {self.connections}, expected at least one for each worker "
                f"(sampler.workers is {self.workers})",
            )
        return self


class ServerConfig(SectionModel):
    """How trainers and people reach the daemon."""

    endpoint: SocketAddress = Field(
        default_factory=default_endpoint,
        validate_default=True,
        description=(
            "Unix socket of the daemon: ipc:// and an absolute path of at most 107 bytes. Its "
            "group can read everything that is cached. Left out: "
            "ipc://$XDG_RUNTIME_DIR/cachecd/cachecd.sock, or ipc:///run/cachecd/cachecd.sock "
            "without that variable."
        ),
        examples=["ipc:///run/cachecd/cachecd.sock"],
    )


DatasetName = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]


class Config(SectionModel):
    """A whole configuration file."""

    version: Literal[1] = Field(description="The version of this file's format: 1.")
    cache: CacheConfig = Field(description="Where the shards are, and how much room they may take.")
    datasets: dict[DatasetName, DatasetConfig] = Field(
        min_length=1,
        description=(
            "At least one. A name has 1 to 64 letters, digits, dashes and underscores, and begins "
            "with a letter or digit."
        ),
    )
    sampler: SamplerConfig = Field(
        SamplerConfig(), description="The processes that fetch, prepare and write."
    )
    server: ServerConfig = Field(
        default_factory=ServerConfig, description="How trainers and people reach the daemon."
    )

    @model_validator(mode="after")
    def _splits_make_datasets(self) -> Config:
        for name, dataset in list(self.datasets.items()):
            if dataset.split is None or dataset.held_out:
                continue
            other = f"{name}-eval"
            if other in self.datasets:
                raise conflict(
                    ("datasets", other),
                    f"found a dataset of this name, which is that of what datasets.{name}.split holds "
                    "out; expected another name",
                )
            self.datasets[other] = dataset.other_side()
        return self

    @field_serializer("datasets", mode="wrap")
    def _as_written(
        self, datasets: dict[str, DatasetConfig], serialize: SerializerFunctionWrapHandler
    ) -> Any:
        """Without the datasets that a split makes."""
        return serialize({name: d for name, d in datasets.items() if not d.held_out})

    @model_validator(mode="after")
    def _first_sets_fit(self) -> Config:
        needed = sum(d.grow.first or 0 for d in self.datasets.values())
        if isinstance(self.cache.limit, int) and needed > self.cache.limit:
            raise conflict(
                ("cache", "limit"),
                f"found {format_size(self.cache.limit)}, expected at least {format_size(needed)} "
                f"({approximate_size(needed)}): what grow.first of all datasets takes together",
                too_small=True,
            )
        return self
