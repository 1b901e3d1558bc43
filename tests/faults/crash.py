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
import itertools
import json
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.faults.autopsy import History, Remains
from tests.faults.disk import FaultyDisk
from tests.faults.lives import PHASES, Kill, Lives
from tests.faults.power import DAMAGES, Damage
from tests.faults.settings import Setting, growing, rotating
from tests.hatchery import Hatchery

CHANGES = frozenset(
    ["create", "write", "sync", "rename", "link", "unlink", "mkdir", "allocate", "truncate"]
)


@dataclass
class Run:
    kills: list[str]
    damages: list[str]
    struck: int = 0
    failure: str = ""
    seconds: float = 0.0
    log: str = field(default="", repr=False)


class Crashes:
    """What the runs share. A context manager; call `points` first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._work = folder / "w"
        self._work.mkdir(parents=True)
        self.settings = {s.name: s for s in (growing(folder / "g"), rotating(folder / "r"))}
        self.disk = FaultyDisk(folder / "faults", self._work)
        self._hatchery = Hatchery(self.disk.environ, "tests.faults.hurried")
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
                    for phase in ("start", "fill", *(4 * ("grant", "release"))):
                        case.do(phase)
                    case.release_all()
                    case.do("stop")
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
        setting, phase = chance.choice(sorted(self._lasts))
        lasts = self._lasts[setting, phase]
        return Kill(setting, phase, delay=chance.uniform(0, lasts))

    def run(self, kills: Sequence[Kill], damages: Sequence[Damage] = (), seed: int = 0) -> Run:
        """One cache, killed so often, and damaged after each time as long as there are damages. Never
        raises: what failed is in the Run."""
        run = Run([str(kill) for kill in kills], [damage.__name__ for damage in damages])
        setting = self.settings[kills[0].setting]
        chance = random.Random(seed)
        began = time.monotonic()
        with self._case(setting) as case:
            try:
                for kill, damage in itertools.zip_longest(kills, damages):
                    run.struck += case.life(kill)
                    if damage:
                        case.damage(damage, chance)
                case.last_life(None if damages else self._digests)
            except Exception:
                run.failure = traceback.format_exc()
                with contextlib.suppress(OSError):
                    run.log = case.log.read_text()
        run.seconds = time.monotonic() - began
        return run

    @contextlib.contextmanager
    def _case(self, setting: Setting) -> Iterator[Lives]:
        self._serial += 1
        folder = self._work / str(self._serial)
        folder.mkdir()
        history = self._history.copy() if setting.rotates else History()
        if setting.rotates and self._template.exists():
            shutil.copytree(self._template, folder / "cache")
        case = Lives(setting, folder, self._hatchery, self.disk, history)
        try:
            yield case
        finally:
            case.close()
            shutil.rmtree(folder, ignore_errors=True)


def _points(
    setting: str, phase: str, cache: Path, traced: list[tuple[int, str, str]]
) -> list[Kill]:
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
    # The directory first: its hash may have ten digits in a row.
    path = re.sub(r"^datasets/train/[0-9a-f]{16}", "datasets/train/*", path)
    path = re.sub(r"\d{10}", "??????????", path)
    return re.sub(r"^leases/.*\.json", "leases/*.json", path) or "."


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
            run = crashes.run(kills, [damage] if damage else [], options.seed + number)
            runs.append(run)
            verdict = "FAILED" if run.failure else "ok" if run.struck == len(kills) else "ok (late)"
            what = " | ".join(run.kills) + "".join(f" + {damage}" for damage in run.damages)
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
