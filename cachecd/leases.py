"""Promise 1, the daemon's side: manifests in leases/ and who holds a lock on them.

A holder keeps a read lock on the manifest; so a lease outlives this daemon and ends with its last
holder, and nothing here depends on a heartbeat. Nothing here keeps a descriptor open either: each
call opens the manifest by its name (5 µs), so thousands of leases take no descriptors, and a
process forked at any time inherits none.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cachecd.disk.filesystem import refusing
from cachecd.disk.locks import is_locked, try_write_lock
from cachecd.errors import DiskError
from cachecd.layout import Layout
from cachecd_client.errors import ProtocolVersionError
from cachecd_client.protocol import Manifest, decode_manifest, encode_manifest

# One name for all: what a disk that refuses to unlink leaves behind never becomes a heap.
_NEW = "next.json.new"
_BLOCK = 4096
# A link or a pipe under a manifest's name is never followed, and never waited for.
_CAREFULLY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class DamagedManifest:
    """A manifest that cannot be read.

    `held`: somebody holds it, or that cannot be told, so shards unknown to us may be in use.
    """

    path: Path
    why: str
    held: bool

    @property
    def dataset(self) -> str:
        """A lease is named after its dataset."""
        return self.path.stem.partition(".")[0]


def write_manifest(
    layout: Layout, manifest: Manifest, announce: Callable[[int], None] = lambda cost: None
) -> Path:
    """Puts a lease on disk, whole when this returns; its path.

    The group may read it (mode 0640), as holders of a lock must. Nothing is synced: a manifest need
    not survive a power failure, which its holders do not survive either, and what such a failure
    leaves is cleared at the next start (docs/decisions/0007-manifests-are-not-synced.md). `announce`
    is told beforehand what it will occupy at most. DiskError leaves nothing behind, unless the disk
    refuses even that: then `end` may do it later. FileExistsError if the lease is there already: a
    manifest never changes.
    """
    path = layout.manifest(manifest.lease)
    new = layout.leases / _NEW
    if path.exists():
        raise FileExistsError(f"lease {manifest.lease} is on disk already")
    text = encode_manifest(manifest)
    announce(-(-len(text) // _BLOCK) * _BLOCK + _BLOCK)  # the directory may grow too
    with refusing(f"cannot write the lease {path}"):
        if os.path.lexists(new):
            new.unlink()
        try:
            with open(new, "xb", opener=_readable_by_group) as file:
                file.write(text)
            os.rename(new, path)
        except OSError:
            for left in (new, path):
                with contextlib.suppress(OSError):
                    left.unlink(missing_ok=True)
            raise
    return path


def _readable_by_group(path: str, flags: int) -> int:
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
    os.fchmod(fd, 0o640)  # whatever the umask
    return fd


def read_manifests(layout: Layout) -> tuple[list[Manifest], list[DamagedManifest]]:
    """What a start finds: the leases on disk, by name, and the manifests that cannot be read.

    A damaged manifest is reported and left where it is: as long as it is held, which shards its
    holder reads is unknown, and none that existed then may be deleted. Other files are not touched,
    except the temporary file of a write that was killed, which goes.
    """
    found: list[Manifest] = []
    damaged: list[DamagedManifest] = []
    with refusing(f"cannot read the leases in {layout.leases}"):
        for path in sorted(layout.leases.iterdir()):
            if path.name.endswith(".json.new"):
                path.unlink()
            elif path.suffix == ".json":
                match _inspect(path):
                    case Manifest() as manifest:
                        found.append(manifest)
                    case DamagedManifest() as report:
                        damaged.append(report)
    return found, damaged


def in_use(layout: Layout, dataset: str) -> Callable[[int], bool]:
    """Whether somebody may hold this shard of the dataset: a held lease names it, or one whose manifest is
    damaged. For a start; what is on disk is read when that is first asked."""

    @functools.cache
    def held() -> tuple[list[Manifest], bool]:
        found, damaged = read_manifests(layout)
        ours = [manifest for manifest in found if manifest.dataset == dataset]
        unread = any(bad.held and bad.dataset == dataset for bad in damaged)
        return [one for one in ours if seems_held(layout.manifest(one.lease))], unread

    def may_be(number: int) -> bool:
        manifests, unread = held()
        return unread or any(a <= number <= b for one in manifests for a, b in one.shards)

    return may_be


def _inspect(path: Path) -> Manifest | DamagedManifest:
    held = True
    try:
        with open(path, "rb", opener=_unfollowed) as file:
            held = is_locked(file.fileno())
            manifest = decode_manifest(file.read())
        if manifest.lease != path.stem:
            raise ValueError(f"it holds lease {manifest.lease}, expected the one it is named after")
        return manifest
    except (ValueError, ProtocolVersionError, OSError) as error:
        return DamagedManifest(path, str(error), held)


def _unfollowed(path: str, flags: int) -> int:
    return os.open(path, flags | _CAREFULLY)


def age_of(path: Path) -> float:
    """Seconds since the lease was granted, as far as the disk and its clock know; 0 if it is gone."""
    try:
        return max(0.0, time.time() - path.stat().st_mtime)  # written once, and never changed
    except OSError:
        return 0.0


def probe(path: Path | str) -> bool:
    """Whether anybody holds a lock on the manifest at `path`; False if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | _CAREFULLY)
        try:
            return is_locked(fd)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise DiskError(f"cannot probe the lease {path}: {error.strerror or error}") from error


def seems_held(path: Path) -> bool:
    """`probe` for people: True also if the disk does not tell."""
    try:
        return probe(path)
    except DiskError:
        return True


def end(path: Path) -> bool:
    """Deletes the manifest at `path`; False, and nothing changed, if anybody holds it.

    The write lock is held while it is unlinked. So whoever opened it before and locks it after
    finds the path gone and knows that it holds no lease. True also if there was none.
    """
    with refusing(f"cannot end the lease {path}"):
        try:
            fd = os.open(path, os.O_RDWR | _CAREFULLY)
        except FileNotFoundError:
            return True
        try:
            if not try_write_lock(fd):
                return False
            os.unlink(path)
            return True
        finally:
            os.close(fd)
