"""Formats the figures of an epoch as a log line, with advice if the epoch waited too long. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: The figures of an epoch by name, as JSON values: docs/telemetry.md explains each.
Report = dict[str, Any]

#: Waiting for more than this share of the time is too much.
MUCH = 0.1
# An epoch waited too long only if it also waited for more than these seconds, for batches or for a set. The
# first set always takes some seconds.
_SECONDS, _SECONDS_LEASING = 1.0, 10.0

_PROCESSORS = (
    "give the trainer more processors, ask for fewer `features`, or store them smaller (a "
    "transform)"
)
_FILLS = "queue", "queue_p10", "queue_p50"
#: What to do if most of the waiting was for a stage.
_REMEDIES = {
    "lease": "the next set was late: `cachecd status` shows whether the store, its link or the samplers "
    "are the limit",
    "open": "put cache.dir on a faster disk, or choose a larger cache.shard_size for the next generation",
    "read": "put cache.dir on a faster disk, or ask for fewer `features` or store them smaller (a "
    "transform), so that the page cache holds them",
    "verify": _PROCESSORS,
    "decode": "store smaller pictures, or pixels instead of JPEG and PNG (a transform), or give the "
    "trainer more processors",
    "assemble": _PROCESSORS,
    "prepare": "move work from `prepare` to a transform, which runs once for each record, or to the device",
    "copy": "deliver fewer bytes: integers instead of floats (cast them on the device), or fewer "
    "`features`",
    "gil": "another Python thread of the trainer keeps the GIL: move its work to another process",
    "other": "the loader's threads get no processor: give the trainer more processors",
}


def line(report: Report) -> str:
    """``epoch 3 of train: 1,200 steps, waited 3 % on data; the cache grew 1.4x``."""
    if report["steps"]:
        read = f"{_count(report['steps'], 'step')}, waited {report['wait_share']:.0%} on data"
        read = read.replace("%", " %")
    elif report["lent"]:
        read = f"read by {report['lent']}, whose waiting is not measured here"
    else:
        read = "its loaders in this process read nothing"
    if report["seconds_leasing"] >= _SECONDS:
        read += f" and {report['seconds_leasing']:.0f} s for the set"
    if report["steps"]:
        fills = [f"{report[name]:.0%}".replace("%", " %") for name in _FILLS]
        read += ", queue {} full (p10 {}, p50 {})".format(*fills)
    parts = [f"epoch {report['epoch']} of {report['dataset']}: {read}", _size(report)]
    if report["dropped_records"]:
        dropped = _count(report["dropped_records"], "record")
        parts.append(f"dropped {dropped} in a short last batch (drop_last)")
    if report["corrupt_records"]:
        parts.append(f"{_count(report['corrupt_records'], 'record')} corrupt")
    if report["skipped_records"]:
        held, skipped = report["set_records"], report["skipped_records"]
        parts.append(
            f"{held:,} of {held + skipped:,} records, {skipped:,} skipped (see `cachecd status`)"
        )
    if report["advice"]:
        parts.append(report["advice"])
    return "; ".join(parts)


def _size(report: Report) -> str:
    if report["repeated"]:
        return (
            report["note"]
            or "no daemon answered, so it repeats the previous set: start the daemon again"
        )
    growth = report["growth"]
    part = _part(report)
    if growth is None:
        return f"the set has {part or _count(report['set_records'], 'record')}"
    times = f"{growth:.2g}x" if growth < 10 else f"{growth:.0f}x"
    part = part and f": {part}"
    if times == "1x":
        why = f" ({report['note']})" if report["note"] else ""
        return f"the cache is as large as before{part}{why}"
    return f"the cache {'grew' if growth > 1 else 'shrank to'} {times}{part}"


def _part(report: Report) -> str:
    """Returns the share of the source in the set; "" if the set has the whole source, or if the size of the
    source is unknown."""
    held, source = report["set_records"], report["source_records"]
    if held >= 0.99 * source:
        return ""
    return (
        f"{held:,} of about {int(float(f'{source:.2g}')):,} records ({100 * held / source:.0f} %)"
    )


@dataclass(frozen=True, slots=True)
class Waited:
    """The figures of the pass that waited most, which decides the advice."""

    seconds: float = 0.0
    steps: int = 0
    bytes: int = 0
    elapsed: float = 0.0
    threads: int = 0  # the option; 0: the reader chooses
    prefetch_bytes: int = 0
    pictures: int = 0  # bytes of the decoded pictures in a batch


def advice(report: Report, most: Waited, processors: int) -> str:
    """Returns what to change if the epoch waited too long, else ""."""
    if report["seconds_waited"] >= _SECONDS and report["wait_share"] > MUCH and most.steps:
        return _faster_reading(most, processors, report["stages_s"])
    leasing = 0.0 if report["repeated"] else report["seconds_leasing"]
    whole = leasing + report["seconds_waited"] + report["seconds_elsewhere"]
    if leasing >= _SECONDS_LEASING and leasing > MUCH * whole:
        return (
            "the set was late: the store, its link or the samplers are the limit (`cachecd status` shows "
            "which); a smaller grow.first, or no grow.wait, lets epochs begin earlier"
        )
    return ""


def waits(stages: Mapping[str, float], whole: float) -> str:
    """Returns how much of `whole` seconds was waited, for which stage, and what to do. `stages`: the
    seconds by stage. Two passes may wait at a time, so their sum may exceed `whole`."""
    waited = sum(stages.values())
    longest = max(stages, key=lambda stage: stages[stage])
    share = f"{min(1.0, waited / whole):.0%}".replace("%", " %")
    return (
        f"waited for data for {share} of the last {whole:.0f} s, mostly for stage `{longest}` "
        f"({stages[longest]:.1f} s): {_REMEDIES[longest]}"
    )


def _faster_reading(most: Waited, processors: int, stages: Mapping[str, float]) -> str:
    mean = most.bytes // most.steps + most.pictures
    if 2 * mean > most.prefetch_bytes:
        return (
            f"prefetch_bytes={most.prefetch_bytes} holds fewer than two batches of {mean} bytes: "
            f"raise it to {4 * mean} or more"
        )
    if 0 < most.threads < processors:
        return f"threads={most.threads} on {processors} processors: raise it, or omit it"
    longest = max(stages, key=lambda stage: stages[stage])
    return (
        f"the loader read {most.bytes / most.elapsed / 1e6:.0f} MB/s, and waited mostly for stage "
        f"`{longest}`: {_REMEDIES[longest]}"
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
