"""The trainer's session with a daemon: connect, take leases, give them back."""

from __future__ import annotations

import logging
import operator
import os
import uuid
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, Unpack

from cachecd_client.acquiring import Acquiring, Asker, on_lease
from cachecd_client.agreement import Agreement, AllGather
from cachecd_client.ending import end_session, release
from cachecd_client.epoch import Epoch
from cachecd_client.errors import (
    CallerError,
    DaemonUnreachableError,
    LeaseLostError,
    ProtocolVersionError,
)
from cachecd_client.launcher import job_id, local_ranks
from cachecd_client.lease import HeldLease, manifest_path
from cachecd_client.leased import LeasedSet
from cachecd_client.mixture import NO_TF_DATASET, Mixture
from cachecd_client.private_daemon import PrivateDaemon
from cachecd_client.protocol import (
    AskStatus,
    Exclude,
    Held,
    Reply,
    Request,
    StatusReply,
    Waiting,
)
from cachecd_client.reading import place
from cachecd_client.reads import JobReads
from cachecd_client.report import Report
from cachecd_client.run import Run
from cachecd_client.standing import LeftSet, Standing
from cachecd_client.transport import Conversation, Transport, endpoint_of
from cachecd_client.waiting import Wait
from cachecd_client.weights import Mixing, Weights

if TYPE_CHECKING:
    import tensorflow

    from cachecd_client.tf_run import Numbers, RunOptions

log = logging.getLogger("cachecd")

_PATIENCE = 10.0  # seconds for a daemon that somebody else starts
_START = 120.0  # seconds for one that is started here: it may have a large cache to look through
_RESTART = 2.0  # seconds for one that has ended to be started again, at an epoch's boundary
_SEARCH_POLL = 0.1  # of a listing of millions, for a key
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
            daemon.await_answer(transport, _START if timeout is None else timeout)
        except BaseException:
            daemon.close()
            raise
        return Cache(transport, _PATIENCE if timeout is None else timeout, daemon)
    transport = Transport(endpoint_of(target, os.environ))
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
        self._is_alone = False  # no daemon answered at the last boundary
        self._numbers: dict[tuple[str, str, int | None], Numbers] = {}
        # Also runs at interpreter exit, while the socket still works.
        self._end = weakref.finalize(
            self, end_session, self._held, self._epochs, transport, self._rank, daemon
        )

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
        says in the log how far it is. `job`: the launcher's id by default. Nodes agree on
        nothing here; if several train together, use `epochs`.

        AcquireTimeoutError; UnknownDatasetError; RequestError, if the daemon can never grant it;
        DaemonUnreachableError; LeaseLostError, if the leases vanish as soon as they are granted.
        """
        return self.take(dataset, epoch, job, timeout)

    def take(
        self, dataset: str, epoch: int, job: str | None, timeout: float | None,
        before: Epoch | None = None,
    ) -> Epoch:  # fmt: skip
        """As `acquire`; reports what was delivered of the epoch before."""
        asker = self._asker(epoch, job, timeout, before)
        return self._known(Epoch(self._acquire(asker, dataset)))

    def epochs(
        self,
        dataset: str | Mixing,
        n: int | None = None,
        job: str | None = None,
        start: int = 0,
        timeout: float | None = None,
        *,
        records: int | None = None,
        steps_per_epoch: int | None = None,
        agree: bool | AllGather = True,
        state: Mapping[str, Any] | None = None,
        rank: int | None = None,
        world: int | None = None,
    ) -> Iterator[Epoch]:
        """Epochs `start` .. `n` - 1, each on lease during its step of the loop.

        `records`, in place of `n`: as many epochs as it takes to read so many records over all ranks,
        however the sets grow; the last one is as long as what is left. `steps_per_epoch`: each epoch's
        loaders have so many batches, whatever the set: a small one is read again, in another order; of
        a large one what was not read comes first in the next epoch, also when the set has grown or
        rotated by then. What nobody here counts is taken to be what was asked for, or the whole set.

        `dataset` may be a dict of dataset -> weight: then each epoch is a `Mixture`, and the dataset of
        each record is drawn by weight. The dict is read anew at each boundary; a function in its place is
        called there with the run's progress, 0..1. An epoch ends with the first dataset that is through;
        `records` and `steps_per_epoch` are as for one dataset. A dataset of weight 0 is not leased.
        `timeout` is for each dataset.

        Over several nodes, each with a cache of its own, every rank of every node takes as many steps: at
        each boundary all processes of the run agree on it, through torch.distributed or jax.distributed if
        one is initialised when the loop begins. `records` are then those of all nodes. `agree`: in place of
        these, a function that gathers a tuple of numbers from all processes (mpi4py's `comm.allgather`); or
        False, where each process is for itself.

        `rank`, `world`: the data-parallel replica that this process holds, or holds a part of, and how many
        replicas the run has. Give both on all processes if a replica spans processes, as under tensor
        parallelism. Processes of one rank then read the same records, and each node's set is divided among
        the replicas on that node; nodes that hold parts of one replica divide one set. ReplicasDifferError,
        on all processes, if the ranks are not exactly 0 ... world - 1, each on as many processes, or if
        processes of one rank have different sets. Without them the ranks on this node divide its set.

        The next set is acquired before the last one is released, so what both hold is never
        evicted in between. If the daemon is unreachable at a boundary, or speaks another version by
        then, the epoch repeats the set it has, reshuffled, and the log says so. Errors: as `acquire`
        for the first epoch, or if the loop released the last one itself; else all but
        DaemonUnreachableError and ProtocolVersionError. OtherNodeError, if another node has one of these.

        `state`: what a loader of an earlier process's epoch gave by `state_dict()`: the first epoch is that
        one, whatever `start`, its first loader begins after the batch that was delivered last, and
        `progress` and `steps_per_epoch` go on. Where the set is gone, as on an empty disk, the epoch begins
        anew with the set that is cached now, and the log says so.
        A mixture's state has its weights, which count to the end of its epoch. CallerError for the state of
        another dataset.
        """
        given = None if rank is None and world is None else place(rank, world)
        agreement = Agreement(agree, (self._rank, self._world), given, self.endpoint)
        with agreement.telling():
            standing = None if state is None else Standing.of_state(state, dataset)
            start = start if standing is None else standing.epoch
            run = Run(n, records, steps_per_epoch, start)
            if standing is not None:
                run.resumed(standing, same=False)
            sets = dataset if isinstance(dataset, str) else Weights(dataset)
        return agreement.over(self._steps(sets, run, job, timeout, standing), run)

    def tf_dataset(
        self,
        dataset: str,
        batch_size: int,
        epochs: int | None = None,
        **options: Unpack[RunOptions],
    ) -> tensorflow.data.Dataset:
        """A stock tf.data pipeline over epoch after epoch: one for a whole `fit`, endless by default.

        Elements are those of `Epoch.tf_dataset`, with the same options (label, shuffle, seed,
        drop_last, pad_last, features, rank, world) and defaults. TensorFlow reads each set to its end; then
        the pipeline takes the next set, which reports the last one as delivered. A lease ends when the set
        after the next is taken, or with the iterator. Without a daemon at a boundary the set is
        repeated, reshuffled, and the log says so.

        `epochs`: end after so many sets. `start`: the first set's number, for a run that resumes. Each
        iterator begins with the next set. With tf.distribute, `batch_size` is the global one.

        The first set is acquired here; errors as `acquire`. Errors at a boundary come out of TensorFlow
        as tf.errors.OpError with the message, a SchemaError too if the features have changed by then.
        """
        given: object = dataset
        if not isinstance(given, str):
            raise CallerError(NO_TF_DATASET)
        from cachecd_client import tf_run

        key = dataset, options.get("job") or self._job, options.get("rank")
        numbers = self._numbers.setdefault(key, tf_run.Numbers())
        return tf_run.dataset(self, dataset, batch_size, numbers, epochs=epochs, **options)

    def input_fn(
        self,
        dataset: str,
        batch_size: int,
        epochs: int | None = None,
        **options: Unpack[RunOptions],
    ) -> Callable[[], tensorflow.data.Dataset]:
        """`tf_dataset` as the function that an Estimator calls: each call takes the next set on lease."""
        return partial(self.tf_dataset, dataset, batch_size, epochs, **options)

    def report(self, dataset: str | None = None) -> Report:
        """What the epoch that was leased last tells, of this dataset or of any: `Epoch.report`.

        Also after its release. CallerError if this session has leased none.
        """
        return self._reads.report(dataset)

    def status(self) -> dict[str, Any]:
        """The daemon's status document, as `cachecd status --json` prints it."""
        reply = self._ask(AskStatus(_new_id()))
        assert isinstance(reply, StatusReply)
        return reply.status

    def exclude(self, dataset: str, *keys: str) -> None:
        """Takes all records of these objects (keys relative to the source's URL) out of the dataset: they
        are never fetched again, and no later lease names a shard with a record of theirs.

        Returns when that outlives a power failure, however long a full disk puts that off; the log says
        what it waits for. UnknownDatasetError; DaemonUnreachableError.
        """
        wait = Wait(dataset, None, _SEARCH_POLL)
        while isinstance(reply := self._ask(Exclude(_new_id(), dataset, list(keys))), Waiting):
            wait.pause(reply)

    def close(self) -> None:
        """Releases every epoch, and ends the daemon if it is this session's own. Idempotent."""
        for known in list(self._epochs):
            if (epoch := known()) is not None:
                epoch.release()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _steps(
        self, sets: str | Weights, run: Run, job: str | None, timeout: float | None,
        standing: Standing | None,
    ) -> Generator[Epoch, None, None]:  # fmt: skip
        current: Epoch | None = None
        following: Epoch | None = None
        try:
            while not run.over:
                number = run.number
                asker = self._asker(number, job, timeout, current)
                weights: Mapping[str, float] = {}
                if standing is not None and not standing.over:
                    weights = standing.weights  # of an epoch, whatever its caller wants by now
                elif isinstance(sets, Weights):
                    weights = sets.at(run.progress(number, 0.0, run.read))
                datasets = sets if isinstance(sets, str) else weights
                acquire = partial(self._epoch, asker, datasets, run, standing)
                following = self.following(current, number, acquire, weights)
                standing = None
                if current is not None:
                    current.release()
                current = following
                yield current
                current.end()
        finally:
            # Both, because an interrupt may come between the two, or while one is released.
            with ExitStack() as releasing:
                for epoch in (current, following):
                    if epoch is not None:
                        releasing.callback(epoch.release)

    def following(
        self, current: Epoch | None, number: int, acquire: Callable[[], Epoch],
        weights: Mapping[str, float] = MappingProxyType({}),
    ) -> Epoch:  # fmt: skip
        """Epoch `number`: what `acquire` returns, or without a daemon `current`'s set again, reshuffled.

        A daemon that has ended has a moment to be started again, at the first boundary that lacks it.
        """
        if current is None or current.released:
            return acquire()  # there is nothing to repeat
        current.count_delivered()
        try:
            self._transport.await_owner(0.0 if self._is_alone else min(_RESTART, self._timeout))
            epoch = acquire()
        except (DaemonUnreachableError, ProtocolVersionError) as error:
            self._is_alone = True
            log.warning(
                "%s: epoch %d repeats the %d files of the epoch before: %s",
                current.dataset, number, len(current.files), error,
            )  # fmt: skip
            return self._known(current.repeated(number, weights))
        self._is_alone = False
        return epoch

    def _epoch(
        self, asker: Asker, sets: str | Mapping[str, float], run: Run, standing: Standing | None
    ) -> Epoch:
        """The run's next one, of a dataset or of several by weights; or, where an earlier process left
        it, that one."""
        # In one order on all ranks, so that they wait for the same set and meet the same error.
        if standing is not None and not standing.over:
            names = sorted(standing.sets)  # with those too that had no weight any more
        elif isinstance(sets, str):
            names = [sets]
        else:
            names = sorted(name for name, share in sets.items() if share)
        lease, begin = partial(self._acquire, asker), partial(self._begin, asker)
        with on_lease(names, lease, begin, standing) as (leased, same):
            resumed = standing if same else None
            if standing is not None:
                run.resumed(standing, same, standing.is_ahead_of(leased))
            if isinstance(sets, str):
                return self._known(Epoch(leased[0], run, resumed))
            return self._known(Mixture(leased, sets, run, resumed))

    def _asker(
        self, epoch: int, job: str | None, timeout: float | None, before: Epoch | None
    ) -> Asker:
        if (epoch := operator.index(epoch)) < 0:
            raise CallerError(f"epoch={epoch}, expected 0 or more")
        leases = {} if before is None else before.leases
        return Asker(job or self._job, epoch, self._rank, self._world, timeout, leases)

    def _begin(self, asker: Asker, dataset: str, left: LeftSet) -> None:
        with self._transport.conversation() as daemon:
            Acquiring(partial(self._ask, daemon=daemon), dataset, asker, left).begin()

    def _acquire(self, asker: Asker, dataset: str, left: LeftSet | None = None) -> LeasedSet:
        reads = self._reads.of(dataset, asker.job)
        reads.asks()
        lost: LeaseLostError | None = None
        with self._transport.conversation() as daemon:
            acquiring = Acquiring(partial(self._ask, daemon=daemon), dataset, asker, left)
            for _ in range(_GRANTS):
                granted = acquiring.granted()
                try:
                    held = HeldLease(manifest_path(granted, os.environ))
                except LeaseLostError as error:
                    lost = error
                    continue
                self._held.add(held)
                try:
                    # The lock is what counts: nothing is waited for.
                    daemon.tell(Held(_new_id(), held.manifest.lease, asker.rank))
                    return LeasedSet(
                        held,
                        self._transport,
                        self._release,
                        number=asker.epoch,
                        reads=reads,
                        coverage=granted.coverage,
                    )
                except BaseException:
                    self._release(held)
                    raise
        assert lost is not None
        raise lost

    def _known(self, epoch: Epoch) -> Epoch:
        self._epochs.add(weakref.ref(epoch, self._epochs.discard))
        return epoch

    def _ask(self, request: Request, daemon: Conversation | None = None) -> Reply:
        if not self._end.alive:
            raise CallerError("this session is closed: connect() again")
        return (daemon or self._transport).ask(request, self._timeout)

    def _release(self, held: HeldLease) -> None:
        try:
            self._held.remove(held)  # of threads that release it at once, one tells the daemon
        except KeyError:
            return
        release(held, self._transport, self._rank)


def _new_id() -> str:
    return uuid.uuid4().hex
