"""The configuration, version 1, as frozen models.

Each key has its type, default, meaning and checks where it is declared: here, or in the file of its
section. The JSON schema, `cachecd check` and docs/configuration.md are made from these declarations.
After loading, sizes are bytes, durations are seconds and rates are bytes per second. A model's JSON form
(`model_dump(mode="json")`) validates as an equal model.
"""

from __future__ import annotations

import os
from ipaddress import ip_address
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_serializer,
    model_validator,
)

from cachecd.config.dataset import DatasetConfig
from cachecd.config.section import SectionModel, conflict
from cachecd.config.values import (
    AbsolutePath,
    Boolean,
    Directory,
    Duration,
    Integer,
    PositiveSize,
    Rate,
    Size,
    SizeOrPercent,
    Text,
    http_address,
)
from cachecd.quantities import approximate_size, format_size
from cachecd_client.sockets import MAX_PATH, default_endpoint, path_length

_MIN_SHARD: Final = 64 << 10
_MAX_SHARD: Final = 4 << 30


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
            "Maximum disk usage of the cache: a size, or a share of its file system such as 80%. "
            "Everything in the directory counts, in allocated blocks."
        ),
        examples=["500GiB", "80%"],
    )
    shard_size: Size = Field(
        64 << 20,
        description=(
            "Size of one shard file, from 64KiB to 4GiB. With small shards, training starts "
            "sooner, and rotation has finer steps. With large shards, the cache has fewer files."
        ),
        examples=["64MiB"],
    )
    reserve_free: Size = Field(
        0,
        description="Room to leave free on the file system, even if the limit allows more data.",
        examples=["20GiB"],
    )
    window: Size | None = Field(
        None,
        gt=0,
        description=(
            "Bytes of shards that a trainer shuffles at a time; at most 16,384 shards. A larger set is "
            "shuffled within a sliding window, because random access is very slow if the data does not "
            "fit into memory. Set `window` if trainers on several machines must read in the same order. "
            "Default: half of the memory of the daemon's cgroup."
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
            "Number of worker processes. More workers help if the transform takes most of the time. "
            "Leave the trainer enough cores."
        ),
    )
    connections: Integer = Field(
        32,
        ge=1,
        le=65536,
        description=(
            "Concurrent requests of all workers to the store. More requests help with small objects "
            "and distant stores."
        ),
    )
    bandwidth: Rate | None = Field(
        None,
        description="Maximum rate at which all workers together fetch. Default: no limit.",
        examples=["600MB/s"],
    )
    python: AbsolutePath | None = Field(
        None,
        description=(
            "Interpreter of the workers. It must be able to import the transform's module. Default: "
            "the daemon's interpreter."
        ),
        examples=["/home/me/project/.venv/bin/python"],
    )
    path: tuple[Directory, ...] = Field(
        (),
        description=(
            "Folders with your own modules that are not installed. Workers search them first, then "
            "the daemon's working directory, PYTHONPATH and installed packages. A relative folder "
            "is relative to the configuration file. Most of Python's own modules cannot be replaced."
        ),
        examples=[["."]],
    )
    memory: PositiveSize | None = Field(
        None,
        description=(
            "Memory that one worker may use. The daemon ends a worker that uses more, and tries the "
            "current unit once more. Mapped files, and processes that a transform starts, do not count. "
            "Default: half of the memory of the daemon's cgroup, divided among the workers."
        ),
        examples=["4GiB"],
    )
    unit_timeout: Duration = Field(
        600.0,
        description=(
            "Time that a transform may take for one record. The daemon ends a worker that is silent "
            "for longer, and tries the current unit once more. Imports may take two minutes, or "
            "this time if it is longer."
        ),
        examples=["2m"],
    )
    egress_limit: PositiveSize | None = Field(
        None,
        description=(
            "Maximum bytes to fetch in total, across restarts. At the limit, the daemon stops fetching, "
            "and training continues with the cached data."
        ),
        examples=["10TiB"],
    )
    idle: Duration | None = Field(
        None,
        description=(
            "Pause fetching when no job has had a lease for this time. The next acquire resumes "
            "fetching. Default: never pause."
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


def _socket_address(value: str) -> str:
    path = value.removeprefix("ipc://")
    if path == value or not path.startswith("/"):
        raise ValueError(f"found {value!r}, expected ipc:// and an absolute path")
    length = path_length(path)
    if length > MAX_PATH:
        raise ValueError(
            f"found a socket path of {length} bytes ({path}), expected at most {MAX_PATH}: "
            "choose a shorter directory"
        )
    return value


def _http_address(value: str) -> str:
    http_address(value)
    return value


class ServerConfig(SectionModel):
    """How trainers and people reach the daemon."""

    endpoint: Annotated[Text, AfterValidator(_socket_address)] = Field(
        default_factory=lambda: default_endpoint(os.environ),
        validate_default=True,
        description=(
            "Unix socket of the daemon: ipc:// and an absolute path of at most 107 bytes. "
            "Members of the socket's group can read everything that is cached. Default: "
            "ipc://$XDG_RUNTIME_DIR/cachecd/cachecd.sock, or ipc:///run/cachecd/cachecd.sock if "
            "that variable is not set."
        ),
        examples=["ipc:///run/cachecd/cachecd.sock"],
    )
    http: Annotated[Text, AfterValidator(_http_address)] | None = Field(
        None,
        description=(
            "IP address and port of a web page, and of metrics for Prometheus. Whoever reaches the address "
            "can read the status; nobody can change anything. Needs `pip install 'cachecd[http]'`. "
            "Default: no HTTP."
        ),
        examples=["127.0.0.1:9400"],
    )
    http_any: Boolean = Field(
        False,
        description=(
            "Allow another address than a loopback address in `http`. The page has no password and no "
            "encryption: use a firewall, or a proxy that has both."
        ),
    )
    http_keys: Boolean = Field(
        False,
        description=(
            "Show keys of skipped objects by HTTP. Default: counts and reasons without examples."
        ),
    )

    @model_validator(mode="after")
    def _http_is_local(self) -> ServerConfig:
        if self.http is None or self.http_any:
            return self
        host, port = http_address(self.http)
        if not ip_address(host).is_loopback:
            raise conflict(
                ("http",),
                f"{self.http} is not a loopback address, so other machines could read the status: use "
                f"127.0.0.1:{port}, or set server.http_any: true",
            )
        return self


DatasetName = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]


class Config(SectionModel):
    """A whole configuration file."""

    version: Literal[1] = Field(description="The version of this file's format: 1.")
    cache: CacheConfig = Field(description="Where the shards are, and how much room they may take.")
    datasets: dict[DatasetName, DatasetConfig] = Field(
        min_length=1,
        description=(
            "At least one dataset. A name has 1 to 64 letters, digits, dashes and underscores, and "
            "begins with a letter or digit."
        ),
    )
    sampler: SamplerConfig = Field(
        SamplerConfig(), description="The processes that fetch, prepare and write."
    )
    server: ServerConfig = Field(
        default_factory=ServerConfig, description="How trainers and people reach the daemon."
    )
    log: Literal["auto", "text", "json"] = Field(
        "auto",
        description=(
            "Form of the daemon's log on stderr: one text or one JSON object for each line. auto: text "
            "on a terminal, and JSON elsewhere."
        ),
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
                    f"`datasets.{name}.split` creates a dataset with this name: choose another name here",
                )
            self.datasets[other] = dataset.other_side()
        return self

    @field_serializer("datasets", mode="wrap")
    def _as_written(
        self, datasets: dict[str, DatasetConfig], serialize: SerializerFunctionWrapHandler
    ) -> Any:
        """Omits the datasets that a split creates."""
        return serialize({name: d for name, d in datasets.items() if not d.held_out})

    @model_validator(mode="after")
    def _first_sets_fit(self) -> Config:
        needed = sum(d.grow.first or 0 for d in self.datasets.values())
        if isinstance(self.cache.limit, int) and needed > self.cache.limit:
            raise conflict(
                ("cache", "limit"),
                f"the limit is {format_size(self.cache.limit)}, but `grow.first` of all datasets together "
                f"needs {format_size(needed)} ({approximate_size(needed)}): raise the limit, or lower "
                "`grow.first`",
                too_small=True,
            )
        return self

    def without_secrets(self) -> dict[str, Any]:
        """Returns the configuration as JSON, without the values of `source.options`, which a user's reader
        may need as a password, and without the queries of URLs, which may have a token. Passwords in URLs
        are refused."""
        values = self.model_dump(mode="json")
        for dataset in values["datasets"].values():
            source = dataset["source"]
            texts = {key: value for key, value in source.items() if isinstance(value, str)}
            source |= {key: text.partition("?")[0] for key, text in texts.items() if "://" in text}
            source["options"] = dict.fromkeys(source["options"], "(omitted)")
        return values
