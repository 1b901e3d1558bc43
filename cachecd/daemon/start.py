"""Starts a cache: opens the directories of the configured generations, and reports the content of cache.dir
as events."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from cachecd.config import Config, DatasetConfig
from cachecd.config.identity import VERSION, directory_name, identity_of, split_of
from cachecd.daemon.disk_work import DiskWork, lease_of
from cachecd.daemon.listings import GenerationListing
from cachecd.daemon.measurement import measure
from cachecd.daemon.rules import configured
from cachecd.disk import filesystem, leases
from cachecd.disk.durable import State, read_egress, read_figures, read_state
from cachecd.disk.excluded import ExcludedFile
from cachecd.disk.generation_file import GenerationFile, read_generation, write_generation
from cachecd.disk.inventory import (
    foreign_directories,
    remove_leftovers,
    shard_files,
    take_inventory,
)
from cachecd.disk.layout import GenerationLayout, Layout
from cachecd.errors import DamagedError
from cachecd.model import Shape, ShardVersion, shard_number
from cachecd.policy import events as ev
from cachecd.policy.fit import set_size
from cachecd.policy.rotation import Rotation
from cachecd.policy.values import Figures, GenerationId, Head, Lease
from cachecd_client.errors import ProtocolVersionError
from cachecd_client.protocol import decode_manifest

_log = structlog.get_logger("cachecd.daemon")
_COPY = re.compile(r"-([0-9]+)$")


@dataclass(slots=True)
class Start:
    """The result of a start. `fetched`: the bytes in egress.json; None if the file is damaged and no
    egress_limit is set. `events`: the events for the policy, up to Started. `boot` makes the names of
    leases unique across restarts. `damaged`: why a generation cannot be read. `foreign`: the bytes of
    files that the daemon did not write, in `shards/` and in unknown directories."""

    layout: Layout
    work: DiskWork
    fetched: int | None
    boot: str = field(default_factory=lambda: f"{time.time_ns():x}.")
    listings: dict[str, GenerationListing] = field(default_factory=dict)
    configured: dict[str, GenerationId] = field(default_factory=dict)
    generations: dict[GenerationId, GenerationFile] = field(default_factory=dict)
    damaged: dict[GenerationId, str] = field(default_factory=dict)
    foreign: int = 0
    events: list[ev.Event] = field(default_factory=list)

    @property
    def names(self) -> dict[str, str]:
        """The configured generation of each dataset."""
        return {name: generation.name for name, generation in self.configured.items()}

    @property
    def directories(self) -> list[Path]:
        """The directories that must not be replaced while the daemon runs."""
        layouts = [self.layout.generation(*each) for each in self.configured.values()]
        shards = [each.shards for each in layouts]
        return [self.layout.root, self.layout.datasets, self.layout.leases, *shards]


def known_sizes(config: Config, started: Start) -> dict[str, int]:
    """Returns the bytes of all shards of each pinned dataset that was listed before. Estimates the bytes
    from the shards if at least half of the units are cached. Otherwise computes them from the listing, if
    records are unchanged objects."""
    sizes = {}
    shards = {
        each.generation: [shard.facts for shard in each.shards if shard.status == "live"]
        for each in started.events
        if isinstance(each, ev.GenerationFound)
    }
    for name, generation in started.configured.items():
        dataset, table = config.datasets[name], started.listings[name].table
        if not (dataset.pin and table.completed):
            continue
        live = sum(facts.allocated for facts in shards[generation])
        ended = sum(facts.ended for facts in shards[generation])
        if 2 * ended >= len(table) > 0:
            sizes[name] = set_size(0, len(table), live, ended)
        elif dataset.source.format == "files" and not (dataset.source.join or dataset.transform):
            sizes[name] = set_size(table.num_bytes, len(table))
    return sizes


async def start(
    config: Config,
    limit: int,
    offline: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Start:
    """Opens cache.dir, which the caller owns. Removes files that killed processes left. `progress` is
    called repeatedly, in another thread, while sidecars are read; an error that it raises stops the start.

    DamagedError: a necessary file is damaged. DiskError: the disk refuses to read. Then the start fails,
    because sound shards would seem lost.
    """
    layout = Layout(config.cache.dir)
    for folder in (layout.leases, layout.datasets):
        with filesystem.refusing(f"cannot create {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
    excluded = ExcludedFile(layout.excluded)
    try:
        fetched = read_egress(layout.egress)
    except DamagedError as error:
        if config.sampler.egress_limit is not None:
            raise
        _log.error("egress.json ignored, because no egress_limit is set", why=str(error))
        fetched = None
    started = Start(layout, DiskWork(layout, excluded), fetched)
    for name, dataset in config.datasets.items():
        await _open(started, config, name, dataset)
    started.work.configure(config.cache.window)
    event = configured(config, limit, started.names, started.boot, offline)
    await asyncio.to_thread(_take_stock, started, event, config.cache.reserve_free, progress)
    return started


async def _open(started: Start, config: Config, name: str, dataset: DatasetConfig) -> None:
    """Opens or creates the directory of a configured generation. If generation.json or the listing is
    damaged, the generation gets another directory."""
    identity = identity_of(dataset)
    copies = [
        int(match[1]) if (match := _COPY.search(directory)) else 1
        for owner, directory in started.layout.generations()
        if owner == name and directory.partition("-")[0] == directory_name(identity)
    ]
    copy = max(copies, default=1)
    while True:
        generation = GenerationId(name, directory_name(identity, copy))
        layout = started.layout.generation(*generation)
        try:
            _make_generation(layout)
            known = _known(layout)
            if known is None:
                size = config.cache.shard_size
                known = GenerationFile(identity, time.time(), dataset.seed, size)
                write_generation(layout.identity, known)
            blocks = 0 if known.shape is None else 1
            started.listings[name] = await GenerationListing.open(layout.listing, blocks)
        except DamagedError as error:
            copy += 1
            _log.error(
                "generation damaged: the source is listed again", dataset=name, why=str(error)
            )
            continue
        started.configured[name] = generation
        return


def _make_generation(layout: GenerationLayout) -> None:
    """DamagedError if a path exists and has another type. DiskError."""
    with filesystem.refusing(f"cannot create {layout.root}"):
        try:
            layout.shards.mkdir(parents=True, exist_ok=True)
            filesystem.regular_size(layout.listing)
        except (FileExistsError, NotADirectoryError) as error:
            raise DamagedError(f"{error.filename} is not a directory: remove it") from error
        except FileNotFoundError:
            return  # a new listing


def _known(layout: GenerationLayout) -> GenerationFile | None:
    """Reads generation.json. Returns None if the directory has neither this file nor a shard. DamagedError:
    the shards in the directory cannot be used. DiskError."""
    known = read_generation(layout.identity)
    if known is None and layout.shards.is_dir() and any(file for _, file, _ in shard_files(layout)):
        raise DamagedError(f"{layout.identity} is missing")
    if known is not None and (version := known.identity.get("version", 1)) != VERSION:
        raise DamagedError(
            f"{layout.root} was written by version {version} of the rules, expected {VERSION}"
        )
    return known


def _take_stock(
    started: Start, event: ev.Configured, reserve_free: int, progress: Callable[[str], None]
) -> None:
    """Reads leases and shards. Fills `events`."""
    leases_found = _find_leases(started.layout)
    started.events.append(event)
    for dataset, name in started.layout.generations():
        generation, layout = GenerationId(dataset, name), started.layout.generation(dataset, name)
        if not layout.shards.is_dir():
            continue
        try:
            known = _known(layout)
        except DamagedError as error:
            why = started.damaged[generation] = str(error)
            _log.error(
                "generation cannot be read: its shards are deleted first", dataset=dataset, why=why
            )
            known = _substitute(started, generation, leases_found)
        if known is None or known.shape is None:
            started.foreign += sum(size for *_, size in shard_files(layout))
        if known is not None:
            started.generations[generation] = known
            if known.schema is not None:
                started.work.schemas[generation] = json.loads(known.schema)
    newest_first = sorted(started.generations.items(), key=lambda each: each[1].made, reverse=True)
    leased = [each.lease for each in leases_found]
    for generation, known in newest_first:
        started.events.append(_inspect(started, generation, known, leased, progress))
        if started.configured.get(generation.dataset) == generation:
            started.events.append(started.listings[generation.dataset].listed(generation))
    started.events += leases_found
    started.foreign += sum(foreign_directories(started.layout))
    measured = measure(started.layout, started.fetched or 0, reserve_free, started.foreign)
    started.events.append(measured)
    for exclusion in started.work.excluded.unfinished:
        searching = partial(progress, f"{exclusion.dataset}: shards are searched for excluded keys")
        started.events.append(started.work.find_holders(exclusion.name, searching))
    started.events.append(ev.Started())


def _substitute(
    started: Start, generation: GenerationId, leases_found: list[ev.LeaseFound]
) -> GenerationFile:
    """Returns a substitute for a generation.json that cannot be read, because the shard table needs a
    shape. Its S matters only for leases that name shards of the generation."""
    configured = started.configured.get(generation.dataset)
    identity: Mapping[str, Any] = {}
    if configured and configured.name.partition("-")[0] == generation.name.partition("-")[0]:
        known = read_generation(started.layout.generation(*configured).identity)
        identity = known.identity if known is not None else {}
    streams = {
        (each.lease.dataset, each.lease.generation): each.lease.streams for each in leases_found
    }
    return GenerationFile(identity, -math.inf, 0, 0, Shape(streams.get(generation, 1), 1, 1, 1, 0))


def _inspect(
    started: Start,
    generation: GenerationId,
    known: GenerationFile,
    leases: list[Lease],
    progress: Callable[[str], None],
) -> ev.GenerationFound:
    layout, split = started.layout.generation(*generation), split_of(known.identity)
    damaged = started.damaged.get(generation, "")
    try:
        state = read_state(layout.state)
    except DamagedError as error:
        _log.error("state.json ignored", generation=generation.name, why=str(error))
        state = State()
    started.work.states[generation] = state
    is_configured = started.configured.get(generation.dataset) == generation
    figures = _figures(started.layout, generation.dataset) if is_configured else {}
    if known.shape is None:
        return ev.GenerationFound(generation, split, figures=figures)
    own = [lease for lease in leases if (lease.dataset, lease.generation) == generation]
    leased = {name for lease in own for name in _names(lease)}
    excluded = started.work.excluded.excluded_from(generation.dataset)

    def read(count: int) -> None:
        name = generation.dataset
        progress(f"{name}: {count} sidecars read, which the snapshot does not have")

    inventory = take_inventory(layout, known.shape, state, leased, excluded, read)
    started.foreign += inventory.foreign
    # If generation.json is damaged, state.json keeps its heads, because a person may restore the file.
    kept = replace(inventory, heads=state.heads) if damaged else inventory
    started.work.states[generation] = remove_leftovers(layout, kept, state)
    heads = tuple(Head(*head) for head in inventory.heads)
    content = heads, inventory.shards, known.contradiction, figures, damaged
    return ev.GenerationFound(generation, split, known.shape, *content)


def _figures(layout: Layout, dataset: str) -> Figures:
    """Returns the stored figures of a dataset's rotation. Without them, rotation begins more slowly."""
    try:
        figures = read_figures(layout.rotation(dataset))
    except DamagedError as error:
        _log.error("rotation.json ignored", dataset=dataset, why=str(error))
        return {}
    if unknown := sorted(figures.keys() - {field.name for field in fields(Rotation)}):
        _log.warning("unknown figures in rotation.json ignored", dataset=dataset, names=unknown)
    return figures


def _names(lease: Lease) -> Iterator[ShardVersion]:
    versions = dict(lease.versions)
    for stream, first, last in lease.intervals:
        for j in range(first, last + 1):
            number = shard_number(lease.streams, stream, j)
            yield number, versions.get(number, 0)


def _find_leases(layout: Layout) -> list[ev.LeaseFound]:
    """Returns the leases on disk. Removes a damaged manifest if no process holds it. DamagedError: a
    process holds a damaged manifest, so the shards that it reads are unknown."""
    events = []
    for each in leases.find_manifests(layout):
        try:
            lease = lease_of(decode_manifest(each.text))
            if lease.id != each.lease:
                raise ValueError(f"found the manifest of lease {lease.id}")
        except (ValueError, ProtocolVersionError) as error:
            path = layout.manifest(each.lease)
            if each.is_held or not leases.end_lease(layout, each.lease):
                raise DamagedError(
                    f"{path} is damaged, and a process holds it: {error}. Stop that process, then start "
                    "again"
                ) from error
            _log.error("damaged lease removed", path=str(path), why=str(error))
            continue
        events.append(ev.LeaseFound(lease, each.held_by, each.epochs, each.is_held))
    return events
