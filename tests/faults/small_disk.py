"""What a cache does on a small file system: `python -m tests.faults.small_disk FOLDER SCENARIO...`

Started by test_disk_limit.py in namespaces of its own (unshare -Urm), where any user may mount one; it
prints a traceback for each scenario that breaks a promise, as JSON. Without the namespaces, `--plain`,
the cache lies on the file system that is there, and what is measured is the directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from cachecd_client.protocol import Acquire, Granted, Waiting
from cachecd_client.transport import Transport
from tests.e2e.daemons import Daemon, wait_until
from tests.e2e.inventory import Peak, Watch
from tests.faults.rotating import Rotating

KIB, MIB = 1 << 10, 1 << 20
MANIFEST = 8 * KIB
"""What one of the leases in `burst` takes."""


class Gauge(Watch):
    """The most a file system held: statvfs counts all in one instant, as no walk through a tree can."""

    def __init__(self, mount: Path) -> None:
        super().__init__(0.0005)
        self._mount = mount
        self.bytes = 0
        self.least_free = sys.maxsize
        self.looks = 0

    def look(self) -> None:
        found = os.statvfs(self._mount)
        self.bytes = max(self.bytes, (found.f_blocks - found.f_bfree) * found.f_frsize)
        self.least_free = min(self.least_free, found.f_bavail * found.f_frsize)
        self.looks += 1


class Disk:
    """A tmpfs for the cache of the daemon in `folder`; or, `plain`, what is there."""

    def __init__(self, folder: Path, plain: bool, size: int) -> None:
        self.plain = plain
        self.cache = folder / "cache"
        self.cache.mkdir(parents=True)
        self.cache.chmod(0o750)
        if not plain:
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", self.cache]
            subprocess.run(command, check=True)

    def watched(self) -> Gauge | Peak:
        return Peak(self.cache) if self.plain else Gauge(self.cache)


def burst(folder: Path, plain: bool) -> None:
    """Many samplers, small shards, a tight limit, epochs without a pause and hundreds of leases."""
    limit = 5 * MIB
    disk = Disk(folder, plain, 4 * limit)
    settings = {"limit": limit, "sampler": {"workers": 4}}
    with disk.watched() as most, Rotating.started(folder, {}, settings=settings) as rotating:
        wait_until(lambda: rotating.turn() or max(rotating.numbers()) > 120)
        granted = grants(rotating, 300)
        room = rotating.status()["cache"]["room"]
        assert 0 < granted < 300, f"{granted}: no further than the limit"
        assert room < MANIFEST, f"{granted} granted, with room for more: {room}"
        for _ in range(3):
            rotating.waits()
    assert 0.7 * limit < most.bytes <= limit, f"{most.bytes} of {limit}"


def grants(rotating: Rotating, jobs: int) -> int:
    """How many jobs are granted a lease within a moment."""
    transport = Transport(rotating.daemon.endpoint)
    replies = [
        transport.ask(Acquire(f"{n}", "train", f"job-{n}", 0, 0, 1), 10.0) for n in range(jobs)
    ]
    return sum(isinstance(reply, Granted) for reply in replies)


def reserve_free(folder: Path, plain: bool) -> None:
    """Others need the disk: what is theirs stays free, and ingest goes on when they are gone."""
    theirs = 3 * MIB if not plain else 1 << 60
    disk = Disk(folder, plain, 10 * MIB)

    def full(rotating: Rotating) -> bool:
        free = os.statvfs(disk.cache).f_bavail * os.statvfs(disk.cache).f_frsize
        return free < theirs + MIB + MIB // 4 and "cache.reserve_free" in rotating.stopped

    settings = {"limit": 64 * MIB, "cache": {"reserve_free": theirs}, "objects": 1200}
    if plain:
        with Rotating.starting(folder, {}, settings=settings) as daemon:
            wait_until(lambda: "cache.reserve_free" in daemon.status()["cache"]["stopped"])
            assert not daemon.train["shards"]
            says_why(daemon)
        return
    with disk.watched() as gauge, Rotating.started(folder, {}, full, settings) as rotating:
        rotating.turn()
        assert isinstance(gauge, Gauge)
        assert gauge.least_free >= theirs
        ballast = disk.cache / "of-others"
        ballast.write_bytes(bytes(2 * MIB))
        for _ in range(3):
            rotating.turn()
        wait_until(lambda: "cache.reserve_free" in rotating.stopped)
        ballast.unlink()
        youngest = max(rotating.numbers())
        wait_until(lambda: rotating.turn() or max(rotating.numbers()) > youngest)
        assert gauge.least_free > 0


def says_why(daemon: Daemon) -> None:
    """The log says at once why nothing is fetched, and what to do; a trainer that waits hears it too."""
    wait_until(lambda: "ingest stops" in daemon.log.read_text(), 10)
    assert "Free space there (see df and df -i)" in daemon.log.read_text()
    reply = Transport(daemon.endpoint).ask(Acquire("1", "train", "waits", 0, 0, 1), 10.0)
    assert isinstance(reply, Waiting)
    assert "Free space there" in reply.reason


def filled(disk: Disk) -> Path:
    """The file with which others have filled the disk to the last byte."""
    ballast = disk.cache / "of-others"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    assert os.statvfs(disk.cache).f_bavail == 0
    return ballast


def begun(rotating: Rotating) -> bool:
    return len(rotating.numbers()) > 20


def full_at_the_start(folder: Path, plain: bool) -> None:
    """Others have filled the disk to the last byte when a daemon that was killed starts again."""
    if plain:
        return  # a file system cannot be filled that is not ours
    disk = Disk(folder, plain, 12 * MIB)
    settings = {"limit": 64 * MIB, "objects": 1200}
    with Rotating.started(folder, {}, begun, settings) as rotating:
        youngest = max(rotating.numbers())
        rotating.daemon.kill()
        ballast = filled(disk)
        rotating.daemon.start()
        assert rotating.status()["datasets"]["train"]["shards"]
        assert sum(len(b["key"]) for b in rotating.held.numpy(8, drop_last=False))
        wait_until(lambda: rotating.stopped, what="it says why nothing is fetched")
        log = rotating.daemon.log.read_text
        wait_until(lambda: "ingest stops" in log() or "the disk of cache.dir fails" in log(), 10)
        assert "cache.limit exceeds the file system" in log()
        rotating.turn()
        ballast.unlink()
        wait_until(lambda: rotating.turn() or max(rotating.numbers()) > youngest, 60)
        wait_until(lambda: not rotating.stopped)


SCENARIOS: Mapping[str, Callable[[Path, bool], None]] = {
    scenario.__name__: scenario for scenario in (burst, reserve_free, full_at_the_start)
}


def main(folder: str, *options: str) -> None:
    failures = {}
    for name in options:
        if name != "--plain":
            try:
                SCENARIOS[name](Path(folder) / name, "--plain" in options)
            except Exception:
                failures[name] = traceback.format_exc()
    json.dump(failures, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
