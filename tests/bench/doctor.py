"""Whether `cachecd doctor` names what makes training wait: `python -m tests.bench.doctor --repeats 5`.

Each fault is injected into a real daemon with real trainers, and the doctor's first finding is compared
with it. The output is a confusion matrix in Markdown. Needs root and cgroups, version 1, for the slow disk
and the container with too little memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.e2e.daemons import ExecutedDaemon, file_source, run
from tests.scripted import Answer, body, refusal, scripted_server

RECORD = 100_000  # bytes
SETTLED = 25.0  # seconds of training before the doctor is asked
CGROUPS = Path("/sys/fs/cgroup")
MIB = 1 << 20

TRAINER = textwrap.dedent(
    """
    import sys, threading, time
    from cachecd_client import connect

    prepare_s, hogs = float(sys.argv[1]), int(sys.argv[2])

    def hog():
        while True:
            sum(range(10_000))

    def prepare(batch, random):
        time.sleep(prepare_s)
        return batch

    if hogs:
        sys.setswitchinterval(0.1)  # as an extension that keeps the GIL for so long
        for _ in range(hogs):
            threading.Thread(target=hog, daemon=True).start()
    with connect(timeout=120) as cache:
        for epoch in cache.epochs("train", 1_000_000):
            for batch in epoch.numpy(8, **({"prepare": prepare} if prepare_s else {})):
                time.sleep(0.02)
    """
)
STEP = """
import time

def burn(record):
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    return record
"""


@dataclass(frozen=True)
class Fault:
    """`expected`: what the doctor may call it. `link`: bytes per second. `busy`: refused tries of each
    object. `limits`: values of the trainer's cgroups."""

    name: str
    expected: tuple[str, ...]
    objects: int = 600
    grow: Mapping[str, Any] = field(default_factory=dict)
    link: float = 0.0
    busy: int = 0
    transform: Sequence[str] = ()
    window: str = ""
    prepares: Sequence[float] = (0.0,)  # seconds, a rank each
    hogs: int = 0
    limits: Mapping[str, int] = field(default_factory=dict)


_WAITS = {"first": "4MiB", "per_epoch": "8MiB", "wait": True}
FAULTS = (
    Fault("healthy", ("healthy",)),
    Fault("slow link", ("link",), grow=_WAITS, link=1e6),
    Fault("slow transform", ("steps:burn",), grow=_WAITS, transform=("steps:burn",)),
    Fault("slow disk", ("disk",), 3000, limits={"blkio.throttle.read_bps_device": 4_000_000}),
    Fault("one slow rank", ("rank",), prepares=(0.0, 0.0, 0.2)),
    Fault("a thread that hogs the GIL", ("gil",), hogs=2),
    Fault("throttling store", ("throttled",), grow=_WAITS, busy=4),
    Fault(
        "a container with too little memory", ("memory",), 3000, window="250MiB",
        limits={"memory.limit_in_bytes": 160 * MIB, "blkio.throttle.read_bps_device": 20_000_000},
    ),
)  # fmt: skip


def limited(content: bytes, bytes_per_second: float) -> Answer:
    """The content over a link that all connections share."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        with _LINK:
            time.sleep(len(content) / bytes_per_second)
        body(content)(handler)

    return answer


_LINK = threading.Lock()


@contextlib.contextmanager
def source(fault: Fault, folder: Path) -> Iterator[dict[str, Any]]:
    """The source of the dataset: a folder, or a server with a fault."""
    chance = random.Random(1)
    objects = {f"{n:05}.bin": chance.randbytes(RECORD) for n in range(fault.objects)}
    if not (fault.link or fault.busy):
        yield file_source(folder / "source", objects)
        return
    with scripted_server() as server:
        for key, content in objects.items():
            last = limited(content, fault.link) if fault.link else body(content)
            refused = [refusal(503, "SlowDown")] * (
                chance.randrange(2 * fault.busy) if fault.busy else 0
            )
            server.script[f"/{key}"] = [*refused, last]
        table = folder / "objects.csv"
        table.write_text("key,size\n" + "".join(f"{key},{RECORD}\n" for key in objects))
        yield {"url": f"{server.endpoint}/", "format": "files", "manifest": f"file://{table}"}


@contextlib.contextmanager
def cgroups(limits: Mapping[str, int], folder: Path) -> Iterator[list[Path]]:
    """The cgroups of a process with these limits."""
    made: list[Path] = []
    device = os.stat(folder).st_dev
    for name, value in limits.items():
        group = CGROUPS / name.partition(".")[0] / f"diagnosis-{os.getpid()}"
        group.mkdir()
        made.append(group)
        is_disk = name.startswith("blkio")
        text = f"{os.major(device)}:{os.minor(device)} {value}" if is_disk else str(value)
        (group / name).write_text(text)
    try:
        yield made
    finally:
        for group in made:
            with contextlib.suppress(OSError):
                group.rmdir()


def start_trainers(
    fault: Fault, daemon: ExecutedDaemon, groups: Sequence[Path], stack: contextlib.ExitStack
) -> list[subprocess.Popen[bytes]]:
    """Starts a process for each rank, in the cgroups."""

    def join() -> None:
        for group in groups:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    started = []
    log = stack.enter_context((daemon.folder / "trainers").open("wb"))
    for rank, seconds in enumerate(fault.prepares):
        world = str(len(fault.prepares))
        process = subprocess.Popen(
            [sys.executable, "-c", TRAINER, str(seconds), str(fault.hogs)],
            env={
                **daemon.environ, "CACHECD_ENDPOINT": daemon.endpoint, "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": world, "RANK": str(rank), "WORLD_SIZE": world,
            },
            stdout=log, stderr=log, preexec_fn=join,
        )  # fmt: skip
        stack.callback(process.wait)
        stack.callback(process.kill)
        started.append(process)
    return started


def evict(cache: Path) -> None:
    """Takes the shards out of the page cache."""
    for path in cache.rglob("*.tfrecord"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def diagnose(fault: Fault, folder: Path) -> dict[str, Any]:
    """Injects the fault. Returns the doctor's answer."""
    (folder / "steps.py").write_text(STEP)
    with contextlib.ExitStack() as stack:
        described = stack.enter_context(source(fault, folder))
        dataset: dict[str, Any] = {"source": described, "grow": fault.grow or {"first": "4MiB"}}
        if fault.transform:
            dataset["transform"] = list(fault.transform)
        sampler = {"workers": 2, "path": [str(folder)]}
        daemon = ExecutedDaemon(
            folder, {"train": dataset}, limit="1GiB", shard_size="2MiB", sampler=sampler
        )
        if fault.window:
            daemon.document["cache"]["window"] = fault.window
        stack.enter_context(daemon)
        daemon.start()
        if not fault.grow:
            daemon.until_whole()
        if fault.limits:
            evict(daemon.cache)
        groups = stack.enter_context(cgroups(fault.limits, folder))
        trainers = start_trainers(fault, daemon, groups, stack)
        end = time.monotonic() + SETTLED
        while time.monotonic() < end:
            for process in trainers:
                code = process.poll()
                said = (folder / "trainers").read_text(errors="replace")
                assert code is None, f"a trainer ended with {code}:\n{said}"
            time.sleep(0.2)
        command = [
            sys.executable,
            "-m",
            "cachecd",
            "doctor",
            "--endpoint",
            daemon.endpoint,
            "--json",
        ]
        said = run(command, daemon)
        assert said.returncode in (0, 1), said.stderr
        answer: dict[str, Any] = json.loads(said.stdout)
        return answer


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", action="append", help="a fault's name; may be repeated")
    options = parser.parse_args(arguments)
    matrix: dict[str, Counter[str]] = {}
    wrong = 0
    for repeat in range(options.repeats):
        for fault in FAULTS:
            if options.only and fault.name not in options.only:
                continue
            with tempfile.TemporaryDirectory(prefix="diagnosis-") as folder:
                found = diagnose(fault, Path(folder))["findings"]
            named = found[0]["kind"]
            matrix.setdefault(fault.name, Counter())[named] += 1
            wrong += named not in fault.expected
            sys.stderr.write(f"{repeat + 1}: {fault.name}: {named}: {json.dumps(found[0])}\n")
    kinds = sorted({kind for row in matrix.values() for kind in row})
    lines = [f"| injected | {' | '.join(kinds)} |", "|---|" + "--:|" * len(kinds)]
    for name, row in matrix.items():
        lines.append(f"| {name} | {' | '.join(str(row[kind] or '') for kind in kinds)} |")
    sys.stdout.write("\n".join(lines) + "\n")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
