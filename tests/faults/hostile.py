"""Messages that no client sends, to a real daemon with trainers beside.

`python -m tests.faults.hostile SECONDS SEED` is the long form.

Messages have the form of requests, and say what the daemon knows (leases, generations, walks, shards) or
what it cannot know, in fields that fit or do not. Measured is how long the trainers wait for an answer.
"""

from __future__ import annotations

import base64
import json
import os
import random
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from cachecd_client import protocol
from tests.e2e.daemons import wait_until
from tests.faults.rotating import Rotating

_BOMB = zlib.compress(bytes(80_000_000), 9)
_MANY = zlib.compress(bytes(5 * 8 << 12), 9)  # as many units as a shard can have
LONGEST = 1.0  # seconds that a trainer may wait for an answer
PATIENCE = 0.2  # with which `Rotating.waits` asks for an epoch


class Attacker:
    """Sends, without end, and reads its answers to know what there is."""

    def __init__(self, endpoint: str, seed: int, cache: Path) -> None:
        self._chance = random.Random(seed)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(endpoint)
        self._cache = cache
        self._leases: list[dict[str, Any]] = []
        self._recipes: list[str] = []  # as the daemon told them last
        self.sent = 0

    def turn(self) -> None:
        """A message, and its answer if there is one."""
        if self.sent % 20 == 0:
            self._look()
        body = self._message()
        self._socket.send_multipart([b"", protocol.VERSION_FRAME, json.dumps(body).encode()])
        self.sent += 1
        while self._socket.poll(5):
            told = json.loads(self._socket.recv_multipart()[-1])
            self._recipes = [text for text in told.get("recipes", []) if text] or self._recipes

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
            "walk": lambda: pick([lease.get("walk", ""), "other"]),
            "fingerprint": lambda: pick([lease.get("fingerprint", ""), "", "ff"]),
            "shards": lambda: pick([lease.get("shards", []), self._ranges()]),
            "shares": lambda: pick([[], [0.5], [self._number()], [1.0] * 20_000, [-1.0], [1e308]]),
            "cursor": lambda: pick([lease.get("cursor", []), [self._number()]]),
            "lease": lambda: pick([lease.get("lease", ""), self._path(), f"h{self.sent}" * 150]),
            "shard": lambda: pick([1, 2, self._number()]),
            "offset": self._number,
            "why": lambda: pick(["\x1b[31mred\n", "bad", "x" * 2000]),
            "key": lambda: pick([f"no-{self.sent}", "\udce9.jpg", "x" * 5000]),
            "begin": lambda: pick([None, self._number()]),
            "undo": lambda: pick([True, False]),
            "first": self._number,
            "num_bytes": self._number,
            "recipes": lambda: [self._recipe() for _ in range(pick([0, 1, 3, 60]))],
        }
        for field in protocol.REQUESTS[kind].__dataclass_fields__:
            if field != "id" and self._chance.random() < 0.95:
                body[field] = fields[field]()
        return body

    def _lease(self) -> dict[str, Any]:
        return self._chance.choice(self._leases) if self._leases else {}

    def _number(self) -> int:
        few = [0, 1, -1, 10**7, 10**9, 2**31, 2**62, 2**63, 2**64, 10**300]
        return self._chance.choice(few)

    def _ranges(self) -> list[list[int]]:
        many = [[2 * n + 1, 2 * n + 1] for n in range(20_000)]
        odd = [[[1, 10_000_000]], [[10**9, 10**9]], [[5, 1]], [[1]], [[]], [[1, 2**62]], many]
        return self._chance.choice(odd)

    def _path(self) -> str:
        return self._chance.choice(["../../x", "../catalog", "/etc/passwd", "x" * 900, "a\0b"])

    def _recipe(self) -> str:
        pick = self._chance.choice
        number = pick([1, 3, 10**6, self._chance.randint(1, 1000), self._number()])
        if self._recipes and self._chance.random() < 0.7:
            own, *told, units = pick(self._recipes).split(" ")
            return " ".join([pick([own, own, str(number)]), *told, units[pick([0, 0, 0, 8]) :]])
        blob = pick([_BOMB, zlib.compress(bytes(40)), _MANY, b"x", os.urandom(100)])
        return f"{number} 12 60000 1 {base64.b64encode(blob).decode()}"


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
                waited = (
                    rotating.waits()
                )  # for shards, if it does, as long as a trainer has patience
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


def main(seconds: str, seed: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sent, longest = attack(Path(folder) / "d", float(seconds), int(seed))
    sys.stdout.write(f"{sent} messages; the longest wait was {longest:.2f} s\n")
    assert longest <= LONGEST


if __name__ == "__main__":
    main(*sys.argv[1:])
