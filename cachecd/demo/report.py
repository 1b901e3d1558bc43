"""What the demo prints: rows as they come, for people or, as JSON, for programs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Protocol, TextIO


@dataclass(frozen=True, slots=True)
class Setting:
    """What is about to run: where everything lies, how large it is, how fast it comes."""

    directory: str  # holds all that the demo makes
    store: str
    framework: str
    images: int
    object_bytes: int
    pixel_bytes: int
    limit_bytes: int
    bandwidth: str
    epoch_seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """One epoch. `seen`: the share of the training images that this or an earlier set had."""

    epoch: int
    files: int
    records: int
    seen: float
    disk_bytes: int
    limit_bytes: int
    evicted_shards: int
    read_bytes_per_second: float
    waited_seconds: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The run as a whole."""

    epochs: int
    seconds: float
    most_disk_bytes: int
    limit_bytes: int
    measurements: int
    evicted_shards: int
    seen: float
    first_accuracy: float
    last_accuracy: float

    @property
    def limit_kept(self) -> bool:
        return self.most_disk_bytes <= self.limit_bytes


class Report(Protocol):
    """Takes what there is to say, in this order: begin, rows, end. Says it at once."""

    def begin(self, setting: Setting) -> None: ...

    def row(self, row: Row) -> None: ...

    def end(self, summary: Summary) -> None: ...


class Table:
    """For people, at a terminal of 80 columns."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._headed = False

    def begin(self, setting: Setting) -> None:
        where = "a folder" if setting.store.startswith("file:") else setting.store
        self._say(
            f"store  {setting.images:,} images of digits in {where}: "
            f"{_mib(setting.object_bytes)} MiB as PNG, {_mib(setting.pixel_bytes)} MiB as pixels"
        )
        self._say(
            f"cache  at most {_mib(setting.limit_bytes)} MiB, filled at {setting.bandwidth}; "
            f"{setting.framework} trains for {setting.epoch_seconds:g} s an epoch"
        )
        self._say(f"files  {setting.directory}, removed at the end")

    def row(self, row: Row) -> None:
        if not self._headed:
            # Only now: before the first row the client may have said what it waits for.
            self._headed = True
            self._say("")
            self._say(
                "epoch  files  records  seen    MiB on disk  evicted   MB/s  waited  accuracy"
            )
        self._say(
            f"{row.epoch + 1:5}  {row.files:5}  {row.records:7}  {row.seen:4.0%}"
            f"  {_mib(row.disk_bytes):>5} of {_mib(row.limit_bytes):>3}  {row.evicted_shards:7}"
            f"  {row.read_bytes_per_second / 1e6:5.1f}  {row.waited_seconds:4.1f} s"
            f"  {row.accuracy:8.1%}"
        )

    def end(self, summary: Summary) -> None:
        kept = "never exceeded" if summary.limit_kept else "EXCEEDED"
        self._say("")
        self._say(
            f"{summary.epochs} epochs in {summary.seconds:.0f} s: accuracy "
            f"{summary.first_accuracy:.1%} -> {summary.last_accuracy:.1%}."
        )
        self._say(
            f"The limit was {kept}: at most {_mib(summary.most_disk_bytes)} of "
            f"{_mib(summary.limit_bytes)} MiB in {summary.measurements} measurements."
        )
        self._say(
            f"{summary.seen:.0%} of the training images were seen; {summary.evicted_shards} files "
            "were evicted to make room."
        )

    def _say(self, line: str) -> None:
        self._out.write(line + "\n")
        self._out.flush()


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f}"


class JsonLines:
    """For programs: one object a line; `kind` is setting, epoch or summary."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def begin(self, setting: Setting) -> None:
        self._say("setting", asdict(setting))

    def row(self, row: Row) -> None:
        self._say("epoch", asdict(row))

    def end(self, summary: Summary) -> None:
        self._say("summary", asdict(summary) | {"limit_kept": summary.limit_kept})

    def _say(self, kind: str, values: dict[str, object]) -> None:
        self._out.write(json.dumps({"kind": kind, **values}) + "\n")
        self._out.flush()
