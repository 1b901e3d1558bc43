"""What the daemon's state costs when it is large: one command.

    python -m tests.bench.state

makes a cache of 100,000 real shards at its limit (in /dev/shm, 1 GB, removed at the end), starts the
real daemon on it, has 100 jobs take lease after lease, lets them hold, and prints what that took. At last
it excludes 10,000 keys, and starts the daemon without its snapshot.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cachecd_client.errors import LeaseLostError
from cachecd_client.protocol import Held
from cachecd_client.runs.epoch import Epoch
from cachecd_client.session.cache import Cache
from cachecd_client.transport import Transport
from tests.bench.cachedir import DATASET, CacheFolder, make
from tests.bench.cachedir import key as key_of

ROOT = Path(__file__).parents[2]
_TICK = os.sysconf("SC_CLK_TCK")
_READ_LOCK = struct.pack("@hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
FIGURES = {
    "start_s": "process to ready, s",
    "acquire_p50_ms": "acquire, median, ms",
    "acquire_p99_ms": "acquire, 99th percentile, ms",
    "bare_p50_ms": "a bare request and a lock, median, ms",
    "idle_cpu_percent": "CPU of the idle daemon, %",
    "rss_mb": "resident memory, MB",
    "exclude_s": "exclude of 10,000 keys, s",
    "rebuild_s": "process to ready without a snapshot, s",
}


class Process:
    """`cachecd run` as a process of its own; `start_s` from exec until it says that it is ready."""

    def __init__(self, cache: CacheFolder, patience: float) -> None:
        ready = cache.folder / "ready.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.bind(str(ready))
            told.settimeout(0.5)
            path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
            environ = {**os.environ, "NOTIFY_SOCKET": str(ready), "PYTHONPATH": path}
            command = [sys.executable, "-m", "cachecd", "run", str(cache.config)]
            with (cache.folder / "log").open("ab") as log:
                began = time.perf_counter()
                self._process = subprocess.Popen(
                    command, stdout=log, stderr=log, env=environ, cwd=cache.folder
                )
            try:
                self._await_ready(told, patience)
            except TimeoutError:
                self._process.kill()
                raise AssertionError(
                    f"not ready within {patience:g} s:\n{(cache.folder / 'log').read_text()}"
                ) from None
            finally:
                ready.unlink()
            self.start_s = time.perf_counter() - began

    def _await_ready(self, told: socket.socket, patience: float) -> None:
        """TimeoutError if it is not ready in time, or has ended."""
        deadline = time.monotonic() + patience
        while True:
            try:
                if told.recv(1000) == b"READY=1":  # before it, how far a rebuild is
                    return
            except TimeoutError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise

    def cpu_seconds(self) -> float:
        """Spent by the process so far, without its samplers."""
        text = Path(f"/proc/{self._process.pid}/stat").read_text()
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / _TICK

    def memory_mb(self) -> float:
        """Resident now."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / 1024 / 1000

    def settle(self) -> None:
        """Waits until it has nothing more to do than to watch: the source is listed again at a start."""
        deadline = time.monotonic() + 60
        before = self.cpu_seconds()
        while time.monotonic() < deadline:
            time.sleep(0.5)
            now = self.cpu_seconds()
            if now - before <= 0.03:
                return
            before = now

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)

    def kill(self) -> None:
        """Idempotent."""
        self._process.kill()
        self._process.wait()


@contextmanager
def started(cache: CacheFolder, patience: float = 120.0) -> Iterator[Process]:
    process = Process(cache, patience)
    try:
        yield process
        process.stop()
    finally:
        process.kill()


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure(cache: CacheFolder, jobs: int, epochs: int, idle_s: float) -> dict[str, float]:
    """A start, acquires, and the daemon's idle time."""
    with started(cache) as process:
        process.settle()
        transport = Transport(cache.endpoint)
        acquired_ms: list[float] = []
        bare_ms: list[float] = []  # by turns with these
        held: list[Epoch | None] = [None] * jobs
        with Cache(transport, 30.0) as session:
            for epoch in range(epochs):
                for job in range(jobs):
                    began = time.perf_counter()
                    found = session.acquire(DATASET, epoch, f"job-{job}")
                    acquired_ms.append((time.perf_counter() - began) * 1000)
                    assert found.num_records > 0.9 * cache.shards
                    if (before := held[job]) is not None:
                        before.release()
                    held[job] = found
                    bare_ms.append(_bare_ms(transport, _manifest(cache)))
            process.settle()
            assert len(session.status()["leases"]) == jobs
            cpu, began = process.cpu_seconds(), time.perf_counter()
            time.sleep(idle_s)
            share = (process.cpu_seconds() - cpu) / (time.perf_counter() - began)
            memory_mb = process.memory_mb()
            for held_epoch in held:
                held_epoch.release()
            return {
                "start_s": process.start_s,
                "acquire_p50_ms": percentile(acquired_ms, 0.5),
                "acquire_p99_ms": percentile(acquired_ms, 0.99),
                "bare_p50_ms": percentile(bare_ms, 0.5),
                "idle_cpu_percent": 100 * share,
                "rss_mb": memory_mb,
            }


def _manifest(cache: CacheFolder) -> Path:
    return next(cache.layout.leases.glob("*.json"))


def _bare_ms(transport: Transport, manifest: Path) -> float:
    """A request that the daemon refuses at once, and a lock on a manifest."""
    began = time.perf_counter()
    with contextlib.suppress(LeaseLostError):
        transport.ask(Held(secrets.token_hex(8), "no lease"), 5.0)
    with manifest.open("rb") as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _READ_LOCK)
        assert os.path.samestat(os.fstat(file.fileno()), manifest.stat())
        file.read()
    return (time.perf_counter() - began) * 1000


def exclude(cache: CacheFolder) -> dict[str, float]:
    """An exclusion that gives a tenth of all shards another version."""
    with started(cache) as process, Cache(Transport(cache.endpoint), 30.0) as session:
        process.settle()
        began = time.perf_counter()
        session.exclude(DATASET, *map(key_of, range(cache.shards // 10)), ahead=True)
        return {"exclude_s": time.perf_counter() - began}


def rebuild(cache: CacheFolder) -> dict[str, float]:
    cache.generation.snapshot.unlink(missing_ok=True)
    with started(cache, 600.0) as process:
        return {"rebuild_s": process.start_s}


def table(runs: Sequence[dict[str, float]]) -> str:
    """Medians, with the least and the greatest in brackets, as Markdown."""
    lines = ["| figure | measured |", "|---|--:|"]
    for key in runs[0]:
        values = [run[key] for run in runs]
        middle = statistics.median(values)
        shown = f"{middle:.3g} ({min(values):.3g}-{max(values):.3g})"
        lines.append(f"| {FIGURES[key]} | {shown} |")
    return "\n".join(lines) + "\n"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.bench.state", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    add = made.add_argument
    add("--shards", type=int, default=100_000, help="in the cache (100000)")
    add("--jobs", type=int, default=100, help="that hold a lease each (100)")
    add("--epochs", type=int, default=5, help="leases that each job takes (5)")
    add("--idle", type=float, default=20.0, help="seconds that the idle daemon is watched (20)")
    add("--repeats", type=int, default=5, help="of everything but the rebuilding (5)")
    add("--dir", type=Path, help="where the cache is made (/dev/shm, else $TMPDIR)")
    add("--json", type=Path, metavar="FILE", help="every figure of every repeat")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    shm = Path("/dev/shm")
    folder = options.dir or (shm if os.access(shm, os.W_OK) else None)
    place = Path(tempfile.mkdtemp(prefix="cachecd-bench-", dir=folder))
    try:
        began = time.monotonic()
        cache = make(place, options.shards)
        sys.stderr.write(f"{options.shards} shards made in {time.monotonic() - began:.1f} s\n")
        runs: list[dict[str, float]] = []
        for _ in range(options.repeats):
            runs.append(measure(cache, options.jobs, options.epochs, options.idle))
            sys.stderr.write(json.dumps(runs[-1]) + "\n")
        rebuilt = exclude(cache) | rebuild(cache)
    finally:
        shutil.rmtree(place)
    document: dict[str, Any] = {"shards": options.shards, "jobs": options.jobs, "runs": runs}
    sys.stdout.write(table(runs) + "\n" + table([rebuilt]))
    if options.json:
        options.json.write_text(json.dumps({**document, "rebuild": rebuilt}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
