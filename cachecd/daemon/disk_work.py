"""Carries out the commands of the policy about files under cache.dir. Every method blocks.

One thread calls `write`: writes are short, and keep their order. Another thread calls `search`, which reads
many files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

import structlog

from cachecd.daemon.cached_records import gaps
from cachecd.disk import filesystem, leases, publish
from cachecd.disk.durable import Skips, State, write_figures, write_state
from cachecd.disk.excluded import ExcludedFile, Exclusion
from cachecd.disk.generation_file import read_generation, write_generation
from cachecd.disk.inventory import find_holders
from cachecd.disk.layout import GenerationLayout, Layout
from cachecd.disk.sidecar import (
    LOST,
    as_stored,
    excluded_records,
    holds,
    is_lost,
    read_head,
    read_sidecar,
    read_whole,
    sample_at,
)
from cachecd.errors import DamagedError, DiskError, LostError, NameTakenError
from cachecd.model import Cursor, ShardFacts, Skipped, SkippedRecords, StreamId, encoded
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.values import GenerationId, Lease
from cachecd_client import resources
from cachecd_client._core import scan
from cachecd_client.errors import CorruptError
from cachecd_client.protocol import MANIFEST_VERSION, Manifest, encode_manifest

Write = (
    do.WriteShape | do.ReadCursor | do.PublishShard | do.WriteJudgement | do.KeepFigures
    | do.MarkRetired | do.Unlink | do.RemoveGeneration | do.MarkBad | do.WriteExclusion | do.FinishExclusion
    | do.WriteManifest | do.MarkLease | do.EndLease
)  # fmt: skip
_log = structlog.get_logger("cachecd.daemon")
Search = do.VerifyShard | do.FindHolders | do.RemakeShard


@dataclass(slots=True)
class DiskWork:
    """`states`: the content of each generation's state.json after the next write. `schemas`: the known
    schemas. `window`: the shuffle window in bytes. `check` raises DiskError if nothing may be written.
    `stops` is set when the daemon ends: long work then ends with InterruptedError, and the next start
    continues it."""

    layout: Layout
    excluded: ExcludedFile
    schemas: dict[GenerationId, dict[str, Any]] = field(default_factory=dict)
    states: dict[GenerationId, State] = field(default_factory=dict)
    window: int = 0
    check: Callable[[], None] = lambda: None
    stops: Event = field(default_factory=Event)
    _skipped: dict[tuple[StreamId, int], tuple[Skips, ...]] = field(default_factory=dict)
    _halves: set[tuple[StreamId, int]] = field(default_factory=set)
    _counted: set[GenerationId] = field(default_factory=set)  # with counts that are not written yet

    def configure(self, window: int | None) -> None:
        """Sets the shuffle window. `window`: cache.window; None: half of the memory."""
        # Computed once, because reading the size of the memory takes a millisecond.
        self.window = resources.window() if window is None else window

    def proceed(self) -> None:
        """Raises InterruptedError if the daemon ends. Long work calls this before each shard."""
        if self.stops.is_set():
            raise InterruptedError("the daemon ends")

    def schemas_of(self, datasets: Collection[str]) -> list[dict[str, Any]]:
        """Returns the known schemas of all generations of these datasets on disk."""
        return [self.schemas[each] for each in self._generations(datasets) if each in self.schemas]

    # --- writes

    def write(self, command: Write) -> list[ev.Event]:
        """Carries out a command durably. Returns the result."""
        try:
            self.check()
        except DiskError as error:
            return [ev.DiskRefused(command, str(error), gone=True)]
        try:
            return self._write(command)
        except DiskError as error:
            if isinstance(command, do.PublishShard) and not isinstance(error, NameTakenError):
                self._halves.add((command.stream, command.number))
            return [ev.DiskRefused(command, str(error))]

    def _write(self, command: Write) -> list[ev.Event]:
        match command:
            case do.PublishShard():
                return [self._publish(*command)]
            case do.ReadCursor(generation, number, version):
                try:
                    head = read_head(self.layout_of(generation).sidecar(number, version))
                except LostError:
                    return [ev.ShardLost(*command)]
                return [ev.CursorRead(generation, number, head.before or Cursor())]
            case do.EndLease(name):
                if not leases.end_lease(self.layout, name):
                    return []
            case do.WriteShape(generation, shape):
                path = self.layout_of(generation).identity
                if (known := read_generation(path)) is None:
                    raise DiskError(f"{path} is missing")
                write_generation(path, replace(known, shape=shape, seed=shape.seed))
            case do.WriteJudgement(generation, contradiction):
                path = self.layout_of(generation).identity
                if (known := read_generation(path)) is not None:
                    write_generation(path, replace(known, contradiction=contradiction))
            case do.KeepFigures(dataset, figures):
                write_figures(self.layout.rotation(dataset), figures)
            case do.MarkRetired(generation, names):
                publish.mark_retired(self.layout_of(generation), names)
            case do.Unlink(generation, heads, names):
                known_state = self.states.get(generation, State())
                if heads and known_state.heads != heads:
                    self._write_state(generation, replace(known_state, heads=heads))
                publish.unlink(self.layout_of(generation), names, self.proceed)
            case do.RemoveGeneration(generation):
                publish.remove_generation(self.layout_of(generation))
            case do.MarkBad(generation, number, version):
                publish.mark_bad(self.layout_of(generation), number, version)
            case do.WriteExclusion():
                self.excluded.add(Exclusion(*command))
            case do.FinishExclusion(name):
                self.excluded.finish(name)
            case do.WriteManifest(lease):
                leases.write_manifest(self.layout, lease.id, self.manifest(lease))
            case do.MarkLease():
                leases.mark(self.layout, *command)
        return [ev.CommandDone(command)]

    def manifest(self, lease: Lease) -> bytes:
        """Returns the text of a lease's manifest."""
        schema = self.schemas.get(GenerationId(lease.dataset, lease.generation))
        shards = sum(last - first + 1 for _, first, last in lease.intervals)
        window = resources.window_of(lease.num_bytes, shards, self.window)
        return encode_manifest(manifest_of(lease, schema, window))

    def write_counts(self) -> None:
        """Writes the changed counts of skipped units. DiskError."""
        for generation in list(self._counted):
            self._write_state(generation, self.states[generation])

    def _write_state(self, generation: GenerationId, state: State) -> None:
        write_state(self.layout_of(generation).state, state)
        self.states[generation] = state
        self._counted.discard(generation)

    def write_schema(self, generation: GenerationId, schema: str) -> None:
        """Writes the schema into generation.json, unless the file has a schema. DiskError."""
        path = self.layout_of(generation).identity
        if (known := read_generation(path)) is not None and known.schema is None:
            write_generation(path, replace(known, schema=schema))

    def note_skipped(
        self,
        stream: StreamId,
        number: int,
        passed: Sequence[SkippedRecords],
        skipped: Sequence[Skipped],
    ) -> None:
        """Keeps the skipped units and records of a sealed shard until it is published. The sidecar has only
        the beginning of each reason."""
        records = tuple(Skips(each.reason, 0, each.records, each.examples) for each in passed)
        units = tuple(Skips(each.reason, 1, 0, (each.key,)) for each in skipped)
        if records or units:
            self._skipped[stream, number] = records + units

    def discard(self, stream: StreamId, numbers: Iterable[int]) -> None:
        """Removes sealed shards that will not be published. If the disk refuses, the next start removes
        them, or the next worker that writes the same number."""
        layout = self.layout_of(generation_of(stream))
        for number in numbers:
            self._skipped.pop((stream, number), None)
            halves = (stream, number) in self._halves
            self._halves.discard((stream, number))
            try:
                publish.discard(layout, number, halves=halves)
            except DiskError as error:
                _log.warning("shard not removed", stream=str(stream), number=number, why=str(error))

    def _publish(self, stream: StreamId, number: int, is_empty: bool) -> ev.Event:
        layout, generation = self.layout_of(generation_of(stream)), generation_of(stream)
        if self._holds_excluded(generation, number):
            return ev.PublishRefused(stream, number)
        allocated = publish.publish(layout, number, is_empty=is_empty)
        self._count(generation, self._skipped.pop((stream, number), ()))
        with contextlib.suppress(DiskError):  # the daemon repeats the write each minute
            self.write_counts()
        return ev.Published(stream, number, allocated)

    def publish_remade(
        self, generation: GenerationId, number: int, version: int, dropped: bool
    ) -> ev.Event:
        """Publishes the next version of a damaged shard, which a worker made from the source. If
        `dropped`, the data of the damaged version is removed already, and this removes its other files.
        DiskError."""
        if self._holds_excluded(generation, number, version):
            publish.discard(self.layout_of(generation), number, version)
            return ev.RemakeFailed(generation, number, "a record of it was excluded")
        remade = self._publish_version(generation, number, version)
        if dropped:
            with contextlib.suppress(DiskError):  # the next start removes the files
                publish.unlink(self.layout_of(generation), [(number, version - 1)])
        return remade

    def _holds_excluded(self, generation: GenerationId, number: int, version: int = 0) -> bool:
        """Returns whether a sealed shard has a record that was excluded after its worker began it."""
        excluded = as_stored(self.excluded.excluded_from(generation.dataset))
        sidecar = self.layout_of(generation).temporary_sidecar(number, version)
        return bool(excluded) and holds(sidecar, excluded)

    def _publish_version(self, generation: GenerationId, number: int, version: int) -> ev.Event:
        layout = self.layout_of(generation)
        try:
            head = read_head(layout.temporary_sidecar(number, version))
            allocated = publish.publish(layout, number, version, is_empty=not head.records)
        except DiskError as error:
            halves = not isinstance(error, NameTakenError)
            publish.discard(layout, number, version, halves=halves)  # its reservation ends
            raise
        counts = head.records, head.data_bytes, head.ended, head.digest
        facts = ShardFacts(allocated, *counts, version, head.passed)
        return ev.Remade(generation, number, facts)

    def _count(self, generation: GenerationId, skipped: Sequence[Skips]) -> None:
        """Counts skipped units and records for state.json. Logs the examples that state.json keeps."""
        state = self.states.get(generation, State())
        for each in skipped:
            state, kept = state.with_skips(each)
            for example in kept:
                shown = {"dataset": generation.dataset, "key": ascii(example)[1:-1]}
                _log.warning("skipped", **shown, why=each.reason)
        if skipped:
            self.states[generation] = state
            self._counted.add(generation)

    # --- searches

    def search(self, command: Search) -> list[ev.Event]:
        """Carries out a command that reads whole shards or many sidecars. Returns the result."""
        try:
            match command:
                case do.VerifyShard(generation, number, version):
                    is_sound = self._is_sound(self.layout_of(generation), number, version)
                    return [ev.ShardVerified(*command, is_sound)]
                case do.FindHolders(exclusion):
                    return [self.find_holders(exclusion, self.proceed)]
                case do.RemakeShard():
                    return [self._copy(command)]
        except DiskError as error:
            return _failures(command, error)

    def _is_sound(self, layout: GenerationLayout, number: int, version: int) -> bool:
        """Returns whether every record is sound. DiskError; LostError."""
        sidecar = read_sidecar(layout.sidecar(number, version))
        shard = layout.shard(number, version)
        if not len(sidecar):
            return True
        with filesystem.refusing(f"cannot verify {shard}"):
            try:
                is_whole = filesystem.regular_size(shard) == sidecar.data_bytes
                offsets = scan(str(shard), verify=True)
                return is_whole and offsets.tolist() == sidecar.offsets.tolist()
            except (CorruptError, DamagedError):
                return False
            except OSError as error:
                if error.errno not in LOST:
                    raise
                return False

    def find_holders(self, name: str, proceed: Callable[[], None]) -> ev.HoldersFound:
        """Finds all shards that have a record of an exclusion. `proceed` is called before each shard; an
        error that it raises ends the search. DiskError."""
        [exclusion] = (each for each in self.excluded.unfinished if each.name == name)
        holders: list[tuple[GenerationId, int, int]] = []
        for generation in self._generations([exclusion.dataset]):
            shards = find_holders(self.layout_of(generation), exclusion.excluded, proceed)
            holders += [(generation, *shard) for shard in shards]
        return ev.HoldersFound(name, tuple(holders))

    def cached_keys(self, datasets: Collection[str], keys: Collection[str]) -> set[str]:
        """Returns the `keys` that have records in shards. If a sidecar is lost, returns all of them,
        because they may have records. DiskError."""
        by_code, cached = {encoded(key): key for key in keys}, set[str]()
        for layout in map(self.layout_of, self._generations(datasets)):
            for name in find_holders(layout, dict.fromkeys(keys, frozenset()), self.proceed):
                try:
                    table = read_sidecar(layout.sidecar(*name)).table
                except LostError:
                    return set(keys)
                cached |= {by_code[key] for _, key, *_ in table if key in by_code}
        return cached

    def cached_samples(
        self, datasets: Collection[str], key: str, is_renamed: bool
    ) -> tuple[set[str], bool]:
        """Returns the samples of an object that are in shards, and whether to refuse all other names.
        Other names are refused if shards cover the whole object, or if they cover a part, and user code
        may have changed the names (`is_renamed`). DiskError."""
        samples, parts = set[str](), dict[tuple[str, int, bytes], list[tuple[int, int]]]()
        for layout in map(self.layout_of, self._generations(datasets)):
            for name in find_holders(layout, {key: frozenset()}, self.proceed):
                path = layout.sidecar(*name)
                try:
                    head, sidecar = read_whole(path)
                    for place in excluded_records(path, sidecar, {encoded(key): frozenset()}):
                        samples.add(sample_at(path, int(sidecar.offsets[place])))
                except DamagedError:
                    return samples, False
                for unit, unit_key, _, etag in sidecar.table:
                    if unit_key == encoded(key):
                        interval = head.intervals([unit])[unit]
                        parts.setdefault((str(layout.root), unit, etag), []).append(interval)
        return samples, any(is_renamed or not [*gaps(each)] for each in parts.values())

    def _generations(self, datasets: Collection[str]) -> list[GenerationId]:
        """Returns the generations of these datasets on disk, if they have a directory for shards."""
        own = [GenerationId(*name) for name in self.layout.generations() if name[0] in datasets]
        return [each for each in own if self.layout_of(each).shards.is_dir()]

    def _copy(self, command: do.RemakeShard) -> ev.Event:
        generation, number, version = command.generation, command.number, command.version
        layout = self.layout_of(generation)
        excluded = as_stored(self.excluded.excluded_from(generation.dataset))
        publish.copy_without(layout, number, version, excluded, self.proceed)
        return self._publish_version(generation, number, version + 1)

    def layout_of(self, generation: GenerationId) -> GenerationLayout:
        return self.layout.generation(generation.dataset, generation.name)


def _failures(command: Search, error: DiskError) -> list[ev.Event]:
    """Returns the result of a failed search. If a single shard is damaged, only that shard is lost."""
    if isinstance(command, do.FindHolders):
        return [ev.DiskRefused(command, str(error))]
    name, number, version = command[:3]
    lost: list[ev.Event] = [ev.ShardLost(name, number, version)] if is_lost(error) else []
    if isinstance(command, do.RemakeShard) and (lost or isinstance(error, DamagedError)):
        return [*lost, ev.RemakeFailed(name, number, str(error))]
    return lost or [ev.DiskRefused(command, str(error))]


def manifest_of(lease: Lease, schema: dict[str, Any] | None, window: int | None = None) -> Manifest:
    """Returns the manifest of a lease. `window`: the shuffle window in bytes; None: the whole set."""
    fields: dict[str, Any] = lease._asdict()
    fields["lease"] = fields.pop("id")
    return Manifest(MANIFEST_VERSION, **fields, window=window, schema=schema or {})


def lease_of(manifest: Manifest) -> Lease:
    """Returns the lease of a manifest."""
    fields = {name: getattr(manifest, name) for name in Lease._fields if name != "id"}
    for name in ("intervals", "versions"):
        fields[name] = tuple(map(tuple, fields[name]))
    return Lease(manifest.lease, **fields)


def generation_of(stream: StreamId) -> GenerationId:
    return GenerationId(stream.dataset, stream.generation)
