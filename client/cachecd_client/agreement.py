"""What the trainers of several nodes agree on at each epoch: their sets differ, their steps must not."""

from __future__ import annotations

import contextlib
import logging
import operator
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cachecd_client.errors import CallerError, OtherNodeError
from cachecd_client.replicas import Replica, Sharing, refuse_different, replica_of

if TYPE_CHECKING:
    from cachecd_client.epoch import Epoch
    from cachecd_client.run import Run

log = logging.getLogger("cachecd")

# Gives a number to each process that trains, and returns those of all, in the processes' order.
AllGather = Callable[[int], Sequence[int]]

_FAILED = -1
_MESH = 1 << 40  # is added to the first number by who has a mesh, and agrees on more than others
_COUNT = 1 << 24  # of replicas
_LONG = 10.0  # seconds of waiting for other nodes that are worth a line


class Agreed(NamedTuple):
    """How much of its set a node reads, so that each rank of each node takes as many steps."""

    least: int
    """Records of the set that are read, where batches have to be full."""
    most: int
    """Its records and the padding that comes behind them, where all have to be read."""


_DIFFERING = {
    "the set's fingerprint": "give these nodes one configuration, with the same source, `partition` and "
    "`seed`, and `grow: {wait: true}` or `pin: true`",
    "the order's seed": "give these nodes the same `seed`; without a daemon at a boundary a node repeats "
    "its set in another order",
    "the shuffle window": "set `cache.window` to one figure on these nodes; by default it follows their "
    "memory",
}


class Agreement:
    """How the processes of one run agree, if it has other nodes than this one, or a mesh."""

    def __init__(
        self, agree: bool | AllGather, world: int, mesh: Any = None, node: int = 0
    ) -> None:
        """`agree`: as in `Cache.epochs`. `world`: the processes on this node, whose number is `node`.

        `mesh`: by which replicas are found. CallerError for what cannot be.
        """
        if not (isinstance(agree, bool) or callable(agree)):
            raise CallerError(
                f"agree={agree!r}, expected True, False, or a function that gathers a number from all "
                "processes, such as mpi4py's comm.allgather"
            )
        self._agree = agree
        self._processes = world
        self._world = world  # ranks that divide this node's set
        self._node = node
        self._has_mesh = mesh is not None
        self._replica: Replica | None = None
        self._sharing: Sharing | None = None
        if mesh is not None:
            with self.telling():
                self._replica = replica_of(mesh)
                if agree is False and gathering(1) is not None:
                    raise CallerError(
                        "agree=False, mesh=: which replicas a node has is found by agreeing, and that each "
                        "has one set; give loaders rank= and world= instead"
                    )

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """What fails before the run begins fails on the other nodes, too, where they begin."""
        try:
            yield
        except Exception as error:
            if (gather := self._gather()) is not None:
                self._tell(gather, error)
            raise

    def over(self, epochs: Generator[Epoch, None, None], run: Run) -> Generator[Epoch, None, None]:
        """These epochs, each of which knows what was agreed on; and the run, how many ranks it has.

        An epoch that cannot be is an error on all nodes, OtherNodeError where it is another's. A run that
        resumes goes on where it was left if all nodes do, else it begins that epoch anew.
        """
        gather = self._gather()
        with contextlib.closing(epochs):
            if gather is not None:
                every = self._begun(gather, run.number)
                run.among(self._world, every)
            first = True
            while True:
                try:
                    epoch = next(epochs, None)
                except Exception as error:
                    if gather is not None:
                        self._tell(gather, error)
                    raise
                if epoch is None:
                    return
                self._share(gather, epoch)
                if gather is not None and first:
                    self._go_on(gather, epoch)
                first = False
                yield epoch

    def one(self, number: int, acquire: Callable[[], Epoch]) -> Epoch:
        """The epoch of this number that is acquired, by hand, by all processes at once."""
        gather = self._gather()
        if gather is not None:
            self._begun(gather, number)
        try:
            epoch = acquire()
        except Exception as error:
            if gather is not None:
                self._tell(gather, error)
            raise
        try:
            self._share(gather, epoch)
        except BaseException:
            epoch.release()
            raise
        return epoch

    def _gather(self) -> AllGather | None:
        if callable(self._agree):
            return self._agree
        # Processes of one replica agree on one node, too.
        return gathering(1 if self._has_mesh else self._processes) if self._agree else None

    def _tell(self, gather: AllGather, error: Exception) -> None:
        log.error("telling the other nodes, once they have come as far: %s", error)
        # Whatever comes of it, the reason is the one above.
        with contextlib.suppress(Exception):
            gather(_FAILED)

    def _share(self, gather: AllGather | None, epoch: Epoch) -> None:
        """How much of it is read, and by which of how many ranks."""
        if gather is not None:
            epoch.agree(self._reached(gather, epoch))
        if self._replica is None:
            return
        if gather is None:
            epoch.share(self._replica, (self._replica.number, self._replica.count))
            return
        assert self._sharing is not None
        said = (epoch.fingerprint, epoch.seed, epoch.window)
        refuse_different(
            lambda number, what: self._gathered(gather, number, f"{what} in epoch {epoch.epoch}"),
            self._sharing.sets,
            dict(zip(_DIFFERING, said, strict=True)),
            _DIFFERING,
        )
        rank = self._sharing.replicas.index(self._replica.number)
        epoch.share(self._replica, (rank, len(self._sharing.replicas)))

    def _begun(self, gather: AllGather, number: int) -> int:
        """How many ranks all nodes have, which all begin with epoch `number`."""
        begins = number + _MESH * self._has_mesh
        found = self._gathered(gather, begins, "the epoch to begin with")
        if len(found) < self._processes:
            raise CallerError(
                f"agree= gathered {len(found)} numbers where this node alone has {self._processes} ranks: "
                "expected one from each process that trains"
            )
        if _FAILED in found:
            raise OtherNodeError(
                f"{found.count(_FAILED)} of {len(found)} processes could not begin, the first is process "
                f"{found.index(_FAILED)}: its log says why"
            )
        if len({one // _MESH for one in found}) > 1:
            raise CallerError(
                "mesh= was given by some processes of the run and not by others: expected the same mesh "
                "in all"
            )
        found = [one % _MESH for one in found]
        if len(set(found)) > 1:
            raise CallerError(
                f"this process begins with epoch {number}, others with epochs {sorted(set(found))}: give "
                "all of them the same start=, or states of the same step"
            )
        if self._replica is None:
            return len(found)
        own = self._replica.number, self._node
        told = own[0] * _COUNT + self._replica.count
        told_by_all = self._gathered(gather, told, "who holds which replica")
        nodes = self._gathered(gather, own[1], "who is on which node")
        self._sharing = Sharing.of(own, [one // _COUNT for one in told_by_all], nodes)
        # Seen on all processes, so that none waits for another.
        if {one % _COUNT for one in told_by_all} != {self._sharing.count}:
            raise CallerError(
                f"mesh=: it has {self._replica.count} replicas here, and the {len(nodes)} processes that "
                f"agree hold {self._sharing.count}: expected the same mesh in all processes of the run"
            )
        self._world = len(self._sharing.replicas)
        return self._sharing.count

    def _go_on(self, gather: AllGather, epoch: Epoch) -> None:
        """Whether the first epoch goes on where it was left: on all nodes or on none."""
        own = epoch.place
        found = self._gathered(gather, own, f"where epoch {epoch.epoch} goes on")
        if len(set(found)) == 1:
            return
        if own:
            log.warning(
                "%s: epoch %d begins anew, as other nodes have not got the sets of their states any more",
                epoch.dataset, epoch.epoch,
            )  # fmt: skip
        epoch.begin_anew()

    def _gathered(self, gather: AllGather, number: int, what: str) -> list[int]:
        try:
            return [operator.index(one) for one in gather(number)]
        except Exception as error:
            error.add_note(f"The nodes were agreeing on {what}.")
            raise

    def _reached(self, gather: AllGather, epoch: Epoch) -> Agreed:
        """What all of them agree on."""
        each, odd = divmod(epoch.length, self._world)
        began = time.monotonic()
        # In halves: both what each rank here has at least and what one has at most are in it.
        what = f"the steps of epoch {epoch.epoch} of {epoch.dataset!r}"
        found = self._gathered(gather, 2 * each + bool(odd), what)
        if (waited := time.monotonic() - began) >= _LONG:
            log.info("%s: waited %.0f s for the sets of the other nodes", epoch.dataset, waited)
        if failed := [process for process, number in enumerate(found) if number == _FAILED]:
            raise OtherNodeError(
                f"epoch {epoch.epoch} of {epoch.dataset!r}: {len(failed)} of {len(found)} processes "
                f"could not take their set, the first is process {failed[0]}: its log says why"
            )
        agreed = Agreed(min(found) // 2 * self._world, (max(found) + 1) // 2 * self._world)
        if agreed.least + self._world <= epoch.length and not epoch.pinned:
            log.info(
                "%s: epoch %d reads %d of %d records, as many a rank as where there are fewest",
                epoch.dataset, epoch.epoch, agreed.least, epoch.length,
            )  # fmt: skip
        return agreed


def gathering(world: int) -> AllGather | None:
    """By what this process trains with others, more than `world` in all; None if it does not.

    A framework that is not imported is not what it trains with.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return _by_torch if dist.get_world_size() > world else None
    jax: Any = sys.modules.get("jax")
    # Asked how many processes there are, JAX takes its devices; so not where it is merely imported.
    if jax is not None and getattr(jax.distributed, "is_initialized", lambda: True)():
        return _by_jax if jax.process_count() > world else None
    return None


def _by_torch(number: int) -> list[int]:
    import torch
    import torch.distributed as dist

    # "cpu:gloo,cuda:nccl" names what there is a backend for.
    kinds = [each.partition(":")[0] for each in dist.get_backend_config().split(",")]
    device = "cpu" if "cpu" in kinds else kinds[0]
    own = torch.tensor([number], dtype=torch.int64, device=device)
    every = torch.empty(dist.get_world_size(), dtype=torch.int64, device=device)
    dist.all_gather([*every[:, None]], own)
    found: list[int] = every.tolist()
    return found


def _by_jax(number: int) -> list[int]:
    import numpy as np
    from jax.experimental import multihost_utils

    # Two halves, as JAX would narrow 64 bits.
    high, low = divmod(number, 1 << 31)
    every = multihost_utils.process_allgather(np.array([high, low], np.int32))
    return [(int(one) << 31) + int(other) for one, other in every]
