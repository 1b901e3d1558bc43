"""The results as tables in Markdown and as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.bars import Row
from tests.bench.contenders import CONTENDERS
from tests.bench.data import CASES, RecordSet
from tests.bench.measuring import PACE
from tests.bench.runs import Plan, Results

_VERSION = 1  # of the JSON document
_PACKAGES = (
    *("numpy", "torch", "tensorflow-cpu", "tensorflow", "tfrecord", "webdataset", "litdata"),
    *("mosaicml-streaming", "array-record"),
)
_KEPT = 0.97  # of the pace: below, the consumer was held up
# Settings that the documentation leaves out: it has the default of each reader, or a setting that is
# faster alone, or beside a thread at 4 kB.
_NOT_IN_DOCS = frozenset(
    {
        *(f"tf.data:{name}" for name in ("parse first", "parse first, 2 calls", "2 calls")),
        *(f"tf.data:{name}" for name in ("deterministic", "read 8 MiB", "shuffle 256 MiB")),
        *("memmap:2 workers", "tfrecord:0 workers", "webdataset:0 workers", "litdata:2 workers"),
        *("mosaicml-streaming:0 workers", "array_record:0 workers"),
    }
)


def document(plan: Plan, results: Results, rows: Iterable[Row]) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "machine": machine(),
        "plan": {
            "megabytes": plan.megabytes,
            "repeats": plan.repeats,
            "seconds": plan.seconds,
            "only": list(plan.only),
        },
        "cases": {
            name: {
                "records": (
                    records := RecordSet(plan.data, CASES[name], plan.megabytes)
                ).num_records,
                "record_bytes": records.record_bytes,
                "batch_size": records.batch_size,
            }
            for name in results.measured
        },
        "measured": results.measured,
        "verified": results.verified,
        "absent": results.absent,
        "failed": results.failed,
        "bars": [row.to_json() for row in rows],
    }


def machine() -> dict[str, Any]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": versions,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def page(plan: Plan, results: Results, rows: Sequence[Row] | None = None) -> str:
    """The tables. Bars, and all settings of a reader, are for whoever runs it: without `rows` it is the
    documentation."""
    here = machine()
    packages = ", ".join(f"{name} {version}" for name, version in here["packages"].items())
    parts = [
        f"{here['processor']}, {here['cores']} cores; Python {here['python']}; {packages}. "
        f"{plan.megabytes:g} MB a case, {plan.repeats} repeats: medians, in brackets the least and "
        "the greatest if they differ by more than half.",
        *(["### Bars\n\n" + bar_table(rows)] if rows else []),
        *(
            f"### {_title(RecordSet(plan.data, CASES[case], plan.megabytes))}\n\n"
            + case_table(results, case, _NOT_IN_DOCS if rows is None else frozenset())
            for case in results.measured
        ),
        *_left_out(results),
    ]
    return "\n\n".join(parts) + "\n"


def _title(records: RecordSet) -> str:
    size, batch = records.record_bytes, records.batch_size
    length = f"{size / 1e3:.0f} kB" if size >= 1e4 else f"{size:.0f} bytes"
    name = "Mixed records" if records.case.mixed else "Records"
    return f"{name} of {length}, {batch} a batch ({batch * size / 1e6:.1f} MB)"


def bar_table(rows: Iterable[Row]) -> str:
    lines = ["| bar | records | required | measured | against | |", "|---|---|---|---|---|---|"]
    for row in rows:
        unit = row.required.lstrip("≤≥ 0123456789.").replace("ms", " ms")
        if row.measured is None or row.low is None or row.high is None:
            measured, verdict = "not measured", ""
        else:
            spread = f"({_short(row.low)}-{_short(row.high)})"
            measured = f"{_short(row.measured)}{unit} {spread}"
            verdict = "met" if row.met else "**missed**"
        lines.append(
            f"| {row.bar} | {row.case} | {row.required} | {measured} | {row.against or ''} "
            f"| {verdict} |"
        )
    return "\n".join(lines)


def case_table(results: Results, case: str, without: frozenset[str]) -> str:
    lines = [
        "| reader | MB/s | CPU s/GB | MB/s beside a Python thread "
        f"| ms/GB in next() at {PACE / 1e6:.0f} MB/s |",
        "|---|--:|--:|--:|--:|",
    ]
    for name in CONTENDERS:
        values = results.measured[case].get(name)
        if not values or name in without:
            continue
        paced = spread(values.get("next_ms_gb"))
        if paced and median(values["paced_mb_s"]) < _KEPT * PACE / 1e6:
            paced += f"; only {median(values['paced_mb_s']):.0f} MB/s"
        cells = (
            *(name, spread(values["mb_s"]), spread(values["cpu_s_gb"])),
            *(spread(values.get("busy_mb_s")), paced),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _left_out(results: Results) -> Iterable[str]:
    for title, reasons in (("Not there", results.absent), ("Failed", results.failed)):
        if reasons:
            yield f"{title}: " + "; ".join(f"{name} ({why})" for name, why in reasons.items()) + "."


def spread(values: Sequence[float] | None, scale: float = 1) -> str:
    """The median, and in brackets the least and the greatest if they differ by more than half."""
    if not values:
        return ""
    least, most = min(values), max(values)
    noise = f" ({_short(scale * least)}-{_short(scale * most)})" if most > 1.5 * least else ""
    return f"{_short(scale * median(values))}{noise}"


def _short(value: float) -> str:
    """Two digits: repeats differ by more than the third."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


def put_into(path: Path, figures: str | None, mark: str = "figures") -> None:
    """Replaces what stands between two marks of a page by `figures`; None only looks for them."""
    text = path.read_text()
    first, last = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise SystemExit(f"{path} has no lines {first} and {last}, between which the figures go")
    if figures is not None:
        path.write_text(f"{before}{begin}\n{figures}{end}{after}")
