"""`python -m tests.soak --minutes N`: the whole system under random faults, for as long as you like.

A real S3 server, one daemon, three jobs in both frameworks. Every few seconds something is killed,
stopped, cut off, filled up or damaged. Every record that any job reads is compared with its object. At
the end it prints what was done, how far the jobs came, and what was lost: nothing, or it exits with 1.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.soak.injections import ALL
from tests.soak.stage import Stage
from tests.soak.verdict import judge

_QUIET = (0.5, 4.0)  # seconds between two injections
_GOES_ON = 60.0  # seconds within which every job must have done another epoch once the faults end


def soak(folder: Path, minutes: float, seed: int, say: Callable[[str], object]) -> dict[str, Any]:
    """What was done, how far each job came, and what is wrong."""
    chance = random.Random(seed)
    done: Counter[str] = Counter()
    with Stage(folder) as stage:
        stage.wait_for_epochs(120)
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until:
            time.sleep(chance.uniform(*_QUIET))
            injection = chance.choices(list(ALL), list(ALL.values()))[0]
            told = injection(stage, chance)
            name = injection.__name__.replace("_", " ")
            done[name] += 1
            say(f"{time.strftime('%X')}  {name}{': ' + told if told else ''}")
            for rank in stage.ranks:
                rank.look()
        stage.calm()
        stage.wait_for_epochs(_GOES_ON)
        wrong = judge(stage)
        jobs: dict[str, Counter[str]] = {rank.job: Counter() for rank in stage.ranks}
        for rank in stage.ranks:
            for line in rank.lines():
                found = jobs[rank.job]
                found["epochs"] += line.get("dataset") == "train"
                found["evaluations"] += line.get("dataset") == "eval"
                found["records"] += line.get("records", 0)
                found["corrupt records replaced"] += line.get("corrupt", 0)
                found["waited in vain"] += "retry" in line
        return {
            "seed": seed,
            "minutes": minutes,
            "injected": dict(done),
            "jobs": {job: dict(found) for job, found in jobs.items()},
            "peak_bytes": stage.peak.bytes,
            "wrong": wrong,
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--folder", type=Path, help="kept afterwards, with all logs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cachecd-soak-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = soak(folder, options.minutes, options.seed, say)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    say(f"\ninjected (seed {found['seed']}):")
    for name, times in sorted(found["injected"].items()):
        say(f"  {times:5d}  {name}")
    for job, counts in found["jobs"].items():
        say(f"{job}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    say(f"the cache took {found['peak_bytes']} bytes at most")
    say("\n".join(found["wrong"]) or "nothing was lost, altered or left behind")
    return 1 if found["wrong"] else 0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
