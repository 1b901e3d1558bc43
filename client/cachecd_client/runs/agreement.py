"""The processes of a run compare their ranks and sets, and agree on the steps of each epoch."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import operator
import os
import socket
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cachecd_client.errors import CallerError, OtherNodeError, ReplicasDifferError
from cachecd_client.frameworks.collective import AllGather, gathering
from cachecd_client.loader.reading import Agreed

if TYPE_CHECKING:
    from cachecd_client.runs.epoch import Epoch
    from cachecd_client.runs.run import Run

log = logging.getLogger("cachecd")

_LONG = 10.0  # seconds; longer waits for other nodes are logged
_ROWS = 64  # rows of the table in an error


class AgreementRow(NamedTuple):
    """What each process sends to all processes: before its first epoch, and for each leased set."""

    rank: int
    world: int
    is_given: int  # 1: the caller's rank and world of replicas; 0: the launcher's, on this node
    node: int
    has_failed: int = 0
    epoch: int = 0
    batch: int = 0  # the first batch, from 1, of an epoch that resumes; 0: it does not resume
    set: int = 0  # a hash of the set and its reading order
    lease: int = 0
    records: int = 0
    share: int = 1  # how many ranks divide the set


class Agreement:
    """Lets the processes of one run agree if it has several nodes, or if the caller gives ranks."""

    def __init__(
        self, agree: bool | AllGather, local: tuple[int, int], given: tuple[int, int] | None, endpoint: str
    ) -> None:  # fmt: skip
        """`agree`: as in `Cache.epochs`. `local`: the launcher's rank and world on this node; `given`: the
        caller's. `endpoint`: the socket of the node's daemon. CallerError for an impossible `agree`."""
        if not (isinstance(agree, bool) or callable(agree)):
            raise CallerError(
                f"agree={agree!r}, expected True, False, or a function that gathers a tuple of numbers "
                "from all processes, such as mpi4py's comm.allgather"
            )
        self._agree = agree
        self._processes = local[1]
        self._own = AgreementRow(
            *(given or local), is_given=given is not None, node=_node_of(endpoint)
        )
        self._share = given or local  # this process's rank and world in its node's set

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Within this context, an error is reported to the other nodes, whose runs then fail when they
        begin."""
        try:
            yield
        except Exception as error:
            self._report(error)
            raise

    def over(self, epochs: Generator[Epoch, None, None], run: Run) -> Generator[Epoch, None, None]:
        """Yields these epochs with the agreed number of records, and sets the number of ranks of the run.
        If a node cannot acquire its set, all nodes raise an error; the other nodes raise OtherNodeError. A
        run resumes within an epoch if all nodes can do so, else it starts that epoch again."""
        gather = self._gather()
        with contextlib.closing(epochs):
            if gather is not None:
                run.set_ranks(*self._begin(gather, run.number))
            first = True
            while True:
                try:
                    epoch = next(epochs, None)
                except Exception as error:
                    self._report(error)
                    raise
                if epoch is None:
                    return
                if self._own.is_given:
                    epoch.share((self._own.rank, self._own.world), self._share)
                if gather is not None:
                    rows = self._rows_of(gather, epoch)
                    epoch.agree(self._steps(rows, epoch))
                    if first and len({row.batch for row in rows}) > 1:
                        if epoch.place:
                            log.warning(
                                "%s: epoch %d starts again, because other nodes no longer have the sets of "
                                "their states",
                                epoch.dataset, epoch.epoch,
                            )  # fmt: skip
                        epoch.drop_state()
                first = False
                yield epoch

    def _gather(self) -> AllGather | None:
        if callable(self._agree):
            return self._agree
        # Given ranks are compared even on a single node.
        return gathering(1 if self._own.is_given else self._processes) if self._agree else None

    def _exchange(self, gather: AllGather, what: str, own: AgreementRow) -> list[AgreementRow]:
        try:
            return [AgreementRow(*map(operator.index, row)) for row in gather(tuple(map(int, own)))]
        except Exception as error:
            error.add_note(f"The nodes were agreeing on {what}.")
            raise

    def _report(self, error: Exception) -> None:
        if (gather := self._gather()) is None:
            return
        log.error("this error ends the run on all nodes, when they reach this point: %s", error)
        # If this also fails, the first error is still the reason.
        with contextlib.suppress(Exception):
            self._exchange(gather, "a failure", self._own._replace(has_failed=1))

    def _begin(self, gather: AllGather, number: int) -> tuple[int, int]:
        """Compares the first epochs and the ranks of all processes. Returns the number of ranks that divide
        this node's set, and the number of ranks of the run."""
        own = self._own
        rows = self._exchange(gather, "the epoch to begin with", own._replace(epoch=number))
        if len(rows) < self._processes:
            raise CallerError(
                f"agree= gathered {len(rows)} rows, but this node alone has {self._processes} ranks: "
                "expected one row from each process that trains"
            )
        _refuse_failed(rows, "could not begin")
        if len(numbers := {row.epoch for row in rows}) > 1:
            raise CallerError(
                f"this process begins with epoch {number}, all processes with {sorted(numbers)}: "
                "give all processes the same start=, or states of the same step"
            )
        if not any(row.is_given for row in rows):
            return own.world, len(rows)
        processes = Counter(row.rank for row in rows)
        if (
            {(row.is_given, row.world) for row in rows} != {(1, len(processes))}
            or set(processes) != set(range(len(processes)))
            or len(set(processes.values())) > 1
        ):
            raise ReplicasDifferError(
                "rank= and world= do not name replicas: expected world=N on all processes, and each rank "
                "from 0 to N-1 on the same number of processes\n" + _table(rows)
            )
        ranks = ranks_of_one_set(own.rank, rows)
        self._share = ranks.index(own.rank), len(ranks)
        return len(ranks), own.world

    def _rows_of(self, gather: AllGather, epoch: Epoch) -> list[AgreementRow]:
        """Returns the rows of all processes for their sets; ReplicasDifferError if the rows do not fit
        together."""
        own = self._own._replace(
            epoch=epoch.epoch,
            batch=epoch.place,
            set=_number_of(epoch.fingerprint, epoch.seed, epoch.window),
            lease=_number_of(self._own.node, epoch.lease),
            records=epoch.length,
            share=self._share[1],
        )
        what = f"the steps of epoch {epoch.epoch} of {epoch.dataset!r}"
        began = time.monotonic()
        rows = self._exchange(gather, what, own)
        if (waited := time.monotonic() - began) >= _LONG:
            log.info("%s: waited %.0f s for the sets of the other nodes", epoch.dataset, waited)
        of_epoch = f"epoch {epoch.epoch} of {epoch.dataset!r}: "
        _refuse_failed(rows, "could not take their set", of_epoch)
        if own.is_given:
            if len({(row.rank, row.set) for row in rows}) > own.world:
                raise ReplicasDifferError(
                    f"{of_epoch}processes that hold one replica have different sets, or read them in "
                    f"different orders (here: set {epoch.fingerprint}, seed {epoch.seed}, window "
                    f"{epoch.window}). Give these nodes the same source, `partition` and `seed`, `grow: "
                    "{wait: true}` or `pin: true`, and one `cache.window`. A node that finds no daemon at "
                    f"a boundary repeats its set in another order\n{_table(rows)}"
                )
        else:
            places = {(row.lease, row.rank) for row in rows}
            worlds = {(row.lease, row.world) for row in rows}
            if len(places) < len(rows) or len(worlds) > len({row.lease for row in rows}):
                raise ReplicasDifferError(
                    f"{of_epoch}processes that share a lease would read the same records, because their "
                    "LOCAL_RANK is equal or their LOCAL_WORLD_SIZE differs. Set both as torchrun does, or "
                    f"give epochs() rank= and world=\n{_table(rows)}"
                )
        return rows

    def _steps(self, rows: Sequence[AgreementRow], epoch: Epoch) -> Agreed:
        """Returns how many records of this set to read, so that all ranks of all nodes read as many."""
        _, world = self._share
        least = min(row.records // row.share for row in rows) * world
        most = max(-(-row.records // row.share) for row in rows) * world
        if least + world <= epoch.length and not epoch.pinned:
            log.info(
                "%s: epoch %d reads %d of %d records, because the ranks of the smallest node have no more",
                epoch.dataset, epoch.epoch, least, epoch.length,
            )  # fmt: skip
        return Agreed(least, most)


def ranks_of_one_set(rank: int, rows: Sequence[AgreementRow]) -> list[int]:
    """Returns the replicas that divide one set with this replica: the replicas on the same nodes, and on
    every node that holds a part of such a replica."""
    ranks: set[int] = set()
    grown = {rank}
    while grown != ranks:
        ranks = grown
        nodes = {row.node for row in rows if row.rank in ranks}
        grown = {row.rank for row in rows if row.node in nodes}
    return sorted(ranks)


def _refuse_failed(rows: Sequence[AgreementRow], what: str, of_epoch: str = "") -> None:
    if failed := [process for process, row in enumerate(rows) if row.has_failed]:
        raise OtherNodeError(
            f"{of_epoch}{len(failed)} of {len(rows)} processes {what}; the log of the first, process "
            f"{failed[0]}, has the reason"
        )


def _table(rows: Sequence[AgreementRow]) -> str:
    lines = ["process   rank  world  set"]
    for process, row in enumerate(rows[:_ROWS]):
        rank, world = (row.rank, row.world) if row.is_given else ("local", "-")
        lines.append(
            f"{process:7}  {rank:>5}  {world:>5}  " + (f"{row.set:016x}" if row.set else "-")
        )
    if (more := len(rows) - _ROWS) > 0:
        lines.append(f"and {more} more")
    return "\n".join(lines)


def _node_of(endpoint: str) -> int:
    """Returns a number for the node, equal in all processes that share the daemon at this address."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read()
    except OSError:
        boot = ""
    return _number_of(boot, socket.gethostname(), os.path.realpath(endpoint.removeprefix("ipc://")))


def _number_of(*values: object) -> int:
    """Returns a hash of these plain values, below 2**62."""
    return int.from_bytes(hashlib.sha256(repr(values).encode()).digest()[:8], "big") >> 2
