"""What seeing costs: `python -m tests.bench.monitoring`

`pairs`: the same training run with everything on (server.http, a scraper and the page's requests each
second, the trainer's reports) and with everything off, by turns. `scrapers`: how long an acquire takes
alone, and beside 1,000 scrapers, one that never reads, and garbage. `metrics`: the seconds of /metrics with
100,000 shards and 100 leases.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cachecd_client.session.cache import Cache
from cachecd_client.transport import Transport
from tests.bench.cachedir import DATASET, CacheFolder, make
from tests.bench.measuring import spread
from tests.bench.state import percentile, started
from tests.e2e.daemons import ExecutedDaemon, descendants, file_source, said_line, trainer

RECORD, RECORDS = 100_000, 600
TRAINER = """
import json, resource, sys, time
from cachecd_client import connect
with connect(timeout=60) as cache:
    began, cpu = time.perf_counter(), time.process_time()
    for epoch in cache.epochs("train", int(sys.argv[1])):
        for batch in epoch.numpy(32):
            time.sleep(0.002)
    print(json.dumps([time.process_time() - cpu, time.perf_counter() - began]))
"""
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])


def processor_seconds(pid: int) -> float:
    """Of a process and all that it started."""
    total = 0
    for each in (pid, *descendants(pid)):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def fetched(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
        body: bytes = reply.read()
    return body


@contextmanager
def watched(port: int) -> Iterator[None]:
    """Requests what Prometheus and an open page request, each second."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(1.0):
            for path in ("/metrics", "/status.json", "/history.json"):
                fetched(port, path)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def pairs(count: int, epochs: int) -> list[tuple[float, float]]:
    """The CPU and the wall seconds with everything on, each divided by those with everything off."""
    chance = random.Random(1)
    objects = {f"{n:05}.bin": chance.randbytes(RECORD) for n in range(RECORDS)}
    with contextlib.ExitStack() as stack:
        daemons, port = {}, free_port()
        for name in ("on", "off"):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="monitoring-")))
            source = file_source(folder / "source", objects)
            daemon = ExecutedDaemon(
                folder, {"train": {"source": source}}, limit="1GiB", shard_size="2MiB"
            )
            if name == "on":
                daemon.document["server"]["http"] = f"127.0.0.1:{port}"
            daemons[name] = stack.enter_context(daemon)
            daemon.start()
            daemon.until_whole()
            if name == "off":
                Path(f"{daemon.socket}.reports").unlink()
        found: list[tuple[float, float]] = []
        for number in range(count):
            figures = {}
            for name in ("on", "off") if number % 2 else ("off", "on"):
                daemon = daemons[name]
                with watched(port) if name == "on" else contextlib.nullcontext():
                    before = processor_seconds(daemon.pid)
                    with trainer(daemon, TRAINER, str(epochs)) as process:
                        cpu, wall = said_line(process)
                        process.wait()
                    figures[name] = cpu + processor_seconds(daemon.pid) - before, wall
            on, off = figures["on"], figures["off"]
            found.append((on[0] / off[0], on[1] / off[1]))
            sys.stderr.write(f"{number + 1}: {json.dumps(figures)}\n")
    return found


@contextmanager
def large_cache(shards: int) -> Iterator[tuple[CacheFolder, int]]:
    """A cache of many shards whose daemon serves HTTP; and its port."""
    place, port = Path(tempfile.mkdtemp(prefix="cachecd-bench-", dir="/dev/shm")), free_port()
    try:
        cache = make(place, shards)
        document = json.loads(cache.config.read_text())
        document["server"]["http"] = f"127.0.0.1:{port}"
        cache.config.write_text(json.dumps(document))
        yield cache, port
    finally:
        shutil.rmtree(place)


def acquired_ms(session: Cache, count: int, first: int) -> list[float]:
    taken = []
    for epoch in range(first, first + count):
        began = time.perf_counter()
        leased = session.acquire(DATASET, epoch, "measured")
        taken.append((time.perf_counter() - began) * 1000)
        leased.release()
    return taken


def scrape(port: int) -> None:
    """1,000 scrapers at once, again and again, one of which never reads, and garbage. Ends with stdin."""
    chance = random.Random(1)
    with socket.create_connection(("127.0.0.1", port)) as silent:
        silent.sendall(REQUEST * 100)
        while True:
            with selectors.DefaultSelector() as ready, contextlib.ExitStack() as opened:
                for number in range(1000):
                    scraper = opened.enter_context(socket.socket())
                    scraper.setblocking(False)
                    scraper.connect_ex(("127.0.0.1", port))
                    ready.register(scraper, selectors.EVENT_WRITE, number)
                deadline = time.monotonic() + 5
                while ready.get_map() and time.monotonic() < deadline:
                    for key, event in ready.select(1):
                        scraper = key.fileobj  # type: ignore[assignment]
                        try:
                            if event & selectors.EVENT_WRITE:
                                is_garbage = key.data % 100 == 0
                                scraper.sendall(chance.randbytes(500) if is_garbage else REQUEST)
                                ready.modify(scraper, selectors.EVENT_READ)
                            elif not scraper.recv(1 << 16):
                                ready.unregister(scraper)
                        except OSError:
                            ready.unregister(scraper)


def scrapers(session: Cache, port: int, repeats: int, count: int) -> dict[str, list[float]]:
    """The 99th percentiles of acquires in ms, alone, beside scrapers, and beside a process that computes as
    the scrapers do, by turns."""
    arms = {
        "alone": [],
        "beside 1,000 scrapers": ["-m", "tests.bench.monitoring", "--scrape", str(port)],
        "beside a process that computes": ["-c", "while True: pass"],
    }
    found: dict[str, list[float]] = {name: [] for name in arms}
    acquired_ms(session, 20, 0)
    for repeat in range(repeats):
        for number, (name, command) in enumerate(arms.items()):
            with contextlib.ExitStack() as stack:
                if command:
                    process = stack.enter_context(subprocess.Popen([sys.executable, *command]))
                    stack.callback(process.kill)
                    time.sleep(2)
                taken = acquired_ms(session, count, 1000 * (3 * repeat + number + 1))
            found[name].append(percentile(taken, 0.99))
            sys.stderr.write(
                f"{repeat + 1}: {name}: p50 {percentile(taken, 0.5):.1f}, p99 {found[name][-1]:.1f} ms\n"
            )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--acquires", type=int, default=300)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--scrape", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.scrape:
        scrape(options.scrape)
    lines = ["| figure | measured |", "|---|--:|"]
    if options.pairs:
        found = pairs(options.pairs, options.epochs)
        for place, name in enumerate(("CPU seconds", "wall seconds")):
            ratios = [pair[place] for pair in found]
            lines.append(
                f"| everything on, divided by everything off: {name} | {spread(ratios, 3)} |"
            )
    with large_cache(options.shards) as (cache, port), started(cache) as process:
        process.settle()
        with Cache(Transport(cache.endpoint), 60.0) as session:
            for name, values in scrapers(session, port, options.repeats, options.acquires).items():
                lines.append(f"| acquire, p99 in ms, {name} | {spread(values, 1)} |")
            held = [session.acquire(DATASET, 0, f"job-{job}") for job in range(100)]
            fetched(port, "/metrics")
            time.sleep(2)
            seconds, cpu = [], process.cpu_seconds()
            for _ in range(20):
                began = time.perf_counter()
                fetched(port, "/metrics")
                seconds.append((time.perf_counter() - began) * 1000)
                time.sleep(0.2)
            cpu = process.cpu_seconds() - cpu
            for epoch in held:
                epoch.release()
    lines.append(f"| `/metrics` of 100 leases, ms | {spread(seconds, 1)} |")
    lines.append(f"| the daemon's CPU meanwhile, ms for each `/metrics` | {50 * cpu:.1f} |")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
