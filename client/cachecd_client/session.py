"""The trainer's session with a daemon: connect, take leases, give them back."""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import time
import uuid
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cachecd_client.epoch import Epoch
from cachecd_client.errors import (
    CachecdError,
    CallerError,
    DaemonUnreachableError,
    LeaseLostError,
    ProtocolVersionError,
)
from cachecd_client.launcher import job_id, local_ranks
from cachecd_client.lease import HeldLease
from cachecd_client.private_daemon import PrivateDaemon
from cachecd_client.protocol import (
    Acquire,
    AskStatus,
    Exclude,
    Excluded,
    Granted,
    Held,
    Released,
    Reply,
    Request,
    StatusReply,
    Waiting,
)
from cachecd_client.reads import JobReads
from cachecd_client.report import EpochReport
from cachecd_client.run import Run
from cachecd_client.transport import Conversation, Transport
from cachecd_client.waiting import Wait

log = logging.getLogger("cachecd")

_PATIENCE = 10.0  # seconds for a daemon that somebody else starts
_START = 120.0  # seconds for one that is started here: it may have a large cache to look through
_START_POLL = 0.1
_SEARCH_POLL = 0.1  # of a listing of millions, for a key
_RELEASE_TIMEOUT = 0.5  # for a hint: the daemon learns of a release from the lock anyway
_GRANTS = 5  # leases lost between grant and lock in a row, until that is an error


def connect(target: str | os.PathLike[str] | None = None, timeout: float | None = None) -> Cache:
    """A session with the daemon, which has answered once when this returns.

    target: a socket's address (``ipc:///run/cachecd/cachecd.sock``) or path. None: that in
    $CACHECD_ENDPOINT, or the default, cachecd/cachecd.sock in $XDG_RUNTIME_DIR or else in /run.
    A path that ends in .yaml or .yml is a configuration: then this starts a daemon of its own,
    which ends with the session, and with this process if that comes first.
    timeout: seconds to wait for an answer, now and at each later request; by default 10, or 120
    for a daemon to start. While it is not up, a request is repeated until then.

    DaemonUnreachableError if nobody answers; ProtocolVersionError if it speaks another version;
    CallerError if the target is none, or the daemon refuses the configuration.
    """
    if target is not None and Path(target).suffix in (".yaml", ".yml"):
        daemon = PrivateDaemon(target)
        try:
            transport = Transport(daemon.endpoint)
            _await_start(daemon, transport, _START if timeout is None else timeout)
        except BaseException:
            daemon.close()
            raise
        return Cache(transport, _PATIENCE if timeout is None else timeout, daemon)
    transport = Transport(_endpoint(target, os.environ))
    patience = _PATIENCE if timeout is None else timeout
    transport.ask(AskStatus(_new_id()), patience)
    return Cache(transport, patience)


class Cache:
    """A session with one daemon; made by `connect`.

    Use it as a context manager, or `close()` it. If neither happens, it is closed when it is
    collected or the interpreter exits. Methods may be called from any thread.
    """

    def __init__(
        self, transport: Transport, timeout: float, daemon: PrivateDaemon | None = None
    ) -> None:
        self._transport = transport
        self._timeout = timeout
        self._held: set[HeldLease] = set()
        # No WeakSet, of which no list can be made while another thread adds to it.
        self._epochs: set[weakref.ref[Epoch]] = set()
        self._rank, self._world = local_ranks()
        self._job = job_id()
        self._reads = JobReads(self._rank)
        # Also runs at interpreter exit, while the socket still works.
        self._end = weakref.finalize(self, _end_session, self._held, transport, self._rank, daemon)

    @property
    def endpoint(self) -> str:
        """The socket's address."""
        return self._transport.endpoint

    def acquire(
        self,
        dataset: str,
        epoch: int = 0,
        job: str | None = None,
        timeout: float | None = None,
    ) -> Epoch:
        """The dataset's file set for this epoch, on lease to this process.

        Every rank of `job` on this node that asks for this epoch gets the same set; a later epoch
        sees everything the cache has gained since. While the cache holds less than the
        dataset's `grow.first` (or, pinned, is not whole) it waits, up to `timeout` seconds, and
        says in the log how far it is. `job`: the launcher's id by default.

        AcquireTimeoutError; UnknownDatasetError; RequestError, if the daemon can never grant it;
        DaemonUnreachableError; LeaseLostError, if the leases vanish as soon as they are granted.
        """
        return self._acquire(dataset, epoch, job, timeout, run=None)

    def epochs(
        self,
        dataset: str,
        n: int | None = None,
        job: str | None = None,
        start: int = 0,
        timeout: float | None = None,
        *,
        records: int | None = None,
        steps_per_epoch: int | None = None,
    ) -> Iterator[Epoch]:
        """Epochs `start` .. `n` - 1, each on lease during its step of the loop.

        `records`, in place of `n`: as many epochs as it takes to read so many records over all ranks,
        however the sets grow; the last one is as long as what is left. `steps_per_epoch`: each epoch's
        loaders have so many batches, whatever the set: a small one is read again, in another order; of
        a large one what was not read comes first in the next epoch, also when the set has grown or
        rotated by then. What is not read through a loader counts as the whole set.

        The next set is acquired before the last one is released, so what both hold is never
        evicted in between. If the daemon is unreachable at a boundary, or speaks another version by
        then, the epoch repeats the set it has, reshuffled, and the log says so. Errors: as `acquire`
        for the first epoch, or if the loop released the last one itself; else all but
        DaemonUnreachableError and ProtocolVersionError.
        """
        return self._steps(dataset, Run(n, records, steps_per_epoch, start), job, timeout)

    def report(self, dataset: str | None = None) -> EpochReport:
        """What the epoch that was leased last tells, of this dataset or of any: `Epoch.report`.

        Also after its release. CallerError if this session has leased none.
        """
        return self._reads.report(dataset)

    def status(self) -> dict[str, Any]:
        """The daemon's status document, as `cachecd status --json` prints it."""
        reply = self._ask(AskStatus(_new_id()))
        assert isinstance(reply, StatusReply)
        return reply.status

    def exclude(
        self, dataset: str, key: str, begin: int | None = None, *, undo: bool = False
    ) -> tuple[int, int]:
        """Takes the units of the object `key` (relative to the source's URL) out of the dataset, or only
        the one that begins at its byte `begin`: they are never fetched again, and no later lease names a
        shard with records of theirs. `undo` takes that back.

        How many units it is about, and how many shards are barred for it. RequestError if there is none
        in the listing; UnknownDatasetError; DaemonUnreachableError.
        """
        while True:
            match self._ask(Exclude(_new_id(), dataset, key, begin, undo)):
                case Excluded(_, units, shards):
                    return units, shards
                case Waiting():
                    time.sleep(_SEARCH_POLL)
                case other:
                    raise AssertionError(f"{other} is no answer to Exclude")

    def close(self) -> None:
        """Releases every epoch, and ends the daemon if it is this session's own. Idempotent."""
        for known in list(self._epochs):
            if (epoch := known()) is not None:
                epoch.release()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _steps(
        self, dataset: str, run: Run, job: str | None, timeout: float | None
    ) -> Iterator[Epoch]:
        current: Epoch | None = None
        following: Epoch | None = None
        try:
            while not run.over:
                number = run.number
                try:
                    following = self._acquire(dataset, number, job, timeout, run)
                except (DaemonUnreachableError, ProtocolVersionError) as error:
                    if current is None or current.released:
                        raise  # there is nothing to repeat
                    log.warning(
                        "%s: epoch %d repeats the %d files of the one before: %s",
                        dataset, number, len(current.files), error,
                    )  # fmt: skip
                    following = current.repeated(number)
                    self._know(following)
                else:
                    if current is not None:
                        current.release()
                current = following
                yield current
                current.end()
        finally:
            # Both, because an interrupt may come between the two.
            for epoch in (current, following):
                if epoch is not None:
                    epoch.release()

    def _acquire(
        self, dataset: str, epoch: int, job: str | None, timeout: float | None, run: Run | None
    ) -> Epoch:
        if (epoch := operator.index(epoch)) < 0:
            raise CallerError(f"epoch={epoch}, expected 0 or more")
        reads = self._reads.of(dataset, job or self._job)
        reads.asks()
        wait = Wait(dataset, timeout)
        lost: LeaseLostError | None = None
        with self._transport.conversation() as daemon:
            for _ in range(_GRANTS):
                granted = self._granted(daemon, dataset, epoch, job or self._job, wait)
                try:
                    held = HeldLease(_manifest_path(granted, os.environ))
                except LeaseLostError as error:
                    lost = error
                    continue
                self._held.add(held)
                try:
                    self._say_held(daemon, held)
                    found = Epoch(
                        held,
                        self._transport,
                        self._release,
                        number=epoch,
                        run=run,
                        reads=reads,
                        coverage=granted.coverage,
                    )
                except LeaseLostError as error:
                    self._held.discard(held)
                    held.close()
                    lost = error
                    continue
                except BaseException:
                    self._release(held)
                    raise
                self._know(found)
                return found
        assert lost is not None
        raise lost

    def _know(self, epoch: Epoch) -> None:
        self._epochs.add(weakref.ref(epoch, self._epochs.discard))

    def _granted(
        self, daemon: Conversation, dataset: str, epoch: int, job: str, wait: Wait
    ) -> Granted:
        while True:
            # A new question each time: a repeated id would get the old answer.
            request = Acquire(_new_id(), dataset, job, epoch, self._rank, self._world)
            match self._ask(request, daemon):
                case Granted() as granted:
                    return granted
                case Waiting() as waiting:
                    wait.pause(waiting)
                case other:
                    raise AssertionError(f"{other} is no answer to {request}")

    def _say_held(self, daemon: Conversation, held: HeldLease) -> None:
        try:
            self._ask(Held(_new_id(), held.manifest.lease, self._rank), daemon)
        except DaemonUnreachableError as error:
            # The lock is what counts, and it is there: a daemon that starts again will find it.
            log.warning("%s: leased, but %s", held.manifest.dataset, error)

    def _ask(self, request: Request, daemon: Conversation | None = None) -> Reply:
        if not self._end.alive:
            raise CallerError("this session is closed: connect() again")
        return (daemon or self._transport).ask(request, self._timeout)

    def _release(self, held: HeldLease) -> None:
        try:
            self._held.remove(held)  # of threads that release it at once, one tells the daemon
        except KeyError:
            return
        _release(held, self._transport, self._rank)


def _release(held: HeldLease, transport: Transport, rank: int) -> None:
    if not held.close():
        return  # a forked child's copy; the lease is its parent's
    try:
        transport.ask(Released(_new_id(), held.manifest.lease, rank), _RELEASE_TIMEOUT)
    except CachecdError as error:
        log.debug("release of %s not told: %s", held.manifest.lease, error)


def _end_session(
    held: set[HeldLease],
    transport: Transport,
    rank: int,
    daemon: PrivateDaemon | None,
) -> None:
    with contextlib.suppress(KeyError):
        while True:
            _release(held.pop(), transport, rank)
    if daemon is not None:
        daemon.close()


def _await_start(daemon: PrivateDaemon, transport: Transport, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while True:
        daemon.check()
        try:
            transport.ask(AskStatus(_new_id()), _START_POLL)
            return
        except DaemonUnreachableError as error:
            if time.monotonic() >= deadline:
                raise DaemonUnreachableError(
                    f"the daemon started for {daemon.config} (process {daemon.pid}) did not answer "
                    f"within {timeout:.3g} s and was ended; what it said is on stderr, above"
                ) from error


def _endpoint(target: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> str:
    """The socket's address that `target` and the environment name."""
    named = os.fspath(target) if target is not None else environ.get("CACHECD_ENDPOINT", "")
    if not named:
        named = f"{environ.get('XDG_RUNTIME_DIR') or '/run'}/cachecd/cachecd.sock"
    return named if "://" in named else f"ipc://{named}"


def _manifest_path(granted: Granted, environ: Mapping[str, str]) -> Path:
    """Where this process finds the manifest; a container may see the cache elsewhere."""
    return Path(environ.get("CACHECD_DIR") or granted.cache_dir) / granted.manifest


def _new_id() -> str:
    return uuid.uuid4().hex
