"""Publishes shards, marks them, copies them without excluded records, and unlinks them.

Every change is durable when the function returns. On DiskError the caller may repeat the call.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from cachecd.disk.filesystem import open_carefully, refusing, regular_size, sync_directory
from cachecd.disk.layout import DATA, NEW, SIDECAR, GenerationLayout, parse
from cachecd.disk.sidecar import Encoded, excluded_records, read_sidecar
from cachecd.errors import DamagedError, NameTakenError
from cachecd.model import ShardVersion
from cachecd_client._core import ShardWriter, Sidecar
from cachecd_client.errors import CorruptError

_BLOCK = 4096


def publish(
    layout: GenerationLayout, number: int, version: int = 0, *, is_empty: bool = False
) -> int:
    """Renames a sealed shard and its sidecar to their final names. Returns their allocated bytes.

    Both files are synced already. The sidecar is renamed first, so a visible shard always has a sidecar.
    `is_empty`: the shard has no records, so only its sidecar is published. The caller publishes the
    shards of one stream in order. NameTakenError: another file has one of the final names. After any
    other DiskError the files have their temporary names again, unless the disk refuses this rename.
    """
    new, new_sidecar = layout.temporary(number, version), layout.temporary_sidecar(number, version)
    shard, sidecar = layout.shard(number, version), layout.sidecar(number, version)
    for path in (shard, sidecar):
        if os.path.lexists(path):
            raise NameTakenError(
                f"{path} exists, but the daemon did not write it: move it out of {layout.shards}"
            )
    with refusing(f"cannot publish {shard}"):
        if is_empty:
            new.unlink(missing_ok=True)
        os.rename(new_sidecar, sidecar)
        try:
            if not is_empty:
                os.rename(new, shard)
            sync_directory(layout.shards)
        except OSError:
            with contextlib.suppress(OSError):
                os.rename(sidecar, new_sidecar)
                if not is_empty:
                    os.rename(shard, new)
            raise
    return allocated(layout, number, version)


def discard(
    layout: GenerationLayout, number: int, version: int = 0, *, halves: bool = False
) -> None:
    """Removes the temporary files of a shard that will not be published. `halves` removes files with the
    final names as well. Set it only if `publish` failed, but not with NameTakenError."""
    paths = [layout.temporary(number, version), layout.temporary_sidecar(number, version)]
    if halves:
        paths += [layout.shard(number, version), layout.sidecar(number, version)]
    for path in paths:
        with refusing(f"cannot remove {path}"):
            path.unlink(missing_ok=True)


def allocated(layout: GenerationLayout, number: int, version: int) -> int:
    """Returns the allocated bytes of a version and its sidecar, without marks."""
    total = 0
    for path in (layout.shard(number, version), layout.sidecar(number, version)):
        with refusing(f"cannot look at {path}"), contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total


# --- marks


def mark_bad(layout: GenerationLayout, number: int, version: int) -> None:
    """Marks a version as quarantined."""
    _mark(layout.bad(number, version), layout.sidecar(number, version))
    _sync(layout)


def mark_retired(layout: GenerationLayout, names: Iterable[ShardVersion]) -> None:
    """Marks numbers as retired. `names` has the newest version of each number. `unlink` removes the mark
    together with the last file of the number."""
    for name in names:
        _mark(layout.old(name[0]), layout.sidecar(*name))
    _sync(layout)


def _mark(mark: Path, sidecar: Path) -> None:
    """Creates the mark as a hard link to the sidecar, because even a full disk has room for a link.
    Without a sidecar, the mark is an empty file. DamagedError: the path is not a regular file."""
    with refusing(f"cannot write {mark}"):
        if os.path.lexists(mark):
            regular_size(mark)
            return
        if sidecar.is_file() and not sidecar.is_symlink():
            os.link(sidecar, mark)
            return
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))


# --- the next version of a shard


def drop_data(layout: GenerationLayout, number: int, version: int) -> None:
    """Removes the data of a quarantined shard that no lease names, to free space for its next version.
    Keeps the sidecar, which lists the records of the next version. Creates a missing mark first: a start
    ignores a sidecar without data and mark, so the records would be lost."""
    mark_bad(layout, number, version)
    with refusing(f"cannot remove {layout.shard(number, version)}"):
        layout.shard(number, version).unlink(missing_ok=True)
    _sync(layout)


def copy_without(
    layout: GenerationLayout,
    number: int,
    version: int,
    excluded: Encoded,
    proceed: Callable[[], None] = lambda: None,
) -> None:
    """Copies a shard without its excluded records. The copy is the next version, under its temporary name.

    The copy is never larger than the shard, and its space is allocated first. `proceed` is called before
    each record; an error that it raises ends the work. DamagedError: a record is damaged. LostError: the
    sidecar is damaged or missing.
    """
    shard, new = layout.shard(number, version), layout.temporary(number, version + 1)
    discard(layout, number, version + 1)
    sidecar = read_sidecar(layout.sidecar(number, version))
    try:
        with refusing(f"cannot copy {shard}"):
            # The writer counts whole blocks of both files.
            sizes = map(regular_size, (shard, layout.sidecar(number, version)))
            capacity = sum(-(-size // _BLOCK) * _BLOCK for size in sizes)
            writer = ShardWriter(str(new), capacity, len(sidecar.meta.encode()))
            try:
                dropped = {*excluded_records(layout.sidecar(number, version), sidecar, excluded)}
                _copy(shard, sidecar, dropped, writer, proceed)
                writer.finish(sidecar.meta)
            finally:
                writer.abort()  # has no effect after `finish`
    except CorruptError as error:
        raise DamagedError(str(error)) from error


def _copy(
    shard: Path,
    sidecar: Sidecar,
    dropped: Collection[int],
    writer: ShardWriter,
    proceed: Callable[[], None],
) -> None:
    for row in sidecar.table:
        writer.describe(*row)  # the writer keeps only the units that have records
    starts = sidecar.offsets.tolist()
    stops = [*starts[1:], sidecar.data_bytes]
    records = zip(starts, stops, sidecar.units.tolist(), sidecar.ordinals.tolist(), strict=True)
    with open(shard, "rb", opener=open_carefully) as file:
        for place, (start, stop, unit, ordinal) in enumerate(records):
            proceed()
            frame = file.read(stop - start)
            if place not in dropped:
                copied, consumed, *_ = writer.append_frames(frame, unit, ordinal, str(shard), start)
                if (copied, consumed) != (1, stop - start):
                    raise DamagedError(f"{shard}: the record at byte {start} is damaged")


# --- the end of a shard


def unlink(
    layout: GenerationLayout,
    names: Iterable[ShardVersion],
    proceed: Callable[[], None] = lambda: None,
) -> None:
    """Removes all files of these versions, and the marks of numbers without further files. `proceed` is
    called before each version; an error that it raises ends the work.

    The shard is removed before the sidecar, because a start ignores a single sidecar. The mark is removed
    when the removal of the files is durable: otherwise a power failure could restore a retired shard.
    """
    names = list(names)
    for name in names:
        proceed()
        for path in (layout.shard(*name), layout.sidecar(*name), layout.bad(*name)):
            # A directory with this name is not the daemon's, and stays.
            with refusing(f"cannot remove {path}"), contextlib.suppress(IsADirectoryError):
                path.unlink(missing_ok=True)
    _sync(layout)
    numbers = {number for number, _ in names}
    with refusing(f"cannot remove marks in {layout.shards}"):
        if marked := {number for number in numbers if os.path.lexists(layout.old(number))}:
            files = filter(None, map(parse, os.listdir(layout.shards)))
            marked -= {file.number for file in files if file.kind in (DATA, DATA + SIDECAR)}
        for number in marked:
            layout.old(number).unlink()


def remove_generation(layout: GenerationLayout) -> None:
    """Removes the directory of a generation without shards, unless the directory has an unknown file.
    DiskError."""
    journal = layout.listing.with_name(layout.listing.name + "-journal")
    small = (layout.snapshot, layout.state, layout.listing, journal, layout.identity)
    paths = [each for path in small for each in (path, path.with_name(path.name + NEW))]
    with refusing(f"cannot remove {layout.root}"):
        if not layout.root.exists():
            return
        if {*layout.root.rglob("*")}.difference(paths, [layout.shards]):
            return
        if layout.shards.exists():
            layout.shards.rmdir()
        for path in paths:
            path.unlink(missing_ok=True)
        layout.root.rmdir()
        sync_directory(layout.root.parent)


def _sync(layout: GenerationLayout) -> None:
    with refusing(f"cannot sync {layout.shards}"):
        sync_directory(layout.shards)
