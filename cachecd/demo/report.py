"""The demo's output as text or JSON: the setting, one row for each epoch, and a summary."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import ClassVar

_HEADS = "epoch  files  records  seen    MiB on disk  evicted   MB/s  waited  accuracy"


@dataclass(frozen=True, slots=True)
class Setting:
    """The setting of a run: paths, sizes and speeds."""

    kind: ClassVar[str] = "setting"

    directory: str  # of all files of the demo
    images: int
    object_bytes: int
    pixel_bytes: int
    limit_bytes: int
    bandwidth: str
    epoch_seconds: float

    def text(self) -> str:
        return (
            f"store  {self.images:,} images of digits in a folder: "
            f"{_mib(self.object_bytes)} MiB as PNG, {_mib(self.pixel_bytes)} MiB as pixels\n"
            f"cache  at most {_mib(self.limit_bytes)} MiB, filled at {self.bandwidth}; "
            f"numpy trains for {self.epoch_seconds:g} s per epoch\n"
            f"files  {self.directory}, removed at the end\n"
            "wait   for all test images and a few training images; then epoch 1 begins"
        )


@dataclass(frozen=True, slots=True)
class EpochRow:
    """One epoch. `seen`: the share of all training images that were in this set or an earlier set."""

    kind: ClassVar[str] = "epoch"

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

    def text(self) -> str:
        """Returns the row; the table's heading precedes the first row."""
        heads = "" if self.epoch else f"\n{_HEADS}\n"
        return (
            f"{heads}{self.epoch + 1:5}  {self.files:5}  {self.records:7}  {self.seen:4.0%}"
            f"  {_mib(self.disk_bytes):>5} of {_mib(self.limit_bytes):>3}  {self.evicted_shards:7}"
            f"  {self.read_bytes_per_second / 1e6:5.1f}  {self.waited_seconds:4.1f} s"
            f"  {self.accuracy:8.1%}"
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of the whole run."""

    kind: ClassVar[str] = "summary"

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

    def text(self) -> str:
        kept = "never exceeded" if self.limit_kept else "EXCEEDED"
        return (
            f"\n{self.epochs} epochs in {self.seconds:.0f} s: accuracy "
            f"{self.first_accuracy:.1%} -> {self.last_accuracy:.1%}.\n"
            f"The limit was {kept}: at most {_mib(self.most_disk_bytes)} of "
            f"{_mib(self.limit_bytes)} MiB in {self.measurements} measurements.\n"
            f"{self.seen:.0%} of the training images were seen; {self.evicted_shards} files "
            "were evicted to make room."
        )


Part = Setting | EpochRow | Summary


def json_line(part: Part) -> str:
    """Returns a JSON object with every figure; `kind` is setting, epoch or summary."""
    values = {"kind": part.kind, **asdict(part)}
    if isinstance(part, Summary):
        values["limit_kept"] = part.limit_kept
    return json.dumps(values)


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f}"
