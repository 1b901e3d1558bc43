"""Acquires the leases of a session from the daemon, waits while the cache fills, and releases them."""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import time
import uuid
import weakref
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from cachecd_client.errors import AcquireTimeoutError, CachecdError, CallerError, LeaseLostError
from cachecd_client.launcher import job_id, local_ranks
from cachecd_client.lease.held_lease import HeldLease, manifest_path
from cachecd_client.lease.leased_set import LeasedSet
from cachecd_client.protocol import Acquire, Granted, Held, Released, Reply, Request, Waiting
from cachecd_client.quantities import approximate_duration, approximate_rate, approximate_size
from cachecd_client.report.reads import JobReads
from cachecd_client.runs.epoch import Epoch
from cachecd_client.runs.run import SavedSet
from cachecd_client.session.private_daemon import PrivateDaemon
from cachecd_client.transport import Conversation, Transport

log = logging.getLogger("cachecd")

_GRANTS = 5  # leases lost in a row between grant and lock before this is an error
_RELEASE_TIMEOUT = 0.5  # seconds; the report is a hint, because the daemon also sees the lock end
_FIRST_PAUSE, _LAST_PAUSE = 0.02, 0.5  # seconds between two requests
_FIRST_LINE, _NEXT_LINES = 2.0, 10.0  # seconds before the first log line, and between log lines


class EpochRequest(NamedTuple):
    """The epoch of a job to acquire within `timeout` seconds. `before`: by dataset, the leases of the
    previous epoch."""

    job: str
    epoch: int
    timeout: float | None
    before: Mapping[str, HeldLease] = MappingProxyType({})


class SessionLeases:
    """All leases that one session holds. Safe to use from any thread. `close()` releases every lease;
    otherwise they end when the session and its epochs are collected, or when the interpreter exits."""

    def __init__(
        self, transport: Transport, timeout: float, daemon: PrivateDaemon | None = None
    ) -> None:
        self.transport = transport
        #: Seconds that a request waits for its reply.
        self.timeout = timeout
        self.job = job_id()
        self.rank, self.world = local_ranks()
        self.reads = JobReads(self.rank, transport.endpoint)
        self._held: set[HeldLease] = set()
        # Not a WeakSet, because list() of it fails while another thread adds to it.
        self._epochs: set[weakref.ref[Epoch]] = set()
        # This also runs at interpreter exit, while the socket still works.
        self._end = weakref.finalize(
            self, _end, self._held, self._epochs, transport, self.rank, daemon
        )

    def ask(self, request: Request, daemon: Conversation | None = None) -> Reply:
        """Returns the daemon's reply. CallerError after `close()`, and the errors of `Transport.ask`."""
        self._check_open()
        return (daemon or self.transport).ask(request, self.timeout)

    def _check_open(self) -> None:
        if not self._end.alive:
            raise CallerError("this session is closed: connect() again")

    def epoch_request(
        self, epoch: int, job: str | None, timeout: float | None, before: Epoch | None
    ) -> EpochRequest:
        if (epoch := operator.index(epoch)) < 0:
            raise CallerError(f"epoch={epoch}, expected 0 or more")
        return EpochRequest(
            job or self.job, epoch, timeout, {} if before is None else before.leases
        )

    def request(
        self, wanted: EpochRequest, dataset: str, saved: SavedSet | None = None,
        daemon: Conversation | None = None,
    ) -> Reply:  # fmt: skip
        """Requests the dataset's set once, and reports the delivered fraction of the previous epoch.
        `saved`: the set that a resumed run had."""
        fields: dict[str, Any] = {} if saved is None else saved.for_acquire()
        previous = wanted.before.get(dataset)
        unreported = 0.0 if previous is None else previous.unreported
        if previous is not None and unreported:
            fields |= {"lease": previous.manifest.lease, "delivered": unreported}
        # A new id each time, because a repeated id would get the old reply.
        request = Acquire(
            id=new_id(), dataset=dataset, job=wanted.job, epoch=wanted.epoch, local_rank=self.rank,
            local_world_size=self.world, **fields,
        )  # fmt: skip
        reply = self.ask(request, daemon)
        if previous is not None:
            previous.reported += unreported
        return reply

    def acquire(
        self, wanted: EpochRequest, dataset: str, saved: SavedSet | None = None
    ) -> LeasedSet:
        """Waits until the daemon grants the dataset's set, and returns the leased set."""
        reads = self.reads.of(dataset, wanted.job)
        reads.requested()
        wait = Wait(dataset, wanted.timeout)
        lost: LeaseLostError | None = None
        with Conversation(self.transport) as daemon:
            for _ in range(_GRANTS):
                while isinstance(reply := self.request(wanted, dataset, saved, daemon), Waiting):
                    reads.waits(wanted.epoch)
                    wait.pause(reply)
                assert isinstance(reply, Granted)
                if reply.note:
                    log.warning("%s: epoch %d: %s", dataset, wanted.epoch, reply.note)
                try:
                    held = HeldLease(manifest_path(reply, os.environ))
                except LeaseLostError as error:
                    lost = error
                    continue
                self._held.add(held)
                if reply.skipped and held.manifest.pinned and not self.rank:
                    log.warning("%s: epoch %d: %s", dataset, wanted.epoch, reply.skipped)
                try:
                    self._check_open()  # a close() before `add` did not release this lease
                    # Without waiting for a reply, because the lock protects the files.
                    daemon.notify(Held(new_id(), held.manifest.lease, self.rank))
                    return LeasedSet(
                        held, self.transport, self.release, number=wanted.epoch, reads=reads,
                        coverage=reply.coverage, note=reply.note or reply.stopped,
                    )  # fmt: skip
                except BaseException:
                    self.release(held)
                    raise
        assert lost is not None
        raise lost

    def watch(self, epoch: Epoch) -> Epoch:
        """Releases the epoch when the session ends, unless it was released before."""
        self._epochs.add(weakref.ref(epoch, self._epochs.discard))
        return epoch

    def release(self, held: HeldLease) -> None:
        """Ends this process's share in the lease. Idempotent; never raises an error."""
        try:
            self._held.remove(held)  # if several threads release it, only one reports it
        except KeyError:
            return
        _release(held, self.transport, self.rank)

    def close(self) -> None:
        """Releases every epoch and lease, and ends the session's own daemon. Idempotent."""
        for known in list(self._epochs):
            if (epoch := known()) is not None:
                epoch.release()
        self._end()


def new_id() -> str:
    return uuid.uuid4().hex


def _release(held: HeldLease, transport: Transport, rank: int) -> None:
    """Reports the delivered fraction, if a daemon answers, then ends this process's share in the lease."""
    lease = held.manifest.lease
    try:
        if held.is_held:  # not held: a forked child's copy, whose lease belongs to the parent
            released = Released(new_id(), lease, rank, held.unreported)
            transport.ask(released, _RELEASE_TIMEOUT)
    except CachecdError as error:
        log.debug("release of %s not reported: %s", lease, error)
    finally:
        held.close()


def _end(
    held: set[HeldLease], epochs: set[weakref.ref[Epoch]], transport: Transport, rank: int,
    daemon: PrivateDaemon | None,
) -> None:  # fmt: skip
    """Releases all leases, also of epochs that still run, and ends the session's private daemon."""
    for known in list(epochs):
        if (epoch := known()) is not None:
            # When the interpreter ends, modules may no longer exist.
            with contextlib.suppress(Exception):
                epoch.count_delivered()
    with contextlib.suppress(KeyError):
        while True:
            _release(held.pop(), transport, rank)
    if daemon is not None:
        daemon.close()


class Wait:
    """The wait for one reply: its deadline, pauses of at most `longest` seconds, and log lines."""

    def __init__(self, dataset: str, timeout: float | None, longest: float = _LAST_PAUSE) -> None:
        self._dataset = dataset
        self._timeout = timeout
        now = time.monotonic()
        self._deadline = None if timeout is None else now + timeout
        self._next_line = now + _FIRST_LINE
        self._pause = _FIRST_PAUSE
        self._longest = longest

    def pause(self, waiting: Waiting) -> None:
        """Sleeps until the next request is due; AcquireTimeoutError when the time is up."""
        now = time.monotonic()
        pause = self._pause
        if self._deadline is not None:
            if now >= self._deadline:
                raise AcquireTimeoutError(
                    f"no lease within {self._timeout:.3g} s: {describe(self._dataset, waiting)}"
                )
            pause = min(pause, self._deadline - now)
        if now >= self._next_line:
            # A trainer without logging setup shows only warnings, and should not seem to hang.
            log.warning("%s", describe(self._dataset, waiting))
            self._next_line = now + _NEXT_LINES
        time.sleep(pause)
        self._pause = min(2 * self._pause, self._longest)


def describe(dataset: str, waiting: Waiting) -> str:
    """For example ``train: 312 MiB of 1 GiB (30 %), 95 MB/s, ready in about 8 s``."""
    have, want, rate = waiting.have_bytes, waiting.want_bytes, waiting.bytes_per_second
    if want <= 0:  # no figures: the daemon is starting, or its disk has failed
        return f"{dataset}: {waiting.reason or 'not ready yet'}"
    of_set = f"{approximate_size(have, '.3g')} of {approximate_size(want, '.3g')}"
    parts = [f"{dataset}: {of_set} ({100 * have // want} %)"]
    if rate > 0:
        remaining = approximate_duration(max(want - have, 0) / rate)
        parts.append(f"{approximate_rate(rate)}, ready in about {remaining}")
    else:
        parts.append("nothing is arriving")
    return ", ".join(parts) + (f" ({waiting.reason})" if waiting.reason else "")
