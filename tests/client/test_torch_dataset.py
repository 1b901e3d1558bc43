"""A file set as a dataset of batches, in DataLoaders with and without workers."""

import faulthandler
import gc
import itertools
import multiprocessing
import pickle

import pytest

from cachecd_client.errors import CallerError
from tests.client.conftest import locked
from tests.frameworks import torch

N, EACH = 62, 10
OPTIONS = {"batch_size": 4, "features": ["label", "image"], "seed": 5, "drop_last": False}


def rows(batches):
    return [(b["label"].tolist(), b["image"].tolist()) for b in batches]


def labels(batches):
    return {int(label) for batch in batches for label in batch["label"]}


def loading(files, workers, start="fork", kind=None, **options):
    context = start if workers else None
    return (kind or torch.utils.data.DataLoader)(
        files.to_dataset(**{**OPTIONS, **options}),
        batch_size=None, num_workers=workers, multiprocessing_context=context,
        # torch's own handler says of a fault that there was one, and not where: it was seen once.
        worker_init_fn=_tell_faults,
    )  # fmt: skip


def through(dataset, workers=2, **options):
    return torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers, **options)


def _tell_faults(_worker):
    faulthandler.disable()  # inherited as enabled, though its handlers are not in their place
    faulthandler.enable()


@pytest.fixture(autouse=True)
def no_garbage_of_other_tests():
    """A worker that collects it would end, in a fork, threads that frameworks have in this process."""
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_deliver_the_very_batches_of_a_loader_in_its_order(files, workers):
    expected = passes_of(files, 2)
    loader = loading(files, workers)
    assert len(loader) == 16
    assert rows(loader) == expected[0]
    loader.dataset.set_epoch(1)
    assert rows(loader) == expected[1]


@pytest.mark.long
def test_workers_that_are_not_forked_but_given_it_pickled_share_the_batches(cache):
    context = multiprocessing.get_context("forkserver")  # as "spawn", but torch is imported once
    context.set_forkserver_preload(["cachecd_client.frameworks.torch_dataset"])
    with cache.acquire("train") as epoch:
        loader = loading(epoch, 2, context)
        assert rows(loader) == rows(epoch.torch(**OPTIONS))


def test_a_pickled_dataset_keeps_the_launchers_rank(files, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    dataset = files.to_dataset(**OPTIONS)
    monkeypatch.delenv("LOCAL_RANK")
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    copied = pickle.loads(pickle.dumps(dataset))
    assert rows(dataset) == rows(copied) == rows(files.torch(**OPTIONS, rank=1, world=2))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it
@pytest.mark.parametrize(("workers", "taken"), [(0, 3), (2, 3), (2, 16)])
def test_a_stateful_dataloader_resumes_behind_the_last_batch(files, workers, taken):
    from torchdata.stateful_dataloader import StatefulDataLoader

    expected = rows(files.torch(**OPTIONS))
    loader = loading(files, workers, kind=StatefulDataLoader)
    batches = iter(loader)
    assert rows(itertools.islice(batches, taken)) == expected[:taken]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    del batches, loader
    resumed = loading(files, workers, kind=StatefulDataLoader)
    resumed.load_state_dict(state)
    assert rows(resumed) == expected[taken:]
    if not workers:
        # The pass that follows is a whole one.
        assert labels_of(rows(resumed)) == labels_of(expected)


def test_the_state_of_one_worker_is_no_other_ones(files):
    dataset = files.to_dataset(**OPTIONS)
    state = {**dataset.state_dict(), "worker": 1, "workers": 2}
    with pytest.raises(
        CallerError, match="worker 1 of 2, this is worker 0 of 1: resume with the same number"
    ):
        dataset.load_state_dict(state)


def labels_of(found):
    return sorted(label for labels, _ in found for label in labels)


def passes_of(files, count, **options):
    loader = files.torch(**OPTIONS, **options)
    return [rows(loader) for _ in range(count)]


def test_workers_repeat_the_pass_until_set_epoch(files):
    dataset = files.to_dataset(**OPTIONS)
    loader = through(dataset, 2, persistent_workers=True)
    first, second, _, fourth = passes_of(files, 4)
    assert first != second
    assert [rows(loader), rows(loader)] == [first, first]
    dataset.set_epoch(1)
    assert [rows(loader), rows(loader)] == [second, second]
    assert rows(itertools.islice(loader, 2)) == second[:2]
    assert rows(loader) == second, "a look at two batches changed the order"
    for epoch, expected in ((3, fourth), (0, first), (0, first)):
        dataset.set_epoch(epoch)
        assert rows(loader) == expected


def test_what_workers_read_counts_for_the_run_whatever_is_looked_at(cache):
    found = []
    for epoch in cache.epochs("train", records=48, steps_per_epoch=3):
        next(iter(epoch.torch(1)))
        loader = loading(epoch, 2, features=["label"], drop_last=True)
        assert len(loader) == 3
        next(iter(epoch.to_dataset(2)))
        found.append(labels(loader))
    assert len(found) == 4  # of 12 records each
    # Of the first set of 20 records it had 12, so the second of 30 begins with what it did not have.
    assert not found[0] & found[1]


def test_an_epochs_worker_holds_the_lease_itself(cache, manifest):
    options = {"batch_size": 4, "features": ["label"], "prefetch_bytes": 1}
    with cache.acquire("train") as epoch:
        batches = iter(through(epoch.to_dataset(**options), 1))
        next(batches)
    assert locked(manifest(0))  # by the worker, which reads on
    assert len(list(batches)) == 4
    del batches


def test_a_dataloader_around_a_dataset_or_a_loader_says_what_to_write(files):
    with pytest.raises(CallerError, match=r"DataLoader\(dataset, batch_size=None\)"):
        next(iter(torch.utils.data.DataLoader(files.to_dataset(4))))
    with pytest.raises(CallerError, match=r"iterate over the loader itself.*to_dataset\(batch"):
        next(iter(torch.utils.data.DataLoader(files.torch(4), batch_size=None)))
