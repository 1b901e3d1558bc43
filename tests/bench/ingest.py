"""How fast a source becomes sealed shards, beside other ways to get the same bytes: one command.

    python -m tests.bench.ingest

starts a real S3 server on this machine, fills it (2 GiB in 64 MiB TFRecord objects, 1 GB in objects of
100 kB, 200 MB in objects of 10 kB), and reads each by turns: by obstore (`obstore`: thrown away; `files-8`:
8 objects at a time streamed into files that are synced at the end), and by the daemon (to sealed shards,
every CRC checked and made, everything synced). The server has a part in every figure: it runs on the same
cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachecd_client._core import encode_example
from tests.bench.measuring import cpu_seconds_of, descendants, spread, turns
from tests.core.shards import frames
from tests.e2e.daemons import ExecutedDaemon
from tests.stores import S3Server, s3_server

ROOT = Path(__file__).parents[2]
BUCKET = "ingest"
CONNECTIONS = 32
PATIENCE = 300.0  # seconds
FIGURES = {
    "mb_s": "MB/s",
    "cpu_s_gb": "CPU s/GB",
    "sampler_peak_mb": "a sampler's peak MB",
}
CONTENDERS = {
    "tfrecord": ("obstore", "files-4", "files-8", "files-16", "ours"),
    "100kB": ("obstore", "ours"),
    "10kB": ("obstore", "ours"),
}

Measured = dict[str, dict[str, list[float]]]  # contender -> figure -> a value a repeat


@dataclass(frozen=True)
class Case:
    """Objects of one kind; all are of random bytes, which nothing on the way can compress."""

    name: str
    objects: int
    size: int

    @property
    def prefix(self) -> str:
        return f"{self.name}/"

    @property
    def format(self) -> str:
        return "tfrecord" if self.name == "tfrecord" else "files"

    @property
    def record_bytes(self) -> int:
        """Bytes of the source for each record."""
        return self.size if self.format == "files" else len(self._record())

    def _record(self) -> bytes:
        return frames([encode_example({"image": random.Random(1).randbytes(100_000), "label": 1})])

    def bodies(self) -> Iterator[tuple[str, bytes]]:
        chance = random.Random(self.name)
        if self.format == "files":
            for number in range(self.objects):
                yield (
                    f"{self.prefix}{number % 100:02d}/{number:06d}.jpg",
                    chance.randbytes(self.size),
                )
            return
        record = self._record()
        for number in range(self.objects):
            yield f"{self.prefix}{number:04d}.tfrecord", record * (self.size // len(record))


def say(what: str) -> None:
    sys.stderr.write(f"{what}\n")


def fill(server: S3Server, case: Case) -> None:
    some: dict[str, bytes] = {}
    for key, body in case.bodies():
        some[key] = body
        if sum(map(len, some.values())) > 64 << 20:
            server.put(BUCKET, some)
            some = {}
    server.put(BUCKET, some)


def fetch(
    server: S3Server, name: str, case: Case, connections: int, scratch: Path
) -> dict[str, float]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {**os.environ, **server.environ, "PYTHONPATH": path, "TMPDIR": str(scratch)}
    command = [sys.executable, "-m", "tests.bench.fetchers", name, BUCKET, case.prefix]
    done = subprocess.run(
        [*command, str(connections)], env=environ, check=True, stdout=subprocess.PIPE
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def ingest(
    folder: Path, server: S3Server, source: dict[str, Any], sampler: dict[str, Any]
) -> dict[str, float]:
    """Caches all of the source in `folder`, which is to be empty.

    What is measured begins when the source is listed, the samplers are warm and the first shards are
    sealed: then the daemon is told to take the rest. It ends as the last shard gets its name.
    """
    grow: dict[str, Any] = {"first": "1MiB", "per_epoch": "0"}
    train = {"source": source, "grow": grow}
    with (
        ExecutedDaemon(
            folder,
            {"train": train},
            server.environ,
            limit="40GiB",
            shard_size="64MiB",
            sampler=sampler,
        ) as daemon,
        daemon.start().connect() as cache,
    ):

        def status() -> dict[str, Any]:
            found: dict[str, Any] = cache.status()["datasets"]["train"]
            return found

        def until(condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
            deadline = time.monotonic() + PATIENCE
            while not condition(found := status()):
                assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {found}"
                time.sleep(0.1)  # a status takes the daemon 2 ms
            return found

        before = until(lambda s: s["listed"] and s["shards"] and not s["making"])
        train["grow"] = {"first": "30GiB"}
        daemon.write_config()
        cpu, began = _cpu(daemon.pid), time.time()
        os.kill(daemon.pid, signal.SIGHUP)
        after = until(lambda s: s["whole"])
        return {
            "seconds": max(path.stat().st_mtime for path in folder.rglob("shards")) - began,
            "cpu_seconds": _cpu(daemon.pid) - cpu,
            "records": after["records"] - before["records"],
            "sampler_peak_mb": max(_peak_mb(pid) for pid in descendants(daemon.pid)),
        }


def _cpu(pid: int) -> float:
    return cpu_seconds_of([pid, *descendants(pid)])


def _peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1000
    return 0.0


def measure(server: S3Server, case: Case, options: argparse.Namespace) -> Measured:
    found: Measured = {}
    size = sum(len(body) for _, body in case.bodies())
    for repeat in range(options.repeats):
        for name in turns(CONTENDERS[case.name], repeat):
            with tempfile.TemporaryDirectory(
                prefix="cachecd-ingest-", dir=options.folder
            ) as folder:
                if name == "ours":
                    source = {"url": f"s3://{BUCKET}/{case.prefix}", "format": case.format}
                    sampler = {"workers": 2, "connections": CONNECTIONS}
                    done = ingest(Path(folder), server, source, sampler)
                    done["bytes"] = done["records"] * case.record_bytes
                else:
                    fetcher, _, connections = name.partition("-")
                    count = int(connections or CONNECTIONS)
                    done = fetch(server, fetcher, case, count, Path(folder))
                    assert (done["objects"], done["bytes"]) == (case.objects, size), done
            values = found.setdefault(name, {})
            values.setdefault("mb_s", []).append(done["bytes"] / done["seconds"] / 1e6)
            values.setdefault("cpu_s_gb", []).append(done["cpu_seconds"] / done["bytes"] * 1e9)
            if "sampler_peak_mb" in done:
                values.setdefault("sampler_peak_mb", []).append(done["sampler_peak_mb"])
            mb_s = values["mb_s"][-1]
            say(f"{case.name}: {repeat + 1} of {options.repeats}, {name}: {mb_s:.0f} MB/s")
    return found


def table(case: Case, found: Measured) -> Iterator[str]:
    yield f"{case.objects:,} objects of {case.size:,} bytes:"
    yield ""
    yield f"| | {' | '.join(FIGURES.values())} |"
    yield f"|---|{'---|' * len(FIGURES)}"
    for name, values in found.items():
        cells = [
            spread(values[f], 1 if f == "cpu_s_gb" else 0) if f in values else "" for f in FIGURES
        ]
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ingest")
    parser.add_argument("--folder", type=Path, help="where shards and files go; /tmp by default")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--large", type=int, default=32, help="objects of 64 MiB")
    parser.add_argument("--small", type=int, default=10_000, help="objects of 100 kB")
    parser.add_argument("--tiny", type=int, default=20_000, help="objects of 10 kB")
    parser.add_argument("--json", type=Path, help="also write all figures there")
    options = parser.parse_args(arguments)
    cases = [
        Case("tfrecord", options.large, 64 << 20),
        Case("100kB", options.small, 100_000),
        Case("10kB", options.tiny, 10_000),
    ]
    document: dict[str, Any] = {"cases": {}}
    for case in cases:
        if not case.objects:
            continue
        with s3_server() as server:
            server.bucket(BUCKET)
            say(f"{case.name}: filling the store")
            fill(server, case)
            found = measure(server, case, options)
        document["cases"][case.name] = found
        sys.stdout.write("\n".join([*table(case, found), "", ""]))
    if options.json:
        options.json.write_text(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
