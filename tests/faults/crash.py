"""Kills daemons at every step of their work, starts them again, and compares what is there.

    python -m tests.faults.crash --runs 300 --seed 1 [--json FILE]

A *point* is one file operation in one phase of a daemon's life: the kernel's answer to it is the last thing
the daemon never sees. The points are found by watching a life in which nothing is killed (`points`), so
there is one for every operation that changes anything on disk. A *run* takes a cache through up to
three lives: the first is killed at a point or at a random instant, the next perhaps too, and the last must
find everything that is promised, go on, and end with every record.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cachecd_client import Epoch, connect
from cachecd_client.errors import AcquireTimeoutError, DaemonUnreachableError
from cachecd_client.session import Cache
from tests.faults.autopsy import (
    History,
    Remains,
    check_bytes,
    check_limit,
    check_records,
    check_start,
    read,
    units_to_come,
)
from tests.faults.disk import FaultyDisk
from tests.faults.hatchery import Hatched, Hatchery
from tests.faults.power import DAMAGES, Damage
from tests.faults.settings import Setting, growing, rotating

CHANGES = frozenset(
    ["create", "write", "sync", "rename", "unlink", "mkdir", "allocate", "truncate"]
)
PHASES = ("start", "fill", "grant", "release", "stop")
PATIENCE = 60.0  # seconds; what takes longer hangs
_ATTEMPT = 0.5


@dataclass(frozen=True)
class Kill:
    """How a life ends: at the `skip`-th such operation of a phase, or `after` seconds of it.

    A sampler's operation stops the sampler (SIGSTOP), and then the daemon is killed.
    """

    setting: str
    phase: str
    operation: str = ""
    path: str = ""
    skip: int = 0
    delay: float | None = None

    def __str__(self) -> str:
        if self.delay is not None:
            return f"{self.setting}/{self.phase}: {1000 * self.delay:.0f} ms after its begin"
        return f"{self.setting}/{self.phase}: {self.operation} {self.path} #{self.skip}"

    @property
    def samplers(self) -> bool:
        return self.path.startswith("tmp/")


class DiedError(Exception):
    """The daemon was killed, as it should be."""


@dataclass
class Run:
    """What was done and what came of it."""

    kills: list[str]
    damage: str = ""
    struck: int = 0
    failure: str = ""
    seconds: float = 0.0
    log: str = field(default="", repr=False)


class Crashes:
    """Everything the runs share: sources, a full cache to begin with, the process that forks daemons.

    A context manager.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._work = folder / "w"
        self._work.mkdir(parents=True)
        self.settings = {s.name: s for s in (growing(folder / "g"), rotating(folder / "r"))}
        self.disk = FaultyDisk(folder / "faults", self._work)
        self._hatchery = Hatchery(self.disk.environ)
        self._template = folder / "template"
        self._history = History()
        self._digests: dict[int, str] = {}
        self._serial = 0
        self._lasts: dict[tuple[str, str], float] = {}

    def __enter__(self) -> Crashes:
        return self

    def __exit__(self, *_: object) -> None:
        self._hatchery.__exit__()
        shutil.rmtree(self._folder, ignore_errors=True)

    def points(self) -> list[Kill]:
        """Every operation that changes something, each class of them in each phase: the first, the
        last and one between. Makes the cache that the runs of a rotating cache begin with, too."""
        found = []
        for setting in self.settings.values():
            if setting.rotates:
                with self._case(setting) as case:  # until shards come and go
                    for phase in ("start", "fill", *(5 * ("grant", "release")), "stop"):
                        case.do(phase)
                    shutil.copytree(case.cache, self._template)
                    self._history = case.history
            with self._case(setting) as case:
                for phase in PHASES:
                    self.disk.reset()
                    self.disk.trace()
                    began = time.monotonic()
                    case.do(phase)
                    self._lasts[setting.name, phase] = time.monotonic() - began
                    found += _points(setting.name, phase, case.cache, self.disk.traced)
                case.judge()
                if not setting.rotates:
                    self._digests = {n: s.sha256 for n, s in Remains.of(case.cache).shards.items()}
        return found

    def instant(self, chance: random.Random) -> Kill:
        """A random one."""
        setting, phase = chance.choice(sorted(self._lasts))
        lasts = self._lasts[setting, phase]
        return Kill(setting, phase, delay=chance.uniform(0, lasts))

    def run(self, kills: Sequence[Kill], damage: Damage | None = None, seed: int = 0) -> Run:
        """One cache, killed so often, and damaged after each time. Never raises: what failed is in the
        Run."""
        run = Run([str(kill) for kill in kills], damage.__name__ if damage else "")
        setting = self.settings[kills[0].setting]
        began = time.monotonic()
        with self._case(setting) as case:
            try:
                for kill in kills:
                    run.struck += case.life(kill)
                    if damage:
                        case.damage(damage, random.Random(seed))
                case.last_life(None if damage else self._digests)
            except Exception:
                run.failure = traceback.format_exc()
                with contextlib.suppress(OSError):
                    run.log = case.log.read_text()
        run.seconds = time.monotonic() - began
        return run

    @contextlib.contextmanager
    def _case(self, setting: Setting) -> Iterator[_Case]:
        self._serial += 1
        folder = self._work / str(self._serial)
        folder.mkdir()
        history = self._history.copy() if setting.rotates else History()
        if setting.rotates and self._template.exists():
            shutil.copytree(self._template, folder / "cache")
        case = _Case(setting, folder, self._hatchery, self.disk, history)
        try:
            yield case
        finally:
            case.close()
            shutil.rmtree(folder, ignore_errors=True)


def _points(setting: str, phase: str, cache: Path, traced: list[tuple[int, str, str]]) -> list[Kill]:
    """One kill for the first, the last and a middle operation of each class in a trace."""
    counts: dict[tuple[str, str], int] = {}
    for _, operation, path in traced:
        if operation in CHANGES and path.startswith(f"{cache}"):
            glob = _class(path[len(f"{cache}/") :])
            counts[operation, glob] = counts.get((operation, glob), 0) + 1
    return [
        Kill(setting, phase, operation, path, skip)
        for (operation, path), count in counts.items()
        for skip in sorted({0, count // 2, count - 1})
    ]


def _class(path: str) -> str:
    """The glob of the paths that are of the same kind."""
    path = re.sub(r"\d{10}", "??????????", path)
    return re.sub(r"^leases/.*\.json", "leases/*.json", path) or "."


class _Case:
    """One cache through its lives, and the trainer that outlives its daemons."""

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
        self._spoilt: set[int] = set()
        self._damaged = False
        self._timer: threading.Timer | None = None
        self._stops: int | None = None  # the rule that stops a sampler, at its so many-th hit
        self._stops_at = 0

    def close(self) -> None:
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()
        for epoch, _ in self._held:
            epoch._held.close()  # nobody is there who could be told

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
            assert self._daemon.wait()
        if (left := self._remains()) is not None:  # fails on a shard that is not whole
            check_records(left.shards)
            check_limit(self.cache, self.setting.limit)
            self.history.see(left.shards)
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
        self.do("release")
        while self._held:
            self._held.pop()[0].release()
        self._until(lambda: not list((self.cache / "leases").iterdir()), "no lease is left")
        self._until(lambda: not check_bytes(self.cache, self._status()), "status counts the blocks")
        self.do("stop")
        self.judge(digests)

    def judge(self, digests: dict[int, str] | None = None) -> None:
        """A daemon that has ended in peace has left nothing but whole shards, all records, once."""
        assert self._daemon is not None
        assert self._daemon.status == 0, f"exit code {self._daemon.status}"
        left = Remains.of(self.cache)
        assert not left.temporaries, f"temporary files: {left.temporaries}"
        assert not (self.cache / "cachecd.lock").exists()
        check_records(left.shards)
        if not self.setting.rotates:
            records = sum(len(shard.ordinals) for shard in left.shards.values())
            # The rest of a unit that is partly in another shard comes back only when that one goes.
            all_of_them = len(self.setting.records)
            assert records == all_of_them or self._spoilt, f"{records} records of {all_of_them}"
            if digests:
                assert {n: s.sha256 for n, s in left.shards.items()} == digests, "other shards"
        self.history.see(left.shards)
        if not self._damaged:
            self.history.check(self.setting.units, units_to_come(self.cache))
        said = self.log.read_text()
        assert "Traceback" not in said, said
        assert " error " not in said.replace("[error", " error "), said

    def _check_start(self, before: Remains) -> None:
        check_start(before, Remains.of(self.cache))  # nothing that was spoilt is to be seen
        for epoch, manifest in self._held:
            assert epoch._held.path.read_bytes() == manifest, "a lease that is held was changed"
            self._read(epoch)

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
            case "release":
                self._release()
            case "stop":
                assert self._daemon is not None
                self._daemon.signal(signal.SIGTERM)
                self._until(lambda: False, "it ends", or_dead=True)
                if self._daemon.status != 0:
                    raise DiedError

    def _start(self) -> None:
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
                self._session._timeout = _ATTEMPT
                epoch = self._session.acquire("train", self._epoch, job="job", timeout=_ATTEMPT)
                self._held.append((epoch, epoch._held.path.read_bytes()))
                return True
            return False

        self.history.see(Remains.of(self.cache).shards)
        self._until(granted, f"epoch {self._epoch} is granted")
        self._epoch += 1
        self._read(self._held[-1][0])
        self._poll()

    def _release(self) -> None:
        while len(self._held) > 1:
            epoch, _ = self._held.pop(0)
            epoch._held.close()
        if not self.setting.rotates or self._epoch < 2:
            self._held.pop()[0]._held.close()
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
            return not train["retired_shards"]

        self._until(settled, "it has done what it may")

    def _read(self, epoch: Epoch) -> None:
        records = read(epoch)
        assert len(records) == epoch.num_records
        assert records.items() <= self.setting.records.items()

    # --- waiting

    def _status(self) -> dict[str, object]:
        assert self._session is not None
        self._session._timeout = _ATTEMPT
        while True:
            with contextlib.suppress(DaemonUnreachableError):
                return self._session.status()
            self._poll()

    def _until(self, condition: Callable[[], bool], what: str, *, or_dead: bool = False) -> None:
        deadline = time.monotonic() + PATIENCE
        assert self._daemon is not None
        while True:
            if self._daemon.ended and or_dead:
                return
            self._poll()
            if condition():
                return
            assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
            time.sleep(0.003)

    def _poll(self) -> None:
        """DiedError if the daemon is dead. A sampler that has come to its point is stopped: then it
        is the daemon that is killed."""
        assert self._daemon is not None
        if self._stops is not None and self._disk.hits(self._stops) >= self._stops_at:
            self._daemon.kill()
            assert self._daemon.wait()
        if self._daemon.ended:
            if self._daemon.status != -signal.SIGKILL:
                raise AssertionError(f"it ended by itself:\n{self.log.read_text()}")
            raise DiedError

    def _arm(self, kill: Kill) -> None:
        """From now on the kill may strike."""
        if kill.delay is not None:
            self._timer = threading.Timer(kill.delay, lambda: self._daemon and self._daemon.kill())
            self._timer.start()
            return
        glob = f"{self.cache}/{kill.path}" if kill.path != "." else f"{self.cache}"
        if kill.samplers:
            self._stops = self._disk.stop(kill.operation, glob, kill.skip)
            self._stops_at = kill.skip + 1
        else:
            self._disk.kill(kill.operation, glob, kill.skip)

    def _disarm(self) -> None:
        self._disk.reset()
        self._stops = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.crash", description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="points whose names contain this")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="crash-", dir="/tmp"))
    with Crashes(folder) as crashes:
        points = [p for p in crashes.points() if options.only in str(p)]
        runs = []
        for number, (kills, damage) in enumerate(plan(crashes, points, options.runs, options.seed)):
            run = crashes.run(kills, damage, options.seed + number)
            runs.append(run)
            verdict = "FAILED" if run.failure else "ok" if run.struck == len(kills) else "ok (late)"
            what = " | ".join(run.kills) + (f" + {run.damage}" if run.damage else "")
            sys.stdout.write(f"{number:4} {verdict:9} {run.seconds:5.1f} s  {what}\n")
            if run.failure:
                sys.stdout.write(run.failure + run.log)
            sys.stdout.flush()
    failed = sum(bool(run.failure) for run in runs)
    struck = sum(run.struck for run in runs)
    sys.stdout.write(
        f"{len(runs)} runs, {struck} kills at {len(points)} points, {failed} failed, seed {options.seed}\n"
    )
    if options.json:
        options.json.write_text(json.dumps([asdict(run) for run in runs], indent=1))
    return 1 if failed else 0


def plan(
    crashes: Crashes, points: list[Kill], runs: int, seed: int
) -> Iterator[tuple[list[Kill], Damage | None]]:
    """Every point once with a clean restart, then again with a kill during the restart; between them, one
    of three, random instants, once or twice in a row, and power failures."""
    chance = random.Random(seed)
    starts = [p for p in points if p.phase == "start"]
    once = [[p] for p in chance.sample(points, len(points))]
    twice = [
        [p, chance.choice([s for s in starts if s.setting == p.setting] or [p])]
        for p in chance.sample(points, len(points))
    ]
    todo = iter(once + twice)
    for number in range(runs):
        kills = next(todo, None) if number % 3 else None
        if kills:
            yield kills, None
        elif number % 2:
            yield [crashes.instant(chance)], chance.choice(DAMAGES)
        else:
            first, second = crashes.instant(chance), crashes.instant(chance)
            yield [first, second] if second.setting == first.setting else [first], None


if __name__ == "__main__":
    sys.exit(main())
