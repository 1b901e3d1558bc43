"""What each way of feeding a training loop leaves of Python to others: one command.

    python -m tests.bench.gil

For each way, by turns, in a process of its own: how fast it is alone, and the processor time that takes;
and, at the pace of a training loop that takes so many MB/s, over the ends of passes, beside a thread that
computes in Python, how many the loop gets, and which share of its idle speed the thread keeps. What the
ways are docs/guide.md says.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench import measuring, report
from tests.bench.data import CASES, RecordSet, write_shards
from tests.bench.delivery import Passes
from tests.bench.feeding import WAYS
from tests.bench.measuring import turns
from tests.bench.runs import warm
from tests.bench.worker import ROOT, Worker

CASE = CASES["64kB"]
RATE = 300e6  # bytes a second that the paced loop takes
FIGURES = ("mb_s", "cpu_s_gb", "kept", "paced_mb_s")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.bench.gil", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    add = made.add_argument
    add("--data", type=Path, default=ROOT / "build" / "bench", help="where the records are kept")
    add("--megabytes", type=float, default=500.0, help="of records, which are a pass (500)")
    add("--repeats", type=int, default=5, help="of every measurement, by turns (5)")
    # At 300 MB/s two passes and a half: what is ready when the clock starts is a twentieth of that.
    add("--seconds", type=float, default=4.0, help="about how long one measurement takes (4)")
    add("--json", type=Path, metavar="FILE", help="everything measured")
    add(
        "--page", type=Path, metavar="FILE", help="puts the table into this page, between its marks"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.page:
        report.put_into(options.page, None)
    records = RecordSet(options.data.resolve(), CASE, options.megabytes)
    records.make("tfrecord", write_shards)
    packages = sorted({name.partition(":")[0] for name in WAYS})
    task = {"call": "tests.bench.gil:in_worker", "data": str(options.data.resolve())}
    task |= {"megabytes": options.megabytes, "seconds": options.seconds}
    measured: dict[str, dict[str, list[float]]] = {
        name: {figure: [] for figure in FIGURES} for name in WAYS
    }
    with Worker(packages) as worker:
        for repeat in range(options.repeats):
            warm([records.folder("tfrecord")])
            for name in turns(WAYS, repeat):
                answer = worker.do(**task, name=name)
                if "failed" in answer:
                    raise SystemExit(f"{name}: {answer['failed']}")
                found = answer["done"]
                for figure in FIGURES:
                    measured[name][figure].append(found[figure])
                sys.stderr.write(f"{repeat + 1} of {options.repeats}, {name}: {found}\n")
    figures = page(measured, records, options)
    sys.stdout.write(figures)
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")
    if options.page:
        report.put_into(options.page, figures)
    return 0


def in_worker(name: str, data: str, megabytes: float, seconds: float) -> dict[str, float]:
    """MB/s alone, and seconds of processor time a GB; at RATE, what a thread beside it keeps and the MB/s
    that come."""
    records = RecordSet(Path(data), CASE, megabytes)
    passes = WAYS[name](records)
    alone = measuring.drain(passes, records, seconds)
    batch = next(iter(passes()))
    # Before and after, as the machine may be another meanwhile.
    idle, _ = _beside(lambda: itertools.repeat(batch), records, seconds / 2)
    busy, came = _beside(passes, records, seconds)
    again, _ = _beside(lambda: itertools.repeat(batch), records, seconds / 2)
    size = alone.records * records.record_bytes
    return {
        "mb_s": size / alone.seconds / 1e6,
        "cpu_s_gb": alone.cpu_seconds / size * 1e9,
        "kept": busy / ((idle + again) / 2),
        "paced_mb_s": came,
    }


def _beside(passes: Passes, records: RecordSet, seconds: float) -> tuple[float, float]:
    """Rounds a second of a thread that computes beside a loop of this pace, and MB/s that the loop got."""
    source = itertools.chain.from_iterable(passes() for _ in itertools.count())
    interval = records.batch_size * records.record_bytes / RATE
    held = next(source)
    count = 0
    with measuring.computing() as rounds:
        before, began = rounds[0], time.perf_counter()
        due = began
        while (now := time.perf_counter()) - began < seconds:
            due += interval
            time.sleep(max(0.0, due - now))
            held = next(source)
            count += len(held["label"])
        elapsed = time.perf_counter() - began
        done = rounds[0] - before
    return done / elapsed, count * records.record_bytes / elapsed / 1e6


def page(
    measured: dict[str, dict[str, list[float]]], records: RecordSet, options: argparse.Namespace
) -> str:
    here: dict[str, Any] = report.machine()
    parts = [
        f"{datetime.now(UTC):%Y-%m-%d}, {here['processor']}, {here['cores']} cores, page cache warm; "
        f"records of {records.record_bytes / 1e3:.0f} kB, {records.batch_size} a batch; "
        f"{options.repeats} repeats in turn: medians, minimum and maximum in brackets if they "
        "differ by more than half."
    ]
    for package, title in (("tensorflow", "TensorFlow"), ("torch", "PyTorch")):
        lines = [
            f"| {title} | MB/s alone | CPU s/GB | MB/s of {RATE / 1e6:.0f} beside a Python thread "
            "| which keeps of its speed |",
            "|---|--:|--:|--:|--:|",
        ]
        for name, figures in measured.items():
            cells = [
                report.spread(figures["mb_s"]),
                report.spread(figures["cpu_s_gb"]),
                report.spread(figures["paced_mb_s"]),
                report.spread(figures["kept"], 100) + " %",
            ]
            if name.startswith(f"{package}: "):
                lines.append(f"| {name.partition(': ')[2]} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
