"""Nodes with sets of different sizes take as many steps: by torch.distributed, or a trainer's own way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest

from cachecd_client.errors import CachecdError, CallerError
from cachecd_client.protocol import Refused
from cachecd_client.runs.agreement import AgreementRow
from cachecd_client.session.cache import connect
from tests.client.conftest import CacheDir, ScriptedDaemon, lending, locked
from tests.client.records import labels
from tests.core.processes import in_children
from tests.frameworks import torch

BATCH = 4


@pytest.fixture
def node(daemon, tmp_path) -> Callable[..., ScriptedDaemon]:
    """Starts a node's daemon, which grants as many shards of ten records in every epoch, in orders of
    their own, or refuses from an epoch on."""

    def start(shards: int, refuse: int = 100, **changes: bool) -> ScriptedDaemon:
        root = tmp_path / f"node of {shards}"
        root.mkdir()
        cache_dir = CacheDir(root)

        def make(request):
            epoch = request.epoch
            if epoch >= refuse:
                return Refused(request.id, "RequestError", "the disk is full")
            return cache_dir.manifest(f"train-{epoch}", shards, epoch=epoch, seed=epoch, **changes)

        return daemon(lending(make))

    return start


# Through torch.distributed


def train(node: ScriptedDaemon, meeting: str, rank: int):
    """What each epoch of this node reads, and the error that ends the run."""
    patience = timedelta(seconds=20)
    way = {"init_method": f"file://{meeting}", "timeout": patience}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2, **way)
    epochs, failed = [], ""
    with connect(node.endpoint) as cache:
        try:
            epochs.extend(labels(epoch.numpy(BATCH)) for epoch in cache.epochs("train", 3))
        except CachecdError as error:
            failed = f"{type(error).__name__}: {error}"
    return epochs, failed


def trained(nodes, folder):
    assert torch.distributed.is_available()  # imported once, before the processes are forked
    meeting = str(folder / "meeting")
    return in_children(*(partial(train, each, meeting, rank) for rank, each in enumerate(nodes)))


def test_two_nodes_take_as_many_steps_and_what_is_dropped_changes(node, tmp_path):
    nodes = node(2), node(3)
    (small, _), (large, _) = trained(nodes, tmp_path)
    assert [len(read) for read in small] == [len(read) for read in large] == [20] * 3
    assert {frozenset(read) for read in small} == {frozenset(range(20))}
    left_out = [set(range(30)) - set(read) for read in large]
    assert [len(each) for each in left_out] == [10] * 3
    assert left_out[0] != left_out[1] != left_out[2]


def test_a_node_that_cannot_have_its_set_ends_the_run_on_all(node, tmp_path):
    nodes = node(2), node(3, refuse=1)
    (waiting, told), (failing, failed) = trained(nodes, tmp_path)
    assert len(waiting) == len(failing) == 1
    assert told == (
        "OtherNodeError: epoch 1 of 'train': 1 of 2 processes could not take their set; "
        "the log of the first, process 1, has the reason"
    )
    assert failed == "RequestError: the disk is full"


# By what the trainer gives


class Beside:
    """An all-gather with other processes that begin where this one does, and whose ranks have so many
    records: a number of all epochs, or each epoch's."""

    def __init__(self, *others: int | Iterator[int]) -> None:
        self.others = others
        self.told: list[AgreementRow] = []

    def __call__(self, numbers: tuple[int, ...]) -> list[AgreementRow]:
        own = AgreementRow(*numbers)
        self.told.append(own)
        if len(self.told) == 1:
            return [own] * (1 + len(self.others))
        lengths = [one if isinstance(one, int) else next(one) for one in self.others]
        # A lease of its own for each.
        return [own, *(own._replace(records=n, lease=at) for at, n in enumerate(lengths))]


def test_where_all_have_to_be_read_smaller_sets_are_padded_or_have_rows_for_each_step(cache):
    """20 records here, 33 on the other node."""
    for epoch in cache.epochs("train", 1, agree=Beside(33)):
        assert len(epoch.numpy(BATCH)) == 5
        loader = epoch.numpy(BATCH, pad_last=True)
        assert [int(batch["_valid"].sum()) for batch in loader] == [4, 4, 4, 4, 4, 0, 0, 0, 0]
        assert epoch.report()["records"] == 20, "padding is no record"
        batches = list(epoch.numpy(BATCH, drop_last=False))
        assert [len(batch["label"]) for batch in batches] == [4, 4, 4, 3, 1, 1, 1, 1, 1]
        assert sorted(labels(batches)) == list(range(20))


def test_pinned_parts_of_different_sizes_take_as_many_steps_and_lose_no_record(node):
    with connect(node(2, pinned=True).endpoint) as cache:
        for epoch in cache.epochs("train", 1, agree=Beside(33)):
            batches = list(epoch.numpy(7))
            assert [len(batch["label"]) for batch in batches] == [7, 7, 4, 1, 1]
            assert labels(batches) == list(range(20))


def test_ranks_of_a_node_whose_records_do_not_divide_take_the_steps_of_all(cache, monkeypatch):
    monkeypatch.setattr(cache._leases, "world", 3)  # 20 records: 7, 7 and 6
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")

    def two_nodes(numbers):
        own = AgreementRow(*numbers)
        return [own._replace(rank=n % 3, lease=own.lease + n // 3) for n in range(6)]

    epoch = next(cache.epochs("train", 1, agree=two_nodes))
    assert epoch.agreed == (18, 21)
    assert len(epoch.numpy(2)) == len(epoch.numpy(2, rank=0, world=3)) == 3
    assert len(epoch.numpy(2, drop_last=False)) == 4
    with pytest.raises(
        CallerError, match=r"agreed on rank=0, world=3 for this process. Pass rank= and world= to"
    ):
        epoch.numpy(2, rank=0, world=6)


def test_records_are_those_of_all_nodes(cache):
    """Of 100 here and on another node, each reads 50: of sets of 20 and 30 here, and 15 and 40 there."""
    there = iter([15, 40, 40, 40])
    nodes = Beside(there)
    read = 0
    for epoch in cache.epochs("train", records=100, agree=nodes):
        read += len(labels(epoch.numpy(5)))
        assert epoch.progress == read / 50
    assert read == 50
    assert next(there) == 40, "15, then 30, and then 5 of the third"


def test_what_fails_while_nodes_agree_says_so_and_ends_the_lease(cache, manifest):
    def broken(numbers: tuple[int, ...]) -> list[tuple[int, ...]]:
        if not AgreementRow(*numbers).lease:
            return [numbers] * 2
        raise ConnectionError("the other end is gone")

    with pytest.raises(ConnectionError, match="is gone") as raised:
        next(cache.epochs("train", 1, agree=broken))
    assert raised.value.__notes__ == ["The nodes were agreeing on the steps of epoch 0 of 'train'."]
    assert not locked(manifest(0))


def test_processes_of_one_node_agree_on_nothing(cache, tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1
    )
    try:
        assert next(cache.epochs("train", 1)).agreed is None
        assert next(cache.epochs("train", 1, agree=False)).agreed is None
    finally:
        torch.distributed.destroy_process_group()


def test_what_is_no_all_gather_is_refused(cache):
    with pytest.raises(CallerError, match="agree=3, expected True, False, or a function"):
        cache.epochs("train", 1, agree=3)
    with pytest.raises(CallerError, match="gathered 0 rows, but this node alone has 1"):
        next(cache.epochs("train", 1, agree=lambda numbers: []))


# Runs that resume


class Meeting:
    """An all-gather of threads."""

    def __init__(self, threads: int) -> None:
        self._barrier = threading.Barrier(threads, timeout=20)
        self._numbers: dict[int, tuple[int, ...]] = {}
        self._threads = threads

    def of(self, place: int):
        def gather(numbers: tuple[int, ...]) -> list[tuple[int, ...]]:
            self._numbers[place] = numbers
            self._barrier.wait()
            found = [self._numbers[one] for one in range(self._threads)]
            self._barrier.wait()
            return found

        return gather


class Losing:
    """A node's daemon, of sets of so many shards, which has lost them once it is told to."""

    def __init__(self, daemon, folder, shards: int) -> None:
        folder.mkdir()
        cache_dir = CacheDir(folder)
        self.lost = False

        def make(request):
            number = shards + self.lost
            return cache_dir.manifest(f"{number}-{request.epoch}", number, epoch=request.epoch)

        self.daemon = daemon(lending(make))

    def read(self, gather, left=None, **run):
        """(labels of each epoch, its progress), and the state after `left` = (epoch, batches)."""
        found, state = [], None
        with connect(self.daemon.endpoint) as cache:
            for epoch in cache.epochs("train", agree=gather, **run):
                loader = epoch.numpy(BATCH)
                if left and left[0] == epoch.epoch:
                    for _ in zip(range(left[1]), loader, strict=False):
                        pass
                    return found, loader.state_dict()
                found.append(labels(loader))
        return found, state


@pytest.fixture
def two_nodes(daemon, tmp_path):
    return [Losing(daemon, tmp_path / f"node-{n}", n) for n in (2, 3)]


def together(nodes, each):
    """What each node's `each(node, gather, place)` gives, in threads of their own."""
    meeting = Meeting(len(nodes))
    with ThreadPoolExecutor(len(nodes)) as threads:
        works = [
            threads.submit(each, node, meeting.of(place), place) for place, node in enumerate(nodes)
        ]
        return [work.result(30) for work in works]


@pytest.mark.parametrize(
    ("run", "lost"),
    [
        ({"n": 3}, [1]),
        ({"records": 100}, []),
        ({"records": 96, "steps_per_epoch": 4}, [0, 1]),
    ],
)
def test_nodes_resume_an_epoch_together_or_begin_it_anew_together(two_nodes, run, lost):
    left = together(two_nodes, lambda node, gather, _: node.read(gather, (1, 2), **run))
    states = [state for _, state in left]
    for place in lost:
        two_nodes[place].lost = True
    resumed = together(
        two_nodes, lambda node, gather, place: node.read(gather, state=states[place], **run)
    )
    here, there = ([len(epoch) for epoch in epochs] for epochs, _ in resumed)
    assert here == there
    if not lost:
        whole = together(two_nodes, lambda node, gather, _: node.read(gather, **run))
        assert [epochs[1:] for epochs, _ in resumed] == [epochs[2:] for epochs, _ in whole]
        assert [epochs[0] for epochs, _ in resumed] == [epochs[1][8:] for epochs, _ in whole]
    elif "records" in run:
        before = sum(map(len, left[0][0])) + 2 * BATCH
        assert before + sum(here) == run["records"] // 2 // BATCH * BATCH


def test_processes_that_begin_with_different_epochs_are_told(two_nodes):
    def refused(node, gather, place):
        with pytest.raises(
            CallerError, match=r"this process begins with epoch \d, all proces"
        ) as why:
            node.read(gather, n=3, start=place)
        return str(why.value)

    assert "all processes with [0, 1]" in together(two_nodes, refused)[0]


def test_a_state_that_is_damaged_on_one_node_is_an_error_on_all(two_nodes):
    _, state = two_nodes[0].read(False, (0, 2), n=2)

    def resume(node, gather, place):
        try:
            return node.read(gather, state=state if place else {**state, "run": {}}, n=2)
        except CachecdError as error:
            return f"{type(error).__name__}: {error}"

    damaged, told = together(two_nodes, resume)
    assert damaged.startswith("CallerError: state: version None of a run")
    assert told == (
        "OtherNodeError: 1 of 2 processes could not begin; the log of the first, process 0, has the reason"
    )
