"""The trainer's session with a daemon: `connect` and `Cache`."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from cachecd_client.errors import CallerError
from cachecd_client.loader.loader import Loader
from cachecd_client.loader.options import Options, refuse_unknown
from cachecd_client.loader.reading import place
from cachecd_client.protocol import (
    AskDetails,
    AskStatus,
    Exclude,
    StatusReply,
    Waiting,
    sample_names,
)
from cachecd_client.report.summary import Report
from cachecd_client.runs.agreement import Agreement
from cachecd_client.runs.epoch import Epoch
from cachecd_client.runs.mixture import NO_TF_DATASET, Mixing, Weights
from cachecd_client.runs.run import Run, RunOptions, RunState
from cachecd_client.runs.run_loader import RunLoader, RunLoaderOptions
from cachecd_client.session.acquire import SessionLeases, Wait, new_id
from cachecd_client.session.epochs import Epochs
from cachecd_client.session.private_daemon import PrivateDaemon
from cachecd_client.transport import Transport, endpoint_of

if TYPE_CHECKING:
    import tensorflow

    from cachecd_client.session.tf_run import Numbers, PipelineOptions

_PATIENCE = 10.0  # seconds to wait for a running daemon
_START = 120.0  # seconds to wait for a private daemon, which may have to read a large cache first
# Options of the run. All other options of a RunLoader are options of its loaders.
_OF_RUN = RunOptions.__annotations__.keys()
_SEARCH_POLL = 0.1  # seconds between requests while the daemon searches a listing for a key


def connect(target: str | os.PathLike[str] | None = None, timeout: float | None = None) -> Cache:
    """A session with the daemon, which has answered once when this returns.

    target: the address of a socket (``ipc:///run/cachecd/cachecd.sock``) or its path. None: the address in
    $CACHECD_ENDPOINT, or the default, cachecd/cachecd.sock in $XDG_RUNTIME_DIR or else in /run. A path that
    ends in .yaml or .yml is a configuration: `connect` starts a private daemon, which ends with the
    session, or with this process.
    timeout: seconds to wait for each reply, now and later. Default: 10, and 120 until a private daemon
    answers. A request is repeated until the daemon answers.

    DaemonUnreachableError if no daemon answers; ProtocolVersionError if it has another version; CallerError
    for an impossible target, or if the daemon refuses the configuration.
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
    transport.ask(AskStatus(new_id()), patience)
    return Cache(transport, patience)


class Cache:
    """A session with one daemon; made by `connect`.

    Use it as a context manager, or call `close()`; otherwise the session is closed when it and its epochs
    are collected, or when the interpreter exits. Methods may be called from any thread.
    """

    def __init__(
        self, transport: Transport, timeout: float, daemon: PrivateDaemon | None = None
    ) -> None:
        self._leases = leases = SessionLeases(transport, timeout, daemon)
        self._epochs = Epochs(leases)
        self._numbers: dict[tuple[str, str, int | None], Numbers] = {}

    @property
    def endpoint(self) -> str:
        """The address of the socket."""
        return self._leases.transport.endpoint

    def acquire(
        self, dataset: str, epoch: int = 0, job: str | None = None, timeout: float | None = None
    ) -> Epoch:
        """The dataset's file set for this epoch, leased to this process.

        Every rank of `job` on this node that acquires this epoch gets the same set; the set of a later
        epoch has all shards that were sealed since. Waits, at most `timeout` seconds, until the cache has
        the dataset's `grow.first`, or until a pinned dataset is whole. Meanwhile, logs the progress of
        the cache. `job`: by default the id of the launcher. The nodes of a run do not agree here: if
        several nodes train together, use `epochs`.

        AcquireTimeoutError; UnknownDatasetError; RequestError, if the daemon can never grant the set;
        DaemonUnreachableError; LeaseLostError, if leases end as soon as they are granted.
        """
        return self._epochs.take(dataset, epoch, job, timeout)

    def epochs(
        self, dataset: str | Mixing, n: int | None = None, **options: Unpack[RunOptions]
    ) -> Iterator[Epoch]:
        """Epochs `start` (0) .. `n` - 1, each leased during its step of the loop.

        `records` replaces `n`: the length of the run in records across all ranks, even if the sets grow;
        the last epoch ends when the run has read them. `tokens`: the same in tokens, with padding, if the
        records are windows that the step `pack` made. `steps_per_epoch`: the number of batches in each
        epoch, for every set. A small set is read again, in another order. The unread records of a large set
        are read first in the next epoch, even if the set has grown or rotated. Records that other readers
        take are not counted exactly: the run counts the batches that they were given, or the whole set.

        `dataset` may be a dict of dataset -> weight: then each epoch is a `Mixture`, and the dataset of
        each record is drawn by weight. The dict is read at each boundary. It may be a function, which is
        called at each boundary with the progress of the run, 0..1. An epoch ends when one dataset is read
        completely, or after `records` or `steps_per_epoch`. A dataset with weight 0 is not leased.
        `timeout` applies to each dataset.

        On several nodes, each with its own cache, all ranks of all nodes take the same number of steps. All
        processes of the run agree on this number at each boundary, through torch.distributed or
        jax.distributed if one is initialised when the loop begins. `records` then counts all nodes.
        `agree`: a function that gathers a tuple of numbers from all processes instead (mpi4py's
        `comm.allgather`), or False if processes do not agree.

        `rank`, `world`: the data-parallel replica of which this process holds all or a part, and the number
        of replicas. Give both on all processes if a replica spans processes (tensor parallelism). Processes
        of one rank then read the same records, and the replicas on a node divide its set; nodes with parts
        of one replica divide one set. ReplicasDifferError, on all processes, if the ranks are not exactly
        0 ... world - 1, each on the same number of processes, or if processes of one rank have different
        sets. By default the ranks on this node divide its set.

        The next set is acquired before the last set is released, so no shard of both is evicted in between.
        If the daemon is unreachable at a boundary, or has another version, the epoch repeats its set in
        another order and logs a warning. For the first epoch, or if the loop released the last
        epoch, this raises the errors of `acquire`. Otherwise it raises them except DaemonUnreachableError
        and ProtocolVersionError. OtherNodeError, if another node has an error.

        `state`: the `state_dict()` of a loader in an earlier process. The run continues in the epoch of the
        state, and `start` has no effect. The first loader begins after the last delivered batch; `progress`
        and `steps_per_epoch` continue. If the set is no longer cached, as on an empty disk, the epoch
        starts again with the current set, and logs a warning. A mixture keeps the weights of the state
        until its epoch ends. CallerError for the state of another dataset.
        """
        return self._begin("n", dataset, n, options)

    def numpy(
        self, dataset: str | Mixing, batch_size: int, epochs: int | None = None,
        **options: Unpack[RunLoaderOptions],
    ) -> RunLoader:  # fmt: skip
        """One loader for a run: each `for` loop over it is the next epoch. `RunLoader` has details.

        `epochs`, `records` or `tokens`: the length of the run. `epochs` explains `records`, `tokens`,
        `steps_per_epoch`, `start`, `job`, `timeout`, `agree`, `state`, `rank` and `world`. The epoch's
        `numpy()` takes all other options. `seed` determines the orders; each epoch has another order,
        unless reshuffle=False.
        """
        return self._loader(
            dataset, epochs, options, lambda epoch, own: epoch.numpy(batch_size, **own)
        )

    def torch(
        self, dataset: str | Mixing, batch_size: int, epochs: int | None = None, *, device: Any = None,
        channels_last: bool | Sequence[str] = False, **options: Unpack[RunLoaderOptions],
    ) -> RunLoader:  # fmt: skip
        """Like `numpy`, but the batches are those of `Epoch.torch`."""
        to = {"device": device, "channels_last": channels_last}
        return self._loader(
            dataset, epochs, options, lambda epoch, own: epoch.torch(batch_size, **to, **own)
        )

    def tf(
        self, dataset: str | Mixing, batch_size: int, epochs: int | None = None,
        **options: Unpack[RunLoaderOptions],
    ) -> RunLoader:  # fmt: skip
        """Like `numpy`, but the batches are those of `Epoch.tf`."""
        return self._loader(
            dataset, epochs, options, lambda epoch, own: epoch.tf(batch_size, **own)
        )

    def jax(
        self, dataset: str | Mixing, batch_size: int, epochs: int | None = None, *, device: Any = None,
        **options: Unpack[RunLoaderOptions],
    ) -> RunLoader:  # fmt: skip
        """Like `numpy`, but the batches are those of `Epoch.jax`."""
        return self._loader(
            dataset, epochs, options, lambda epoch, own: epoch.jax(batch_size, device=device, **own)
        )

    def _loader(
        self, dataset: str | Mixing, epochs: int | None, options: RunLoaderOptions,
        make: Callable[[Epoch, Options], Loader],
    ) -> RunLoader:  # fmt: skip
        takes = "a loader of a run takes batch_size, epochs"
        refuse_unknown(options, RunLoaderOptions, takes)
        of_run = {name: value for name, value in options.items() if name in _OF_RUN}
        of_loader = {name: value for name, value in options.items() if name not in _OF_RUN}

        def begin(state: Mapping[str, Any] | None) -> Generator[Epoch, None, None]:
            run = cast(RunOptions, {**of_run, "state": state})
            return self._begin("epochs", dataset, epochs, run)

        return RunLoader(begin, make, cast(Options, of_loader), options.get("state"))

    def _begin(
        self, option: str, dataset: str | Mixing, n: int | None, options: RunOptions
    ) -> Generator[Epoch, None, None]:
        """Like `epochs`. `option`: the caller's name of `n`."""
        refuse_unknown(options, RunOptions, "epochs() takes dataset, n")
        rank, world, state = options.get("rank"), options.get("world"), options.get("state")
        given = None if rank is None and world is None else place(rank, world)
        leases = self._leases
        local = leases.rank, leases.world
        agreement = Agreement(options.get("agree", True), local, given, self.endpoint)
        with agreement.reporting():
            resumed = None if state is None else RunState.of_state(state, dataset)
            start = options.get("start", 0) if resumed is None else resumed.epoch
            length = options.get("records"), options.get("steps_per_epoch")
            run = Run(n, *length, start, options.get("tokens"), option=option)
            if resumed is not None:
                run.resumed(resumed, same=False)
            sets = dataset if isinstance(dataset, str) else Weights(dataset)
        job, timeout = options.get("job"), options.get("timeout")
        return agreement.over(self._epochs.of_run(sets, run, job, timeout, resumed), run)

    def tf_dataset(
        self, dataset: str, batch_size: int, epochs: int | None = None,
        **options: Unpack[PipelineOptions],
    ) -> tensorflow.data.Dataset:  # fmt: skip
        """A stock tf.data pipeline over all epochs: one for a whole `fit`, endless by default.

        Elements are as in `Epoch.tf_dataset`, with the same options (label, shuffle, seed, drop_last,
        pad_last, features, rank, world) and defaults. TensorFlow reads each set to its end; then the
        pipeline acquires the next set, and reports the last set as delivered. A lease ends when the second
        set after its set is acquired, or with the iterator. Without a daemon at a boundary, the pipeline
        repeats the set in another order and logs a warning.

        `epochs`: the number of sets. `start`: the number of the first set, for a run that resumes. Each
        iterator begins with the next set. With tf.distribute, `batch_size` is the global batch size.

        This call acquires the first set; errors as `acquire`. TensorFlow raises errors at a boundary as
        tf.errors.OpError with the message, also the SchemaError if the features have changed.
        """
        given: object = dataset
        if not isinstance(given, str):
            raise CallerError(NO_TF_DATASET)
        from cachecd_client.session import tf_run

        key = dataset, options.get("job") or self._leases.job, options.get("rank")
        numbers = self._numbers.setdefault(key, tf_run.Numbers())
        return tf_run.dataset(
            self._epochs, self.close, dataset, batch_size, numbers, epochs, options
        )

    def input_fn(
        self, dataset: str, batch_size: int, epochs: int | None = None,
        **options: Unpack[PipelineOptions],
    ) -> Callable[[], tensorflow.data.Dataset]:  # fmt: skip
        """`tf_dataset` as the function that an Estimator calls: each call acquires the next set."""
        return partial(self.tf_dataset, dataset, batch_size, epochs, **options)

    def report(self, dataset: str | None = None) -> Report:
        """`Epoch.report` of the last leased epoch of this dataset, or of any dataset; also after its
        release. CallerError if this session has leased no such epoch."""
        return self._leases.reads.report(dataset)

    def status(self) -> dict[str, Any]:
        """The daemon's status document, as `cachecd status --json` prints it."""
        return self._ask(AskStatus(new_id()))

    def why(self, subject: str) -> dict[str, Any]:
        """The history of a shard (`train/42`) or a lease (its name) since the daemon started. `now`: its
        state. `story`: a list of {"at", "what", "reason"}, complete from the time `since` on, in seconds
        since 1970. CallerError if there is no such shard or lease."""
        return self._ask(AskStatus(new_id(), subject))

    def details(self) -> dict[str, Any]:
        """What a bug report needs besides the status: `config` without secrets, and the `story` of all
        shards and leases without keys of objects."""
        return self._ask(AskDetails(new_id()))

    def _ask(self, request: AskStatus | AskDetails) -> dict[str, Any]:
        reply = self._leases.ask(request)
        assert isinstance(reply, StatusReply)
        return reply.status

    def exclude(
        self, dataset: str, *keys: str, samples: Sequence[str | bytes] = (), ahead: bool = False
    ) -> None:
        """Excludes all records of these objects (keys relative to the source's URL) from the dataset: they
        are never fetched again, and no later lease names a shard with one of their records. `samples`: only
        these samples of a single object, a tar, by their `__key__` in the batches.

        Returns when the exclusion survives a power failure, even if a full disk delays this; the log says
        what it waits for. Raises UnknownKeyError, and excludes nothing, in two cases. (1) The source is
        listed, and one of the keys belongs to no object. (2) All records of the object are in shards, but
        one of the samples is not. With `ahead`, such keys and samples are excluded before they exist.
        RequestError: samples cannot be excluded from this dataset; the message says what to do.
        UnknownDatasetError; DaemonUnreachableError.
        """
        wait, names = Wait(dataset, None, _SEARCH_POLL), sample_names(samples)
        while isinstance(
            reply := self._leases.ask(Exclude(new_id(), dataset, list(keys), ahead, names)), Waiting
        ):
            wait.pause(reply)

    def __repr__(self) -> str:
        return f"<Cache of {self.endpoint}>"

    def close(self) -> None:
        """Releases every epoch, and ends the session's private daemon. Idempotent."""
        self._leases.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
