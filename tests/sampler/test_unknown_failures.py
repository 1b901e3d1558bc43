"""What a store's library, or the worker itself, fails by otherwise than thought: whom it costs what."""

from __future__ import annotations

import pytest

from cachecd.model import Unit
from cachecd.sampler.draft import Draft
from cachecd.stores.local import LocalBackend
from tests.sampler.test_worker import Bench


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """Two objects in a store whose library raises what nobody thought of for the keys in `of`."""
    for name in ("source", "tmp"):
        (tmp_path / name).mkdir()
    for key in "ab":
        (tmp_path / "source" / key).write_bytes(b"x")
    read, of = LocalBackend._read, set()

    def odd(self, key, *more):
        if key in of:
            raise RuntimeError("nobody thought of this\nnor of that")
        return read(self, key, *more)

    monkeypatch.setattr(LocalBackend, "_read", odd)
    source = {"url": f"file://{tmp_path}/source/", "format": "files"}
    return Bench(tmp_path / "tmp", source=source), of


UNITS = [Unit(0, "a", 1), Unit(1, "b", 1)]


@pytest.mark.parametrize("key", ["a", "b"])
def test_whatever_a_stores_library_raises_of_one_object_sets_that_aside_for_a_while(odd, key):
    bench, of = odd
    of.add(key)
    outcome, _ = bench.made(UNITS)
    assert outcome.records == 1
    (aside,) = outcome.skipped
    assert (aside.key, aside.passing) == (key, True)
    assert aside.reason.startswith("RuntimeError: nobody thought of this (")


def test_whatever_a_stores_library_raises_of_every_object_fails_the_source(odd, monkeypatch):
    bench, of = odd
    of |= {"a", "b"}
    monkeypatch.setattr(LocalBackend, "glimpse", lambda self: 1 // 0)
    failed = bench.failed(UNITS)
    assert failed.cause == "source"
    assert "RuntimeError: nobody thought of this" in failed.reason
    of.clear()
    assert bench.made(UNITS)[0].records == 2


def test_what_a_worker_itself_fails_by_names_the_unit_that_it_worked_on(odd, monkeypatch):
    """A second time that unit is taken out of the shard."""
    bench, _ = odd
    append = Draft.add

    def fail(self, record, unit, *more):
        if unit.number == 1:
            raise RuntimeError("nobody thought of this")
        return append(self, record, unit, *more)

    monkeypatch.setattr(Draft, "add", fail)
    failed = bench.failed(UNITS)
    assert (failed.cause, failed.unit) == ("worker", 1)
    assert "nobody thought of this" in failed.reason
