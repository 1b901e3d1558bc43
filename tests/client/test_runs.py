"""Runs by records and by steps: how long epochs are, what is in them, and when a run is over."""

from __future__ import annotations

from collections import Counter

import pytest

from cachecd_client.errors import CallerError
from cachecd_client.schema import Schema
from tests.client.records import labels


def test_a_run_of_records_ends_with_them_however_the_sets_grow(cache):
    """Sets of 20, 30, 40, 50 records."""
    read, lengths, progress = 0, [], []
    for epoch in cache.epochs("train", records=120):
        loader = epoch.numpy(batch_size=10)
        lengths.append(len(loader))
        for _ in loader:
            read += 10
            progress.append(epoch.progress)
    assert (lengths, read) == ([2, 3, 4, 3], 120)
    assert progress == pytest.approx([step / 12 for step in range(1, 13)])


def test_a_run_of_tokens_ends_with_them(cache, monkeypatch):
    """Sets of 20, 30, 40, 50 records, whose images of 2 x 3 pixels pass for tokens."""
    monkeypatch.setattr(Schema, "tokens", 6)
    read = 0
    for epoch in cache.epochs("train", tokens=6 * 120 + 5):
        read += sum(1 for _ in epoch.numpy(batch_size=10))
        figures = epoch.report()
        assert figures["tokens"] == 6 * figures["records"]
        assert figures["tokens_per_second"] > 0
    assert read == 12


def test_a_finished_run_of_tokens_reads_no_more_when_it_is_resumed(cache, monkeypatch):
    monkeypatch.setattr(Schema, "tokens", 6)
    state = None
    for epoch in cache.epochs("train", tokens=6 * 45):
        for _ in (loader := epoch.numpy(batch_size=10)):
            state = loader.state_dict()
    assert list(cache.epochs("train", tokens=6 * 45, state=state)) == []


def test_a_resumed_run_of_tokens_knows_its_progress_before_it_has_a_set(cache, monkeypatch):
    monkeypatch.setattr(Schema, "tokens", 6)
    epochs = cache.epochs("train", tokens=6 * 40)
    for _ in (loader := next(epochs).numpy(batch_size=10)):
        state = loader.state_dict()
    epochs.close()
    epochs = cache.epochs("train", tokens=6 * 40, state=state)
    assert next(epochs).progress == pytest.approx(0.5)


def test_windows_of_another_length_end_a_run_of_tokens(cache, monkeypatch):
    monkeypatch.setattr(Schema, "tokens", 6)
    epochs = cache.epochs("train", tokens=6 * 100)
    for _ in next(epochs).numpy(batch_size=10):
        pass
    monkeypatch.setattr(Schema, "tokens", 12)
    with pytest.raises(CallerError, match=r"windows of one length.* found \['12', '6'\]"):
        next(epochs)


def test_a_run_of_tokens_needs_records_with_equally_many(cache):
    with pytest.raises(
        CallerError, match=r"tokens=100: expected datasets whose records are windows"
    ):
        next(cache.epochs("train", tokens=100))


def test_a_small_set_is_read_again_in_another_order_until_the_steps_are_made(cache):
    epochs = cache.epochs("train", 1, steps_per_epoch=7)
    loader = next(epochs).numpy(batch_size=10)
    assert len(loader) == 7
    found = labels(loader)
    passes = [found[:20], found[20:40], found[40:60]]
    assert [sorted(one) for one in passes] == [list(range(20))] * 3
    assert len({tuple(one) for one in passes}) == 3
    assert len(set(found[60:])) == 10
    again = labels(loader)
    assert again != found, "each pass of a loader has an order of its own"
    assert sorted(again) == sorted(found), "of the same records"


def test_of_a_large_set_what_was_not_read_comes_first_in_the_next_epoch_when_it_has_grown(cache):
    """Sets of 20, 30, 40, 50 and 60 records, of which 12 are read at a time."""
    epochs = cache.epochs("train", 5, steps_per_epoch=2)
    every = [labels(epoch.numpy(batch_size=6)) for epoch in epochs]
    assert [len(one) for one in every] == [12] * 5
    found = Counter(label for one in every for label in one)
    assert max(found.values()) == 1, "60 records, each once"
    assert len(found) == 60


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "expected one of them"),
        ({"records": 0}, "records=0, expected at least 1"),
        ({"n": 3, "steps_per_epoch": 0}, "steps_per_epoch=0, expected at least 1"),
        ({"n": 1, "start": 2}, "start=2, n=1"),
    ],
)
def test_a_length_that_cannot_be_is_refused_at_once(cache, arguments, why):
    with pytest.raises(CallerError, match=why):
        cache.epochs("train", **arguments)


def test_a_look_at_some_records_does_not_become_what_the_epoch_reads(cache):
    """Sets of 20, 30, 40, 50 and 60 records, of which 12 are read at a time."""
    found = Counter()
    for epoch in cache.epochs("train", 5, steps_per_epoch=2):
        next(iter(epoch.numpy(batch_size=1)))
        found.update(labels(epoch.numpy(batch_size=6)))
        next(iter(epoch.numpy(batch_size=10)))  # a pass of it would be longer than what is read
    assert max(found.values()) == 1
    assert len(found) == 60
