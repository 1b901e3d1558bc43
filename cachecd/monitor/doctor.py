"""Names what training waits for, from two status documents some seconds apart. Pure.

First the trainers: exposed waiting, as Ray Train measures it (hidden work counts nothing), and what the
readers did meanwhile. If they wait for sets, `bottleneck` says what limits the samplers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

from cachecd.monitor.bottleneck import bottleneck, percent
from cachecd.monitor.history import Sample
from cachecd.quantities import approximate_duration
from cachecd.quantities import approximate_size as size

Document = Mapping[str, Any]

WAITS = 0.1  # a trainer waits for data if it waits for more than this share of the time
_ALONE = 0.05  # the other ranks wait for less than this
_SILENT = 10.0  # seconds after which a trainer's figures are too old
_GIL = 0.004  # seconds for the GIL; a thread that computes keeps it for 5 ms
_KEPT = 0.1  # a lease that keeps this share of the limit is worth a word
_LONG = 3600.0  # seconds for which a lease is usually held at most
_MANY_READS = 10.0  # see cachecd_client.report.reads


@dataclass(frozen=True, slots=True)
class Finding:
    """`kind`: a word for programs. `verdict`: one sentence. `remedy`: what to do, with the key's name, or
    "". `is_wrong`: it should be changed."""

    kind: str
    verdict: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    is_wrong: bool = True


def diagnose(before: Document, after: Document, epochs: Sequence[Sample] = ()) -> list[Finding]:
    """Returns the findings, the most important first; never an empty list.

    `before`, `after`: two status documents of one run of the daemon. `epochs`: the samples of the history
    that were taken when an epoch began.
    """
    faults = list(_faults(after))
    then, now = before["daemon"], after["daemon"]
    # In a container, the daemon may have the same pid again.
    if then["pid"] != now["pid"] or then["uptime_s"] > now["uptime_s"]:
        what = "the daemon was restarted a moment ago: ask again"
        return [*faults, Finding("restarted", what, is_wrong=False)]
    recent = [row for row in after["trainers"] if row["age_s"] <= _SILENT]
    rows = [row for row in recent if not row["blind"]]
    if not rows:
        return faults or [_blind(recent) if recent else _no_trainer(after)]
    worst = max(rows, key=lambda row: (row["wait_share"], row["first"]))
    if worst["first"]:
        what = f"{_who(worst)} waits for its first set"
        return [*faults, replace(_ingest(before, after, worst, what), is_wrong=False)]
    hogged = list(_hogged(rows))
    if worst["wait_share"] <= WAITS:
        return [*faults, *hogged, _not_data(worst, rows)]
    stage = _exposed(before, worst)
    is_late = stage.name == "lease"
    if hogged and not is_late:  # every step of Python takes longer, whatever its stage
        return [*faults, *hogged]
    late = f"training waits for its next set, {percent(worst['wait_share'])} of the time"
    found = _ingest(before, after, worst, late) if is_late else _reading(stage, worst, rows)
    return [*faults, found, *_growth(after, epochs, rows), *_mistakes(after)]


# --- the trainers


class _Stage(NamedTuple):
    name: str
    seconds: float
    share: float  # of all waiting


def _who(row: Document) -> str:
    return f"{row['job']} rank {row['rank']}"


def _not_data(worst: Document, rows: Sequence[Document]) -> Finding:
    return Finding(
        "healthy",
        f"training does not wait for data: {_who(worst)} waits most, for "
        f"{percent(worst['wait_share'])} of the last minute",
        tuple(_row_line(row) for row in rows[:4]),
        is_wrong=False,
    )


def _hogged(rows: Sequence[Document]) -> Iterator[Finding]:
    """Yields a finding for each process in which another thread keeps the GIL."""
    for row in rows:
        if (seconds := row["gil_s"]) >= _GIL:
            what, remedy = _READING["gil"]
            yield Finding(
                "gil",
                f"{_who(row)} waits for {what}",
                (f"each thread that wants the GIL waits for {1000 * seconds:.0f} ms",),
                remedy,
            )


def _blind(rows: Sequence[Document]) -> Finding:
    return Finding(
        "blind",
        "the readers that report cannot see whether the training loop waits",
        tuple(f"{_who(row)}, {row['reader']}: {row['blind']}" for row in rows[:4]),
        "use the profiler of the framework; docs/profiling.md has the recipe",
        is_wrong=False,
    )


def _no_trainer(after: Document) -> Finding:
    held = sum(lease["held"] for lease in after["leases"])
    why = (
        f"{held} leases are held, but their readers report nothing" if held else "no lease is held"
    )
    return Finding(
        "no-trainer",
        f"no trainer has reported in the last {_SILENT:.0f} s, so nobody knows whether one waits: {why}",
        is_wrong=False,
    )


def _row_line(row: Document) -> str:
    queue = "" if row["queue"] is None else f", queue {percent(row['queue'])} full"
    return f"{_who(row)}: waits {percent(row['wait_share'])}{queue}"


def _exposed(before: Document, row: Document) -> _Stage:
    """Returns the stage that the row waited for most, since `before` if it is the same epoch."""
    same = ("dataset", "job", "rank", "pid", "epoch")
    earlier: Mapping[str, float] = next(
        (
            each["stages_s"]
            for each in before["trainers"]
            if all(each[key] == row[key] for key in same)
        ),
        {},
    )
    seconds = {name: value - earlier.get(name, 0.0) for name, value in row["stages_s"].items()}
    if sum(seconds.values()) < 0.5:  # too little to compare
        seconds = dict(row["stages_s"])
    whole = sum(seconds.values())
    name = max(seconds, key=seconds.__getitem__, default="other")
    return _Stage(name, seconds.get(name, 0.0), seconds.get(name, 0.0) / whole if whole else 0.0)


# What a wait for a stage means, and what changes it.
_READING = {
    "open": (
        "the files of the set are opened",
        "put cache.dir on a faster disk, or raise cache.shard_size for fewer files",
    ),
    "verify": (
        "the processors that copy and check records",
        "omit `threads`, give the trainer more processors, or ask for fewer `features`",
    ),
    "decode": (
        "the processors that decode pictures",
        "give the trainer more processors, or store smaller pictures (`shrink` in `transform`)",
    ),
    "assemble": (
        "the processors that build batches",
        "omit `threads`, give the trainer more processors, or ask for fewer `features`",
    ),
    "prepare": (
        "the function `prepare`, which runs before each step",
        "make `prepare` faster, or move its work into `transform`, which runs once for each record",
    ),
    "copy": (
        "the copy of batches to the device",
        "ask for fewer `features`, or for a smaller type (`cast`)",
    ),
    "gil": (
        "another Python thread of the trainer, which holds the GIL",
        "find the thread with `py-spy dump --pid PID`, and move its work to another process",
    ),
    "other": ("nothing that the reader can name", "record a timeline with `cachecd trace`"),
}


def _reading(stage: _Stage, worst: Document, rows: Sequence[Document]) -> Finding:
    """Returns the finding for a trainer that waits although it has its set."""
    if stage.name in ("read", "verify", "decode") and worst["random_bytes"] > worst["memory"]:
        kind, what, remedy = _memory(worst)  # pages that were read are lost before they are used
    elif stage.name == "read":
        kind, (what, remedy) = "disk", _DISK
    else:
        kind, (what, remedy) = stage.name, _READING.get(stage.name, _READING["other"])
    evidence = [_row_line(worst)]
    if stage.seconds:
        evidence.append(f"{percent(stage.share)} of the waiting is for {stage.name}")
    others = [row for row in rows if row["job"] == worst["job"] and row["rank"] != worst["rank"]]
    if others and median(row["wait_share"] for row in others) < _ALONE:
        return Finding(
            "rank",
            f"{_who(worst)} alone waits for data, for {percent(worst['wait_share'])} of the time: {what}",
            (*evidence, *(_row_line(row) for row in others[:3])),
            f"compare this process with the others (its processors, its node); {remedy}",
        )
    verdict = f"training waits for data, {percent(worst['wait_share'])} of the time: {what}"
    return Finding(kind, verdict, tuple(evidence), remedy)


_DISK = (
    "the disk of cache.dir, which is slower than the trainers",
    "put cache.dir on a faster disk, ask for fewer `features`, or store them smaller (`transform`)",
)


def _memory(row: Document) -> tuple[str, str, str]:
    return (
        "memory",
        f"records are read at random from {size(row['random_bytes'])} at a time, but the trainer may "
        f"use {size(row['memory'])} of memory, so the disk is read again and again",
        "set cache.window to half of the memory of the trainers, or give them more memory",
    )


def _ingest(before: Document, after: Document, worst: Document, verdict: str) -> Finding:
    """Returns the finding for trainers that wait for a set. `verdict`: the begin of its sentence."""
    found = bottleneck(before, after)
    evidence = (_row_line(worst), *found.evidence)
    return Finding(found.kind, f"{verdict}: {found.what}", evidence, found.remedy)


# --- growth, and common mistakes


def _growth(
    after: Document, epochs: Sequence[Sample], rows: Sequence[Document]
) -> Iterator[Finding]:
    """Yields how often records are read, and how soon all of the source is seen."""
    for name, dataset in after["datasets"].items():
        coverage = dataset["coverage"]
        if dataset["pinned"] or coverage >= 1:
            continue
        own = [row["reads_per_record"] for row in rows if row["dataset"] == name]
        reads = max(own, default=0.0)
        seen = _coverage_by_epoch(name, epochs)
        steps = len(seen) - 1
        evidence = [f"each record was read {reads:.1f} times on average"] if reads else []
        if steps > 0 and seen[-1] > seen[0]:
            left = (1 - coverage) * steps / (seen[-1] - seen[0])
            evidence.append(f"about {left:.0f} more epochs until all of it was")
        yield Finding(
            "growth",
            f"{name}: {percent(coverage, 1)} of the source was cached at least once",
            tuple(evidence),
            "raise grow.per_epoch, evict.refresh or cache.limit" if reads > _MANY_READS else "",
            is_wrong=reads > _MANY_READS,
        )


def _coverage_by_epoch(dataset: str, samples: Iterable[Sample]) -> list[float]:
    """Returns the coverage when each epoch began, of the job with the most epochs of this dataset."""
    found: dict[str, list[float]] = {}
    newest: dict[str, float] = {}
    for sample in samples:
        values = dict(zip(sample.keys, sample.values, strict=True))
        for key, epoch in values.items():
            if key.startswith(f"job/{dataset}/epoch/") and newest.get(key) != epoch:
                newest[key] = epoch
                found.setdefault(key, []).append(values[f"dataset/{dataset}/coverage"])
    return max(found.values(), key=len, default=[])


def _faults(after: Document) -> Iterator[Finding]:
    """Yields what the daemon itself reports as failing."""
    cache = after["cache"]
    if cache["stopped"]:
        yield Finding(
            "disk-full", f"the disk stops fetching: {cache['stopped']}", (),
            "free space on the disk of cache.dir, or lower cache.limit",
        )  # fmt: skip
    for name, dataset in after["datasets"].items():
        if dataset["stopped"]:
            what = f"{name}: fetching stopped {approximate_duration(dataset['stopped_for_s'])} ago"
            yield Finding("source", what, (dataset["stopped"],), "follow the reason")
    for subject, reason in after["complaints"].items():
        yield Finding(
            "task", f"{subject} fails", (reason,), "follow the reason; see the daemon's log"
        )
    sampler, daemon = after["sampler"], after["daemon"]
    if sampler["restarts"] and "memory" in sampler["last_end"]:
        needed = daemon["workers"] * daemon["worker_memory"]
        yield Finding(
            "worker-memory",
            f"workers ended for lack of memory: {sampler['restarts']} were replaced",
            (
                f"the last: {sampler['last_end']}",
                f"{daemon['workers']} workers may use {size(needed)}, the daemon {size(daemon['memory'])}",
            ),
            "lower sampler.workers or sampler.memory, or give the container more memory",
        )


def _mistakes(after: Document) -> Iterator[Finding]:
    """Yields what is usually not intended."""
    limit = after["cache"]["limit"]
    for lease in after["leases"]:
        if lease["retired_bytes"] > _KEPT * limit and lease["age_s"] > _LONG:
            yield Finding(
                "holder",
                f"the lease of {lease['job']} epoch {lease['epoch']} of {lease['dataset']} keeps "
                f"{size(lease['retired_bytes'])} that nobody else reads, for "
                f"{approximate_duration(lease['age_s'])}",
                (f"lease {lease['lease']}",),
                "end the process that holds it, or call epoch.release() after validation",
            )
    for name, dataset in after["datasets"].items():
        if dataset["pinned"] and not dataset["whole"] and dataset["full"]:
            yield Finding(
                "pinned",
                f"{name} is pinned, but its share of {size(dataset['share'])} cannot hold all of it",
                (f"{size(dataset['allocated'])} are cached",),
                "raise cache.limit, or remove `pin`",
            )
        if dataset["full"] and dataset["rotation_waits"]:
            yield Finding(
                "limit",
                f"{name}: the limit is reached and nothing is replaced",
                (dataset["rotation_waits"], dataset["epoch"]),
                "raise cache.limit, or follow the reason",
            )
