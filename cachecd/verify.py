"""Is every record of these files what was written? Reads only; needs no daemon and no lock.

A file that the daemon retires while this looks is left out, not reported.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cachecd.layout import SIDECAR_SUFFIX, Layout
from cachecd.repeats import Spans, repeats, spans_of
from cachecd_client import resources
from cachecd_client._core import Sidecar, scan
from cachecd_client.errors import CallerError, CorruptRecordError, CorruptSidecarError

# Each scan is bound by the disk or by one core's CRC; more threads only make more seeks.
_MAX_THREADS = 8

_SHARD = re.compile(r"shards/([A-Za-z0-9][A-Za-z0-9_-]{0,63})/([0-9]{10})\.tfrecord")
_OTHERS_OF_OURS = re.compile(
    r"cachecd\.lock|catalog\.sqlite(-wal|-shm)?|excluded\.jsonl|leases/[^/]+\.json|"
    r"(index|tmp)/[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.[^/]+"
)
_TFRECORD = re.compile(r".*\.tfrecords?(-\d+-of-\d+)?", re.DOTALL)  # a name may hold a newline


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one file; `offset` is where its first bad record begins, if it is one.

    `unreadable`: the disk did not give it back, so whether anything is wrong is not known.
    """

    path: Path
    why: str
    offset: int | None = None
    unreadable: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """One TFRecord file, read to its end; `records` and `size` count what was found good."""

    path: Path
    records: int = 0
    size: int = 0
    faults: tuple[Fault, ...] = ()


@dataclass(slots=True)
class Inventory:
    """What lies in a directory.

    `files`: its TFRecord files. `is_cache`: whether it is a cache directory, where each of them
    must have a sidecar that names it. `unknown`: files that are none of ours. `unreadable`:
    directories that could not be looked into. `lone_sidecars`: sidecars without a file. `leases`: where a
    cache has its manifests.
    """

    is_cache: bool
    leases: Path | None = None
    files: list[Path] = field(default_factory=list)
    unknown: list[Path] = field(default_factory=list)
    unreadable: list[Fault] = field(default_factory=list)
    lone_sidecars: list[Path] = field(default_factory=list)


def take_inventory(directory: Path) -> Inventory:
    """Everything below `directory`, sorted by path.

    CallerError if there is no such directory, or if it is no cache and holds no TFRecord file
    (names that end in .tfrecord or .tfrecords, also with -00000-of-00010).
    """
    if not directory.is_dir():
        raise CallerError(f"{directory}: there is no such directory; expected a cache directory")
    layout = Layout(directory)
    ours = layout.catalog.exists() or layout.lock.exists()
    found = Inventory(is_cache=ours and layout.shards.is_dir())
    found.leases = layout.leases if found.is_cache else None
    sidecars: list[Path] = []
    refused: list[Fault] = []
    for path in sorted(_walk(directory, refused)):
        regular = path.is_file() and not (found.is_cache and path.is_symlink())
        name = str(path.relative_to(directory)) if found.is_cache else path.name
        shard = _SHARD if found.is_cache else _TFRECORD
        if regular and shard.fullmatch(name):
            found.files.append(path)
        elif regular and name.endswith(SIDECAR_SUFFIX) and shard.fullmatch(name[:-4]):
            sidecars.append(path)
        elif not (found.is_cache and regular and _OTHERS_OF_OURS.fullmatch(name)):
            found.unknown.append(path)
    if not found.is_cache and not found.files:
        raise CallerError(
            f"{directory}: neither a cache directory nor one with TFRecord files (*.tfrecord)"
        )
    for fault in refused:
        if found.is_cache and not fault.path.is_relative_to(layout.shards):
            found.unknown.append(fault.path)  # a mount's lost+found
        else:
            found.unreadable.append(fault)
    files = set(found.files)
    found.lone_sidecars = [s for s in sidecars if _file_of(s) not in files]
    return found


def check_all(inventory: Inventory) -> Iterator[Checked]:
    """Reads every file, several at a time, and yields each in the inventory's order; last of all what
    single files do not show: shards that hold the same record."""
    threads = min(_MAX_THREADS, resources.processors(), max(1, len(inventory.files)))
    pool = ThreadPoolExecutor(threads, thread_name_prefix="verify")

    def check(path: Path) -> tuple[Checked | None, Spans | None]:
        checked = check_file(path, of_cache=inventory.is_cache)
        if checked is None or checked.faults or not inventory.is_cache:
            return checked, None
        try:
            return checked, spans_of(path)
        except (OSError, CorruptSidecarError):  # it has just gone: a moment ago it was sound
            return checked, None

    held: list[Spans] = []
    try:
        for checked, spans in pool.map(check, inventory.files):
            if spans is not None:
                held.append(spans)
            if checked is not None:
                yield checked
    finally:  # also when nobody wants the rest
        pool.shutdown(cancel_futures=True)
    for sidecar in inventory.lone_sidecars:
        # Publishing and unlinking leave one alone for a moment.
        if sidecar.exists() and not _file_of(sidecar).exists():
            fault = Fault(sidecar, "there is a sidecar, but no shard")
            yield Checked(sidecar, faults=(fault,))
    for repeat in repeats(held, inventory.leases) if inventory.leases else ():
        if repeat.path.exists() and repeat.other.exists():  # what was given up meanwhile is gone
            why = f"holds a record of unit {repeat.unit} that {repeat.other.name} holds too"
            yield Checked(repeat.path, faults=(Fault(repeat.path, why),))


def check_file(path: Path, *, of_cache: bool) -> Checked | None:
    """One file and its sidecar; None if the file is no longer there.

    `of_cache`: it must have a sidecar, and that must name this dataset and number.
    """
    faults: list[Fault] = []
    offsets: NDArray[np.uint64] | None = None
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
        if why := _disagreement(path, offsets, of_cache=of_cache):
            faults.append(why)
    except FileNotFoundError:
        if of_cache:
            if not path.exists():
                return None
            faults.append(Fault(path, "its sidecar is missing"))
    except CorruptSidecarError as error:
        faults.append(Fault(Layout.sidecar(path), error.why))
    except OSError as error:
        faults.append(_unreadable(Layout.sidecar(path), error))
    if offsets is None:
        return Checked(path, faults=tuple(faults))
    return Checked(path, len(offsets), size, tuple(faults))


def _disagreement(
    path: Path, offsets: NDArray[np.uint64] | None, *, of_cache: bool
) -> Fault | None:
    """Where the sidecar says something else than the file; `offsets` None: that is not known.

    CorruptSidecarError, FileNotFoundError, OSError.
    """
    sidecar_path = Layout.sidecar(path)
    sidecar = Sidecar.read(str(sidecar_path))
    if of_cache and (named := _named_by(sidecar.meta)) != (path.parent.name, int(path.stem)):
        return Fault(sidecar_path, f"is the sidecar of {named[0]}/{named[1]}")
    if offsets is None:
        return None
    size = path.stat().st_size
    if sidecar.data_bytes != size:
        why = f"says that the file has {sidecar.data_bytes} bytes, but it has {size}"
        return Fault(sidecar_path, why)
    if len(sidecar) != len(offsets):
        why = f"says that the file has {len(sidecar)} records, but it has {len(offsets)}"
        return Fault(sidecar_path, why)
    differing = np.flatnonzero(sidecar.offsets != offsets)
    if len(differing):
        first = int(differing[0])
        says, is_at = int(sidecar.offsets[first]), int(offsets[first])
        why = f"says that record {first} begins at byte {says}, but it begins at {is_at}"
        return Fault(sidecar_path, why)
    return None


def _unreadable(path: Path, error: OSError) -> Fault:
    return Fault(path, f"cannot be read: {error.strerror}", unreadable=True)


def _named_by(meta: str) -> tuple[object, object]:
    try:
        document = json.loads(meta)
    except ValueError:
        document = None
    fields = document if isinstance(document, dict) else {}
    return fields.get("dataset"), fields.get("number")


def _file_of(sidecar: Path) -> Path:
    return sidecar.with_name(sidecar.name.removesuffix(SIDECAR_SUFFIX))


def _walk(directory: Path, refused: list[Fault]) -> Iterator[Path]:
    """Everything below that is no directory; links to directories are not followed."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            refused.append(_unreadable(Path(error.filename), error))

    for here, directories, names in os.walk(directory, onerror=refuse):
        yield from (Path(here, name) for name in names)
        yield from (path for name in directories if (path := Path(here, name)).is_symlink())
