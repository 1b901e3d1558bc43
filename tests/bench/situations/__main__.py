"""The situations as measured tables.

    python -m tests.bench.situations [NUMBER ...]

measures those named, or all, each with what it is compared with by turns on this machine, and
prints medians with the least and the greatest, and whether the bars are met. `--short` shows in seconds
that all of it works. Daemons, stores and frameworks are real; where sleep stands for a GPU's computing
the table says so.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.plot import check
from tests.bench.situations.places import Options, say

# Number -> its module, each with `measure(Options) -> Report`.
SITUATIONS = {
    1: "recordings",
    2: "busy_loop",
    4: "segmentation",
    5: "moved_out",
    6: "growing",
}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.bench.situations", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    add = made.add_argument
    add("numbers", nargs="*", type=int, metavar="NUMBER", help="1, 2, 4, 5, 6; all by default")
    add("--short", action="store_true", help="seconds, in which nothing is really measured")
    add("--repeats", type=int, help="of each measurement, and seeds (5; short: 1)")
    add("--folder", type=Path, help="where caches and stores go (the temporary directory)")
    add("--fashion-mnist", type=Path, metavar="DIR", help="with its four files; else it is fetched")
    add(
        "--speed",
        type=float,
        default=1.0,
        help="of situation 6: 2 halves its three and a half hours, and needs more than two processors (1)",
    )
    add(
        "--runs",
        type=Path,
        metavar="DIR",
        help="of situation 6: keeps each run there, does none twice",
    )
    add("--plot", type=Path, metavar="FILE", help="situation 6 as a picture, .svg or .png")
    add("--json", type=Path, metavar="FILE", help="every figure of every repeat")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    if unknown := set(given.numbers) - SITUATIONS.keys():
        parser().error(f"no situation {min(unknown)}: there are {', '.join(map(str, SITUATIONS))}")
    if given.plot:
        check(given.plot)
    options = Options(
        short=given.short,
        repeats=given.repeats or (1 if given.short else 5),
        folder=given.folder or Path(tempfile.gettempdir()),
        fashion=given.fashion_mnist,
        speed=given.speed,
        runs=given.runs,
        plot=given.plot,
    )
    documents: dict[int, dict[str, Any]] = {}
    for number in given.numbers or sorted(SITUATIONS):
        say(f"situation {number}")
        module = importlib.import_module(f"tests.bench.situations.{SITUATIONS[number]}")
        report = module.measure(options)
        sys.stdout.write("\n".join([*report.markdown(), ""]))
        sys.stdout.flush()
        documents[number] = report.document()
        if given.json:  # after each, as all take hours
            given.json.write_text(json.dumps(documents, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
