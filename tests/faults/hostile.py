"""Messages that no client sends, to a real daemon with trainers beside.

`python -m tests.faults.hostile SECONDS SEED` is the long form.

Messages have the form of requests, and say what the daemon knows (leases, generations, walks, shards) or
what it cannot know, in fields that fit or do not. Measured is how long the trainers wait for an answer.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from cachecd_client import protocol
from tests.e2e.daemons import Daemon, wait_until
from tests.e2e.inventory import inventory
from tests.faults.rotating import Rotating, dataset_of

LONGEST = 1.0  # seconds that a trainer may wait for an answer
_STATE = (
    "generation", "shards", "records", "data_bytes", "units", "coverage", "passes", "retired_shards",
    "quarantined_shards", "evicted_shards", "stopped",
)  # fmt: skip
PATIENCE = 0.2  # with which `Rotating.waits` asks for an epoch


class Attacker:
    """Sends, without end; what it says of leases, it reads in their manifests. If `typed`, every message
    is one that a client could send."""

    def __init__(self, endpoint: str, seed: int, cache: Path, *, typed: bool = False) -> None:
        self._chance = random.Random(seed)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(endpoint)
        self._cache = cache
        self._typed = typed
        self._leases: list[dict[str, Any]] = []
        self.sent = 0

    def turn(self) -> None:
        """A message, and its answer if there is one."""
        if self.sent % 20 == 0:
            self._look()
        body = self._request() if self._typed else self._message()
        self._socket.send_multipart([b"", protocol.VERSION_FRAME, json.dumps(body).encode()])
        self.sent += 1
        while self._socket.poll(5):
            self._socket.recv_multipart()

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def _look(self) -> None:
        """As anybody of the socket's group can."""
        self._leases = []
        for path in (self._cache / "leases").glob("*.json"):
            try:
                self._leases.append(json.loads(path.read_bytes()))
            except (OSError, ValueError):
                continue

    def _message(self) -> dict[str, Any]:
        pick, lease = self._chance.choice, self._lease()
        kind = pick(sorted(protocol.REQUESTS))
        body: dict[str, Any] = {"type": kind, "id": f"h{self.sent}"}
        fields: dict[str, Callable[[], Any]] = {
            "dataset": lambda: pick(["train", "train", "train", "\ud800", "../x", ""]),
            "job": lambda: pick(["hostile", "job", "\x1b[2J\n", "../../x", f"h{self.sent}"]),
            "epoch": lambda: pick([0, 1, 7, self._number()]),
            "local_rank": lambda: pick([0, 1, self._number()]),
            "local_world_size": lambda: pick([1, 2, self._number()]),
            "generation": lambda: pick([lease.get("generation", ""), "other"]),
            "fingerprint": lambda: pick([lease.get("fingerprint", ""), "", "ff"]),
            "shards": lambda: pick([lease.get("intervals", []), self._ranges()]),
            "delivered": lambda: pick([0.0, 1.0, -1.0, 1e308, float("nan"), float("inf")]),
            "sampling_seed": lambda: pick([lease.get("sampling_seed", 0), self._number()]),
            "streams": lambda: pick([lease.get("streams", 0), self._number()]),
            "place": lambda: pick([lease.get("place", 0), self._number()]),
            "lease": lambda: pick([lease.get("lease", ""), self._path(), f"h{self.sent}" * 150]),
            "shard": lambda: pick([1, 2, self._number()]),
            "version": lambda: pick([0, 1, self._number()]),
            "offset": self._number,
            "why": lambda: pick(["\x1b[31mred\n", "bad", "x" * 2000]),
            "keys": lambda: [pick([f"no-{self.sent}", "\udce9.jpg", "x" * 5000])],
        }
        for field in protocol.REQUESTS[kind].__dataclass_fields__:
            if field != "id" and self._chance.random() < 0.95:
                body[field] = fields[field]()
        return body

    def _request(self) -> dict[str, Any]:
        """A message whose fields are of the right types, and mostly name what there is."""
        pick, lease, most = self._chance.choice, self._lease(), self._chance.randrange
        place = pick([0, 7, 10**6, most(1 << 40), (1 << 62) - 1])
        ranges = [pick([[0, 1, 1], [1, 3, 5], [0, 10**6, 10**6], [0, 1, 10**7], [9, 10**9, 10**9]])]
        generation = lease.get("generation", "")
        request = pick(
            [
                protocol.Acquire(
                    f"t{self.sent}", "train", pick(["trainer", "other"]), pick([0, 1, 10**6]), 0,
                    pick([1, 2]), lease.get("lease", ""), pick([0.0, 0.5, 1.0]), generation,
                    pick([lease.get("intervals", []), ranges]), pick([lease.get("fingerprint", ""), ""]),
                    lease.get("sampling_seed", 0), pick([0, 1, lease.get("streams", 0)]), place,
                ),
                protocol.Held(f"t{self.sent}", lease.get("lease", "x"), pick([0, 1])),
                protocol.Released(f"t{self.sent}", lease.get("lease", "x"), 0, pick([0.0, 0.5, 1.0])),
                protocol.ReportCorrupt(
                    f"t{self.sent}", "train", generation, pick([1, 2, 10**6]), 0, 0, "bad"
                ),
                protocol.Exclude(f"t{self.sent}", "train", [f"no-{self.sent}"]),
                protocol.AskStatus(f"t{self.sent}"),
            ]
        )  # fmt: skip
        return json.loads(protocol.encode(request)[-1])

    def _lease(self) -> dict[str, Any]:
        return self._chance.choice(self._leases) if self._leases else {}

    def _number(self) -> int:
        few = [0, 1, -1, 10**7, 10**9, 2**31, 2**62, 2**63, 2**64, 10**300]
        return self._chance.choice(few)

    def _ranges(self) -> list[list[int]]:
        many = [[0, 2 * n + 1, 2 * n + 1] for n in range(20_000)]
        odd = [
            [[0, 1, 10**7]],
            [[3, 10**9, 10**9]],
            [[0, 5, 1]],
            [[1]],
            [[]],
            [[0, 1, 2**62]],
            many,
        ]
        return self._chance.choice(odd)

    def _path(self) -> str:
        return self._chance.choice(["../../x", "../catalog", "/etc/passwd", "x" * 900, "a\0b"])


def attack(folder: Path, seconds: float, seed: int) -> tuple[int, float]:
    """How many messages were sent, and the longest wait of a trainer for its next epoch or the status."""
    settings = {"objects": 200, "limit": "2MiB"}
    with Rotating.started(folder, {}, lambda rotating: True, settings) as rotating:
        os.mkfifo(folder / "x.json")
        attacker = Attacker(rotating.daemon.endpoint, seed, rotating.daemon.cache)
        done = threading.Event()

        ended: list[BaseException] = []

        def go_on() -> None:
            try:
                while not done.is_set():
                    attacker.turn()
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=go_on)
        thread.start()
        longest, until = 0.0, time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                began = time.monotonic()
                rotating.status()
                longest = max(longest, time.monotonic() - began)
                began = time.monotonic()
                waited = rotating.waits()  # for shards: as long as a trainer has patience
                patience = PATIENCE if waited else 0.0
                longest = max(longest, time.monotonic() - began - patience)
                time.sleep(0.02)
        finally:
            done.set()
            thread.join()
            attacker.close()
        if ended:
            raise ended[0]  # an attack that ended by itself proves nothing
        # It is as it was: new shards come, sets are read, a restart finds all of it.
        wait_until(lambda: not rotating.waits(), 60, f"leases go on\n{rotating.tail()}")
        return attacker.sent, longest


def aftermath(folder: Path, source: Path, messages: int, seed: int) -> dict[str, Any]:
    """What users see of a dataset that is whole, after so many messages and a restart: its state, the next
    set, every shard by number; and once the source has more, how many records, and of numbers unused."""
    folder.mkdir()
    with Daemon(folder, dataset_of(source), {}, limit="16MiB", shard_size="64KiB") as served:
        served.start()
        served.until_whole()
        attacker = Attacker(served.endpoint, seed, served.cache, typed=True)
        while attacker.sent < messages:
            attacker.turn()
        attacker.close()
        served.kill()
        served.start()
        served.until_whole()
        state = {name: served.train[name] for name in _STATE}
        with served.connect() as cache, cache.acquire("train", 0, job="new") as epoch:
            state["set"] = epoch.fingerprint, [Path(name).name for name in epoch.files]
        shards = {n: found.sha256 for n, found in inventory(served.cache).items()}
        served.kill()
        more = [source / f"more-{number}.bin" for number in range(40)]
        for path in more:
            path.write_bytes(path.name.encode() * 1000)
        served.start()

        def has_all() -> bool:
            now = served.train  # one status: between two the listing may gain the new units
            return bool(now["whole"]) and now["units"] == state["units"] + len(more)

        wait_until(has_all)
        found = inventory(served.cache)
        # What is new is cut into shards as the listing comes.
        state["shards"] = shards == {n: found[n].sha256 for n in shards} and shards
        state["then"] = served.train["records"], max(found) - len(found)
        for path in more:
            path.unlink()
        return state


def main(seconds: str, seed: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sent, longest = attack(Path(folder) / "d", float(seconds), int(seed))
    sys.stdout.write(f"{sent} messages; the longest wait was {longest:.2f} s\n")
    assert longest <= LONGEST


if __name__ == "__main__":
    main(*sys.argv[1:])
