"""Requests of clients as events of the policy, and the policy's replies as messages."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from cachecd.config.keypattern import alike, other_forms
from cachecd.daemon.command_runner import ToClient
from cachecd.daemon.loop import CacheLoop
from cachecd.daemon.server import Answer
from cachecd.errors import DiskError
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.values import GenerationId, Resume
from cachecd_client import protocol

# Seconds until a client that excludes keys is answered to send its request again.
_PATIENCE = 1.0
_MOMENT = 0.02  # seconds from a rank's report of a release until its lock is probed
_MOST = 1 << 62  # of a shard's number, or of the ranks of a node

_log = structlog.get_logger("cachecd.daemon")


@dataclass(slots=True)
class _Due:
    """A request that the policy has not answered. `dataset`: the dataset whose fetch rate is in the
    reply."""

    id: str
    dataset: str
    answer: Answer


class Requests:
    """`handle` takes requests, in order; `reply` takes the policy's replies. `status` makes the status
    document."""

    def __init__(self, cache: CacheLoop, status: Callable[[], dict[str, Any]]) -> None:
        self._cache, self._status = cache, status
        self._due: dict[str, _Due] = {}
        # The policy's names of requests: never those that clients choose, and unique over restarts.
        self._names = (f"{time.time_ns():x}.{n}" for n in itertools.count())
        self._excluding: dict[tuple[str, frozenset[str]], asyncio.Event] = {}
        # A search may take longer than a request: the next request of the client takes its result.
        self._judging: dict[
            tuple[str, frozenset[str]], asyncio.Future[tuple[set[str], list[str]]]
        ] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, request: protocol.Request, answer: Answer) -> None:
        """Begins to handle a request: `answer` gets its reply."""
        match request:
            case protocol.Acquire():
                self._acquire(request, answer)
            case protocol.Held(id, lease, rank):
                self._cache.feed(ev.RankHolds(self._name(id, "", answer), lease, rank))
            case protocol.Released(id, lease, _, delivered):
                self._cache.feed(ev.Delivered(lease, delivered))
                answer(protocol.Done(id))
                # The client unlocks its manifest when it has this reply: what it reports is never late.
                asyncio.get_running_loop().call_later(_MOMENT, self._cache.probe, lease)
            case protocol.ReportCorrupt():
                self._report(request, answer)
            case protocol.Exclude():
                task = asyncio.ensure_future(self._exclude(request, answer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case protocol.AskStatus(id):
                answer(protocol.StatusReply(id, self._status()))

    def reply(self, command: ToClient) -> None:
        """Sends the policy's reply to its client."""
        if (due := self._due.pop(command.request, None)) is not None:
            due.answer(self._message(command, due))

    def _message(self, command: ToClient, due: _Due) -> protocol.Reply:
        match command:
            case do.ReplyGranted(_, lease, coverage, note, records, skipped):
                why = self._cache.why_nothing_comes(due.dataset)
                layout = self._cache.layout
                manifest = layout.manifest(lease).relative_to(layout.root)
                about = (str(layout.root), str(manifest), coverage, note, why)
                odd = (
                    f"{records} of {records + skipped} records, {skipped} skipped"
                    f" ({'; '.join(self._reasons(due.dataset))})"
                )
                return protocol.Granted(due.id, lease, *about, odd if skipped else "")
            case do.ReplyWaiting(_, have, want, reason):
                rate = self._cache.rate(due.dataset)
                reason = self._cache.why_nothing_comes(due.dataset) or reason
                return protocol.Waiting(due.id, have, want, rate, reason)
            case do.ReplyRefused(_, "skipped", message):
                # Here, because nobody can ask a daemon that ends with its trainer.
                reasons = "; ".join(self._reasons(due.dataset)) or "their keys are excluded"
                message = f"{message}: {reasons}"
                return protocol.Refused(due.id, "impossible", message)
            case do.ReplyRefused(_, code, message):
                return protocol.Refused(due.id, code, message)
            case do.ReplyDone():
                return protocol.Done(due.id)

    def _reasons(self, dataset: str) -> list[str]:
        """Returns the usual reasons for which units or records of a dataset are skipped."""
        skipped = self._cache.status()["datasets"][dataset]["skipped"]["reasons"]
        return [
            f"{about['units'] + about['records']} x {reason} (for example "
            f"{', '.join(about['examples'][:2])})"
            for reason, about in list(skipped.items())[:3]
        ]

    def _name(self, id: str, dataset: str, answer: Answer) -> str:
        """Names a request for the policy."""
        name = next(self._names)
        self._due[name] = _Due(id, dataset, answer)
        return name

    # ---

    def _acquire(self, request: protocol.Acquire, answer: Answer) -> None:
        if message := _mistake(request):
            answer(protocol.Refused(request.id, "bad-request", message))
            return
        resume = None
        if request.streams > 0:
            resume = Resume(
                request.generation,
                tuple((stream, first, last) for stream, first, last in request.shards),
                *(request.fingerprint, request.sampling_seed, request.streams, request.place),
            )
        event = ev.AcquireAsked(
            self._name(request.id, request.dataset, answer),
            *(request.dataset, request.job, request.epoch),
            *(request.local_rank, request.local_world_size, resume),
        )
        if request.lease:
            self._cache.feed(ev.Delivered(request.lease, request.delivered))
        # A job that was launched again under its name gets no set of the job that ended.
        wanted = request.dataset, request.job, request.epoch
        leases = (state.lease for state in self._cache.policy.leases.by_id.values())
        same = [one.id for one in leases if (one.dataset, one.job, one.epoch) == wanted]
        if same and not all(map(self._cache.probe, same)):
            self._cache.after_writes(event)
        else:
            self._cache.feed(event)

    def _report(self, request: protocol.ReportCorrupt, answer: Answer) -> None:
        generation, number = GenerationId(request.dataset, request.generation), request.shard
        if not (0 <= number < _MOST and 0 <= request.version < _MOST):
            answer(protocol.Refused(request.id, "bad-request", f"found shard {number}"))
            return
        if any(each.id == generation for each in self._cache.policy.room.generations):
            shard = f"{request.dataset}/{request.generation}/{number}"
            about = {"offset": request.offset, "why": request.why}
            _log.warning("corrupt record reported", shard=shard, **about)
        name = self._name(request.id, request.dataset, answer)
        self._cache.feed(ev.DamageReported(name, generation, number, request.version))

    async def _exclude(self, request: protocol.Exclude, answer: Answer) -> None:
        """Replies when the exclusion is durable and its shards are in no new set. After a while, replies
        that the client should send the request again."""
        sides = self._cache.sides(request.dataset)
        if not sides:
            message = f"no dataset {request.dataset!r} in this cache"
            answer(protocol.Refused(request.id, "unknown-dataset", message))
            return
        keys = frozenset(request.keys)
        wanted = request.dataset, keys
        unknown, near = set[str](), list[str]()
        if not request.ahead:
            if (judged := self._judging.get(wanted)) is None:
                judged = asyncio.ensure_future(self._cache.unknown(sides, keys))
                self._judging[wanted] = judged
            await asyncio.wait({judged}, timeout=_PATIENCE)
            reason = "shards are searched for keys that are not listed"
            if judged.done():
                self._judging.pop(wanted, None)
                try:
                    unknown, near = judged.result()
                except DiskError as error:
                    reason = str(error)
            if not judged.done() or judged.exception() is not None:
                answer(protocol.Waiting(request.id, 0, 0, 0.0, reason))
                return
        if unknown:
            others = f", nor {len(unknown) - 1} other keys" if len(unknown) > 1 else ""
            for other in other_forms(min(unknown)).intersection(near):
                others += f" ({alike(min(unknown), other)})"
            message = (
                f"no object of {sides[0]} has the key {min(unknown)!r}{others}: keys are relative to "
                f"source.url, as {', '.join(map(repr, near)) or 'of no object yet'}. Nothing was excluded. "
                "--ahead (ahead=True) excludes a key that no object has yet"
            )
            answer(protocol.Refused(request.id, "unknown-key", message))
            return
        under_way = [self._begin_exclusion(side, keys) for side in sides]
        waiting = [asyncio.ensure_future(each.wait()) for each in under_way]
        _, late = await asyncio.wait(waiting, timeout=_PATIENCE)
        for each in late:
            each.cancel()
        if late:
            reason = self._cache.policy.disk.why or "shards are searched for the excluded keys"
            answer(protocol.Waiting(request.id, 0, 0, 0.0, reason))
        else:
            answer(protocol.Done(request.id))

    def _begin_exclusion(self, dataset: str, keys: frozenset[str]) -> asyncio.Event:
        """Begins to exclude keys, unless that has begun. Returns an event that is set at the end."""
        wanted = dataset, keys
        if (known := self._excluding.get(wanted)) is not None:
            return known
        done = asyncio.Event()
        if self._cache.are_excluded(dataset, keys):
            done.set()
            return done

        def end(_: protocol.Reply) -> None:
            del self._excluding[wanted]
            done.set()

        self._excluding[wanted] = done
        _log.info("keys excluded", dataset=dataset, keys=len(keys))
        name = self._name("", dataset, end)
        self._cache.feed(ev.ExcludeAsked(name, dataset, tuple(sorted(keys))))
        return done


def _mistake(request: protocol.Acquire) -> str:
    """Returns the mistake in the numbers of a request, or "". The policy relies on valid numbers."""
    place, streams, seed = request.place, request.streams, request.sampling_seed
    rank, ranks = request.local_rank, request.local_world_size
    if not (0 <= request.epoch < 1 << 63 and 0 <= rank < ranks <= _MOST):
        return (
            f"epoch {request.epoch}, local rank {rank} of {ranks}: expected 0 <= epoch < 2**63 and "
            "0 <= rank < world size"
        )
    if not (0 <= place < _MOST and 0 <= streams <= 1024 and 0 <= seed < 1 << 64):
        return (
            f"place {place}, {streams} streams, sampling seed {seed}: expected at most 2**62, 1024 and "
            "2**64"
        )
    if not all(len(s) == 3 and s[0] >= 0 and 0 <= s[1] <= s[2] < _MOST for s in request.shards):
        return "shards: expected [stream, first, last], first <= last"
    return ""
