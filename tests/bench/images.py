"""How fast encoded images become batches of random crops, by our core and by others: one command.

    python -m tests.bench.images

makes the pictures once (crops of Debian's wallpapers, fetched by apt-get), measures each case with every
way that has an environment, by turns on two cores, and prints tables in Markdown. docs/benchmarks.md says
what is measured. DALI, SPDL, litData and MosaicML Streaming have environments of their own.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench import image_decoders, image_jobs, report
from tests.bench.bars import Row
from tests.bench.image_decoders import Way
from tests.bench.image_pictures import Pictures
from tests.bench.runs import warm
from tests.bench.worker import ROOT, Worker
from tests.stores import S3Server, s3_server

MARK = "images"
ENVIRONMENTS = ROOT / "build" / "bench" / "envs"
CORES, BUCKET = 2, "images"
WAYS: dict[str, Way] = {
    **image_decoders.WAYS,
    **image_jobs.WAYS,
    "ours-bare": Way("cachecd, `FileSet(files).torch()`", None, ("torch", "cachecd_client")),
    "memcpy": Way("memcpy, one thread", None, ("torch", "cachecd_client")),
}
FIGURES = {
    "images_s": "images/s",
    "cpu_ms": "processor time, ms an image",
    "nothing_s": "from nothing to every image once, s",
    "records": "records in the cache",
    "first_batch_s": "start to first batch, s",
    "mb_s": "MB/s",
    "first_batch_ms": "file names to first batch, ms",
}
_DECODE, _JOB = "tests.bench.image_decoders:measure", "tests.bench.image_jobs:measure"
_CAPACITY, _BARE = "tests.bench.image_jobs:capacity", "tests.bench.bare:"
_DECODERS = "ours", "tf.data", "tf.data-antialiased", "dali", "pillow", "spdl"
_JOBS = "litdata-job", "mosaic-job"
_PLAN = "repeats", "seconds", "batch", "count", "job", "megabytes", "quick"

Measured = dict[str, dict[str, dict[str, list[float]]]]  # case -> way -> figure -> a value a repeat


@dataclass(frozen=True)
class Case:
    """`form` and `size`: of the pictures that a decoder is given, `beside` a thread that computes."""

    title: str
    ways: tuple[str, ...]
    call: str = _DECODE
    form: str = "jpg"
    size: int = 256
    beside: bool = False


CASES = {
    "jpg256": Case("JPEG, 256 pixels", _DECODERS),
    "jpg512": Case("JPEG, 512 pixels", _DECODERS, size=512),
    "jpg256-beside": Case("JPEG, 256 pixels, beside a Python thread", _DECODERS, beside=True),
    "jpg512-beside": Case(
        "JPEG, 512 pixels, beside a Python thread", _DECODERS, size=512, beside=True
    ),
    "png256": Case("PNG, 256 pixels", _DECODERS, form="png"),
    "pixels256": Case("Pixels, 256 x 256, stored", ("ours",), form="pixels"),
    "masks": Case(
        "Masks of 256 pixels in 20 colors, PNG, as class numbers",
        ("ours-masks", "tf.data-masks"),
        form="masks",
    ),
    "bytes4kB": Case(
        "Records of 4 kB, a bytes column", ("ours-bare", "memcpy"), f"{_BARE}bytes_column"
    ),
    "bare786kB": Case(
        "Records of 786 kB without sidecars, 1 GB", ("ours-bare",), f"{_BARE}first_batch"
    ),
    "job": Case("The whole job, epochs 2 and 3", ("ours-job", *_JOBS), _JOB),
    "capacity": Case("A cache of 100 MiB", ("ours-encoded", "ours-pixels"), _CAPACITY),
}


@dataclass(frozen=True)
class Bar:
    """`ours` against the best of `others` by a figure: at least, or `at_most`, so many times it.

    Without `others`, by the figure itself, in ms.
    """

    title: str
    case: str
    limit: float
    others: tuple[str, ...]
    figure: str = "images_s"
    at_most: bool = False


_BESIDE = {"dali": 1.8, "tf.data": 1.8, "tf.data-antialiased": 1.8, "pillow": 3.0, "spdl": 3.0}
_LIMITS = {
    "jpg256": {**dict.fromkeys(_DECODERS[1:], 1.8), "dali": 2.2},
    "jpg512": {"dali": 2.0, "tf.data": 1.0, "tf.data-antialiased": 2.5},
    "jpg256-beside": _BESIDE,
    "jpg512-beside": _BESIDE,
}
_PIXELS = ("ours-pixels",)
BARS = (
    *(
        Bar("images/s", case, limit, (other,))
        for case, limits in _LIMITS.items()
        for other, limit in limits.items()
    ),
    Bar("distinct images/s, epochs 2 and 3", "job", 2.2, _JOBS),
    Bar("seconds from nothing to every image once", "job", 0.7, _JOBS, "nothing_s", True),
    Bar("records, by pixel bytes / JPEG bytes", "capacity", 0.9, _PIXELS, "records"),
    Bar("start to first batch", "capacity", 1.0, _PIXELS, "first_batch_s", True),
    Bar("MB/s", "bytes4kB", 0.7, ("memcpy",), "mb_s"),
    Bar("first batch of a bare set, after imports", "bare786kB", 100, (), "first_batch_ms", True),
)


def judge(measured: Measured, pixel_ratio: float) -> list[Row]:
    """`pixel_ratio`: how many times the bytes of a JPEG its pixels take, by which `records` is divided."""
    rows = []
    for bar in BARS:
        values = {way: of.get(bar.figure) for way, of in measured.get(bar.case, {}).items()}
        ours = values.get(CASES[bar.case].ways[0])
        theirs = {way: median(of) for way in bar.others if (of := values.get(way))}
        required = f"{'≤' if bar.at_most else '≥'} {bar.limit:g}{'x' if bar.others else ' ms'}"
        if not ours or not (theirs or not bar.others):
            against = ", ".join(bar.others)
            rows.append(Row(bar.title, bar.case, required, against, None, None, None, None))
            continue
        best = (min if bar.at_most else max)(theirs, key=lambda way: theirs[way], default=None)
        scale = pixel_ratio if bar.figure == "records" else 1.0
        base = values[best] or [] if best else [1.0] * len(ours)
        found = [a / b / scale for a, b in zip(ours, base, strict=True)]
        met = median(found) <= bar.limit if bar.at_most else median(found) >= bar.limit
        figures = median(found), min(found), max(found)
        rows.append(Row(bar.title, bar.case, required, best, *figures, met))
    return rows


class Run:
    """One run: its worker processes and the figures that they returned."""

    def __init__(self, options: argparse.Namespace, say: Callable[[str], None]) -> None:
        self.options, self._say = options, say
        self.pictures = Pictures(options.data, options.count, options.job, options.quick)
        self.measured: Measured = {}
        self.absent: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self._workers: dict[str, Worker] = {}
        self._server: S3Server | None = None

    def wanted(self, case: str) -> list[str]:
        patterns = self.options.only or ["*"]
        names = [f"{case}/{way}" for way in CASES[case].ways]
        return [
            name.partition("/")[2]
            for name in names
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        ]

    def measure(self, keep: Callable[[], object]) -> None:
        """Measures every case that `only` names. `keep` is called after each case."""
        with ExitStack() as stack:
            for name, case in CASES.items():
                if name in self.measured:
                    continue
                if ways := [way for way in self.wanted(name) if self._is_there(way, stack)]:
                    self._by_turns(name, ways, {"call": case.call, **self._task(case, stack)})
                    keep()

    def _task(self, case: Case, stack: ExitStack) -> dict[str, Any]:
        """Prepares pictures, records or the bucket of a case. Returns the arguments of its measurements."""
        options, seconds = self.options, self.options.seconds
        if case.call.startswith(_BARE):
            return {"folder": str(options.data), "megabytes": options.megabytes, "seconds": seconds}
        if case.call == _DECODE:
            self._say(f"pictures: {case.form}, {case.size}")
            folder = self.pictures.decoding(case.form, case.size)
            warm([folder])
            task = {"folder": str(folder), "form": case.form, "beside": case.beside}
            return {**task, "seconds": seconds, "batch": options.batch}
        if self._server is None:
            self._server = stack.enter_context(s3_server())
            files = sorted(self.pictures.classes().rglob("*.jpg"))
            self._say(f"putting {len(files)} JPEGs into a bucket")
            self._server.bucket(BUCKET)
            bodies = {f"pictures/{f.parent.name}/{f.name}": f.read_bytes() for f in files}
            self._server.put(BUCKET, bodies)
        task = {"url": f"s3://{BUCKET}/pictures/", "environ": self._server.environ}
        return {**task, "batch": options.batch}

    def _is_there(self, way: str, stack: ExitStack) -> bool:
        if way in self._workers or way in self.absent:
            return way in self._workers
        kind, python = WAYS[way], Path(sys.executable)
        if kind.environment:
            folder = ENVIRONMENTS / kind.environment
            python = self.options.python.get(kind.environment, folder / "bin" / "python")
            if not python.exists():
                install = f"{folder}/bin/pip install {kind.packages}"
                self.absent[way] = f"python -m venv {folder} && {install}"
                return False
        worker = stack.enter_context(Worker(kind.imports, str(python)))
        if why := worker.absent():
            self.absent[way] = why
            return False
        place = f" of {kind.environment}" if kind.environment else ""
        call = "tests.bench.image_decoders:versions"
        self.versions |= worker.do(call=call, imports=kind.imports, place=place)["done"]
        self._workers[way] = worker
        return True

    def _by_turns(self, name: str, ways: list[str], task: Mapping[str, Any]) -> None:
        measured = self.measured[name] = {}
        for repeat in range(self.options.repeats):
            turns = list(ways)
            random.Random(repeat).shuffle(turns)
            for way in turns:
                done, why = self._one(way, task)
                if why:
                    self._say(f"{name}/{way} failed, and is tried again: {why}")
                    done, why = self._one(way, task)
                if why:
                    self.absent[f"{name}/{way}"] = why
                    self._say(f"{name}/{way} failed: {why}")
                    measured.pop(way, None)
                    ways.remove(way)
                    continue
                for figure in FIGURES.keys() & done.keys():
                    measured.setdefault(way, {}).setdefault(figure, []).append(done[figure])
                figures = {key: round(value, 2) for key, value in done.items()}
                self._say(f"{name}: {repeat + 1} of {self.options.repeats}, {way}: {figures}")

    def _one(self, way: str, task: Mapping[str, Any]) -> tuple[dict[str, float], str]:
        """The figures of one measurement, and the error if it failed."""
        place = tempfile.TemporaryDirectory(prefix="cachecd-images-", ignore_cleanup_errors=True)
        with place as scratch:
            answer = self._workers[way].do(**{"folder": scratch, **task, "way": way})
        done, images = answer.get("done", {}), self.options.job
        if (distinct := done.get("distinct", images)) != images:
            return {}, f"an epoch had {distinct} distinct images of {images}"
        return done, answer.get("failed", "")

    @property
    def pixel_ratio(self) -> float:
        sizes = [f.stat().st_size for f in self.pictures.classes().rglob("*.jpg")]
        return 256 * 256 * 3 * len(sizes) / sum(sizes)


def page(run: Run, rows: Sequence[Row] = ()) -> str:
    """The tables; the bars are for whoever runs it, and not for the documentation."""
    here, options = report.machine(), run.options
    packages = ", ".join(f"{name} {version}" for name, version in sorted(run.versions.items()))
    parts = [
        f"{here['processor']}, {CORES} cores; Python {here['python']}; {packages}. "
        f"{options.repeats} repeats: medians, in brackets the least and the greatest if they differ by "
        f"more than half; batches of {options.batch}.",
        *([report.bar_table(rows)] if rows else []),
    ]
    cases = sorted(run.measured, key=list(CASES).index)
    decoding = [name for name in cases if CASES[name].ways == _DECODERS]
    if decoding:
        parts.append(_table("Decode and crop, images/s", _DECODERS, run.measured, decoding))
    parts.extend(
        _table(CASES[name].title, CASES[name].ways, run.measured, [name])
        for name in cases
        if name not in decoding
    )
    if run.absent:
        parts.append(
            "Not measured: " + "; ".join(f"{w} ({y})" for w, y in run.absent.items()) + "."
        )
    return "\n\n".join(parts) + "\n"


def _table(title: str, ways: Sequence[str], measured: Measured, cases: Sequence[str]) -> str:
    """A line for each way, a column for each figure; with several cases, for each figure of each case."""
    columns = [
        (name, figure)
        for name in cases
        for figure in FIGURES
        if any(figure in values for values in measured[name].values())
    ]
    heads = [FIGURES[figure] for _, figure in columns]
    if len(cases) > 1:
        heads = [
            CASES[name].title + (f": {FIGURES[figure]}" if figure != "images_s" else "")
            for name, figure in columns
        ]
    lines = [f"**{title}**", "", f"| | {' | '.join(heads)} |", f"|---|{'--:|' * len(columns)}"]
    for way in ways:
        if any(way in measured[name] for name in cases):
            cells = [report.spread(measured[n].get(way, {}).get(figure)) for n, figure in columns]
            lines.append(f"| {WAYS[way].title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.bench.images", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    add = made.add_argument
    add("--data", type=Path, default=ROOT / "build" / "bench", help="where the pictures are kept")
    add("--python", nargs="+", default=[], metavar="NAME=PATH",
        help="interpreters of dali, spdl and streaming; build/bench/envs/NAME otherwise")  # fmt: skip
    add("--repeats", type=int, default=5, help="of every measurement, by turns (5)")
    add("--seconds", type=float, default=1.5, help="of one measurement of a decoder (1.5)")
    add("--batch", type=int, default=64)
    add("--count", type=int, default=600, help="pictures of each size for the decoders")
    add("--job", type=int, default=6000, help="pictures of the whole job")
    add("--megabytes", type=float, default=1000.0, help="of records without pictures (1000)")
    add("--only", nargs="+", metavar="CASE/WAY", help="patterns, as 'jpg256/*' or '*/ours*'")
    add("--quick", action="store_true", help="few pictures of noise, one repeat: no figures")
    add("--json", type=Path, metavar="FILE",
        help="kept after each case; a case that FILE has is not measured again")  # fmt: skip
    add(
        "--page",
        type=Path,
        metavar="FILE",
        help="puts the tables into this page, between its marks",
    )
    add("--strict", action="store_true", help="exit 1 if a bar is missed or not measured")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    parsing = parser()
    options = parsing.parse_args(arguments)
    pairs = (pair.partition("=") for pair in options.python)
    options.python = {name: Path(path) for name, _, path in pairs}
    if options.quick:
        options.count, options.job, options.megabytes = 32, 128, 8.0
        options.repeats, options.seconds = 1, 0.05
    if options.page:
        report.put_into(options.page, None, MARK)  # what would fail at the end fails now
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    began = time.monotonic()

    def say(what: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:6.1f} s  {what}\n")

    run = Run(options, say)
    if not any(run.wanted(case) for case in CASES):
        parsing.error(f"no CASE/WAY is like {' or '.join(options.only)}")
    plan = {name: getattr(options, name) for name in _PLAN}
    if options.json and options.json.exists():
        document = json.loads(options.json.read_text())
        if document["plan"] != plan:
            parsing.error(f"{options.json} was measured by {document['plan']}, not by {plan}")
        run.measured, run.versions = document["measured"], document["versions"]

    def keep() -> Sequence[Row]:
        rows = judge(run.measured, run.pixel_ratio if "capacity" in run.measured else 1.0)
        if options.json:
            document = {
                "machine": report.machine(),
                "plan": plan,
                "measured": run.measured,
                "absent": run.absent,
                "versions": run.versions,
                "bars": [row.to_json() for row in rows],
            }
            options.json.write_text(json.dumps(document, indent=1) + "\n")
        return rows

    run.measure(keep)
    rows = keep()
    figures = page(run, rows)
    sys.stdout.write(figures)
    if options.page:
        report.put_into(options.page, page(run), MARK)
    return 1 if options.strict and not all(row.met for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
