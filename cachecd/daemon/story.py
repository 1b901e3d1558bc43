"""The story of a shard or a lease: what happened to it, and by which rule, since the daemon started.

The daemon keeps its last events and commands as sentences. A sentence has no key and no name of an object.
Its reason may quote them, so it is a separate field.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from cachecd.daemon.disk_work import generation_of
from cachecd.model import ShardVersion, StreamId
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.policy import Policy
from cachecd.policy.shard_table import Status
from cachecd.policy.values import GenerationId
from cachecd.quantities import approximate_size

_MOST = 10_000  # sentences
_MOST_SUBJECTS = 50_000  # shards and leases that the sentences name: 7 MB

_NOW = {
    Status.LIVE: "live: the next lease names it",
    Status.QUARANTINED: "quarantined: no later lease names it until its next version is made",
    Status.RETIRING: "retired: no later lease names it",
    Status.UNLINKED: "no later lease names it",
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
_Entry = tuple[tuple[_Subject, ...], str, str]  # subjects, sentence, reason


@dataclass(frozen=True, slots=True)
class _Sentence:
    at: float
    subjects: tuple[_Subject, ...]
    what: str
    reason: str = ""


class Story:
    """`note` receives each event with the resulting commands."""

    def __init__(self) -> None:
        self._sentences: deque[_Sentence] = deque()
        self._subjects = 0
        self._since = time.time()
        self._requests: dict[str, tuple[_Job, int]] = {}  # unanswered: the job's epoch and the rank
        self._waits: dict[_Job, str] = {}  # the last reason: a rank repeats its request each second

    def note(self, event: ev.Event, commands: Iterable[do.Command]) -> None:
        """Keeps an event and its commands as sentences."""
        for each in (event, *commands):
            for subjects, what, reason in self._sentences_of(each):
                self._sentences.append(_Sentence(time.time(), subjects, what, reason))
                self._subjects += len(subjects)
        while len(self._sentences) > _MOST or self._subjects > _MOST_SUBJECTS:
            oldest = self._sentences.popleft()
            self._subjects -= len(oldest.subjects)
            self._since = oldest.at

    def of_shard(self, generation: GenerationId, number: int, policy: Policy) -> dict[str, Any]:
        """Returns the story of a shard. `since`: when the known events begin, in seconds since 1970. `now`:
        the current state. `story`: a list of {"at", "what", "reason"}."""
        gen, shard = policy.room.by_id[generation], _Shard(generation, number)
        stream = gen.stream_id(gen.blocks.shape.split(number)[0])
        sentences, is_made = list[_Sentence](), False
        for each in self._sentences:
            if shard in each.subjects:
                sentences.append(each)
                is_made = each.what.startswith(("granted", "sealed"))
            elif is_made and stream in each.subjects:
                sentences.append(each)  # a stream that fails loses its unpublished shards
        states = policy.leases.by_id.values()
        named = [each.lease for each in states if policy.leases.generation_of(each.lease) is gen]
        leases = [each.id for each in named if gen.table.is_named_by(each.id, number)]
        names = f"; named by {', '.join(leases)}" if leases else ""
        return self._document(sentences, f"{_NOW[gen.table.status(number)]}{names}")

    def of_lease(self, lease: str, policy: Policy) -> dict[str, Any] | None:
        """Returns the story of a lease, or None if the lease is unknown."""
        state = policy.leases.by_id.get(lease)
        own = [each for each in self._sentences if lease in each.subjects]
        if state is None and not own:
            return None
        jobs = {each for sentence in own for each in sentence.subjects if isinstance(each, _Job)}
        subjects = {lease, *jobs}
        sentences = [each for each in self._sentences if not subjects.isdisjoint(each.subjects)]
        ranks = ", ".join(map(str, sorted(state.held_by))) if state else ""
        now = f"ranks that held it: {ranks or 'none'} of {state.lease.ranks}" if state else "ended"
        return self._document(sentences, now)

    def whole(self) -> list[dict[str, Any]]:
        """Returns all sentences with their subjects, without reasons."""
        return [
            {"at": each.at, "of": [_name(subject) for subject in each.subjects], "what": each.what}
            for each in self._sentences
        ]

    def _document(self, sentences: Iterable[_Sentence], now: str) -> dict[str, Any]:
        story = [{"at": each.at, "what": each.what, "reason": each.reason} for each in sentences]
        return {"since": self._since, "now": now, "story": story}

    def _sentences_of(self, each: ev.Event | do.Command) -> Iterator[_Entry]:
        match each:
            case ev.AcquireAsked(request, dataset, job, epoch, rank):
                self._requests[request] = _Job(dataset, job, epoch), rank
            case do.ReplyGranted(request, lease):
                if requested := self._requests.pop(request, None):
                    job_epoch, rank = requested
                    self._waits.pop(job_epoch, None)
                    yield (lease, job_epoch), f"granted to rank {rank}", each.note
            case do.ReplyWaiting(request, _, _, reason):
                if requested := self._requests.pop(request, None):
                    before, self._waits[requested[0]] = self._waits.get(requested[0]), reason
                    if before != reason:
                        yield (requested[0],), "the job waits", reason
            case do.ReplyRefused(request, _, message):
                if requested := self._requests.pop(request, None):
                    yield (requested[0],), "the job's request was refused", message
            case _ if (entry := _of_lease(each) or _of_shards(each)) is not None:
                yield entry


def _of_lease(each: ev.Event | do.Command) -> _Entry | None:
    match each:
        case do.WriteManifest(lease):
            size = approximate_size(lease.num_bytes)
            shards = sum(last - first + 1 for _, first, last in lease.intervals)
            what = f"made: {lease.num_records} records in {shards} shards, {size}"
            return (lease.id, _Job(lease.dataset, lease.job, lease.epoch)), what, ""
        case ev.DiskRefused(do.WriteManifest(lease), reason):
            return (lease.id,), "the disk refused its manifest", reason
        case ev.LeaseFound(lease):
            return (lease.id,), "the daemon found its manifest at the start", ""
        case ev.RankHolds(_, lease_id, rank):
            return (lease_id,), f"rank {rank} holds it", ""
        case ev.Delivered(lease_id, fraction):
            return (lease_id,), f"a rank reported {fraction:.0%} of its part as delivered", ""
        case do.EndLease(lease_id):
            return (lease_id,), "no process holds it: it ends", ""
        case ev.CommandDone(do.EndLease(lease_id)):
            return (lease_id,), "ended: its manifest was deleted", ""
    return None


def _of_shards(each: ev.Event | do.Command) -> _Entry | None:
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
            what = "not published, because one of its records was excluded: its stream restarts before it"
            return _one(stream, number), what, ""
        case ev.StreamFailed(stream, cause, reason):
            what = f"lost: its stream failed ({cause}), and continues from an earlier cursor"
            return (stream,), what, reason
        case do.CloseStream(stream):
            return (stream,), "dropped, unless it is published: its stream is closed", ""
        case do.MarkRetired(name, names, why) | do.Unlink(name, _, names, why) if why:
            return _shards(name, names), f"retired: {why}", ""
        case do.Unlink(name, _, names) if names:
            return _shards(name, names), "its files are removed: no lease names it now", ""
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


def _shards(generation: GenerationId, names: Iterable[ShardVersion]) -> tuple[_Subject, ...]:
    return tuple(_Shard(generation, number) for number, _ in names)


def _name(subject: _Subject) -> str:
    match subject:
        case _Shard(generation, number):
            return f"{generation.dataset}/{generation.name}/{number}"
        case _Job(dataset, job, epoch):
            return f"{dataset}: epoch {epoch} of {job}"
        case StreamId(dataset, generation, number):
            return f"{dataset}/{generation}: stream {number}"
    return subject
