"""The commands of the policy about files under cache.dir. Every method blocks.

One thread calls `write`, another `search`: writes are short and in order, searches read many files.
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
    SidecarHead,
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
    """`states`: the present or next content of each generation's state.json. `schemas`: the known schemas.
    `window`: the shuffle window in bytes. `check` raises DiskError if nothing may be written. `stops` is
    set when the daemon ends: long work ends with InterruptedError then, and a start takes it up."""

    layout: Layout
    excluded: ExcludedFile
    schemas: dict[GenerationId, dict[str, Any]] = field(default_factory=dict)
    states: dict[GenerationId, State] = field(default_factory=dict)
    window: int = 0
    check: Callable[[], None] = lambda: None
    stops: Event = field(default_factory=Event)
    _skipped: dict[tuple[StreamId, int], tuple[Skips, ...]] = field(default_factory=dict)
    _halves: set[tuple[StreamId, int]] = field(default_factory=set)
    _counted: set[GenerationId] = field(default_factory=set)  # state.json lacks their newest counts

    def configure(self, window: int | None) -> None:
        """Sets the shuffle window. `window`: cache.window; None: half of the memory. Reading the size of
        the memory takes a millisecond, so it is not repeated for each manifest."""
        self.window = resources.window() if window is None else window

    def proceed(self) -> None:
        """Raises InterruptedError once the daemon ends. Long work calls it before each shard."""
        if self.stops.is_set():
            raise InterruptedError("the daemon ends")

    def schemas_of(self, datasets: Collection[str]) -> list[dict[str, Any]]:
        """Returns the known schemas of the generations on disk of these datasets."""
        return [self.schemas[each] for each in self._generations(datasets) if each in self.schemas]

    # --- writes

    def write(self, command: Write) -> list[ev.Event]:
        """Carries out a command. Its result, which is returned, is durable."""
        begun = False
        try:
            self.check()
            begun = True
            return self._write(command)
        except DiskError as error:
            is_half = begun and not isinstance(error, NameTakenError)
            if is_half and isinstance(command, do.PublishShard):
                self._halves.add((command.stream, command.number))
            return [ev.DiskRefused(command, str(error), gone=not begun)]

    def _write(self, command: Write) -> list[ev.Event]:
        match command:
            case do.PublishShard():
                return [self._publish(*command)]
            case do.ReadCursor(generation, number, version):
                try:
                    head = read_head(self.of(generation).sidecar(number, version))
                except LostError:
                    return [ev.ShardLost(*command)]
                return [ev.CursorRead(generation, number, head.before or Cursor())]
            case do.EndLease(name):
                if not leases.end_lease(self.layout, name):
                    return []
            case do.WriteShape(generation, shape):
                path = self.of(generation).identity
                if (known := read_generation(path)) is None:
                    raise DiskError(f"{path} is missing")
                write_generation(path, replace(known, shape=shape, seed=shape.seed))
            case do.WriteJudgement(generation, contradiction):
                path = self.of(generation).identity
                if (known := read_generation(path)) is not None:
                    write_generation(path, replace(known, contradiction=contradiction))
            case do.KeepFigures(dataset, figures):
                write_figures(self.layout.rotation(dataset), figures)
            case do.MarkRetired(generation, names):
                publish.mark_retired(self.of(generation), names)
            case do.Unlink(generation, heads, names):
                known_state = self.states.get(generation, State())
                if heads and known_state.heads != heads:
                    self._write_state(generation, replace(known_state, heads=heads))
                publish.unlink(self.of(generation), names, self.proceed)
            case do.RemoveGeneration(generation):
                publish.remove_generation(self.of(generation))
            case do.MarkBad(generation, number, version):
                publish.mark_bad(self.of(generation), number, version)
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
        """Writes the counts of skipped units where they changed. DiskError."""
        for generation in list(self._counted):
            self._write_state(generation, self.states[generation])

    def _write_state(self, generation: GenerationId, state: State) -> None:
        write_state(self.of(generation).state, state)
        self.states[generation] = state
        self._counted.discard(generation)

    def write_schema(self, generation: GenerationId, schema: str) -> None:
        """Fixes the schema in generation.json. DiskError."""
        path = self.of(generation).identity
        if (known := read_generation(path)) is not None and known.schema is None:
            write_generation(path, replace(known, schema=schema))

    def note_skipped(
        self,
        stream: StreamId,
        number: int,
        passed: Sequence[SkippedRecords],
        skipped: Sequence[Skipped],
    ) -> None:
        """Keeps what a sealed shard skipped until it is published: its sidecar has only the beginnings of
        the reasons."""
        records = tuple(Skips(each.reason, 0, each.records, each.examples) for each in passed)
        units = tuple(Skips(each.reason, 1, 0, (each.key,)) for each in skipped)
        if records or units:
            self._skipped[stream, number] = records + units

    def discard(self, stream: StreamId, numbers: Iterable[int]) -> None:
        """Removes sealed shards that will not be published. If the disk refuses, the next start removes
        them, or a worker that gets the same number."""
        layout = self.of(generation_of(stream))
        for number in numbers:
            self._skipped.pop((stream, number), None)
            half = (stream, number) in self._halves
            self._halves.discard((stream, number))
            try:
                publish.discard(layout, number, halves=half)
            except DiskError as error:
                _log.warning("shard not removed", stream=str(stream), number=number, why=str(error))

    def _publish(self, stream: StreamId, number: int, is_empty: bool) -> ev.Event:
        layout, generation = self.of(generation_of(stream)), generation_of(stream)
        if self._holds_excluded(generation, number):
            return ev.PublishRefused(stream, number)
        allocated = publish.publish(layout, number, is_empty=is_empty)
        self._count(generation, self._skipped.pop((stream, number), ()))
        with contextlib.suppress(DiskError):  # the next minute repeats it
            self.write_counts()
        return ev.Published(stream, number, allocated)

    def publish_remade(
        self, generation: GenerationId, number: int, version: int, dropped: bool
    ) -> ev.Event:
        """Publishes the next version of a damaged shard, which was made from the source. `dropped`: the
        data of the damaged version were removed before; its other files are removed now. DiskError."""
        if self._holds_excluded(generation, number, version):
            publish.discard(self.of(generation), number, version)
            return ev.RemakeFailed(generation, number, "a record of it was excluded")
        remade = self._publish_version(generation, number, version)
        if dropped:
            with contextlib.suppress(DiskError):  # the next start removes it
                publish.unlink(self.of(generation), [(number, version - 1)])
        return remade

    def _holds_excluded(self, generation: GenerationId, number: int, version: int = 0) -> bool:
        """Whether a sealed shard has a record that was excluded after the shard was begun."""
        excluded = as_stored(self.excluded.of(generation.dataset))
        sidecar = self.of(generation).temporary_sidecar(number, version)
        return bool(excluded) and holds(sidecar, excluded)

    def _publish_version(self, generation: GenerationId, number: int, version: int) -> ev.Event:
        layout = self.of(generation)
        try:
            head = read_head(layout.temporary_sidecar(number, version))
            allocated = publish.publish(layout, number, version, is_empty=not head.records)
        except DiskError as error:
            halves = not isinstance(error, NameTakenError)
            publish.discard(layout, number, version, halves=halves)  # its room is given back
            raise
        return ev.Remade(generation, number, _facts(head, allocated, version))

    def _count(self, generation: GenerationId, skipped: Sequence[Skips]) -> None:
        """Counts skipped units and records, for state.json. The log names as many as state.json does."""
        state = self.states.get(generation, State())
        for each in skipped:
            state, named = state.with_skips(each)
            for example in named:
                shown = {"dataset": generation.dataset, "key": ascii(example)[1:-1]}
                _log.warning("skipped", **shown, why=each.reason)
        if skipped:
            self.states[generation] = state
            self._counted.add(generation)

    # --- searches

    def search(self, command: Search) -> list[ev.Event]:
        """Carries out a command that reads whole shards or many sidecars. Returns its result."""
        try:
            match command:
                case do.VerifyShard(generation, number, version):
                    is_sound = self._is_sound(self.of(generation), number, version)
                    return [ev.ShardVerified(*command, is_sound)]
                case do.FindHolders(exclusion):
                    return [self.find_holders(exclusion, self.proceed)]
                case do.RemakeShard():
                    return [self._copy(command)]
        except DiskError as error:
            return _failures(command, error)

    def _is_sound(self, layout: GenerationLayout, number: int, version: int) -> bool:
        """Whether every record is sound. DiskError; LostError."""
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
        """Returns all shards that hold a record of an exclusion. `proceed` may end the search by an error.
        DiskError."""
        [exclusion] = (each for each in self.excluded.unfinished if each.name == name)
        holders: list[tuple[GenerationId, int, int]] = []
        for generation in self._generations([exclusion.dataset]):
            shards = find_holders(self.of(generation), exclusion.excluded, proceed)
            holders += [(generation, *shard) for shard in shards]
        return ev.HoldersFound(name, tuple(holders))

    def cached_keys(self, datasets: Collection[str], keys: Collection[str]) -> set[str]:
        """Returns which of these keys have records in shards, or may have: a sidecar is lost. DiskError."""
        wanted, held = {encoded(key): key for key in keys}, set[str]()
        for layout in map(self.of, self._generations(datasets)):
            for name in find_holders(layout, dict.fromkeys(keys, frozenset()), self.proceed):
                try:
                    table = read_sidecar(layout.sidecar(*name)).table
                except LostError:
                    return set(keys)
                held |= {wanted[key] for _, key, *_ in table if key in wanted}
        return held

    def cached_samples(
        self, datasets: Collection[str], key: str, is_renamed: bool
    ) -> tuple[set[str], bool]:
        """Returns the samples of an object that shards have, and whether it has no others: shards cover all
        of it; or cover a part and may name its samples otherwise (`is_renamed`). DiskError."""
        samples, parts = set[str](), dict[tuple[str, int, bytes], list[tuple[int, int]]]()
        for layout in map(self.of, self._generations(datasets)):
            for name in find_holders(layout, {key: frozenset()}, self.proceed):
                path = layout.sidecar(*name)
                try:
                    head, sidecar = read_whole(path)
                    for place in excluded_records(path, sidecar, {encoded(key): frozenset()}):
                        samples.add(sample_at(path, int(sidecar.offsets[place])))
                except DamagedError:
                    return samples, False
                for unit, of, _, etag in sidecar.table:
                    if of == encoded(key):
                        covered = head.intervals([unit])[unit]
                        parts.setdefault((str(layout.root), unit, etag), []).append(covered)
        return samples, any(is_renamed or not [*gaps(each)] for each in parts.values())

    def _generations(self, datasets: Collection[str]) -> list[GenerationId]:
        """Returns the generations on disk of these datasets that can have shards."""
        found = map(GenerationId._make, self.layout.generations())
        return [
            each for each in found if each.dataset in datasets and self.of(each).shards.is_dir()
        ]

    def _copy(self, command: do.RemakeShard) -> ev.Event:
        generation, number, version = command.generation, command.number, command.version
        layout = self.of(generation)
        excluded = as_stored(self.excluded.of(generation.dataset))
        publish.copy_without(layout, number, version, excluded, self.proceed)
        return self._publish_version(generation, number, version + 1)

    def of(self, generation: GenerationId) -> GenerationLayout:
        """The paths of a generation."""
        return self.layout.generation(generation.dataset, generation.name)


def _failures(command: Search, error: DiskError) -> list[ev.Event]:
    """Returns the result of a search that failed. Damage costs the shard alone."""
    if isinstance(command, do.FindHolders):
        return [ev.DiskRefused(command, str(error))]
    name, number, version = command[:3]
    lost: list[ev.Event] = [ev.ShardLost(name, number, version)] if is_lost(error) else []
    if isinstance(command, do.RemakeShard) and (lost or isinstance(error, DamagedError)):
        return [*lost, ev.RemakeFailed(name, number, str(error))]
    return lost or [ev.DiskRefused(command, str(error))]


def manifest_of(lease: Lease, schema: dict[str, Any] | None, window: int | None = None) -> Manifest:
    """Returns a lease as its manifest. `window`: the shuffle window in bytes; None: the whole set."""
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
    """The generation of a stream."""
    return GenerationId(stream.dataset, stream.generation)


def _facts(head: SidecarHead, allocated: int, version: int) -> ShardFacts:
    counts = head.records, head.data_bytes, head.ended, head.digest
    return ShardFacts(allocated, *counts, version, head.passed)
