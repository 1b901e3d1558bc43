"""Turns requests of clients into events of the policy, and replies of the policy into messages."""

from __future__ import annotations

import asyncio
import itertools
import time
from bisect import bisect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog

from cachecd.config.keypattern import alike, other_forms
from cachecd.daemon.command_runner import ToClient
from cachecd.daemon.loop import CacheLoop, Request
from cachecd.daemon.server import Answer
from cachecd.disk.excluded import is_excluded
from cachecd.errors import DiskError
from cachecd.model import SAMPLE
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.values import GenerationId, Resume
from cachecd_client import protocol
from cachecd_client.schema import Feature, Schema

_PATIENCE = 1.0  # seconds until a client that excludes keys must send its request again
_MOMENT = 0.02  # seconds until the lock of a rank is probed, after the rank released its lease
_MOST = 1 << 62  # the largest number of a shard, and of ranks on a node

_NAME = Feature(SAMPLE, "bytes", "bytes", ())
_Wanted = tuple[str, frozenset[str], frozenset[str]]  # dataset, keys, samples

_log = structlog.get_logger("cachecd.daemon")


class Requests:
    """`handle` receives the requests in order. `status` returns the status document, `details` what a bug
    report needs besides."""

    def __init__(
        self,
        cache: CacheLoop,
        status: Callable[[], dict[str, Any]],
        details: Callable[[], dict[str, Any]],
    ) -> None:
        self._cache, self._status, self._details = cache, status, details
        # Names of requests for the policy, unique over restarts. They are not the ids that clients choose.
        self._names = (f"{time.time_ns():x}.{n}" for n in itertools.count())
        self._excluding: dict[_Wanted, asyncio.Event] = {}
        # A search may take longer than a request. Then the next request of the client gets the result.
        self._judging: dict[_Wanted, asyncio.Future[str]] = {}

    def handle(self, request: protocol.Request, answer: Answer) -> None:
        """Starts to handle a request. `answer` receives the reply."""
        began = time.monotonic()

        def timed(reply: protocol.Reply) -> None:
            self._cache.timeline.note(type(request).__name__, began)
            answer(reply)

        self._begin(request, timed)

    def _begin(self, request: protocol.Request, answer: Answer) -> None:
        match request:
            case protocol.Acquire():
                self._acquire(request, answer)
            case protocol.Held(id, lease, rank):
                self._report(ev.RankHolds(next(self._names), lease, rank), id, "", answer)
            case protocol.Released(id, lease, _, delivered):
                self._cache.feed(ev.Delivered(lease, delivered))
                answer(protocol.Done(id))
                # The client unlocks its manifest when it has this reply, so its report is never late.
                asyncio.get_running_loop().call_later(_MOMENT, self._cache.probe, lease)
            case protocol.ReportCorrupt():
                self._verify(request, answer)
            case protocol.Exclude():
                self._cache.runner.background.start(self._exclude(request, answer))
            case protocol.AskSpans(id, seconds):
                timeline = self._cache.timeline
                answer(protocol.SpansReply(id, timeline.last(seconds), timeline.complete_since))
            case protocol.AskStatus(id, ""):
                answer(protocol.StatusReply(id, self._status()))
            case protocol.AskStatus(id, why):
                answer(self._story(id, why))
            case protocol.AskDetails(id):
                answer(protocol.StatusReply(id, self._details()))

    def _report(self, event: Request, id: str, dataset: str, answer: Answer, **how: bool) -> None:
        """Reports a request to the policy, and sends the reply of the policy to the client. `dataset`: the
        dataset of the request, or ""."""
        reply = partial(self._message, id, dataset)
        self._cache.request(event, lambda command: answer(reply(command)), **how)

    def _message(self, id: str, dataset: str, command: ToClient) -> protocol.Reply:
        match command:
            case do.ReplyGranted(_, lease, coverage, note, records, skipped):
                why = self._cache.why_nothing_fetched(dataset)
                layout = self._cache.layout
                manifest = layout.manifest(lease).relative_to(layout.root)
                about = (str(layout.root), str(manifest), coverage, note, why)
                skips = (
                    f"{records} of {records + skipped} records, {skipped} skipped"
                    f" ({'; '.join(self._reasons(dataset))})"
                )
                return protocol.Granted(id, lease, *about, skips if skipped else "")
            case do.ReplyWaiting(_, have, want, reason):
                rate = self._cache.ingest.rate(dataset)
                reason = self._cache.why_nothing_fetched(dataset) or reason
                return protocol.Waiting(id, have, want, rate, reason)
            case do.ReplyRefused(_, "skipped", message):
                # The reply has the reasons, because the daemon may end together with its trainer.
                reasons = "; ".join(self._reasons(dataset)) or "their keys are excluded"
                return protocol.Refused(id, "impossible", f"{message}: {reasons}")
            case do.ReplyRefused(_, code, message):
                return protocol.Refused(id, code, message)
            case do.ReplyDone():
                return protocol.Done(id)

    def _reasons(self, dataset: str) -> list[str]:
        """Returns the most frequent reasons for skipped units and records of a dataset."""
        skipped = self._cache.skipped(dataset).reasons
        return [
            f"{about.units + about.records} x {reason} (for example {', '.join(about.examples[:2])})"
            for reason, about in list(skipped.items())[:3]
        ]

    def _story(self, id: str, subject: str) -> protocol.Reply:
        """Returns the story of a shard or a lease."""
        policy, story = self._cache.policy, self._cache.story
        dataset, _, rest = subject.partition("/")
        generation, _, number = rest.rpartition("/")
        if known := policy.datasets.get(dataset):
            generation = generation or known.generation.id.name
        name = GenerationId(dataset, generation)
        document = None
        if "/" not in subject:
            document = story.of_lease(subject, policy)
        elif number.isdecimal() and len(number) < 20 and name in policy.room.by_id:
            document = story.of_shard(name, int(number), policy)
        if document is None:
            message = (
                f"found {subject!r}, expected a shard, DATASET/NUMBER or DATASET/GENERATION/NUMBER, or a "
                "lease that `cachecd status --json` names. `cachecd where` finds the shard of a record"
            )
            return protocol.Refused(id, "bad-request", message)
        return protocol.StatusReply(id, document)

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
            *(next(self._names), request.dataset, request.job, request.epoch),
            *(request.local_rank, request.local_world_size, resume),
        )
        if request.lease:
            self._cache.feed(ev.Delivered(request.lease, request.delivered))
        # If a job was launched again under the same name, it must not get the set of the ended job.
        epoch = request.dataset, request.job, request.epoch
        leases = (state.lease for state in self._cache.policy.leases.by_id.values())
        same = [lease.id for lease in leases if (lease.dataset, lease.job, lease.epoch) == epoch]
        has_ended = bool(same) and not all(map(self._cache.probe, same))
        self._report(event, request.id, request.dataset, answer, after_writes=has_ended)

    def _verify(self, request: protocol.ReportCorrupt, answer: Answer) -> None:
        generation, number = GenerationId(request.dataset, request.generation), request.shard
        if not (0 <= number < _MOST and 0 <= request.version < _MOST):
            answer(protocol.Refused(request.id, "bad-request", f"found shard {number}"))
            return
        if generation in self._cache.policy.room.by_id:
            shard = f"{request.dataset}/{request.generation}/{number}"
            about = {"offset": request.offset, "why": request.why}
            _log.warning("corrupt record reported", shard=shard, **about)
        event = ev.DamageReported(next(self._names), generation, number, request.version)
        self._report(event, request.id, request.dataset, answer)

    async def _exclude(self, request: protocol.Exclude, answer: Answer) -> None:
        """Replies when the exclusion is durable and no new set has its shards. If this takes too long,
        replies that the client must send the request again."""
        sides = self._sides(request.dataset)
        if not sides:
            message = f"no dataset {request.dataset!r} in this cache"
            answer(protocol.Refused(request.id, "unknown-dataset", message))
            return
        keys, samples = frozenset(request.keys), frozenset(request.samples)
        if samples and (message := self._why_no_samples(sides, keys)):
            answer(protocol.Refused(request.id, "bad-request", message))
            return
        wanted = request.dataset, keys, samples
        if not request.ahead:
            if (judged := self._judging.get(wanted)) is None:
                judged = asyncio.ensure_future(self._judge(sides, keys, samples))
                self._judging[wanted] = judged
            await asyncio.wait({judged}, timeout=_PATIENCE)
            if not judged.done():
                reason = "shards are searched for keys that are not listed"
                answer(protocol.Waiting(request.id, 0, 0, 0.0, reason))
                return
            self._judging.pop(wanted, None)
            try:
                unknown = judged.result()
            except DiskError as error:
                answer(protocol.Waiting(request.id, 0, 0, 0.0, str(error)))
                return
            if unknown:
                answer(protocol.Refused(request.id, "unknown-key", unknown))
                return
        ends = [self._begin_exclusion((side, keys, samples)) for side in sides]
        waiting = [asyncio.ensure_future(each.wait()) for each in ends]
        _, late = await asyncio.wait(waiting, timeout=_PATIENCE)
        for each in late:
            each.cancel()
        if late:
            reason = self._cache.policy.disk.why or "shards are searched for the excluded keys"
            answer(protocol.Waiting(request.id, 0, 0, 0.0, reason))
        else:
            answer(protocol.Done(request.id))

    def _sides(self, dataset: str) -> list[str]:
        """Returns the datasets from which a key is excluded together: both sides of a split. Returns [] if
        no dataset has this name."""
        config = self._cache.config.datasets.get(dataset)
        if config is not None and config.split is not None:
            train = dataset.removesuffix("-eval") if config.held_out else dataset
            return [train, f"{train}-eval"]
        known = {generation.id.dataset for generation in self._cache.policy.room.generations}
        return [dataset] if dataset in known else []

    def _why_no_samples(self, sides: list[str], keys: frozenset[str]) -> str:
        """Returns why samples cannot be excluded from these objects of a dataset, or ""."""
        if len(keys) != 1:
            return f"found samples of {len(keys)} objects, expected samples of one. Nothing was excluded"
        config = self._cache.config.datasets.get(sides[0])
        if config and any(step.is_over_groups for step in config.transform):
            return (
                f"{sides[0]} has a step over groups, which mixes samples. Nothing was excluded. Exclude "
                "the whole object, without --sample, or write a function before this step that returns "
                "None for the sample, and raise `generation`"
            )
        if config and config.source.format != "webdataset":
            return (
                f"{sides[0]} has format {config.source.format}: only samples of a tar have names. Nothing "
                "was excluded. Write a transform that returns None for the record, or omit its object with "
                "source.skip or a manifest"
            )
        work, policy = self._cache.work, self._cache.policy
        fed = [policy.datasets[side].generation.id for side in sides if side in policy.datasets]
        if not all(_NAME in Schema.from_json(each).features for each in work.schemas_of(sides)):
            why = "have no names: source.transform drops or replaces"
        elif config and config.transform and not work.schemas.keys() >= {*fed}:
            why = "are not known yet: source.transform might drop or replace"
        else:
            return ""
        return (
            f"the records of {sides[0]} {why} {SAMPLE}, by which samples are found in shards. Nothing was "
            "excluded. Exclude the whole object, without --sample"
        )

    async def _judge(self, sides: list[str], keys: frozenset[str], samples: frozenset[str]) -> str:
        """Returns a message if some of the keys or samples do not exist and were never excluded, or ""."""
        unknown, near = await self._unknown(sides, keys)
        what, like = f"object of {sides[0]}", "keys are relative to source.url"
        if samples and not unknown:
            unknown, near = await self._unknown_samples(sides, min(keys), samples)
            what, like = f"sample of {min(keys)!r} in the shards", "samples are named by __key__"
        if not unknown:
            return ""
        others = f", nor {len(unknown) - 1} other keys" if len(unknown) > 1 else ""
        for other in other_forms(min(unknown)).intersection(near):
            others += f" ({alike(min(unknown), other)})"
        return (
            f"no {what} has the key {min(unknown)!r}{others}: {like}, as "
            f"{', '.join(map(repr, near)) or 'of no object yet'}. Nothing was excluded. "
            "--ahead (ahead=True) excludes a key that does not exist yet"
        )

    async def _unknown(
        self, sides: Sequence[str], keys: frozenset[str]
    ) -> tuple[set[str], list[str]]:
        """Returns the unknown keys, and listed keys near the first of them. A key is unknown if it was
        never excluded, and no listing and no shard of these datasets has it. Returns no keys if a source is
        not listed yet, or if `partition` is set."""
        work, datasets = self._cache.work, self._cache.config.datasets
        listings = [self._cache.listings[side] for side in sides if side in datasets]
        tables = [listing.table for listing in listings]
        is_listed = tables and all(table.completed and not table.damage for table in tables)
        if not is_listed or any(datasets[side].partition for side in sides if side in datasets):
            return set(), []
        unknown = set(keys.difference(*map(work.excluded.excluded_from, sides)))
        for listing in listings:
            unknown -= await listing.run(partial(listing.table.has_keys, sorted(unknown)))
        unknown -= await asyncio.to_thread(work.cached_keys, sides, unknown) if unknown else set()
        like = min(unknown, default="")
        return unknown, await listings[0].run(partial(tables[0].neighbours, like))

    async def _unknown_samples(
        self, sides: Sequence[str], key: str, samples: frozenset[str]
    ) -> tuple[set[str], list[str]]:
        """Returns the samples that were never excluded and do not exist, and samples near the first. A
        sample does not exist if no shard has it, and the object has no other samples."""
        work, datasets = self._cache.work, self._cache.config.datasets
        excluded = [work.excluded.excluded_from(side) for side in sides]
        unknown = {
            each for each in samples if not any(is_excluded(x, key, {each}) for x in excluded)
        }
        steps = [s for side in sides if side in datasets for s in datasets[side].transform or ()]
        is_renamed = any(":" in step.name for step in steps)  # user code may rename samples
        cached, has_no_others = await asyncio.to_thread(work.cached_samples, sides, key, is_renamed)
        unknown = unknown - cached if has_no_others else set()
        names, like = sorted(cached), min(unknown, default="")
        at = bisect(names, like)
        return unknown, [*other_forms(like) & cached, *names[max(at - 1, 0) : at + 2]]

    def _begin_exclusion(self, wanted: _Wanted) -> asyncio.Event:
        """Starts to exclude keys or samples, unless this has started. Returns an event that is set when the
        exclusion is durable and no new set has its shards."""
        if (known := self._excluding.get(wanted)) is not None:
            return known
        done, (dataset, keys, samples) = asyncio.Event(), wanted
        handled = self._cache.policy.repair.handled
        if self._cache.work.excluded.are_done(dataset, dict.fromkeys(keys, samples), handled):
            done.set()
            return done

        def end(_: ToClient) -> None:
            del self._excluding[wanted]
            done.set()

        self._excluding[wanted] = done
        _log.info("keys excluded", dataset=dataset, keys=len(keys), samples=len(samples))
        excluded = tuple(sorted(keys)), tuple(sorted(samples))
        self._cache.request(ev.ExcludeAsked(next(self._names), dataset, *excluded), end)
        return done


def _mistake(request: protocol.Acquire) -> str:
    """Returns a message if a number of the request is invalid, or "". The policy needs valid numbers."""
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
