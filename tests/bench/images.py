"""How fast encoded images become batches of random crops, by our core and by others: one command.

    python -m tests.bench.images

makes the pictures once (crops of Debian's wallpapers, fetched by apt-get), measures each case with every
way that has an environment, by turns on two cores, and prints tables in Markdown. docs/benchmarks.md says
what is measured. DALI, litData and MosaicML Streaming have environments of their own.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import image_decoders, image_jobs, report
from tests.bench.image_decoders import Way
from tests.bench.image_pictures import Pictures
from tests.bench.measuring import turns
from tests.bench.runs import warm
from tests.bench.worker import ROOT, Worker
from tests.stores import S3Server, s3_server

MARK = "images"
ENVIRONMENTS = ROOT / "build" / "bench" / "envs"
CORES, BUCKET = 2, "images"
WAYS: dict[str, Way] = {
    **image_decoders.WAYS,
    **image_jobs.WAYS,
}
FIGURES = {
    "images_s": "images/s",
    "cpu_ms": "processor time, ms an image",
    "nothing_s": "from nothing to every image once, s",
}
_DECODE, _JOB = "tests.bench.image_decoders:measure", "tests.bench.image_jobs:measure"
_DECODERS = (
    *("ours", "tf.data", "tf.data-antialiased", "dali", "spdl"),
    *("torchcodec", "simplejpeg", "pillow"),
)
_PNG_DECODERS = tuple(way for way in _DECODERS if way != "simplejpeg")  # which decodes JPEG only
_PLAN = "repeats", "seconds", "batch", "count", "job", "quick"

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
    "png256": Case("PNG, 256 pixels", _PNG_DECODERS, form="png"),
    "pixels256": Case("Pixels, 256 x 256, stored", ("ours",), form="pixels"),
    "masks": Case(
        "Masks of 256 pixels in 20 colors, PNG, as class numbers",
        ("ours-masks", "tf.data-masks", "tf.data-masks-gather"),
        form="masks",
    ),
    "job": Case(
        "The whole job, epochs 2 and 3",
        ("ours-job", "litdata-raw-job", "litdata-job", "mosaic-job"),
        _JOB,
    ),
}


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

    def measure(self) -> None:
        """Measures every case that `only` names."""
        with ExitStack() as stack:
            for name, case in CASES.items():
                if ways := [way for way in self.wanted(name) if self._is_there(way, stack)]:
                    self._by_turns(name, ways, {"call": case.call, **self._task(case, stack)})

    def _task(self, case: Case, stack: ExitStack) -> dict[str, Any]:
        """Prepares pictures, records or the bucket of a case. Returns the arguments of its measurements."""
        options = self.options
        if case.call == _DECODE:
            self._say(f"pictures: {case.form}, {case.size}")
            folder = self.pictures.decoding(case.form, case.size)
            warm([folder])
            task = {"folder": str(folder), "form": case.form, "beside": case.beside}
            return {**task, "seconds": options.seconds, "batch": options.batch}
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
            python = folder / "bin" / "python"
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
            for way in turns(ways, repeat):
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


def page(run: Run) -> str:
    here, options = report.machine(), run.options
    packages = ", ".join(f"{name} {version}" for name, version in sorted(run.versions.items()))
    parts = [
        f"{here['processor']}, {CORES} cores, {here['memory_gib']} GiB; Python {here['python']}; "
        f"{packages}. "
        f"{options.repeats} repeats: medians, minimum and maximum in brackets if they differ by "
        f"more than half; batches of {options.batch}.",
    ]
    cases = sorted(run.measured, key=list(CASES).index)
    decoding = [name for name in cases if set(CASES[name].ways) >= set(_PNG_DECODERS)]
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
    add("--repeats", type=int, default=5, help="of every measurement, by turns (5)")
    add("--seconds", type=float, default=1.5, help="of one measurement of a decoder (1.5)")
    add("--batch", type=int, default=64)
    add("--count", type=int, default=600, help="pictures of each size for the decoders")
    add("--job", type=int, default=6000, help="pictures of the whole job")
    add("--only", nargs="+", metavar="CASE/WAY", help="patterns, as 'jpg256/*' or '*/ours*'")
    add("--quick", action="store_true", help="few pictures of noise, one repeat: no figures")
    add("--json", type=Path, metavar="FILE",
        help="every figure of every repeat")  # fmt: skip
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
    if options.quick:
        options.count, options.job, options.repeats, options.seconds = 32, 128, 1, 0.05
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
    run.measure()
    if options.json:
        document = {
            "machine": report.machine(),
            "plan": plan,
            "measured": run.measured,
            "absent": run.absent,
            "versions": run.versions,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    figures = page(run)
    sys.stdout.write(figures)
    if options.page:
        report.put_into(options.page, figures, MARK)
    return 0


if __name__ == "__main__":
    sys.exit(main())
