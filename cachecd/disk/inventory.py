"""Takes the inventory of a generation's directory at a start: shards, heads of streams and leftovers.

Sidecars are the truth. If the snapshot has a shard, and its files still have the same sizes, the sidecar is
not read. Only `remove_leftovers` changes the directory.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from cachecd.disk import publish
from cachecd.disk.durable import State, write_state
from cachecd.disk.filesystem import refusing, walk
from cachecd.disk.layout import DATA, MARKS, SIDECAR, GenerationLayout, Layout, ShardFile, parse
from cachecd.disk.sidecar import Encoded, SidecarHead, as_stored, holds, read_head
from cachecd.disk.snapshot import read_snapshot
from cachecd.errors import DamagedError, LostError
from cachecd.model import Cursor, Excluded, Shape, ShardFacts, ShardFound, ShardVersion

_DATA, _SIDECAR = DATA, DATA + SIDECAR
# Numbers have gaps, because shards of a stream may be retired while an older shard is leased. If a gap is
# longer than this many shards of each stream, the daemon did not make the files with higher numbers.
_LONGEST_GAP = 1_000_000


@dataclass(frozen=True, slots=True)
class DirectoryInventory:
    """The content of a generation's directory. `heads`: see State. `dropped`: versions of shards that
    neither the generation nor a lease needs. `stray`: single files of incomplete publications or unlinks.
    `read`: the number of sidecars that were read. `foreign`: the bytes of unknown files in `shards/`."""

    shards: tuple[ShardFound, ...]
    heads: tuple[tuple[int, Cursor], ...]
    dropped: tuple[ShardVersion, ...]
    stray: tuple[Path, ...]
    read: int
    foreign: int


def take_inventory(
    layout: GenerationLayout,
    shape: Shape,
    state: State,
    leased: Collection[ShardVersion],
    excluded: Mapping[str, frozenset[str]] = {},
    progress: Callable[[int], None] = lambda read: None,
) -> DirectoryInventory:
    """Inspects every file in `shards/`. `leased`: every version that a lease names. `excluded`: the keys
    and samples that are excluded from the dataset. `progress` is called with the number of sidecars read so
    far. After DiskError the start must fail, because sound shards would seem lost."""
    return _Inspection(layout, shape, leased, as_stored(excluded), progress).take(state)


def remove_leftovers(
    layout: GenerationLayout, inventory: DirectoryInventory, state: State
) -> State:
    """Removes `dropped` and `stray` files, durably. `state`: the content of state.json. First writes the
    heads of the inventory to state.json, because a removed sidecar may have been the only file with a
    stream's cursor. Returns the new content of state.json. After DiskError the caller may repeat the
    call."""
    for path in inventory.stray:
        with refusing(f"cannot remove {path}"):
            path.unlink(missing_ok=True)
    if names := inventory.dropped:
        state = replace(state, heads=inventory.heads)
        write_state(layout.state, state)
        publish.unlink(layout, names)
    return state


def find_holders(
    layout: GenerationLayout, excluded: Excluded, proceed: Callable[[], None] = lambda: None
) -> list[ShardVersion]:
    """Returns all versions of shards that have an excluded record. This includes shards whose sidecar or
    records are damaged, because they may have such a record. `proceed` is called before each shard; an
    error that it raises ends the search. DiskError."""
    keys, files, holders = as_stored(excluded), _Files(), []
    files.read(layout)
    for name in sorted({*files.allocated, *((number, 0) for number in files.plain_sidecars)}):
        proceed()
        try:
            is_holder = holds(layout.sidecar(*name), keys)
        except DamagedError:
            is_holder = True
        if is_holder:
            holders.append(name)
    return holders


def shard_files(layout: GenerationLayout) -> Iterator[tuple[str, ShardFile | None, int]]:
    """Yields the path, the parsed name and the allocated bytes of every entry in `shards/`. The parsed
    name is None if the daemon did not write the file. A mark that is a hard link to a sidecar has 0
    bytes. DiskError."""
    with refusing(f"cannot look at {layout.shards}"), os.scandir(layout.shards) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                file = parse(entry.name) if entry.is_file(follow_symlinks=False) else None
                is_mark = file is not None and file.kind in MARKS
                yield entry.path, file, _own_bytes(entry, is_mark)


def foreign_directories(layout: Layout) -> Iterator[int]:
    """Yields the allocated bytes of each file and directory in directories that the daemon did not create,
    except in `shards/`. DiskError."""
    with refusing(f"cannot look at {layout.root}"):
        folders = layout.directories()
        known = {*folders, *(layout.generation(*name).shards for name in layout.generations())}
        for folder in folders:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False) and Path(entry.path) not in known:
                        yield from walk(Path(entry.path))


def _own_bytes(entry: os.DirEntry[str], is_mark: bool = False) -> int:
    status = entry.stat(follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        return sum(walk(Path(entry.path)))
    return 0 if is_mark and status.st_nlink > 1 else status.st_blocks * 512


@dataclass(slots=True)
class _Files:
    """The files in `shards/`. A number is plain if it has only a shard and a sidecar of version 0. The
    dictionaries `plain_*` have the files of plain numbers, by number. The other fields have all other
    files, by number and version."""

    plain_sizes: dict[int, int] = field(default_factory=dict)  # bytes of the shard file
    plain_blocks: dict[int, int] = field(default_factory=dict)  # 512-byte blocks of the shard file
    plain_sidecars: dict[int, int] = field(default_factory=dict)  # 512-byte blocks of the sidecar
    sizes: dict[ShardVersion, int] = field(default_factory=dict)  # bytes of the shard file
    sidecars: set[ShardVersion] = field(default_factory=set)
    allocated: dict[ShardVersion, int] = field(default_factory=dict)  # bytes of both files
    versions: dict[int, set[int]] = field(default_factory=dict)  # by number
    bad: set[ShardVersion] = field(default_factory=set)
    old: set[int] = field(default_factory=set)
    temporary: list[tuple[ShardVersion, str]] = field(default_factory=list)  # with the suffix
    foreign: int = 0  # bytes

    def read(self, layout: GenerationLayout) -> None:
        """Inspects every file. A start with very many shards spends most of its time in this loop."""
        sizes, blocks, sidecars = self.plain_sizes, self.plain_blocks, self.plain_sidecars
        with refusing(f"cannot look at {layout.shards}"), os.scandir(layout.shards) as entries:
            for entry in entries:
                text = entry.name
                kind = text[10:]
                if kind in (_DATA, _SIDECAR) and text.isascii() and text[:10].isdigit():
                    status = entry.stat(follow_symlinks=False)
                    if not stat.S_ISREG(status.st_mode):
                        self.foreign += _own_bytes(entry)
                        continue
                    number = int(text[:10])
                    if kind == _DATA:
                        sizes[number] = status.st_size
                        blocks[number] = status.st_blocks
                    else:
                        sidecars[number] = status.st_blocks
                elif (file := parse(text)) is None or not entry.is_file(follow_symlinks=False):
                    self.foreign += _own_bytes(entry)
                else:
                    status = entry.stat(follow_symlinks=False)
                    self._add((file.number, file.version), file.kind, status)
        odd = sizes.keys() ^ sidecars.keys() | self.old | self.versions.keys()
        for number in odd | {number for number, _ in self.bad}:
            self.move(number)

    def move(self, number: int) -> None:
        """Moves a plain number to the other fields."""
        name = (number, 0)
        if number in self.plain_sizes:
            self.sizes[name] = self.plain_sizes.pop(number)
        if number in self.plain_sidecars:
            self.sidecars.add(name)
        if name in self.sizes or name in self.sidecars:
            blocks = self.plain_blocks.pop(number, 0) + self.plain_sidecars.pop(number, 0)
            self.allocated.setdefault(name, blocks * 512)
            self.versions.setdefault(number, set()).add(0)

    def forget(self, number: int) -> int:
        """Removes a number whose files the daemon did not write. Returns the bytes of these files."""
        names = self.names(number)
        for name in names:
            self.sizes.pop(name, None)
            self.sidecars.discard(name)
        self.bad = {name for name in self.bad if name[0] != number}
        self.old.discard(number)
        self.versions.pop(number, None)
        return sum(self.allocated.pop(name, 0) for name in names)

    def _add(self, name: ShardVersion, kind: str, status: os.stat_result) -> None:
        if kind == ".bad":
            self.bad.add(name)
        elif kind == ".old":
            self.old.add(name[0])
        elif kind.startswith(".new"):
            self.temporary.append((name, kind))
        else:
            if kind == _DATA:
                self.sizes[name] = status.st_size
            else:
                self.sidecars.add(name)
            self.allocated[name] = self.allocated.get(name, 0) + status.st_blocks * 512
            self.versions.setdefault(name[0], set()).add(name[1])

    def names(self, number: int) -> list[ShardVersion]:
        """Returns all versions of a number, in ascending order."""
        self.move(number)
        return [(number, version) for version in sorted(self.versions.get(number, ()))]


@dataclass
class _Inspection:
    """Makes one inventory of a directory. `_halves`: dropped versions that lack the shard or the
    sidecar."""

    _layout: GenerationLayout
    _shape: Shape
    _leased: Collection[ShardVersion]
    _excluded: Encoded
    _progress: Callable[[int], None]
    _files: _Files = field(default_factory=_Files)
    _shards: list[ShardFound] = field(default_factory=list)
    _dropped: list[ShardVersion] = field(default_factory=list)
    _halves: set[ShardVersion] = field(default_factory=set)
    _stray: list[Path] = field(default_factory=list)
    _read: int = 0

    def take(self, state: State) -> DirectoryInventory:
        files, layout, known = self._files, self._layout, read_snapshot(self._layout.snapshot)
        files.read(layout)
        for name, kind in files.temporary:
            new = layout.temporary(*name)
            self._stray.append(new if kind == ".new" else layout.temporary_sidecar(*name))
        numbers = sorted({*files.plain_sizes, *files.versions})
        for place, (number, following) in enumerate(pairwise(numbers), 1):
            if following - number > _LONGEST_GAP * (self._shape.streams + 1):
                files.foreign += sum(map(files.forget, numbers[place:]))
                numbers = numbers[:place]
                break
        sizes, blocks, sidecars = files.plain_sizes, files.plain_blocks, files.plain_sidecars
        for number in numbers:
            facts = known.get(number)
            if (
                facts is not None
                and facts.version == 0
                and facts.data_bytes == sizes.get(number)
                and facts.allocated == (blocks[number] + sidecars[number]) * 512
            ):
                self._shards.append(ShardFound(number, facts))
            else:
                self._inspect(number)
        for number in files.old.difference(numbers):
            self._stray.append(layout.old(number))
        for name in files.bad.difference(files.allocated):
            self._stray.append(layout.bad(*name))
        shards, heads, dropped = tuple(self._shards), self._heads(state), tuple(self._dropped)
        leftovers = dropped, tuple(self._stray)
        return DirectoryInventory(shards, heads, *leftovers, self._read, files.foreign)

    def _inspect(self, number: int) -> None:
        """Inspects a number that is not plain, or that the snapshot does not have."""
        files = self._files
        versions = files.names(number)
        current = self._current(versions)
        elders = []
        for name in versions:
            if name in self._leased and name != current:
                elders.append((name[1], files.allocated[name]))
            elif name != current:
                self._dropped.append(name)
                if name not in files.sizes or name not in files.sidecars:
                    self._halves.add(name)
        if current is not None:
            self._add_current(current, elders)
        elif elders:  # no version is whole, but a lease names one, so the number counts as retired
            self._add((number, elders[-1][0]), None, "old", elders[:-1])

    def _current(self, versions: list[ShardVersion]) -> ShardVersion | None:
        """Returns the current version of a number: the highest version with both files. Without such a
        version, returns a version that can be made again or that lost its sidecar. Returns None if all
        files come from incomplete publications or unlinks."""
        files = self._files
        for name in reversed(versions):
            if name in files.sizes:
                is_whole = name in files.sidecars
            else:  # a shard without records has only a sidecar
                is_whole = (head := self._head(name)) is not None and head.records == 0
            if is_whole:
                return name
        for name in reversed(versions):
            if name in files.sidecars and name in files.bad:  # `drop_data` removed the shard file
                return name
        # A shard without a sidecar was never published if it is above all whole shards of its stream.
        stream, j = self._shape.split(versions[0][0])
        for name in reversed(versions):
            if name in files.sizes and (j < self._newest.get(stream, -1) or name in self._leased):
                return name
        return None

    def _add_current(self, name: ShardVersion, elders: list[tuple[int, int]]) -> None:
        files, number = self._files, name[0]
        if number in files.old:
            if elders or name in self._leased:
                self._add(name, self._head(name), "old", elders)
            else:
                self._dropped.append(name)
            return
        head = self._head(name)
        if head is None:
            status = "lost"
        elif files.sizes.get(name, 0) != head.data_bytes:
            status = "damaged"
        elif name in files.bad:
            status = self._status_of_marked(name)
        else:
            status = "live"
        self._add(name, None if status == "lost" else head, status, elders)

    def _status_of_marked(self, name: ShardVersion) -> str:
        try:
            is_holder = self._excluded and holds(self._layout.sidecar(*name), self._excluded)
        except LostError:
            return "lost"
        except DamagedError:
            return "damaged"
        return "excluded" if is_holder else "damaged"

    def _add(
        self,
        name: ShardVersion,
        head: SidecarHead | None,
        status: str,
        elders: list[tuple[int, int]],
    ) -> None:
        known = (head.records, head.data_bytes, head.ended, head.digest) if head else (0, 0, 0, 0)
        passed = head.passed if head else 0
        facts = ShardFacts(self._files.allocated[name], *known, name[1], passed)
        self._shards.append(ShardFound(name[0], facts, status, tuple(elders)))

    def _head(self, name: ShardVersion) -> SidecarHead | None:
        """Returns the head of the sidecar, or None if the sidecar is missing or damaged."""
        if name not in self._files.sidecars:
            return None
        try:
            head = read_head(self._layout.sidecar(*name))
        except LostError:
            return None
        finally:
            self._read += 1
            self._progress(self._read)
        return head

    @cached_property
    def _newest(self) -> dict[int, int]:
        """Returns for each stream the highest j that has both files and is not marked as retired."""
        newest: dict[int, int] = {}
        pairs = {number for number, _ in self._files.sizes.keys() & self._files.sidecars}
        for number in pairs.difference(self._files.old).union(self._files.plain_sizes):
            stream, j = self._shape.split(number)
            newest[stream] = max(newest.get(stream, -1), j)
        return newest

    def _heads(self, state: State) -> tuple[tuple[int, Cursor], ...]:
        """Returns the heads. A stream continues after its newest shard with a readable sidecar. The number
        of its next shard is above every number with a shard, a mark or a lease."""
        streams = self._shape.streams + 1
        known = [*state.heads[:streams]]
        known += [(0, Cursor())] * (streams - len(known))
        used = set(self._files.old)
        used.update(number for number, _ in self._files.bad)
        used.update(number for number, _ in self._leased)
        used.update(name[0] for name in self._dropped if name not in self._halves)
        shards = (shard.number for shard in reversed(self._shards))
        next_j = {stream: j for stream, (j, _) in enumerate(known)}
        cursors: dict[int, Cursor] = {streams - 1: Cursor()}
        seen = set[int]()
        for number in heapq.merge(sorted(used, reverse=True), shards, reverse=True):
            stream, j = self._shape.split(number)
            if stream not in seen:
                seen.add(stream)
                next_j[stream] = max(next_j[stream], j + 1)
            if stream not in cursors:
                if j < known[stream][0]:  # state.json has a later cursor
                    cursors[stream] = known[stream][1]
                elif (after := self._after(number)) is not None:
                    cursors[stream] = after
            if len(seen) == len(cursors) == streams:
                break
        return tuple(
            (next_j[stream], cursors.get(stream, cursor))
            for stream, (_, cursor) in enumerate(known)
        )

    def _after(self, number: int) -> Cursor | None:
        """Returns the cursor after a shard, or None if no sidecar of the shard can be read."""
        for name in self._files.names(number):
            if name not in self._halves:
                head = self._head(name)
                if head is not None and head.after is not None:
                    return head.after
        return None
