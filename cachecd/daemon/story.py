"""The story of a shard or a lease: what happened to it, and by which rule, since the daemon started.

The daemon keeps its last events and commands as sentences, which hold no key and no name of an object. A
reason, which may quote them, stands beside its sentence.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from cachecd.daemon.disk_work import generation_of
from cachecd.model import StreamId
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.policy import Policy
from cachecd.policy.shard_table import Status
from cachecd.policy.values import GenerationId, Intervals, Name
from cachecd.quantities import approximate_size

_MOST = 10_000  # sentences
_MOST_SUBJECTS = 50_000  # shards and leases that the sentences name: 7 MB

_NOW = {
    Status.LIVE: "live: the next lease names it",
    Status.QUARANTINED: "quarantined: no later lease names it until its next version is made",
    Status.RETIRING: "retired: no later lease names it",
    Status.UNLINKED: "not in the cache, unless a lease still names it",
}


class _Shard(NamedTuple):
    generation: GenerationId
    number: int


class _Job(NamedTuple):
    """One epoch of a job, which may have no lease yet."""

    dataset: str
    job: str
    epoch: int


_Subject = _Shard | StreamId | _Job | str  # a lease is a str
_Told = tuple[tuple[_Subject, ...], str, str]  # subjects, sentence, reason


@dataclass(frozen=True, slots=True)
class _Sentence:
    at: float
    subjects: tuple[_Subject, ...]
    what: str
    reason: str = ""


class Story:
    """`note` takes each event with the commands that follow from it."""

    def __init__(self) -> None:
        self._sentences: deque[_Sentence] = deque()
        self._subjects = 0
        self._since = time.time()
        self._requests: dict[str, tuple[_Job, int]] = {}  # unanswered: the job's epoch and the rank
        self._waits: dict[_Job, str] = {}  # the reason that was told last: a rank asks each second

    def note(self, event: ev.Event, commands: Iterable[do.Command]) -> None:
        """Keeps an event and its commands."""
        for each in (event, *commands):
            for subjects, what, reason in self._sentences_of(each):
                self._sentences.append(_Sentence(time.time(), subjects, what, reason))
                self._subjects += len(subjects)
        while len(self._sentences) > _MOST or self._subjects > _MOST_SUBJECTS:
            oldest = self._sentences.popleft()
            self._subjects -= len(oldest.subjects)
            self._since = oldest.at

    def of_shard(self, generation: GenerationId, number: int, policy: Policy) -> dict[str, Any]:
        """Returns `since`, the seconds since 1970 from which on everything is known; `now`, the present
        state; and `story`, a list of {"at", "what", "reason"}."""
        gen, shard = policy.room.by_id[generation], _Shard(generation, number)
        stream = gen.stream_id(gen.blocks.shape.split(number)[0])
        told, is_made = list[_Sentence](), False
        for each in self._sentences:
            if shard in each.subjects:
                told.append(each)
                is_made = each.what.startswith(("granted", "sealed"))
            elif is_made and stream in each.subjects:
                told.append(each)  # a stream that fails takes its unpublished shards with it
        states = policy.leases.by_id.values()
        named = [each.lease for each in states if policy.leases.generation_of(each.lease) is gen]
        leases = [each.id for each in named if gen.table.is_named_by(each.id, number)]
        names = f"; named by {', '.join(leases)}" if leases else ""
        return self._told(told, f"{_NOW[gen.table.status(number)]}{names}")

    def of_lease(self, lease: str, policy: Policy) -> dict[str, Any] | None:
        """Returns the same of a lease. None if the lease is not known."""
        state = policy.leases.by_id.get(lease)
        own = [each for each in self._sentences if lease in each.subjects]
        if state is None and not own:
            return None
        jobs = {each for sentence in own for each in sentence.subjects if isinstance(each, _Job)}
        told = [
            each for each in self._sentences if not jobs.isdisjoint(each.subjects) or each in own
        ]
        ranks = ", ".join(map(str, sorted(state.held_by))) if state else ""
        now = f"ranks that held it: {ranks or 'none'} of {state.lease.ranks}" if state else "ended"
        return self._told(told, now)

    def _told(self, sentences: Iterable[_Sentence], now: str) -> dict[str, Any]:
        story = [{"at": each.at, "what": each.what, "reason": each.reason} for each in sentences]
        return {"since": self._since, "now": now, "story": story}

    def _sentences_of(self, each: ev.Event | do.Command) -> Iterator[_Told]:
        match each:
            case ev.AcquireAsked(request, dataset, job, epoch, rank):
                self._requests[request] = _Job(dataset, job, epoch), rank
            case do.ReplyGranted(request, lease):
                if asked := self._requests.pop(request, None):
                    self._waits.pop(asked[0], None)
                    yield (lease, asked[0]), f"granted to rank {asked[1]}", each.note
            case do.ReplyWaiting(request, _, _, reason):
                if (asked := self._requests.pop(request, None)) and self._is_new(asked[0], reason):
                    yield (asked[0],), "the job waits", reason
            case do.ReplyRefused(request, _, message):
                if asked := self._requests.pop(request, None):
                    yield (asked[0],), "the job's request was refused", message
            case _ if (told := _of_lease(each) or _of_shards(each)) is not None:
                yield told

    def _is_new(self, job: _Job, reason: str) -> bool:
        before, self._waits[job] = self._waits.get(job), reason
        return before != reason


def _of_lease(each: ev.Event | do.Command) -> _Told | None:
    match each:
        case do.WriteManifest(lease):
            size, shards = approximate_size(lease.num_bytes), _count(lease.intervals)
            what = f"made: {lease.num_records} records in {shards} shards, {size}"
            return (lease.id, _Job(lease.dataset, lease.job, lease.epoch)), what, ""
        case ev.DiskRefused(do.WriteManifest(lease), reason):
            return (lease.id,), "the disk refused its manifest", reason
        case ev.LeaseFound(lease):
            return (lease.id,), "found when the daemon started", ""
        case ev.RankHolds(_, lease_id, rank):
            return (lease_id,), f"rank {rank} holds it", ""
        case ev.Delivered(lease_id, fraction):
            return (lease_id,), f"a rank reported {fraction:.0%} of its part as delivered", ""
        case do.EndLease(lease_id):
            return (lease_id,), "to be ended: no process holds it", ""
        case ev.CommandDone(do.EndLease(lease_id)):
            return (lease_id,), "ended: its manifest was deleted", ""
    return None


def _of_shards(each: ev.Event | do.Command) -> _Told | None:
    match each:
        case do.GrantShard(stream, number) | do.MakeSupplement(stream, number):
            return _one(stream, number), "granted: its room is reserved", ""
        case ev.ShardSealed(stream, number, _, _, facts, skipped):
            size = approximate_size(facts.data_bytes)
            passed = f"; {len(skipped)} units skipped" if skipped else ""
            what = f"sealed: {facts.records} records, {size}{passed}"
            return _one(stream, number), what, each.misfit
        case ev.Published(stream, number, allocated):
            return _one(stream, number), f"published: {approximate_size(allocated)} on disk", ""
        case ev.PublishRefused(stream, number):
            what = "not published: one of its records was excluded; its stream goes back"
            return _one(stream, number), what, ""
        case ev.StreamFailed(stream, cause, reason):
            return (stream,), f"lost: its stream failed ({cause}) and goes back", reason
        case do.CloseStream(stream):
            return (stream,), "given up unless it is published: its stream is closed", ""
        case do.MarkRetired(name, names, why) | do.Unlink(name, _, names, why) if why:
            return _shards(name, names), f"retired: {why}", ""
        case do.Unlink(name, _, names) if names:
            return _shards(name, names), "no lease names it any more: its files are removed", ""
        case ev.DamageReported(_, name, number):
            return (_Shard(name, number),), "a reader reported a corrupt record", ""
        case ev.ShardVerified(name, number, _, is_sound):
            what = "read: all records are sound" if is_sound else "quarantined: it is damaged"
            return (_Shard(name, number),), what, ""
        case ev.ShardLost(name, number):
            return (_Shard(name, number),), "its sidecar is damaged or missing", ""
        case ev.HoldersFound(_, holders) if holders:
            shards = tuple(_Shard(name, number) for name, number, _ in holders)
            return shards, "quarantined: it holds an excluded record", ""
        case do.RemakeShard(name, number, version, is_local):
            how = "as a copy without excluded records" if is_local else "from the source"
            return (_Shard(name, number),), f"version {version + 1} is made {how}", ""
        case ev.Remade(name, number, facts):
            return (_Shard(name, number),), f"version {facts.version} is live", ""
        case ev.RemakeFailed(name, number, reason):
            return (_Shard(name, number),), "its next version could not be made", reason
    return None


def _one(stream: StreamId, number: int) -> tuple[_Subject, ...]:
    return (_Shard(generation_of(stream), number),)


def _shards(generation: GenerationId, names: Iterable[Name]) -> tuple[_Subject, ...]:
    return tuple(_Shard(generation, number) for number, _ in names)


def _count(intervals: Intervals) -> int:
    return sum(last - first + 1 for _, first, last in intervals)
