"""The stage of a soak: a store and the way to it, one daemon on a disk that can fail, three jobs.

`fast` is a torch job of two ranks, `steady` one of TensorFlow, `slow` a torch job of long epochs. All
are real processes. What is done to them is in `injections`, what must hold in `verdict`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.conftest import LABEL, upload
from tests.e2e.daemons import Daemon, clean_environ, wait_until
from tests.e2e.inventory import Peak
from tests.e2e.link import Link
from tests.faults.disk import FaultyDisk
from tests.soak.records import content, keys
from tests.stores import s3_server

MIB = 1 << 20
LIMIT = 14 * MIB
TRAIN, EVAL = 2500, 120  # objects: 26 MB, of which the cache holds half, and 1.3 MB
_ENDS_WITHIN = 60.0  # seconds that a trainer has to finish its epoch


@dataclass
class Rank:
    """One trainer process, started again whenever it has been killed."""

    framework: str
    job: str
    log: Path
    environ: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    ended: list[int] = field(default_factory=list)  # exit codes that nobody asked for

    def start(self) -> None:
        with self.log.with_suffix(".stderr").open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.trainer", self.framework, self.job, self.log],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env=self.environ,
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def look(self) -> None:
        """Notes it if it has ended by itself, and starts it again."""
        assert self.process is not None
        if (code := self.process.poll()) is not None:
            self.ended.append(code)
            self.start()

    def finish(self) -> None:
        """SIGTERM, and the end of its epoch."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            code = self.process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            code = -1
            self.kill()
        if code:
            self.ended.append(code)

    def lines(self) -> Iterator[dict[str, Any]]:
        """What it told, of whole lines."""
        if self.log.exists():
            for line in self.log.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    yield json.loads(line)


class Stage:
    """Everything that runs; a context manager that leaves no process behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open = ExitStack()
        self.objects = {
            "train": {key: content(key) for key in keys(TRAIN)},
            "eval": {key: content(key) for key in (f"{k}.eval" for k in keys(EVAL))},
        }

    def __enter__(self) -> Stage:
        try:
            self._set()
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _set(self) -> None:
        s3 = self._open.enter_context(s3_server())
        s3.bucket("soak")
        for dataset, objects in self.objects.items():
            upload(s3, "soak", {f"{dataset}/{key}": body for key, body in objects.items()})
        self.link = self._open.enter_context(Link(s3.endpoint))
        self.disk = FaultyDisk(self.folder / "faults", self.folder / "cache")
        self.daemon = self._open.enter_context(
            Daemon(
                self.folder,
                {
                    "train": {
                        "source": self._source("train"),
                        "grow": {"first": "1MiB", "per_epoch": "1MiB"},
                    },
                    "eval": {"source": self._source("eval"), "pin": True},
                },
                {**s3.environ, "AWS_ENDPOINT_URL": self.link.endpoint, **self.disk.environ},
                limit=LIMIT,
                sampler={"workers": 2},
            )
        )
        self.peak = self._open.enter_context(Peak(self.daemon.cache, every=0.02))
        self.daemon.start()
        self.ranks = [
            self._rank("torch", "fast", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2"),
            self._rank("torch", "fast", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2"),
            self._rank("tensorflow", "steady"),
            self._rank("torch", "slow"),
        ]
        self._open.callback(self._kill_ranks)
        for rank in self.ranks:
            rank.start()

    @staticmethod
    def _source(dataset: str) -> dict[str, Any]:
        url = f"s3://soak/{dataset}/"
        return {"url": url, "format": "files", "label": LABEL}

    def _rank(self, framework: str, job: str, **environ: str) -> Rank:
        name = job + environ.get("LOCAL_RANK", "")
        told = {"CACHECD_ENDPOINT": self.daemon.endpoint, "TF_CPP_MIN_LOG_LEVEL": "2", **environ}
        return Rank(framework, job, self.folder / f"{name}.jsonl", clean_environ(told))

    def _kill_ranks(self) -> None:
        for rank in self.ranks:
            if rank.process is not None and rank.process.poll() is None:
                rank.kill()

    def shards(self, dataset: str = "train") -> list[Path]:
        """The sealed shards and their sidecars that are there now."""
        files = self.daemon.cache.glob(f"datasets/{dataset}/*/shards/*.tfrecord*")
        return sorted(files)

    def calm(self) -> None:
        """No fault is active any more, and everything that was stopped runs."""
        self.disk.heal()
        self.link.up()

    def finish_jobs(self) -> None:
        for rank in self.ranks:
            rank.finish()

    def wait_for_epochs(self, seconds: float) -> None:
        """Until every rank has done an epoch that began after now."""
        now = time.time()
        wait_until(
            lambda: all(
                any(line["at"] > now and line.get("dataset") for line in rank.lines())
                for rank in self.ranks
            ),
            seconds,
            "every job goes on",
        )
