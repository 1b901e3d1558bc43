"""One cache through the lives of its daemons, and the trainer that outlives them."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachecd_client import Epoch, connect
from cachecd_client.errors import AcquireTimeoutError, CorruptError, DaemonUnreachableError
from cachecd_client.session.cache import Cache
from tests.faults.autopsy import (
    History,
    Remains,
    check_bytes,
    check_limit,
    check_records,
    check_start,
    read,
)
from tests.faults.disk import FaultyDisk
from tests.faults.hurried import GRACE
from tests.faults.power import Damage
from tests.faults.settings import Setting
from tests.hatchery import Hatched, Hatchery

# The second grant retires what the first has named; what it named goes when it is released.
PHASES = ("start", "fill", "grant", "next grant", "release", "stop")
# Warnings that a daemon may have reason for after a kill or a power failure.
_OF_A_KILL = (
    "damaged lease removed",
    "generation damaged: the source is listed again",
    "rotation.json ignored",
    "shard lost",
    "state.json ignored",
)
SHARD = "datasets/train/*/shards/??????????.tfrecord"
DRAFT = "datasets/train/*/shards/??????????.new"  # a worker writes it
PATIENCE = 60.0  # seconds; what takes longer hangs
_ATTEMPT = 0.15  # so long a daemon that has died is asked in vain


@dataclass(frozen=True)
class Kill:
    """How a life ends: before, or right `after`, such an operation of a phase, of which it lets `skip`
    pass; or `delay` seconds after the phase began.

    A sampler's operation stops the sampler (SIGSTOP), and then the daemon is killed.
    """

    setting: str
    phase: str
    operation: str = ""
    path: str = ""
    skip: int = 0
    delay: float | None = None
    after: bool = False

    def __str__(self) -> str:
        if self.delay is not None:
            return f"{self.setting}/{self.phase}: {1000 * self.delay:.0f} ms after its begin"
        when = " done" if self.after else ""
        return f"{self.setting}/{self.phase}: {self.operation} {self.path} #{self.skip}{when}"

    @property
    def samplers(self) -> bool:
        return self.path.startswith(DRAFT)


class DiedError(Exception):
    """The daemon was killed, as it should be."""


class Lives:
    """A cache of one setting in a folder of its own; `history` is what it has seen before.

    A life is a start, a few epochs, and a stop, in phases; each phase ends when the daemon has nothing
    left to do in it. Whatever is not as promised is an AssertionError.
    """

    def __init__(
        self, setting: Setting, folder: Path, hatchery: Hatchery, disk: FaultyDisk, history: History
    ) -> None:
        self.setting = setting
        self.cache = folder / "cache"
        self.log = folder / "log"
        self.history = history
        self._config = setting.write(folder)
        self._hatchery, self._disk = hatchery, disk
        self._endpoint = f"ipc://{folder}/run/s"
        self._daemon: Hatched | None = None
        self._session: Cache | None = None
        self._held: list[tuple[Epoch, bytes]] = []
        self._epoch = 0
        self._started = 0.0
        self._spoilt: set[int] = set()
        self._damaged = False
        self._unwanted: set[int] = set()  # retired, as marks or leases show
        self._named: set[int] = set()  # by the latest lease
        self._timer: threading.Timer | None = None
        self._stops: int | None = None  # the rule that stops a sampler, at its so many-th hit
        self._stops_at = 0

    def close(self) -> None:
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()
        for epoch, _ in self._held:
            epoch._sets[0].held.close()  # nobody is there who could be told

    # --- lives

    def life(self, kill: Kill) -> bool:
        """A life that is to be killed; whether that came about where it should."""
        before = self._remains()
        struck = False
        self._disk.reset()
        try:
            for phase in PHASES:
                if phase == kill.phase:
                    self._arm(kill)
                self.do(phase)
                if phase == "start" and before is not None:
                    self._check_start(before)
        except DiedError:
            struck = True
        self._disarm()
        assert self._daemon is not None
        if not struck:
            self._daemon.kill()
            self._daemon.wait()
        if (left := self._remains()) is not None:  # fails on a shard that is not whole
            check_records(left)
            check_limit(self.cache, self.setting.limit)
            self.history.see(left.shards)
            self._unwanted |= left.unwanted
        return struck

    def damage(self, damage: Damage, chance: random.Random) -> None:
        """Does it to the cache, while no daemon lives."""
        if (left := self._remains()) is not None:
            self._spoilt |= damage(self.cache, left.leased(), chance)
            self._damaged = True

    def _remains(self) -> Remains | None:
        return Remains.of(self.cache, self._spoilt) if self.cache.exists() else None

    def last_life(self, digests: dict[int, str] | None) -> None:
        """The life that must find and finish everything. `digests`: of the shards of a cache that
        grew without trouble, if this one must come to the same."""
        before = self._remains()
        self.do("start")
        if before is not None:
            self._check_start(before)
        self.do("fill")
        self.do("grant")
        self.do("next grant")
        self.do("release")
        self.release_all()
        self._until(lambda: not check_bytes(self.cache, self._status()), "status counts the blocks")
        self.do("stop")
        self.judge(digests)

    def release_all(self) -> None:
        """No lease is left, nor what only a lease kept."""
        while self._held:
            self._held.pop()[0].release()
        self._until(lambda: not list((self.cache / "leases").iterdir()), "no lease is left")
        self._settle()

    def judge(self, digests: dict[int, str] | None = None) -> None:
        """A daemon that has ended in peace has left nothing but whole shards, all records, once."""
        assert self._daemon is not None
        assert self._daemon.returncode == 0, f"exit code {self._daemon.returncode}"
        left = Remains.of(self.cache)
        assert not left.temporaries, f"temporary files: {left.temporaries}"
        assert not (self.cache / "lock").exists()
        check_records(left)
        if not self.setting.rotates:
            records = sum(len(shard.ordinals) for shard in left.shards.values())
            all_of_them = len(self.setting.records)
            assert records == all_of_them or self._spoilt, f"{records} records of {all_of_them}"
            if digests:
                assert {n: s.sha256 for n, s in left.shards.items()} == digests, "other shards"
        self.history.see(left.shards)
        if not self._damaged:
            self.history.check()
        said = self.log.read_text()
        assert "Traceback" not in said, said
        for line in said.splitlines():
            is_info = '"level": "info"' in line
            assert is_info or any(known in line for known in _OF_A_KILL), line

    def _check_start(self, before: Remains) -> None:
        held = {epoch._sets[0].held.path.name for epoch, _ in self._held}
        self._until(self._is_sound, "what was spoilt is gone")
        after = Remains.of(self.cache)
        check_start(before, after, held, time.monotonic() - self._started < GRACE)
        for epoch, manifest in self._held:
            assert epoch._sets[0].held.path.read_bytes() == manifest, (
                "a lease that is held was changed"
            )
            self._read(epoch)

    def _is_sound(self) -> bool:
        try:
            Remains.of(self.cache)
        except (AssertionError, CorruptError):
            return False
        return True

    # --- phases: each ends when the daemon has nothing left to do in it

    def do(self, phase: str) -> None:
        """Does one phase; DiedError as soon as the daemon is dead."""
        match phase:
            case "start":
                self._start()
            case "fill":
                self._settle()
            case "grant":
                self._grant()
                self._settle()  # what it retired is replaced, so that the next one may retire more
            case "next grant":
                self._grant()
            case "release":
                self._release()
            case "stop":
                assert self._daemon is not None
                self._daemon.send_signal(signal.SIGTERM)
                self._until(lambda: False, "it ends", or_dead=True)
                if self._daemon.returncode != 0:
                    raise DiedError

    def _start(self) -> None:
        self._started = time.monotonic()
        self._daemon = self._hatchery.start(self._config, self.log)
        self._until(lambda: self._connected(), "it answers")

    def _connected(self) -> bool:
        try:
            self._session = self._session or connect(self._endpoint, timeout=_ATTEMPT)
            self._session.status()
        except DaemonUnreachableError:
            return False
        return True

    def _grant(self) -> None:
        def granted() -> bool:
            assert self._session is not None
            with contextlib.suppress(AcquireTimeoutError, DaemonUnreachableError):
                self._session._leases.timeout = _ATTEMPT
                before = self._held[-1][0] if self._held else None
                epoch = self._session._epochs.take("train", self._epoch, "job", _ATTEMPT, before)
                self._held.append((epoch, epoch._sets[0].held.path.read_bytes()))
                return True
            return False

        self.history.see(Remains.of(self.cache).shards)
        self._until(granted, f"epoch {self._epoch} is granted")
        self._epoch += 1
        manifest = self._held[-1][0]._sets[0].held.path
        named = Remains.of(self.cache).leased({manifest.name})
        again = self._unwanted & named
        assert not again or self._damaged, f"a lease names {again}, which were retired before"
        self._unwanted |= self._named - named
        self._named = named
        self._read(self._held[-1][0])
        self._held[-1][0].count_delivered()  # else the next grant replaces none of it
        self._poll()

    def _release(self) -> None:
        """All but the last epoch; the daemon finds out by itself."""
        while len(self._held) > 1:
            self._held.pop(0)[0]._sets[0].held.close()
        self._until(lambda: len(self._status()["leases"]) == len(self._held), "leases end")
        self._settle()

    def _settle(self) -> None:
        def settled() -> bool:
            status = self._status()
            train = status["datasets"]["train"]
            if not train["listed"] or train["making"] or status["cache"]["reserved"]:
                return False
            if not self.setting.rotates:
                return bool(train["whole"])
            kept = any(lease["retired_bytes"] for lease in status["leases"])
            return kept or not train["retired_shards"]

        self._until(settled, "it has done what it may")

    def _read(self, epoch: Epoch) -> None:
        records = read(epoch)
        assert len(records) == epoch.num_records
        assert records.items() <= self.setting.records.items()

    # --- waiting

    def _status(self) -> dict[str, Any]:
        assert self._session is not None
        self._session._leases.timeout = _ATTEMPT
        while True:
            with contextlib.suppress(DaemonUnreachableError):
                return self._session.status()
            self._poll()

    def _until(self, condition: Callable[[], bool], what: str, *, or_dead: bool = False) -> None:
        began = time.monotonic()
        assert self._daemon is not None
        while True:
            if self._daemon.poll() is not None and or_dead:
                return
            self._poll(may_end=or_dead)
            if condition():
                return
            waited = time.monotonic() - began
            assert waited < PATIENCE, f"not within {PATIENCE:g} s: {what}"
            time.sleep(min(max(0.003, waited / 10), 0.03))  # what answers is what is waited for

    def _poll(self, *, may_end: bool = False) -> None:
        """DiedError if the daemon is dead. A sampler that has come to its point is stopped: then it
        is the daemon that is killed."""
        assert self._daemon is not None
        if self._stops is not None and self._disk.hits(self._stops) >= self._stops_at:
            self._daemon.kill()
            self._daemon.wait()
        if self._daemon.poll() is not None and not may_end:
            if self._daemon.returncode != -signal.SIGKILL:
                raise AssertionError(f"it ended by itself:\n{self.log.read_text()}")
            raise DiedError

    def _arm(self, kill: Kill) -> None:
        if kill.delay is not None:
            self._timer = threading.Timer(kill.delay, lambda: self._daemon and self._daemon.kill())
            self._timer.start()
            return
        glob = f"{self.cache}/{kill.path}" if kill.path != "." else f"{self.cache}"
        if kill.samplers:
            self._stops = self._disk.stop(kill.operation, glob, kill.skip)
            self._stops_at = kill.skip + 1
        else:
            self._disk.kill(kill.operation, glob, kill.skip, after=kill.after)

    def _disarm(self) -> None:
        self._disk.reset()
        self._stops = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
