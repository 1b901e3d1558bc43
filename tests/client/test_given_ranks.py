"""Processes that hold parts of one replica read the same records: rank= and world=, compared over gloo."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd_client.errors import CachecdError, ReplicasDifferError
from cachecd_client.runs.agreement import AgreementRow, ranks_of_one_set
from cachecd_client.session.cache import connect
from tests.client.conftest import CacheDir, ScriptedDaemon, lending
from tests.client.records import labels
from tests.core.processes import in_children
from tests.frameworks import torch

BATCH = 2


@pytest.fixture
def node(daemon, tmp_path) -> Callable[..., ScriptedDaemon]:
    """Starts a node's daemon, which grants as many shards of ten records in each of two epochs."""

    def start(name: str, shards: int, **changes) -> ScriptedDaemon:
        root = tmp_path / name
        root.mkdir()
        for epoch in range(2):
            options = {"epoch": epoch, "seed": epoch, **changes}
            CacheDir(root).manifest(f"train-{epoch}", shards, **options)

        return daemon(lending(lambda request: root / f"leases/train-{request.epoch}.json"))

    return start


def process(rank: int, meeting: Path, work: Callable[[int], object]):
    """What `work` gives in process `rank` of four, two on each node; or the error."""
    os.environ |= {"LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2"}
    patience = timedelta(seconds=30)
    way = {"init_method": f"file://{meeting}", "timeout": patience}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=4, **way)
    try:
        return work(rank)
    except CachecdError as error:
        return f"{type(error).__name__}: {error}"


@pytest.fixture
def four(tmp_path):
    assert torch.distributed.is_available()  # imported once, before the processes are forked

    def run(work):
        meeting = tmp_path / "meeting"
        return in_children(*(partial(process, rank, meeting, work) for rank in range(4)))

    return run


WITHIN = [0, 0, 1, 1]  # the replica of each process: each node holds one
SPANNING = [0, 1, 0, 1]  # both nodes hold a part of both


def train(nodes, ranks, rank: int, **run):
    """(rank, world, labels) of each epoch."""
    found = []
    with connect(nodes[rank // 2].endpoint) as cache:
        for epoch in cache.epochs("train", 2, rank=ranks[rank], world=2, **run):
            loader = epoch.torch(BATCH)
            assert len(loader) == len(epoch.to_dataset(BATCH))
            found.append([loader.rank, loader.world, labels(loader)])
    return found


def test_processes_of_one_replica_read_the_same(node, four):
    nodes = node("small", 2), node("large", 3)
    found = four(partial(train, nodes, WITHIN))
    assert (found[0], found[2]) == (found[1], found[3])
    for epochs in found:
        assert [(rank, world, len(read)) for rank, world, read in epochs] == [(0, 1, 20)] * 2
    assert not set(found[2][0][2]) <= set(range(20)), "of its own set"


def test_replicas_that_span_nodes_divide_one_set(node, four):
    nodes = node("one", 2), node("other", 2)
    found = four(partial(train, nodes, SPANNING))
    assert (found[0], found[1]) == (found[2], found[3])
    for (rank, world, here), (_, _, there) in zip(*found[:2], strict=True):
        assert (rank, world) == (0, 2)
        assert sorted(here + there) == list(range(20))


def refusals(*attempts):
    """The message with which each of them is refused."""
    found = []
    for attempt in attempts:
        with pytest.raises(ReplicasDifferError) as refused:
            attempt()
        found.append(str(refused.value))
    return found


def test_different_sets_of_one_replica_are_refused_on_all(node, four):
    changes = [{"shards": 3}, {"seed": 5}, {"window": 500}]
    one = node("one", 2)
    others = [node(f"other {n}", **{"shards": 2, **change}) for n, change in enumerate(changes)]

    def run(rank):
        return refusals(*(partial(train, (one, other), SPANNING, rank) for other in others))

    for message in (message for found in four(run) for message in found):
        first, *table = message.splitlines()
        assert first.startswith("epoch 0 of 'train': processes that hold one")
        rows = [line.split() for line in table]
        assert rows[0] == ["process", "rank", "world", "set"]
        assert [row[:3] for row in rows[1:]] == [
            [str(process), str(rank), "2"] for process, rank in enumerate(SPANNING)
        ]
        sets = [row[3] for row in rows[1:]]
        assert (sets[0], sets[2]) == (sets[1], sets[3])
        assert sets[0] != sets[2]


def test_ranks_that_are_no_replicas_are_refused_on_all(node, four):
    cases = [
        ([0, 1, 2, 2], [3] * 4),  # uneven
        ([0, 0, 2, 2], [3] * 4),  # one is absent
        ([0, 0, 1, 1], [2, 2, 2, 3]),
        ([0, 0, 1, None], [2, 2, 2, None]),
    ]
    nodes = node("one", 2), node("other", 2)

    def run(rank):
        with connect(nodes[rank // 2].endpoint) as cache:
            return refusals(
                *(
                    lambda ranks=ranks, worlds=worlds: next(
                        cache.epochs("train", 2, rank=ranks[rank], world=worlds[rank])
                    )
                    for ranks, worlds in cases
                )
            )

    for found in four(run):
        for message, (ranks, worlds) in zip(found, cases, strict=True):
            first, _, *table = message.splitlines()
            assert first.startswith("rank= and world= do not name replicas")
            assert [line.split() for line in table] == [
                [str(process), *(["local", "-"] if rank is None else [str(rank), str(world)]), "-"]
                for process, (rank, world) in enumerate(zip(ranks, worlds, strict=True))
            ]


def test_one_local_rank_twice_in_a_lease_is_refused_on_all(node, four):
    nodes = node("one", 2), node("other", 2)

    def run(rank):
        if rank == 3:
            os.environ["LOCAL_RANK"] = "0"
        with connect(nodes[rank // 2].endpoint) as cache:
            next(cache.epochs("train", 2))

    for found in four(run):
        assert found.startswith(
            "ReplicasDifferError: epoch 0 of 'train': processes that share a lease would read the"
        )


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_nodes_that_hold_parts_of_one_replica_share_a_set(processes):
    """Two processes read one set if a way leads from one to the other by nodes and replicas."""
    linked = {
        (one, other)
        for one, other in combinations(range(len(processes)), 2)
        if any(a == b for a, b in zip(processes[one], processes[other], strict=True))
    }
    reached = {process: {process} for process in range(len(processes))}
    for _ in processes:
        for one, other in linked:
            both = reached[one] | reached[other]
            reached |= dict.fromkeys(both, both)
    rows = [AgreementRow(rank, 6, 1, node) for rank, node in processes]
    for process, (rank, _) in enumerate(processes):
        assert ranks_of_one_set(rank, rows) == sorted(
            {rows[other].rank for other in reached[process]}
        )
