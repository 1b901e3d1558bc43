"""The results as tables in Markdown and as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.contenders import CONTENDERS
from tests.bench.data import CASES, RecordSet
from tests.bench.measuring import PACE
from tests.bench.runs import Plan, Results

_PACKAGES = (
    *("numpy", "torch", "tensorflow-cpu", "tensorflow", "webdataset", "litdata"),
    "mosaicml-streaming",
)
_KEPT = 0.97  # of the pace: below, the consumer was held up


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
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": versions,
    }


def _processor() -> str:
    """Name, family, model and cache: a virtual machine's name alone says little."""
    values = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        values.setdefault(key.strip(), value.strip())
    if "model name" not in values:
        return platform.machine()
    more = [f"{key} {values[key]}" for key in ("cpu family", "model", "stepping") if key in values]
    return f"{values['model name']} ({', '.join(more)})"


def page(plan: Plan, results: Results) -> str:
    here = machine()
    packages = ", ".join(f"{name} {version}" for name, version in here["packages"].items())
    parts = [
        f"{here['processor']}, {here['cores']} cores, {here['memory_gib']} GiB; "
        f"Python {here['python']}; {packages}. "
        f"{plan.megabytes:g} MB a case, {plan.repeats} repeats: medians, minimum and maximum in "
        "brackets if they differ by more than half.",
        *(
            f"### {_title(RecordSet(plan.data, CASES[case], plan.megabytes))}\n\n"
            + _case_table(results, case)
            for case in results.measured
        ),
        *_left_out(results),
    ]
    return "\n\n".join(parts) + "\n"


def _title(records: RecordSet) -> str:
    size, batch = records.record_bytes, records.batch_size
    length = f"{size / 1e3:.0f} kB" if size >= 1e4 else f"{size} bytes"
    return f"Records of {length}, {batch} a batch ({batch * size / 1e6:.1f} MB)"


def _case_table(results: Results, case: str) -> str:
    lines = [
        "| reader | MB/s | CPU s/GB | MB/s beside a Python thread "
        f"| ms/GB in next() at {PACE / 1e6:.0f} MB/s |",
        "|---|--:|--:|--:|--:|",
    ]
    for name in CONTENDERS:
        values = results.measured[case].get(name)
        if not values:
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
