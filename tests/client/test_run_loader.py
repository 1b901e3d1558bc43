"""cache.numpy, torch, tf and jax: one loader for a run, whose every loop is the next epoch."""

from __future__ import annotations

import json
import pickle

import pytest

from cachecd_client import connect
from cachecd_client.errors import CallerError, RequestError
from cachecd_client.protocol import Acquire, Refused
from tests.client.conftest import locked
from tests.frameworks import torch


def labels(batches):
    return [[int(label) for label in batch["label"]] for batch in batches]


def by_epochs(cache, **run):
    """What the loop over `cache.epochs` reads, epoch by epoch."""
    return [labels(epoch.numpy(4)) for epoch in cache.epochs("train", **run)]


def test_each_loop_reads_the_next_epoch_of_the_run(cache):
    loader = cache.numpy("train", 4, epochs=3)
    assert [labels(loader) for _ in range(3)] == by_epochs(cache, n=3)


def test_a_loop_behind_the_end_gets_no_batches_and_a_warning(cache, granting, caplog):
    loader = cache.numpy("train", 4, epochs=1)
    assert len(labels(loader)) == len(loader) == 5
    before = len(granting.of(Acquire))
    assert labels(loader) == []
    assert "the run has ended" in caplog.text
    assert len(granting.of(Acquire)) == before
    assert len(loader) == 5  # a mean over the last epoch divides by it


def test_a_loop_left_early_is_followed_by_the_next_epoch(cache):
    loader = cache.numpy("train", 4, epochs=2)
    next(iter(loader))
    assert labels(loader) == by_epochs(cache, n=2)[1]


def test_length_is_of_the_latest_epoch_until_a_loop_begins(cache, granting):
    loader = cache.numpy("train", 4, epochs=2)
    assert granting.of(Acquire) == []
    assert len(loader) == 5
    assert len(granting.of(Acquire)) == 1
    lengths = [{len(loader) for _ in loader} | {len(loader)} for _ in range(2)]
    assert lengths == [{5}, {7}]


def test_progress_moves_with_each_batch_to_one(cache):
    loader = cache.numpy("train", 4, epochs=2)
    progress = [loader.progress]
    assert loader.report()["epoch"] == 0
    for _ in range(2):
        progress += [loader.progress for _ in loader]
    assert progress == sorted(progress)
    assert (progress[0], progress[5], progress[-1], loader.progress) == (0.0, 0.5, 1.0, 1.0)
    assert (loader.report()["epoch"], loader.report()["steps"]) == (1, 7)


@pytest.mark.parametrize("left", [(0, 2), (1, 7), (2, 10)])
def test_a_state_goes_on_in_another_loader(cache, left):
    epoch, batches = left
    whole = by_epochs(cache, n=3)
    loader = cache.numpy("train", 4, epochs=3)
    for _ in range(epoch):
        list(loader)
    for nth, _ in enumerate(loader, 1):
        if nth == batches:
            break
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = cache.numpy("train", 4, epochs=3, state=state)
    rest = [batch for epoch in range(3) for batch in labels(resumed)]
    flat = [batch for batches in whole for batch in batches]
    assert rest == flat[sum(map(len, whole[:epoch])) + batches :]


def test_the_state_of_a_run_that_is_over_stays_so(cache):
    loader = cache.numpy("train", 4, epochs=1)
    list(loader)
    state = loader.state_dict()
    resumed = cache.numpy("train", 4, epochs=1, state=state)
    assert (len(resumed), resumed.progress, resumed.epoch) == (0, 1.0, None)
    assert labels(resumed) == []
    assert resumed.state_dict() == state
    with pytest.raises(CallerError, match="nothing to report"):
        resumed.report()


def test_a_loader_takes_a_state_back(cache, manifest):
    """As Lightning and torchdata give it."""
    whole = by_epochs(cache, n=2)
    loader = cache.numpy("train", 4, epochs=2)
    for nth, _ in enumerate(loader, 1):
        if nth == 2:
            break
    state = loader.state_dict()
    list(loader)
    loader.load_state_dict(state)
    assert [labels(loader), labels(loader)] == [whole[0][2:], whole[1]]
    with pytest.raises(CallerError, match="state"):
        loader.load_state_dict({"no": "state"})


def test_with_a_seed_each_epoch_has_an_order_of_its_own(cache):
    once, again, other = (
        cache.numpy("train", 4, seed=seed, epochs=2, steps_per_epoch=3) for seed in (5, 5, 6)
    )
    reads = [[labels(loader) for _ in range(2)] for loader in (once, again, other)]
    assert reads[0] == reads[1] != reads[2]
    assert reads[0][0] != reads[0][1]


@pytest.mark.parametrize("framework", ["torch", "tf", "jax"])
def test_each_framework_delivers_the_same_batches(cache, framework):
    loader = getattr(cache, framework)("train", 4, epochs=2, features=["label"])
    assert [labels(loader) for _ in range(2)] == by_epochs(cache, n=2)


def test_given_ranks_divide_every_set_of_a_mixture_too(cache):
    def gather(numbers):
        return [numbers, (1, *numbers[1:])]

    for dataset in "train", {"train": 1.0}:
        loader = cache.numpy(dataset, 4, epochs=2, rank=0, world=2, agree=gather)
        assert [len(labels(loader)) for _ in range(2)] == [2, 3]


def test_mistaken_options_and_uses_name_what_was_called(cache):
    loader = cache.torch("train", 4, epochs=1)
    with pytest.raises(CallerError, match="cannot be pickled"):
        pickle.dumps(loader)
    with pytest.raises(CallerError, match="iterate over the loader itself"):
        next(iter(torch.utils.data.DataLoader(loader)))
    with pytest.raises(CallerError, match=r"epochs=None, records=None"):
        cache.numpy("train", 4)
    with pytest.raises(CallerError, match=r"epochs=-1"):
        cache.torch("train", 4, epochs=-1)
    with pytest.raises(TypeError, match=r"'batchsize'.*batch_size, epochs, "):
        cache.torch("train", 4, epochs=1, batchsize=5)
    with pytest.raises(CallerError, match="batch_size=0"):
        len(cache.torch("train", 0, epochs=1))


def test_an_error_at_a_boundary_is_no_silent_end(cache, granting):
    usual = granting.answer
    granting.instead(lambda request: Refused(request.id, "impossible", "it shrank"), epoch=1)
    loader = cache.numpy("train", 4, epochs=3)
    list(loader)
    state = loader.state_dict()
    with pytest.raises(RequestError, match="it shrank"):
        list(loader)
    with pytest.raises(CallerError, match="this run ended with an error") as info:
        list(loader)
    assert isinstance(info.value.__cause__, RequestError)
    granting.answer = usual
    loader.load_state_dict(state)
    assert len(labels(loader)) == 7


def test_a_loader_and_a_session_that_are_closed_end_the_lease(granting, manifest):
    with connect(granting.endpoint) as cache:
        with cache.numpy("train", 4, epochs=3) as closed:
            next(iter(closed))
            assert locked(manifest(0))
        assert not locked(manifest(0))
        left = cache.numpy("train", 4, epochs=3)
        next(iter(left))
    assert not locked(manifest(0))
    for loader, why in (closed, "this loader is closed"), (left, "session is closed"):
        with pytest.raises(CallerError, match=why):
            list(loader)


def test_the_repr_shows_the_epoch_without_leasing_it(cache, granting):
    loader = cache.numpy("train", 4, epochs=1, features=["label"])
    assert repr(loader) == "<RunLoader: no epoch yet>"
    assert granting.of(Acquire) == []
    list(loader)
    assert repr(loader).startswith(
        "<RunLoader: <Loader: 5 batches of 4 rows, label int64[]; rank 0"
    )
    assert "<Epoch 0 of 'train'" in repr(loader)
