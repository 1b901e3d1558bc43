"""Names what limits the samplers, from two status documents some seconds apart. Pure.

The utilization law gives the rate that each processor, disk and link allows: the present rate, divided by
the share of the time in which it was in use. This is the resource-accounted rate of Plumber (Kuchnik et
al., "Plumber: Diagnosing and Removing Performance Bottlenecks in Machine Learning Data Pipelines", 2022).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cachecd.quantities import approximate_size as size

Document = Mapping[str, Any]


class Bottleneck(NamedTuple):
    """`kind`: a word for programs. `what`: a part of a sentence. `remedy`: with the predicted gain."""

    kind: str
    what: str
    evidence: list[str]
    remedy: str


def percent(share: float, digits: int = 0) -> str:
    """Returns ``42 %`` for 0.42."""
    return f"{100 * share:.{digits}f} %"


def bottleneck(before: Document, after: Document) -> Bottleneck:
    """Returns what was in use for the largest share of the time between two documents. The next one bounds
    the predicted gain."""
    seconds = max(1.0, after["daemon"]["uptime_s"] - before["daemon"]["uptime_s"])
    paused = _difference(before["cache"]["paused_s"], after["cache"]["paused_s"], seconds)
    fetched = after["cache"]["fetched_bytes"] - before["cache"]["fetched_bytes"]
    rate = fetched / seconds
    limits = [*_computing(before, after, seconds), *_waiting(after, paused)]
    limits.sort(key=lambda limit: -limit.use)
    rest = 1 - sum(limit.use for limit in limits)
    if rest > max(limit.use for limit in limits):
        limits.insert(0, _contention(rest))
    highest, then = limits[0], limits[1:2]
    evidence = [f"{size(int(rate))}/s are fetched"]
    evidence += [
        f"{each.kind}: {percent(each.use)} of the time" for each in limits if each.use > 0.02
    ]
    gain = _gain(after, highest, rate, then)
    remedy = f"{highest.remedy}{f' ({gain})' if gain else ''}"
    return Bottleneck(highest.kind, highest.what, evidence, remedy)


class _Limit(NamedTuple):
    """Something that limits ingest. `use`: the share of the time in which it was in use; 1: it is the
    limit. By the utilization law, it allows the present rate divided by `use`."""

    kind: str
    what: str
    use: float
    remedy: str


def _contention(rest: float) -> _Limit:
    return _Limit(
        "contention", "the workers neither compute nor wait: other programs use the processors", rest,
        "look at `top`; give the daemon processors of its own, or start fewer other processes",
    )  # fmt: skip


def _difference(
    before: Mapping[str, float], after: Mapping[str, float], seconds: float
) -> dict[str, float]:
    """Returns the shares of the time."""
    return {name: (value - before.get(name, 0.0)) / seconds for name, value in after.items()}


_WAITS: dict[str, tuple[str, str]] = {
    "throttled": (
        "the store throttles",
        "lower sampler.connections, or spread the keys over more prefixes",
    ),
    "bandwidth": ("sampler.bandwidth is reached", "raise sampler.bandwidth"),
    "room": (
        "the cache is full, and leases keep what could be replaced",
        "raise cache.limit, or end the leases that `cachecd status` shows",
    ),
    "listing": (
        "the source is still being listed",
        "wait, or set source.manifest to a table of the objects",
    ),
    "egress": ("sampler.egress_limit is reached", "raise sampler.egress_limit"),
    "idle": (
        "fetching rests because no lease was taken for sampler.idle",
        "raise sampler.idle",
    ),
}  # fmt: skip


def _waiting(after: Document, paused: Mapping[str, float]) -> Iterator[_Limit]:
    """Yields what workers wait for. `paused`: shares of the time."""
    for reason, share in paused.items():
        if reason == "disk":
            what = f"the disk stops fetching: {after['cache']['stopped']}"
            yield _Limit(
                reason, what, share, "free space on the disk of cache.dir, or lower cache.limit"
            )
        elif reason == "link":
            yield _link(after, share)
        else:
            what, remedy = _WAITS.get(reason, (reason, "see `cachecd status`"))
            yield _Limit(reason, what, share, remedy)


def _link(after: Document, share: float) -> _Limit:
    stopped = next((each["stopped"] for each in after["datasets"].values() if each["stopped"]), "")
    if stopped:
        return _Limit(
            "link", f"the store does not answer: {stopped}", share, "check the link to the store"
        )
    connections = after["daemon"]["connections"]
    return _Limit(
        "link", f"the link to the store, with {connections} connections", share,
        "raise sampler.connections; if the rate stays the same, the link itself is the limit: fetch less "
        "(grow.per_epoch, a smaller grow.wait), or move nearer to the bucket",
    )  # fmt: skip


def _computing(before: Document, after: Document, seconds: float) -> Iterator[_Limit]:
    """Yields the processors of the workers, and the disk that they write to."""
    cpu: dict[str, float] = {}  # seconds since the daemon's start, by stage
    busy = writing = 0.0
    for name, dataset in after["datasets"].items():
        earlier = before["datasets"].get(name, {}).get("ingest", {})
        for stage, now in dataset["ingest"].items():
            if stage == "list":
                continue
            then = earlier.get(stage, {"cpu_s": 0.0, "wall_s": 0.0})
            # One step in many is timed, so seconds have too few of them to compare stages.
            cpu[stage] = cpu.get(stage, 0.0) + now["cpu_s"]
            busy += now["cpu_s"] - then["cpu_s"]
            if stage in ("write", "sync"):
                blocked = now["wall_s"] - now["cpu_s"] - then["wall_s"] + then["cpu_s"]
                writing += max(0.0, blocked)
    available = after["daemon"]["workers"] * seconds
    stage = max(cpu, key=cpu.__getitem__, default="fetch")
    part = cpu.get(stage, 0.0) / max(1e-9, sum(cpu.values()))
    yield _Limit(
        stage if stage not in ("fetch", "encode") else "processors",
        f"the workers' processors, which spend {percent(part)} of their time on {stage}",
        busy / available,
        _MORE_WORKERS,
    )
    yield _Limit(
        "write", "the disk of cache.dir, which writes the shards", writing / available,
        "put cache.dir on a faster disk",
    )  # fmt: skip


_MORE_WORKERS = "raise sampler.workers"


def _gain(after: Document, limit: _Limit, rate: float, then: Sequence[_Limit]) -> str:
    """Returns the predicted gain of one worker more, and what then is the limit."""
    workers, processors = after["daemon"]["workers"], after["daemon"]["processors"]
    if limit.remedy != _MORE_WORKERS:
        return ""
    if workers >= processors:
        return (
            f"not on this machine: {workers} workers have {processors} processors. Make the transform "
            "faster, or use more processors"
        )
    more = rate / limit.use * (workers + 1) / workers
    most = min([more, *(rate / each.use for each in then if each.use)])
    next_limit = f", then {then[0].kind}" if most < more else ""
    return f"workers {workers} -> {workers + 1}: {size(int(rate))}/s -> {size(int(most))}/s{next_limit}"
