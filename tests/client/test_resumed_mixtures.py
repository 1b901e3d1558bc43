"""Runs over several datasets that go on in another process, with a scripted daemon."""

from __future__ import annotations

import copy
import json

import pytest

from cachecd_client import connect
from cachecd_client.errors import CallerError
from tests.client.conftest import CacheDir, lending

FIRST = {"web": 0, "code": 1000, "talk": 2000}  # the label of each dataset's first record
WEIGHTS = {"web": 0.75, "code": 0.25}


@pytest.fixture
def endpoint(daemon, tmp_path) -> str:
    """That of a daemon of three datasets, of which epoch k has 4 + k, 2 and 2 shards of 10 records."""
    root = tmp_path / "cache"
    root.mkdir()
    folders = {name: CacheDir(root, dataset=name, first=first) for name, first in FIRST.items()}

    def make(request):
        name, epoch = request.dataset, request.epoch
        shards = 4 + epoch if name == "web" else 2
        return folders[name].manifest(f"{name}-{epoch}", shards, epoch=epoch)

    return daemon(lending(make)).endpoint


def batches_of(loader, most=None):
    found = []
    for nth, batch in enumerate(loader, 1):
        found.append([int(label) for label in batch["label"]])
        if nth == most:
            break
    return found


def read(endpoint, weights=WEIGHTS, left=None, **run):
    """What is read, batch by batch, the progress after each epoch; and, `left` = (epoch, batches), the
    state of there, after which nothing more is read."""
    found, progress = [], []
    with connect(endpoint) as cache:
        for epoch in cache.epochs(weights, **run):
            loader = epoch.numpy(4, ids=True)
            last = left is not None and epoch.epoch == left[0]
            found += batches_of(loader, left[1] if last else None)
            progress.append(epoch.progress)
            if last:
                return found, progress, json.loads(json.dumps(loader.state_dict()))
    return found, progress, None


def from_web_to_code(progress):
    return {"web": 1 - progress / 2, "code": progress / 2}


@pytest.mark.parametrize(
    ("weights", "run", "left"),
    [
        (WEIGHTS, {"records": 170}, (1, 9)),
        (from_web_to_code, {"n": 3, "steps_per_epoch": 9}, (1, 3)),
    ],
)
def test_a_mixture_that_is_left_and_resumed_reads_what_an_uninterrupted_one_does(
    endpoint, weights, run, left
):
    whole, progress, _ = read(endpoint, weights, **run)
    before, _, state = read(endpoint, weights, left, **run)
    after, since, _ = read(endpoint, weights, state=state, **run)
    assert before + after == whole
    assert since == progress[-len(since) :]


def test_the_epoch_that_was_left_has_its_weights_and_the_next_those_of_now(endpoint):
    before, _, state = read(endpoint, {"web": 0.5, "code": 0.5}, (0, 3), n=2)
    whole, _, _ = read(endpoint, {"web": 0.5, "code": 0.5}, n=1)
    with connect(endpoint) as cache:
        shares = []
        for epoch in cache.epochs({"talk": 3.0, "web": 1.0}, 2, state=state):
            found = batches_of(epoch.numpy(4))
            if not shares:
                assert before + found == whole
            shares.append(dict(epoch.weights))
    assert shares == [{"web": 0.5, "code": 0.5}, {"talk": 0.75, "web": 0.25}]


def garbled(key, value):
    def change(state):
        state["run"][key] = value
        return state

    return change


@pytest.mark.parametrize(
    ("asked", "change", "why"),
    [
        (
            "web",
            lambda state: state,
            r"it is the state of a mixture of 'code' and 'web', .* dataset 'web'",
        ),
        (WEIGHTS, garbled("weights", []), "call is for a mixture"),
        (WEIGHTS, garbled("weights", [["web", 0.5], ["code", 1.5]]), "damaged"),
        (WEIGHTS, garbled("sweeps", {"web": {}}), "damaged"),
    ],
)
def test_what_is_no_state_of_a_mixture_is_refused_with_the_reason(endpoint, asked, change, why):
    _, _, state = read(endpoint, left=(0, 1), n=1)
    with connect(endpoint) as cache, pytest.raises(CallerError, match=why):
        cache.epochs(asked, 1, state=change(copy.deepcopy(state)))
