"""What counts as read of a run that goes on: by workers, over other nodes, and by what was refused."""

from __future__ import annotations

import pytest

from cachecd_client.errors import CallerError
from cachecd_client.runs.run import Run, RunState
from tests.client.conftest import beside
from tests.client.test_resumed_runs import all_of, labels, left_at
from tests.frameworks import torch


def test_what_workers_read_of_an_epoch_that_goes_on_counts_for_the_run(cache):
    run = {"records": 50, "steps_per_epoch": 6}
    _, state = left_at(cache, 0, 3, **run)
    steps = []
    for epoch in cache.epochs("train", **run, state=state):
        loader = torch.utils.data.DataLoader(
            epoch.to_dataset(4, features=["label"]), batch_size=None, num_workers=1,
            multiprocessing_context="fork",
        )  # fmt: skip
        steps.append(len(loader))
        for _ in loader:
            pass
    assert steps == [6, 6]


def test_a_look_behind_the_rest_of_an_epoch_does_not_become_what_it_reads(cache):
    run = {"n": 3, "steps_per_epoch": 4}
    whole, _ = all_of(cache, **run)
    before, state = left_at(cache, 0, 3, **run)
    after = []
    for epoch in cache.epochs("train", **run, state=state):
        after += labels(epoch.numpy(4))
        next(iter(epoch.numpy(10)))
    assert before + after == whole


@pytest.mark.parametrize(
    "refused",
    [
        lambda epoch: epoch.torch(4, channels_last=True),
        lambda epoch: epoch.torch(4, channels_last=["vector"]),
        lambda epoch: epoch.numpy(4, features=["nothing"]),
        lambda epoch: epoch.tf_dataset(4, label="nothing"),
        lambda epoch: epoch.tf_dataset(0),
    ],
)
def test_what_is_refused_does_not_take_the_place_that_is_gone_on_from(cache, refused):
    whole, _ = all_of(cache, n=2)
    before, state = left_at(cache, 1, 3, n=2)
    epochs = cache.epochs("train", 2, state=state)
    epoch = next(epochs)
    with pytest.raises(CallerError):
        refused(epoch)
    loader = epoch.torch(4)
    assert loader.position == 3
    assert before + labels(loader) == whole


def test_a_run_of_records_goes_on_over_another_number_of_nodes(cache):
    """Half of 80 records was read by one node: of what is left, two of equal sets read 20 each."""
    run = {"records": 80, "steps_per_epoch": 5}
    _, state = left_at(cache, 1, 5, **run)
    read = [
        [
            epoch.progress
            for epoch in cache.epochs("train", **run, state=state, agree=nodes)
            for _ in epoch.numpy(4)
        ]
        for nodes in (False, beside())
    ]
    assert read == [[x / 20 for x in range(11, 21)], [x / 10 for x in range(6, 11)]]
    _, state = left_at(cache, 0, 5, **run, agree=beside())
    alone = [
        epoch.progress
        for epoch in cache.epochs("train", **run, state=state)
        for _ in epoch.numpy(4)
    ]
    assert alone == [x / 20 for x in range(11, 21)]


@pytest.mark.parametrize(("state_of", "read"), [((1, 1), 21), ((1, 2), 10), ((4, 8), 40)])
def test_nodes_of_different_sizes_are_through_with_a_budget_at_the_same_step(state_of, read):
    left = []
    for own, ranks in [(1, 4), (3, 4)]:
        run = Run(records=47)
        run.set_ranks(own, ranks)
        left.append((run.records - run.of_node(read, state_of)) / own)
    assert left[0] == left[1]


@pytest.mark.parametrize("read", range(3, 48, 3))
def test_nodes_of_different_sizes_end_a_resumed_budget_in_the_same_epoch(cache, read):
    """By the state of the larger one."""
    _, state = left_at(cache, 0, 2, records=100)
    state["run"] |= {"ranks": [3, 4], "read": read, "of_epoch": 0}
    state |= {"batch_size": 4, "world": 3}
    standing = RunState.of_state(state, "train")
    over = []
    for own in (1, 3):
        run = Run(records=48)
        run.resumed(standing, same=False)
        run.set_ranks(own, 4)
        over.append(run.over)
        run.resumed(standing, same=False)
        over.append(run.over)
    assert len(set(over)) == 1
