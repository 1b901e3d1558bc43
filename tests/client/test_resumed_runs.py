"""Runs that go on in another process: what a state says, what it is asked with, and what it belongs to."""

from __future__ import annotations

import copy
import json

import pytest

from cachecd_client import connect, standing
from cachecd_client.errors import AcquireTimeoutError, CallerError, SetGoneError
from cachecd_client.protocol import Acquire, AskRecipes, Done, Granted, Missing, Recall, Recipes


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
        {"records": 100},
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


def test_a_run_left_at_an_epochs_end_goes_on_with_the_next(cache, granting):
    whole, _ = all_of(cache, n=3, steps_per_epoch=3)
    before, state = left_at(cache, 1, 3, n=3, steps_per_epoch=3)
    epochs = cache.epochs("train", n=3, steps_per_epoch=3, state=state)
    (last,) = [(epoch.epoch, labels(epoch.numpy(4))) for epoch in epochs]
    assert last[0] == 2
    assert before + last[1] == whole


def test_a_dataset_of_the_first_epoch_goes_on_too(cache):
    whole, _ = all_of(cache, n=2)
    before, state = left_at(cache, 1, 3, n=2)
    epochs = cache.epochs("train", n=2, state=state)
    dataset = next(epochs).to_dataset(4)
    after = [[int(label) for label in batch["label"]] for batch in dataset]
    assert before + after == whole


def test_a_run_left_at_its_end_has_nothing_more_and_asks_for_nothing(cache, granting):
    run = {"records": 42, "steps_per_epoch": 4, "resume": "exact"}
    whole, _ = all_of(cache, **run)
    before, state = left_at(cache, 2, 2, **run)
    assert before == whole
    asked = len(granting.of(Acquire))
    assert all_of(cache, **run, state=state) == ([], [])
    assert len(granting.of(Acquire)) == asked


def test_progress_goes_on_before_the_first_batch(cache):
    _, state = left_at(cache, 1, 3, n=2)
    for epoch in cache.epochs("train", 2, state=state):
        assert epoch.progress == (1 + 3 / 7) / 2


def test_the_shuffle_window_is_that_of_the_state_to_the_end_of_its_epoch(cache, cache_dir, daemon):
    """By default it follows from the machine's memory."""
    windows = [2000, 3000, 3000]

    def answer(request):
        if not isinstance(request, Acquire):
            return None
        window = windows.pop(0)
        lease = f"lease-{window}"
        path = cache_dir.manifest(lease, 4, epoch=request.epoch, window=window)
        return Granted(request.id, lease, str(cache_dir.root), f"leases/{path.name}")

    with connect(daemon(answer).endpoint) as cache:
        _, state = left_at(cache, 0, 3, n=2)
        assert state["window"] == 2000
        assert [epoch.window for epoch in cache.epochs("train", 2, state=state)] == [2000, 3000]


def test_a_dataset_that_could_not_be_made_leaves_the_place_to_the_next(cache):
    whole, _ = all_of(cache, n=2)
    before, state = left_at(cache, 1, 3, n=2)
    for epoch in cache.epochs("train", 2, state=state):
        for options in ({"batch_size": 5}, {"batch_size": 4, "features": ["nothing"]}):
            with pytest.raises(CallerError):
                epoch.to_dataset(**options)
        after = [[int(label) for label in batch["label"]] for batch in epoch.to_dataset(4)]
    assert before + after == whole


def test_what_was_read_of_an_epoch_counts_where_tensorflow_reads_it_anew(cache):
    run = {"records": 50, "steps_per_epoch": 6}
    _, state = left_at(cache, 0, 3, **run)  # 12 records
    steps = [len(epoch.tf_dataset(4)) for epoch in cache.epochs("train", **run, state=state)]
    assert steps == [6, 3], "24, and then 12 of the 14 that are left"


def test_workers_ask_for_no_recipes(daemon, cache_dir):
    scripted, _ = exact(daemon, cache_dir, ["a", "b"], lambda request, lost: None)
    with connect(scripted.endpoint) as cache:
        for epoch in cache.epochs("train", 1, resume="exact"):
            dataset = epoch.to_dataset(4)
            assert len(list(dataset)) == 5
            assert not scripted.of(AskRecipes)
            dataset.state_dict()
            assert scripted.of(AskRecipes)


def test_options_that_differ_are_named(cache):
    _, state = left_at(cache, 1, 3, n=2)
    epochs = cache.epochs("train", n=2, state=state)
    with pytest.raises(CallerError, match=r"batch_size 4 \(here 5\)"):
        next(epochs).numpy(5)


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
        (lambda state: "state", "not a str"),
        (lambda state: {}, "state_dict"),
        (garbled(["run", "version"], 2), "version 2 of a run, expected 1"),
        (
            garbled(["run", "sets", 0, "dataset"], "eval"),
            r"it is of 'eval', and .* dataset 'train'",
        ),
        (garbled(["run", "sets", 0, "shards"], [[1]]), "damaged"),
        (garbled(["run", "sets", 0, "recipes"], ["one"]), "damaged"),
        (garbled(["run", "sets", 0, "fingerprint"], 7), "damaged"),
        (garbled(["run", "sets"], []), "damaged"),
        (garbled(["run", "epoch"], -1), "damaged"),
        (garbled(["run", "way"], {"number": 0, "read": "?"}), "damaged"),
    ],
)
def test_what_is_no_state_of_this_dataset_is_refused_with_the_reason(cache, change, why):
    _, state = left_at(cache, 0, 1, n=1)
    with pytest.raises(CallerError, match=why):
        cache.epochs("train", 1, state=change(copy.deepcopy(state)))


def test_where_the_set_is_gone_continue_begins_the_epoch_anew_and_keeps_what_was_read(
    daemon, cache_dir, caplog
):
    gone: list[str] = []

    def answer(request):
        if not isinstance(request, Acquire):
            return None
        if request.fingerprint in gone:
            return Missing(request.id, [[1, 3]], "3 of its 3 shards are gone")
        shards = 2 + request.epoch + bool(gone)
        path = cache_dir.manifest(
            f"lease-{request.epoch}-{len(gone)}", shards, epoch=request.epoch, walk="w", cursor=[70]
        )
        return Granted(request.id, path.stem, str(cache_dir.root), f"leases/{path.name}")

    scripted = daemon(answer)
    with connect(scripted.endpoint) as cache:
        before, state = left_at(cache, 1, 3, records=100)
        gone.append(state["fingerprint"])
        epochs = cache.epochs("train", records=100, state=state)
        epoch = next(epochs)
        loader = epoch.numpy(4)
        assert (epoch.epoch, loader.position, len(loader)) == (1, 0, 10)
        assert epoch.progress == pytest.approx(4 * len(before) / 100)
        epochs.close()
    asked = scripted.of(Acquire)[-1]
    assert (asked.fingerprint, asked.walk, asked.cursor) == ("", "w", [70])
    assert [r.message for r in caplog.records if "begins anew" in r.message]


def exact(daemon, cache_dir, recipes, recall):
    """A daemon that has lost every set once it was told to; it is told by `recall` what then comes."""
    lost = []

    def answer(request):
        match request:
            case Acquire() if lost and request.fingerprint:
                return Missing(request.id, [[1, 2]], "2 of its 2 shards are gone")
            case Acquire():
                path = cache_dir.manifest("lease-0", 2)
                return Granted(request.id, path.stem, str(cache_dir.root), f"leases/{path.name}")
            case AskRecipes():
                return Recipes(request.id, recipes)
            case Recall():
                return recall(request, lost)
        return None

    return daemon(answer), lost


def test_exact_has_the_set_made_again_by_what_the_state_says(daemon, cache_dir):
    def recall(request, lost):
        lost.clear()
        return Done(request.id)

    scripted, lost = exact(daemon, cache_dir, ["recipe of 1", "recipe of 2"], recall)
    with connect(scripted.endpoint) as cache:
        before, state = left_at(cache, 0, 2, n=1, resume="exact")
        whole, _ = all_of(cache, n=1)
        lost.append(True)
        after, _ = all_of(cache, n=1, state=state, resume="exact")
    assert before + after == whole
    (request,) = scripted.of(Recall)
    assert request.recipes == ["recipe of 1", "recipe of 2"]
    assert (request.shards, request.num_bytes) == ([[1, 2]], state["run"]["sets"][0]["num_bytes"])


@pytest.mark.parametrize(
    ("recipes", "resume", "why"),
    [
        (["recipe of 1", ""], "exact", "how 1 of them were made .the first is shard 2."),
        (["recipe of 1", "recipe of 2"], "continue", "how 2 of them were made"),
        (["recipe of 1", "recipe of 2"], "exact", "made again, and it is another one"),
    ],
)
def test_exact_never_goes_on_with_another_set(daemon, cache_dir, recipes, resume, why):
    scripted, lost = exact(daemon, cache_dir, recipes, lambda request, lost: Done(request.id))
    with connect(scripted.endpoint) as cache:
        _, state = left_at(cache, 0, 2, n=1, resume=resume)
        lost.append(True)
        with pytest.raises(SetGoneError, match=why):
            next(cache.epochs("train", 1, state=state, resume="exact"))


def test_a_daemon_that_knows_no_resume_gives_another_set_which_is_noticed(
    daemon, cache_dir, caplog
):
    """It ignores what it does not know of an Acquire."""
    shards = [3]

    def answer(request):
        if not isinstance(request, Acquire):
            return None
        path = cache_dir.manifest(f"lease-{shards[0]}", shards[0])
        return Granted(request.id, path.stem, str(cache_dir.root), f"leases/{path.name}")

    with connect(daemon(answer).endpoint) as cache:
        _, state = left_at(cache, 0, 1, n=1)
        shards[0] = 4
        with pytest.raises(SetGoneError, match="older than this client"):
            next(cache.epochs("train", 1, state=state, resume="exact"))
        assert next(cache.epochs("train", 1, state=state)).numpy(4).position == 0
    assert "begins anew" in caplog.text


def test_without_a_daemon_a_state_says_so_and_training_goes_on(granting, caplog, monkeypatch):
    monkeypatch.setattr(standing, "_TIMEOUT", 0.1)
    with connect(granting.endpoint) as cache:
        for epoch in cache.epochs("train", 1, resume="exact"):
            loader = epoch.numpy(4)
            granting.kill()
            state = loader.state_dict()
            assert "recipes" not in state["run"]["sets"][0]
            assert "does not say how its set was made" in caplog.text
            assert len(labels(loader)) == 5


def test_exact_waits_no_longer_than_it_may(daemon, cache_dir):
    scripted, _ = exact(daemon, cache_dir, ["a", "b"], lambda request, lost: None)
    with connect(scripted.endpoint) as cache:
        _, state = left_at(cache, 0, 2, n=1, resume="exact")
        answer = scripted.answer
        scripted.answer = lambda request: (
            Missing(request.id, [], "another lease stands")
            if isinstance(request, Acquire)
            else answer(request)
        )
        with pytest.raises(AcquireTimeoutError, match="another lease stands"):
            next(cache.epochs("train", 1, state=state, resume="exact", timeout=0.1))


def test_no_other_word_says_how_to_resume(cache):
    with pytest.raises(CallerError, match="expected 'continue' or 'exact'"):
        cache.epochs("train", 1, resume="maybe")


def test_a_state_of_an_epoch_beyond_the_end_is_refused(cache):
    _, state = left_at(cache, 2, 1, n=3)
    with pytest.raises(CallerError, match=r"start=2, n=1: .* a state's start is its epoch"):
        cache.epochs("train", 1, state=state)
