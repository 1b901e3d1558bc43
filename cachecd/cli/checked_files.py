"""Reads TFRecord files to their end for `cachecd verify`, and checks every record and every sidecar.

Needs no daemon and no lock. A file that the daemon unlinks meanwhile is not reported.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cachecd.disk.layout import (
    SIDECAR,
    GenerationLayout,
    Layout,
    ShardFile,
    is_known,
    parse,
    shard_file,
)
from cachecd_client import resources
from cachecd_client._core import Sidecar, read_sidecar_head, scan
from cachecd_client.errors import CallerError, CorruptRecordError, CorruptSidecarError

# The disk, or the CRC on one core, limits each scan. More threads only cause more seeks.
_MAX_THREADS = 8
_SETTLED_AFTER = 0.1  # seconds in which the daemon publishes or removes both files of a shard

_TFRECORD = re.compile(r".*\.tfrecords?(-\d+-of-\d+)?", re.DOTALL)  # a name may have a newline


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one file. `offset`: the byte at which its first bad record begins. `unreadable`: the disk
    refused to read the file, so its records are unknown."""

    path: Path
    why: str
    offset: int | None = None
    unreadable: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """The result for one TFRecord file. `records` and `size` are 0 if the file is bad or unreadable."""

    path: Path
    records: int = 0
    size: int = 0
    faults: tuple[Fault, ...] = ()


@dataclass(slots=True)
class CheckedDirectory:
    """The contents of a directory.

    `files`: the TFRecord files. `is_cache`: in a cache directory, each of these files has a sidecar.
    `unknown`: files that cachecd did not write. `unreadable`: directories that the disk refused to read.
    `absent`: TFRecord files that are missing, although their sidecars exist.
    """

    is_cache: bool
    files: list[Path] = field(default_factory=list)
    unknown: list[Path] = field(default_factory=list)
    unreadable: list[Fault] = field(default_factory=list)
    absent: list[Path] = field(default_factory=list)


def take_inventory(directory: Path) -> CheckedDirectory:
    """Lists everything below `directory`, sorted by path.

    CallerError if the directory does not exist, or is not a cache directory and has no TFRecord files.
    Their names end in .tfrecord or .tfrecords, or in such a suffix with -00000-of-00010.
    """
    if not directory.is_dir():
        raise CallerError(
            f"{directory} is not a directory: name a cache directory, or a directory of TFRecord files"
        )
    layout = Layout(directory)
    # The daemon removes its lock when it ends.
    is_owned = layout.lock.exists() or layout.leases.is_dir()
    inventory = CheckedDirectory(is_cache=is_owned and layout.datasets.is_dir())
    refused: list[Fault] = []
    for path in sorted(_walk(directory, refused)):
        regular = path.is_file() and not (inventory.is_cache and path.is_symlink())
        if not inventory.is_cache:
            is_shard, is_ours = bool(_TFRECORD.fullmatch(path.name)), path.name.endswith(SIDECAR)
        else:
            name = str(path.relative_to(directory))
            file = shard_file(name)
            is_shard = file is not None and file.kind == ".tfrecord"
            is_ours = file is not None or is_known(name)
            if file is not None and file.kind == f".tfrecord{SIDECAR}":
                shard = path.with_name(path.name.removesuffix(SIDECAR))
                inventory.absent += [] if shard.exists() else [shard]
        if regular and is_shard:
            inventory.files.append(path)
        elif not (regular and is_ours):
            inventory.unknown.append(path)
    if not inventory.is_cache and not inventory.files:
        raise CallerError(
            f"{directory} is neither a cache directory nor a directory with TFRecord files (*.tfrecord)"
        )
    for fault in refused:
        if inventory.is_cache and not fault.path.is_relative_to(layout.datasets):
            inventory.unknown.append(fault.path)  # a mount's lost+found
        else:
            inventory.unreadable.append(fault)
    return inventory


def check_all(inventory: CheckedDirectory) -> Iterator[Checked]:
    """Reads files in parallel, and yields the results in the order of the inventory. At the end, yields
    faults of several files: live shards that have the same record."""
    threads = min(_MAX_THREADS, resources.processors(), max(1, len(inventory.files)))
    pool = ThreadPoolExecutor(threads, thread_name_prefix="verify")
    intact: list[Path] = []
    try:
        for checked in pool.map(lambda p: check_file(p, inventory.is_cache), inventory.files):
            if checked is not None:
                if not checked.faults:
                    intact.append(checked.path)
                yield checked
    finally:  # also if the caller stops early
        pool.shutdown(cancel_futures=True)
    yield from filter(None, map(_check_absent, inventory.absent))
    if inventory.is_cache:
        yield from _repeats(intact)


def check_file(path: Path, of_cache: bool) -> Checked | None:
    """Checks one file and its sidecar. Returns None if the file no longer exists. `of_cache`: the file must
    have a sidecar that names this dataset, generation and number."""
    faults: list[Fault] = []
    offsets: NDArray[np.uint64] | None = None
    sidecar = path.with_name(path.name + SIDECAR)
    try:
        size = path.stat().st_size
        offsets = scan(str(path), verify=True)
    except FileNotFoundError:
        return None
    except CorruptRecordError as error:
        faults.append(Fault(path, error.why, error.offset))
    except OSError as error:
        faults.append(_unreadable(path, error))
    try:
        if why := _disagreement(path, sidecar, offsets, of_cache):
            faults.append(Fault(sidecar, why))
    except FileNotFoundError:
        if of_cache:
            if not path.exists():
                return None
            faults.append(Fault(path, "its sidecar is missing"))
    except CorruptSidecarError as error:
        faults.append(Fault(sidecar, error.why))
    except OSError as error:
        faults.append(_unreadable(sidecar, error))
    if offsets is None:
        return Checked(path, faults=tuple(faults))
    return Checked(path, len(offsets), size, tuple(faults))


def _check_absent(path: Path) -> Checked | None:
    """Checks a TFRecord file that is missing. Returns None if its shard has no records, is being rebuilt,
    or is being removed."""
    file, layout = parse(path.name), GenerationLayout(path.parents[1])
    assert file is not None
    sidecar = path.with_name(path.name + SIDECAR)
    try:
        records = read_sidecar_head(str(sidecar))[1]
    except FileNotFoundError:
        return None
    except CorruptSidecarError as error:
        return Checked(path, faults=(Fault(sidecar, error.why),))
    except OSError as error:
        return Checked(path, faults=(_unreadable(sidecar, error),))
    time.sleep(_SETTLED_AFTER)
    is_lost = sidecar.exists() and not path.exists()
    if not records or not is_lost or layout.bad(file.number, file.version).exists():
        return None
    return Checked(
        path, faults=(Fault(path, f"the file is missing, but its sidecar has {records} records"),)
    )


def _disagreement(
    path: Path, sidecar: Path, offsets: NDArray[np.uint64] | None, of_cache: bool
) -> str:
    """Returns the first difference between the sidecar and the file, or "". `offsets`: the offsets of the
    records, or None if unknown. CorruptSidecarError, FileNotFoundError, OSError."""
    read = Sidecar.read(str(sidecar))
    if of_cache:
        file = parse(path.name)
        assert file is not None
        expected = (path.parents[2].name, path.parents[1].name, file.number)
        named = _named_by(read.meta)
        if any(name not in (None, other) for name, other in zip(named, expected, strict=True)):
            return "is the sidecar of {}/{}/{}".format(*named)
    if offsets is None:
        return ""
    size = path.stat().st_size
    if read.data_bytes != size:
        return f"says that the file has {read.data_bytes} bytes, but the file has {size}"
    if len(read) != len(offsets):
        return f"says that the file has {len(read)} records, but the file has {len(offsets)}"
    differing = np.flatnonzero(read.offsets != offsets)
    if len(differing):
        first = int(differing[0])
        says, is_at = int(read.offsets[first]), int(offsets[first])
        return f"says that record {first} begins at byte {says}, but the record begins at {is_at}"
    return ""


def _repeats(paths: Sequence[Path]) -> Iterator[Checked]:
    """Yields the later shard of each pair of live shards of a generation that have the same record."""
    generations: dict[Path, dict[int, tuple[int, Path]]] = {}
    for path in paths:
        file, folder = parse(path.name), path.parents[1]
        assert isinstance(file, ShardFile)
        if not GenerationLayout(folder).old(file.number).exists():
            newest = generations.setdefault(folder, {})
            newest[file.number] = max(newest.get(file.number, (-1, path)), (file.version, path))
    for newest in generations.values():
        shards = [path for _, path in newest.values()]
        for other, path, unit in _pairs(shards):
            if path.exists() and other.exists():  # a shard that was retired meanwhile is unlinked
                why = f"holds a record of unit {unit} that {other.name} holds too"
                yield Checked(path, faults=(Fault(path, why),))


def _pairs(paths: Sequence[Path]) -> Iterator[tuple[Path, Path, int]]:
    """Yields each pair of shards that have the same record, and the number of the record's unit."""
    units: list[NDArray[np.uint64]] = []
    ordinals: list[NDArray[np.uint32]] = []
    shards: list[NDArray[np.int64]] = []
    for nth, path in enumerate(paths):
        try:
            sidecar = Sidecar.read(f"{path}{SIDECAR}")
        except (OSError, CorruptSidecarError):
            continue  # the file was intact a moment ago, so the daemon has unlinked it
        units.append(sidecar.units)
        ordinals.append(sidecar.ordinals)
        shards.append(np.full(len(sidecar), nth))
    if not units:
        return
    unit, ordinal, shard = np.concatenate(units), np.concatenate(ordinals), np.concatenate(shards)
    order = np.lexsort((shard, ordinal, unit))
    unit, ordinal, shard = unit[order], ordinal[order], shard[order]
    same = (unit[1:] == unit[:-1]) & (ordinal[1:] == ordinal[:-1])
    pairs: dict[tuple[int, int], int] = {}
    for place in np.flatnonzero(same).tolist():
        pairs.setdefault((int(shard[place]), int(shard[place + 1])), int(unit[place]))
    for (one, other), number in sorted(pairs.items()):
        yield paths[one], paths[other], number


def _unreadable(path: Path, error: OSError) -> Fault:
    return Fault(path, f"cannot be read: {error.strerror}", unreadable=True)


def _named_by(meta: str) -> tuple[object, object, object]:
    try:
        document = json.loads(meta)
    except ValueError:
        document = None
    fields = document if isinstance(document, dict) else {}
    return fields.get("dataset"), fields.get("generation"), fields.get("number")


def _walk(directory: Path, refused: list[Fault]) -> Iterator[Path]:
    """Yields all paths below `directory`, except directories. Does not follow links to directories."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            refused.append(_unreadable(Path(error.filename), error))

    for here, directories, names in os.walk(directory, onerror=refuse):
        yield from (Path(here, name) for name in names)
        yield from (path for name in directories if (path := Path(here, name)).is_symlink())
