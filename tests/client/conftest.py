"""A cache on disk as the daemon would leave it, and a daemon that says what a test scripts."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zmq

from cachecd_client import protocol
from cachecd_client.files.file_set import FileSet
from cachecd_client.frameworks.collective import AllGather
from cachecd_client.protocol import Done, Granted, Manifest, Reply, Request, StatusReply
from cachecd_client.runs.agreement import AgreementRow
from cachecd_client.session.cache import Cache, connect
from tests.client.records import examples, schema, write, write_set

GENERATION = "0123456789abcdef"
FLOCK = struct.Struct("hhqqi0q")
LAUNCHERS = [
    *("CACHECD_DIR", "CACHECD_ENDPOINT", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    *("LOCAL_SIZE", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_TASKS_PER_NODE", "PMIX_NAMESPACE"),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "HOROVOD_LOCAL_RANK", "RAY_JOB_ID"),
    *("PBS_JOBID", "LSB_JOBID"),
]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """Tests see no launcher and no daemon but those they set up."""
    for variable in LAUNCHERS:
        monkeypatch.delenv(variable, raising=False)


@dataclass
class CacheDir:
    """A cache directory with sealed shards and manifests, written as docs/formats.md says.

    Two streams have made the shards by turns: the shards 1, 2, 3 have the numbers 0, 1, 3.
    """

    root: Path
    per_shard: int = 10
    dataset: str = "train"
    first: int = 0

    @staticmethod
    def number(shard: int) -> int:
        """The number of a shard, from 1."""
        j, stream = divmod(shard - 1, 2)
        return 3 * j + stream

    def shard(self, shard: int, version: int = 0) -> Path:
        """A shard, from 1: records first + per_shard * (shard - 1) and on."""
        name = f"{self.number(shard):010d}{f'.{version}' if version else ''}.tfrecord"
        path = self.root / "datasets" / self.dataset / GENERATION / "shards" / name
        if not path.exists():
            first = self.first + self.per_shard * (shard - 1)
            write(path, examples(range(first, first + self.per_shard)))
        return path

    def manifest(self, lease: str = "lease-0", shards: int = 4, **changes: Any) -> Path:
        """Writes a manifest over the shards 1 .. `shards`; its path."""
        size = sum(self.shard(shard).stat().st_size for shard in range(1, shards + 1))
        of_streams = [(shards + 1) // 2, shards // 2]
        fields = {
            "version": protocol.MANIFEST_VERSION,
            "lease": lease,
            "dataset": self.dataset,
            "generation": GENERATION,
            "job": "job",
            "epoch": 0,
            "streams": 2,
            "intervals": [[stream, 0, n - 1] for stream, n in enumerate(of_streams) if n],
            "versions": [],
            "num_records": shards * self.per_shard,
            "num_bytes": size,
            "fingerprint": f"fingerprint of {shards}",
            "seed": 17,
            "sampling_seed": 5,
            "pinned": False,
            "ranks": 1,
            "place": 100 * shards,
            "window": None,
            "schema": schema().to_json(),
        }
        path = self.root / f"leases/{lease}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(Manifest(**{**fields, **changes}))))
        return path


@pytest.fixture
def cache_dir(tmp_path) -> CacheDir:
    root = tmp_path / "cache"
    root.mkdir()
    return CacheDir(root)


def locked(manifest: Path) -> bool:
    """Whether anybody holds a lock on the manifest: what the daemon's probe sees."""
    with open(manifest, "rb") as file:
        probe = FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0)
        kind, *_ = FLOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, probe))
    return kind != fcntl.F_UNLCK


Answer = Callable[[Request], Reply | list[bytes] | None]


@dataclass
class ScriptedDaemon:
    """A ROUTER on a real socket; `answer` says what to reply, None for nothing at all."""

    path: Path
    answer: Answer
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start()

    @property
    def endpoint(self) -> str:
        return f"ipc://{self.path}"

    def start(self) -> None:
        self._stop = threading.Event()
        bound = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(bound,), daemon=True)
        self._thread.start()
        assert bound.wait(10)

    def kill(self) -> None:
        """Ends it as kill -9 would: unanswered requests are lost."""
        self._stop.set()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def of(self, kind: type) -> list[Any]:
        return [request for request in self.requests if isinstance(request, kind)]

    def instead(self, reply: Answer, epoch: int, dataset: str = "train") -> None:
        """From now on it answers to an Acquire of this epoch what `reply` says."""
        usual = self.answer

        def answer(request: Request) -> Reply | list[bytes] | None:
            asked = isinstance(request, protocol.Acquire)
            asked = asked and (request.dataset, request.epoch) == (dataset, epoch)
            return reply(request) if asked else usual(request)

        self.answer = answer

    def _serve(self, bound: threading.Event) -> None:
        with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
            socket.linger = 0
            socket.bind(self.endpoint)
            bound.set()
            while not self._stop.is_set():
                if not socket.poll(5):
                    continue
                peer, empty, version, body = socket.recv_multipart()
                assert empty == b""
                assert version == protocol.VERSION_FRAME
                fields = json.loads(body)
                request = protocol.REQUESTS[fields.pop("type")](**fields)
                self.requests.append(request)
                reply = self.answer(request)
                if reply is not None:
                    frames = reply if isinstance(reply, list) else protocol.encode(reply)
                    socket.send_multipart([peer, b"", *frames])


def lending(make: Callable[[protocol.Acquire], Path | Reply]) -> Answer:
    """Grants to each Acquire the manifest that `make` writes for it, or answers what it gives."""

    def answer(request: Request) -> Reply | None:
        if not isinstance(request, protocol.Acquire):
            return None
        made = make(request)
        if not isinstance(made, Path):
            return made
        return Granted(request.id, made.stem, str(made.parents[1]), f"leases/{made.name}")

    return answer


def politely(answer: Answer) -> Answer:
    """`answer`, with the usual reply wherever it gives None for anything but an Acquire."""

    def complete(request: Request) -> Reply | list[bytes] | None:
        reply = answer(request)
        if reply is not None or isinstance(request, protocol.Acquire):
            return reply
        if isinstance(request, protocol.AskStatus):
            return StatusReply(request.id, {"daemon": "scripted"})
        return Done(request.id)

    return complete


@pytest.fixture
def daemon(tmp_path) -> Iterator[Callable[[Answer], ScriptedDaemon]]:
    started: list[ScriptedDaemon] = []

    def start(answer: Answer = lambda request: None, polite: bool = True) -> ScriptedDaemon:
        path = tmp_path / f"daemon-{len(started)}.sock"
        started.append(ScriptedDaemon(path, politely(answer) if polite else answer))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def granting(daemon, cache_dir):
    """A daemon that grants epoch k of "train" the shards 1 .. 2 + k, the way the real one does."""

    def make(request: protocol.Acquire) -> Path:
        lease = f"{request.dataset}-{request.epoch}"
        return cache_dir.manifest(lease, 2 + request.epoch, job=request.job, epoch=request.epoch)

    return daemon(lending(make))


@pytest.fixture
def cache(granting) -> Iterator[Cache]:
    with connect(granting.endpoint) as opened:
        yield opened


@pytest.fixture
def hasty_cache(granting, monkeypatch) -> Iterator[Cache]:
    """A session that waits a second for its daemon instead of ten."""
    monkeypatch.setattr("cachecd_client.session.acquire._RELEASE_TIMEOUT", 0.05)
    with connect(granting.endpoint, timeout=1.0) as opened:
        yield opened


@pytest.fixture
def manifest(cache_dir):
    return lambda epoch: cache_dir.root / f"leases/train-{epoch}.json"


def beside(records: int | None = None) -> AllGather:
    """An all-gather with another node, whose set has so many records; None: as many as here."""

    def gather(numbers: tuple[int, ...]) -> list[AgreementRow]:
        own = AgreementRow(*numbers)
        there = records if records and own.records else own.records
        return [own, own._replace(lease=1, records=there)]

    return gather


@pytest.fixture(scope="module")
def files(request, tmp_path_factory) -> FileSet:
    """The records 0 .. N - 1 of the test's module, EACH in a file."""
    count = getattr(request.module, "N", 24)
    each = getattr(request.module, "EACH", count)
    return FileSet(write_set(tmp_path_factory.mktemp("set"), count, each))


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    """For interpreters of a test's own: with this package, and temporary files in a place apart."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temporary)}
