"""Replicas of a model that span processes read the same records, found by a torch DeviceMesh over gloo."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh

from cachecd_client import FileSet, fileset
from cachecd_client.errors import CachecdError, CallerError
from cachecd_client.protocol import Acquire, Granted
from cachecd_client.replicas import Sharing, replica_of
from cachecd_client.session import connect
from tests.client.conftest import CacheDir, ScriptedDaemon
from tests.client.records import examples, write

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

        def answer(request):
            if not isinstance(request, Acquire):
                return None
            lease = f"train-{request.epoch}"
            return Granted(request.id, lease, str(root), f"leases/{lease}.json")

        return daemon(answer)

    return start


def labels(loader):
    return [int(label) for batch in loader for label in batch["label"]]


def process(rank: int, meeting: Path, work: Callable[[int], object]):
    """What `work` gives in process `rank` of four, two on each node; or the error."""
    os.environ |= {"LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2"}
    patience = timedelta(seconds=30)
    way = {"init_method": f"file://{meeting}", "timeout": patience}
    dist.init_process_group("gloo", rank=rank, world_size=4, **way)
    try:
        return work(rank)
    except CachecdError as error:
        return f"{type(error).__name__}: {error}"


@pytest.fixture
def four(in_children, tmp_path):
    """What `work(rank)` gives in each of four processes."""

    def run(work):
        meeting = tmp_path / "meeting"
        return in_children(*(partial(process, rank, meeting, work) for rank in range(4)))

    return run


WITHIN = [[0, 1], [2, 3]]  # each node holds a replica
SPANNING = [[0, 2], [1, 3]]  # both nodes hold a part of both


def train(nodes, ranks, rank: int, names=("dp", "tp"), **run):
    """(rank, world, labels) of each epoch."""
    mesh = DeviceMesh("cpu", ranks, mesh_dim_names=names)
    found = []
    with connect(nodes[rank // 2].endpoint) as cache:
        for epoch in cache.epochs("train", 2, mesh=mesh, **run):
            loader = epoch.torch(BATCH)
            assert len(loader) == len(epoch.to_dataset(BATCH))
            found.append([loader.rank, loader.world, labels(loader)])
        held = cache.acquire("train", mesh=mesh)
        assert labels(held.numpy(BATCH)) == found[0][2]
    return found


def test_processes_of_a_replica_within_a_node_read_the_same_and_all_take_as_many_steps(node, four):
    nodes = node("small", 2), node("large", 3)
    found = four(partial(train, nodes, WITHIN))
    assert found[0] == found[1]
    assert found[2] == found[3]
    for epochs in found:
        assert [(rank, world, len(read)) for rank, world, read in epochs] == [(0, 1, 20)] * 2
    assert not set(found[2][0][2]) <= set(range(20)), "of its own set"


def test_replicas_that_span_nodes_divide_one_set(node, four):
    nodes = node("one", 2), node("other", 2)
    found = four(partial(train, nodes, SPANNING))
    assert found[0] == found[2]
    assert found[1] == found[3]
    for epoch in range(2):
        (rank, world, here), (_, _, there) = found[0][epoch], found[1][epoch]
        assert (rank, world) == (0, 2)
        assert sorted(here + there) == list(range(20))


@pytest.fixture
def mixing(daemon, tmp_path) -> Callable[[str], ScriptedDaemon]:
    """Starts a node's daemon of two datasets, of 20 and of 30 records."""

    def start(name: str) -> ScriptedDaemon:
        root = tmp_path / name
        root.mkdir()
        for dataset, first, shards in (("web", 0, 2), ("code", 1000, 3)):
            CacheDir(root, dataset=dataset, first=first).manifest(f"{dataset}-0", shards, seed=1)

        def answer(request):
            if not isinstance(request, Acquire):
                return None
            lease = f"{request.dataset}-0"
            return Granted(request.id, lease, str(root), f"leases/{lease}.json")

        return daemon(answer)

    return start


@pytest.mark.parametrize("ranks", [WITHIN, SPANNING], ids=["within", "spanning"])
def test_of_a_mixture_processes_of_a_replica_read_the_same_and_replicas_the_whole(
    mixing, four, ranks
):
    nodes = mixing("one"), mixing("other")

    def run(rank):
        mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("dp", "tp"))
        weights = {"web": 0.4, "code": 0.6}
        with connect(nodes[rank // 2].endpoint) as cache:
            (found,) = [labels(e.numpy(BATCH)) for e in cache.epochs(weights, 1, mesh=mesh)]
        return found

    found = four(run)
    (one, same), (other, too) = ([found[process] for process in replica] for replica in ranks)
    assert one == same
    assert other == too
    read = one + other if ranks is SPANNING else one
    steps = 50 // (BATCH * len(read) // len(one))  # drop_last
    assert len(read) == len(set(read)) == steps * BATCH * len(read) // len(one)
    assert set(read) <= {*range(20), *range(1000, 1030)}


@pytest.mark.parametrize("ranks", [WITHIN, SPANNING], ids=["within", "spanning"])
def test_of_a_run_of_records_each_replica_has_its_share(node, four, ranks):
    """Of 32 each of two replicas reads 16, of a set of 20 that both divide or of sets of their own."""
    nodes = node("one", 2), node("other", 2)

    def run(rank):
        read = 0
        mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("dp_shard", "tp"))
        with connect(nodes[rank // 2].endpoint) as cache:
            for epoch in cache.epochs("train", records=32, mesh=mesh):
                read += len(labels(epoch.numpy(BATCH)))
        return read

    assert four(run) == [16] * 4


@pytest.mark.parametrize("ranks", [WITHIN, SPANNING], ids=["within", "spanning"])
def test_a_run_resumes_where_its_replicas_were(node, four, ranks):
    nodes = node("one", 2), node("other", 2)

    def run(rank):
        mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("dp", "tp"))
        with connect(nodes[rank // 2].endpoint) as cache:
            whole = [labels(epoch.numpy(BATCH)) for epoch in cache.epochs("train", 2, mesh=mesh)]
            epochs = cache.epochs("train", 2, mesh=mesh)
            loader = next(epochs).numpy(BATCH)
            for _ in zip(range(3), loader, strict=False):
                pass
            state = loader.state_dict()
            epochs.close()
            again = cache.epochs("train", 2, mesh=mesh, state=state)
            return whole, [labels(epoch.numpy(BATCH)) for epoch in again]

    for whole, rest in four(run):
        assert rest == [whole[0][3 * BATCH :], whole[1]]


def test_a_loader_is_given_no_mesh(tmp_path):
    path = write(tmp_path / "a.tfrecord", examples(range(20)))
    with pytest.raises(CallerError, match="give it to epochs"):
        FileSet(path).numpy(BATCH, mesh="mesh")


@pytest.mark.parametrize(
    "changes", [{"shards": 3}, {"seed": 5}, {"window": 500}], ids=["set", "seed", "window"]
)
def test_sets_that_differ_under_replicas_that_span_nodes_are_refused_on_all(node, four, changes):
    told = {"shards": "fingerprint", "seed": "order's seed", "window": "shuffle window"}
    nodes = node("one", 2), node("other", **{"shards": 2, **changes})
    for found in four(partial(train, nodes, SPANNING)):
        assert found.startswith("ReplicasDifferError: processes 0 and 2 hold parts of one replica")
        assert told[next(iter(changes))] in found


def test_a_name_that_is_not_known_on_one_process_ends_the_run_on_all(node, four):
    nodes = node("one", 2), node("other", 2)

    def run(rank):
        return train(nodes, WITHIN, rank, ("dp", "ep" if rank == 3 else "tp"))

    *others, failing = four(run)
    assert failing.startswith("CallerError: mesh=: processes along 'ep' may take different records")
    assert "rank= and world=" in failing
    for told in others:
        assert told.startswith(
            "OtherNodeError: 1 of 4 processes could not begin, the first is process 3"
        )


@pytest.mark.parametrize(
    ("other", "told"),
    [(None, "mesh= was given by some processes"), ("other", "expected the same mesh in all")],
    ids=["none", "another"],
)
def test_a_mesh_that_another_process_does_not_have_ends_the_run_on_all(node, four, other, told):
    nodes = node("one", 2), node("other", 2)

    def run(rank):
        names = ("dp_replicate", "dp_shard") if rank == 3 and other else ("dp", "tp")
        mesh = DeviceMesh("cpu", WITHIN, mesh_dim_names=names)
        with connect(nodes[rank // 2].endpoint) as cache:
            next(cache.epochs("train", 2, mesh=None if rank == 3 and not other else mesh))

    for found in four(run):
        assert found.startswith("CallerError: ")
        assert told in found


def test_agree_false_has_no_place_for_a_mesh(node, four):
    nodes = node("one", 2), node("other", 2)
    for found in four(partial(train, nodes, WITHIN, agree=False)):
        assert found.startswith("CallerError: agree=False, mesh=")


def test_meshes_are_known_by_their_names(four):
    def run(_):
        def found(shape, names):
            try:
                replica = replica_of(DeviceMesh("cpu", shape, mesh_dim_names=names))
            except CallerError as error:
                return str(error)
            return [replica.number, replica.count]

        mesh = DeviceMesh("cpu", WITHIN, mesh_dim_names=("dp", "tp"))
        sliced = replica_of(mesh["dp"])
        try:
            wrong = str(replica_of(mesh["tp"]))
        except CallerError as error:
            wrong = str(error)
        return {
            "data": [
                found([0, 1, 2, 3], ("fsdp",)),
                found(WITHIN, ("dp_replicate", "dp_shard")),
                found([[[0, 1]], [[2, 3]]], ("replicate", "whatever", "shard")),
            ],
            "one": [
                found(WITHIN, ("pp", "data_parallel")),
                found(WITHIN, ("dp_shard", "cp")),
                [sliced.number, sliced.count],
            ],
            "refused": [wrong, found([0, 1, 2, 3], None), found(WITHIN, ("dp_shard_cp", "tp"))],
        }

    for rank, said in enumerate(four(run)):
        assert said["data"] == [[rank, 4]] * 3
        assert said["one"] == [[rank % 2, 2], [rank // 2, 2], [rank // 2, 2]]
        wrong, unnamed, folded = said["refused"]
        assert "dimensions tp have 2 of 4 processes" in wrong
        assert "no names" in unnamed
        assert "'dp_shard_cp'" in folded


def test_what_is_no_mesh_is_refused():
    with pytest.raises(CallerError, match="mesh='dp', expected a torch DeviceMesh"):
        replica_of("dp")


# Files that all nodes see


def test_files_that_all_nodes_see_are_divided_among_all_replicas(four, tmp_path):
    path = write(tmp_path / "a.tfrecord", examples(range(20)))

    def run(rank):
        mesh = DeviceMesh("cpu", WITHIN, mesh_dim_names=("dp", "tp"))
        files = FileSet(path, mesh=mesh)
        read = labels(files.numpy(BATCH, drop_last=False))
        assert labels(files.to_dataset(BATCH, drop_last=False)) == read
        return read

    found = four(run)
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert sorted(found[0] + found[2]) == list(range(20))


def test_files_that_nodes_have_for_themselves_are_no_set_for_a_mesh(four, tmp_path):
    paths = [write(tmp_path / f"{n}/a.tfrecord", examples(range(n))) for n in (20, 30)]

    def run(rank):
        mesh = DeviceMesh("cpu", WITHIN, mesh_dim_names=("dp", "tp"))
        return FileSet(paths[rank // 2], mesh=mesh).numpy(BATCH)

    for found in four(run):
        assert found.startswith("ReplicasDifferError: processes 0 and 2")
        assert "storage that all nodes share" in found


def test_files_that_other_nodes_may_read_too_are_warned_of_until_ranks_are_given(four, tmp_path):
    path = write(tmp_path / "a.tfrecord", examples(range(20)))

    def run(rank):
        warnings = []
        handler = logging.Handler()
        handler.emit = lambda record: warnings.append(record.getMessage())
        fileset.log.addHandler(handler)
        whole = FileSet(path)
        whole.numpy(BATCH, rank=rank, world=4)
        assert not warnings
        whole.numpy(BATCH)
        whole.to_dataset(BATCH)
        FileSet(path).numpy(BATCH)
        return warnings

    for rank, (warning,) in enumerate(four(run)):
        assert f"this is rank {rank % 2} of 2" in warning
        assert "mesh=" in warning


# Who shares a set


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
    numbers, nodes = zip(*processes, strict=True)
    for process, own in enumerate(processes):
        sharing = Sharing.of(own, numbers, nodes)
        assert {frozenset(s) for s in sharing.sets} == {frozenset(s) for s in reached.values()}
        assert sharing.replicas == sorted({numbers[other] for other in reached[process]})
        assert sharing.count == len(set(numbers))
    assert json.dumps(sharing.sets), "plain numbers"
