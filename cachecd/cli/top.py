"""`cachecd top`: the status of a daemon, live in a terminal."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cachecd.cli.options import Endpoint
from cachecd.cli.status import MUCH
from cachecd.quantities import approximate_duration, printable
from cachecd.quantities import approximate_size as size
from cachecd_client.errors import CallerError, WorldError

if TYPE_CHECKING:
    from rich.console import RenderableType

_LEAST_COLUMNS = 40
_BAR = 20  # characters
_MOST_ROWS = 8  # of trainers, and of leases


def command(
    endpoint: Endpoint = None,
    seconds: Annotated[float, typer.Option(help="Seconds between two updates.", min=0.2)] = 1.0,
) -> None:
    """Show datasets, waiting, ingest and leases of a running daemon, live. q ends it."""
    from rich.console import Console
    from rich.live import Live

    from cachecd_client import connect

    console = Console(highlight=False, markup=False)
    if not (console.is_terminal and sys.stdin.isatty()):
        raise CallerError("`cachecd top` needs a terminal: use `cachecd status` in a pipe or a log")
    if console.width < _LEAST_COLUMNS:
        raise CallerError(
            f"found a terminal of {console.width} columns, expected {_LEAST_COLUMNS} or more: make it "
            "wider, or use `cachecd status`"
        )
    with connect(endpoint, timeout=5.0) as cache, _keys():
        before: dict[str, Any] = cache.status()
        with Live(view(before, before), console=console, screen=True, auto_refresh=False) as live:
            while not _is_ended(seconds):
                try:
                    document = cache.status()
                except WorldError as error:
                    live.update(_text(f"the daemon does not answer: {error}"), refresh=True)
                    continue
                live.update(view(before, document), refresh=True)
                before = document


@contextmanager
def _keys() -> Iterator[None]:
    """Delivers each key at once, and does not show it."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _is_ended(seconds: float) -> bool:
    """Waits. Returns whether q was pressed, or the terminal was closed."""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return False
    return os.read(sys.stdin.fileno(), 64).lower() in (b"q", b"")


def view(before: dict[str, Any], document: dict[str, Any]) -> RenderableType:
    """Returns what the terminal shows for a status document. `before`: the previous document."""
    from rich.console import Group

    parts = [_head(document), _datasets(document), _ingest(before, document)]
    return Group(*parts, _trainers(document), _leases(document))


def _text(text: str, style: str = "") -> RenderableType:
    from rich.text import Text

    return Text(printable(text), style=style, overflow="ellipsis", no_wrap=True)


def _table(*columns: str) -> Any:
    """Returns a table whose first column is text; the others are figures."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for number, name in enumerate(columns):
        table.add_column(
            name, justify="right" if number else "left", no_wrap=True, overflow="ellipsis",
            ratio=None if number else 1,
        )  # fmt: skip
    return table


def _bar(share: float) -> str:
    """Returns a bar of _BAR characters for a share of 0 to 1."""
    filled = round(max(0.0, min(1.0, share)) * _BAR)
    return "#" * filled + "." * (_BAR - filled)


def _head(document: dict[str, Any]) -> RenderableType:
    from rich.console import Group

    cache, daemon = document["cache"], document["daemon"]
    share = cache["used"] / cache["limit"]
    lines = [
        _text(
            f"cachecd {cache['dir']}  up {approximate_duration(daemon['uptime_s'])}  (q ends)",
            "bold",
        ),
        _text(f"[{_bar(share)}] {size(cache['used'])} of {size(cache['limit'])}, {share:.0%}"),
    ]
    complaints = [f"{subject} fails: {why}" for subject, why in document["complaints"].items()]
    reasons = [why for why in (cache["stopped"], cache["resting"], *complaints) if why]
    lines.extend(_text(f"! {why}", "red") for why in reasons)
    return Group(*lines, "")


def _datasets(document: dict[str, Any]) -> RenderableType:
    from rich.console import Group

    table = _table("DATASET", "SEEN", "CACHED", "RECORDS", "RATE", "RETIRED", "SKIPPED")
    below: list[RenderableType] = []
    for name, each in document["datasets"].items():
        skipped = each["skipped"]["units"] + each["skipped"]["records"]
        table.add_row(
            printable(name), f"{each['coverage']:.1%}", size(each["data_bytes"]),
            f"{each['records']:,}", f"{size(each['bytes_per_second'])}/s",
            f"{each['evicted_shards']:,}", f"{skipped:,}",
        )  # fmt: skip
        why = each["stopped"] or each["waits_for"] or each["rotation_waits"]
        if why:
            below.append(_text(f"! {name}: {why}", "red" if each["stopped"] else "yellow"))
    return Group(table, *below, "")


def _ingest(before: dict[str, Any], document: dict[str, Any]) -> RenderableType:
    """Returns the processors that each stage used since the previous document."""
    from rich.console import Group

    seconds = document["daemon"]["uptime_s"] - before["daemon"]["uptime_s"]
    if seconds <= 0:
        return Group()
    stages: dict[str, float] = {}
    for name, each in document["datasets"].items():
        earlier = before["datasets"].get(name, {}).get("ingest", {})
        for stage, now in each["ingest"].items():
            spent = now["cpu_s"] - earlier.get(stage, {"cpu_s": 0.0})["cpu_s"]
            stages[stage] = stages.get(stage, 0.0) + spent / seconds
    paused = {
        why: s - before["cache"]["paused_s"].get(why, 0.0)
        for why, s in document["cache"]["paused_s"].items()
    }
    parts = [f"{stage} {share:.2f}" for stage, share in stages.items() if share >= 0.005]
    waits = [f"{why} {s / seconds:.0%}" for why, s in paused.items() if s > 0.01 * seconds]
    lines = [
        _text("INGEST, processors: " + (", ".join(parts) or "none")),
        _text("paused: " + ", ".join(waits), "yellow") if waits else "",
    ]
    return Group(*lines)


def _trainers(document: dict[str, Any]) -> RenderableType:
    from rich.console import Group

    rows = document["trainers"]
    if not rows:
        return Group(_text("No trainer reports."), "")
    table = _table("TRAINER", "RANK", "EPOCH", "STEPS", "WAITS", "QUEUE", "MOSTLY FOR")
    for row in rows[:_MOST_ROWS]:
        stages = row["stages_s"]
        most = max(stages, key=stages.__getitem__, default="")
        waits = row["wait_share"]
        table.add_row(
            printable(f"{row['job']} ({row['dataset']})"), str(row["rank"]), str(row["epoch"]),
            f"{row['steps']:,}", f"{waits:.0%}",
            "" if row["queue"] is None else f"{row['queue']:.0%}",
            most if stages.get(most, 0.0) > 0 else "",
            style="red" if waits > MUCH else "",
        )  # fmt: skip
    return Group(table, *_others(len(rows), "reading processes"), "")


def _leases(document: dict[str, Any]) -> RenderableType:
    from rich.console import Group

    rows = sorted(document["leases"], key=lambda lease: -lease["age_s"])
    if not rows:
        return Group()
    table = _table("LEASE", "EPOCH", "RECORDS", "HELD BY", "AGE", "KEEPS")
    for row in rows[:_MOST_ROWS]:
        table.add_row(
            printable(f"{row['job']} ({row['dataset']})"), str(row["epoch"]), f"{row['records']:,}",
            f"{len(row['held_by'])} of {row['ranks']}" if row["held"] else "nobody",
            approximate_duration(row["age_s"]), size(row["retired_bytes"]),
        )  # fmt: skip
    return Group(table, *_others(len(rows), "leases"))


def _others(count: int, what: str) -> list[RenderableType]:
    return [_text(f"and {count - _MOST_ROWS} more {what}")] if count > _MOST_ROWS else []
