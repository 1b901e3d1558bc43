"""Runs that go on in another process: what a state says, what it is asked with, and what it belongs to."""

from __future__ import annotations

import copy
import json

import pytest

from cachecd_client import connect
from cachecd_client.errors import CallerError
from cachecd_client.protocol import Acquire
from tests.client.conftest import GENERATION, lending


def labels(loader, batches=None):
    found = []
    for nth, batch in enumerate(loader, 1):
        found.append([int(label) for label in batch["label"]])
        if nth == batches:
            break
    return found


def left_at(cache, epoch, batches, step=4, place=None, **run):
    """What a run reads until it is left after so many batches of an epoch, and its state there."""
    found = []
    for one in cache.epochs("train", **run):
        loader = one.numpy(step, **(place or {}))
        last = one.epoch == epoch
        found += labels(loader, batches if last else None)
        if last:
            return found, json.loads(json.dumps(loader.state_dict()))
    raise AssertionError


def all_of(cache, step=4, place=None, **run):
    found, progress = [], []
    for one in cache.epochs("train", **run):
        found += labels(one.numpy(step, **(place or {})))
        progress.append(one.progress)
    return found, progress


@pytest.mark.parametrize(
    "run",
    [
        {"n": 3},
        {"n": 3, "steps_per_epoch": 9},
        {"records": 90, "steps_per_epoch": 4},
    ],
)
def test_a_run_that_is_left_and_resumed_reads_what_an_uninterrupted_one_does(cache, run):
    whole, progress = all_of(cache, **run)
    before, state = left_at(cache, 1, 3, **run)
    after, since = all_of(cache, **run, state=state)
    assert before + after == whole
    assert since == progress[1:]


def test_ranks_have_the_same_state_and_go_on_together(cache):
    places = [{"rank": rank, "world": 2} for rank in (0, 1)]
    whole = [all_of(cache, place=place, n=3)[0] for place in places]
    left = [left_at(cache, 1, 2, place=place, n=3) for place in places]
    assert left[0][1] == left[1][1]
    for place, (before, state), expected in zip(places, left, whole, strict=True):
        assert before + all_of(cache, place=place, n=3, state=state)[0] == expected


def test_a_dataset_of_the_first_epoch_goes_on_too(cache):
    whole, _ = all_of(cache, n=2)
    before, state = left_at(cache, 1, 3, n=2)
    epoch = next(epochs := cache.epochs("train", n=2, state=state))
    with pytest.raises(CallerError):  # which leaves the place to the next
        epoch.to_dataset(5)
    after = [[int(label) for label in batch["label"]] for batch in epoch.to_dataset(4)]
    assert before + after == whole
    epochs.close()


def test_the_shuffle_window_is_that_of_the_state_to_the_end_of_its_epoch(cache, cache_dir, daemon):
    """By default it follows from the machine's memory."""
    windows = [2000, 3000, 3000]

    def make(request):
        window = windows.pop(0)
        return cache_dir.manifest(f"lease-{window}", 4, epoch=request.epoch, window=window)

    with connect(daemon(lending(make)).endpoint) as cache:
        _, state = left_at(cache, 0, 3, n=2)
        assert state["window"] == 2000
        assert [epoch.window for epoch in cache.epochs("train", 2, state=state)] == [2000, 3000]


def garbled(path, value):
    def change(state):
        at = state
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        return state

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda state: {}, "state_dict"),
        (garbled(["run", "version"], 2), "version 2 of a run, expected 1"),
        (
            garbled(["run", "sets", 0, "dataset"], "eval"),
            r"it is the state of 'eval', but .* dataset 'train'",
        ),
        (garbled(["run", "sets", 0, "intervals"], [[1, 2]]), "damaged"),
        (garbled(["run", "sets"], []), "damaged"),
        (garbled(["run", "sets", 0, "fingerprint"], 7), "damaged"),
        (garbled(["run", "epoch"], -1), "damaged"),
        (garbled(["run", "sweeps"], {"train": {"number": 0, "read": "?"}}), "damaged"),
    ],
)
def test_what_is_no_state_of_this_dataset_is_refused_with_the_reason(cache, change, why):
    _, state = left_at(cache, 0, 1, n=1)
    with pytest.raises(CallerError, match=why):
        cache.epochs("train", 1, state=change(copy.deepcopy(state)))


@pytest.fixture
def moved(daemon, cache_dir):
    """A daemon whose sets are others once `places` has a second one; each was leased at the last place."""
    places = [70]

    def make(request):
        epoch, moves = request.epoch, len(places)
        name = f"lease-{epoch}-{moves}"
        return cache_dir.manifest(name, 1 + epoch + moves, epoch=epoch, place=places[-1])

    scripted = daemon(lending(make))
    scripted.places = places
    return scripted


def test_where_the_set_is_gone_the_epoch_begins_anew_and_what_was_read_counts(moved, caplog):
    with connect(moved.endpoint) as cache:
        before, state = left_at(cache, 1, 3, records=100)
        moved.places.append(80)
        epochs = cache.epochs("train", records=100, state=state)
        epoch = next(epochs)
        loader = epoch.numpy(4)
        assert (epoch.epoch, loader.position, len(loader)) == (1, 0, 10)
        assert epoch.progress == pytest.approx(4 * len(before) / 100)
        epochs.close()
    asked = moved.of(Acquire)[-1]
    assert (asked.generation, asked.fingerprint) == (GENERATION, state["fingerprint"])
    assert asked.shards == [[0, 0, 1], [1, 0, 0]]
    assert (asked.sampling_seed, asked.streams, asked.place) == (5, 2, 70)
    assert [r.message for r in caplog.records if "starts again" in r.message]


@pytest.mark.parametrize(("place", "anew"), [(80, False), (60, True)])
def test_what_was_read_of_which_shard_counts_in_the_same_cache_alone(moved, place, anew):
    """A cache that is behind the run's has other records under the same numbers."""
    run = {"n": 3, "steps_per_epoch": 2}
    with connect(moved.endpoint) as cache:
        before, state = left_at(cache, 1, 2, **run)
        moved.places.append(place)
        after, _ = all_of(cache, **run, state=state)
        fresh, _ = all_of(cache, **run, start=2)
    assert (after == fresh) == anew
    read = {label for batch in before for label in batch}
    assert anew or not read & {label for batch in after for label in batch}
