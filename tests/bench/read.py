"""How fast records come off the disk's cache, by our core and by everything else: one command.

    python -m tests.bench.read

measures all cases with all readers that are installed (about a quarter of an hour, after the data was
made once) and prints tables in Markdown. docs/benchmarks.md says how each reader is set up.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.bench import report
from tests.bench.runs import Plan, run, wanted
from tests.bench.worker import ROOT

QUICK_MEGABYTES, QUICK_SECONDS = 16.0, 0.02


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.bench.read", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    add = made.add_argument
    add("--data", type=Path, default=ROOT / "build" / "bench", help="where the records are kept")
    add("--megabytes", type=float, help="of records in each case (1000; with --quick 16)")
    add("--repeats", type=int, default=5, help="of every measurement, by turns (5)")
    add("--seconds", type=float, default=0.4, help="about how long one measurement takes (0.4)")
    add(
        "--only",
        nargs="+",
        default=(),
        metavar="CASE/READER",
        help="patterns, as '4kB/*' or '*/ours:*'",
    )
    add("--quick", action="store_true", help="16 MB, one repeat, no figures to rely on")
    add("--json", type=Path, metavar="FILE", help="everything measured")
    add(
        "--page",
        type=Path,
        metavar="FILE",
        help="puts the tables into this page, between its marks",
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    parsing = parser()
    options = parsing.parse_args(arguments)
    plan = Plan(
        data=options.data,
        megabytes=options.megabytes or (QUICK_MEGABYTES if options.quick else 1000.0),
        repeats=1 if options.quick else options.repeats,
        seconds=QUICK_SECONDS if options.quick else options.seconds,
        only=options.only,
    )
    if options.page:
        report.put_into(options.page, None)  # what would fail at the end fails now
    began = time.monotonic()

    def say(what: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:6.1f} s  {what}\n")

    if not wanted(plan):
        parsing.error(f"no CASE/READER is like {' or '.join(plan.only)}")
    results = run(plan, say)
    figures = report.page(plan, results)
    sys.stdout.write(figures)
    if options.json:
        document = {"machine": report.machine(), "repeats": plan.repeats, **asdict(results)}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.page:
        report.put_into(options.page, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
