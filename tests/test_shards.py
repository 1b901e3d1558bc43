"""How a shard appears on the file system."""

from __future__ import annotations

import os

import pytest

from cachecd.errors import DiskError
from cachecd.layout import Layout
from cachecd.shards import publish


@pytest.fixture
def shard(tmp_path):
    """(temporary, final) of a sealed shard that is to be published."""
    layout = Layout(tmp_path)
    temporary, final = layout.tmp / "t.tfrecord", layout.shards / "train" / "0000000001.tfrecord"
    for path in (temporary, final):
        path.parent.mkdir(parents=True)
    temporary.write_bytes(b"records")
    Layout.sidecar(temporary).write_bytes(b"sidecar")
    return temporary, final


def test_a_shard_never_appears_before_its_sidecar(shard, monkeypatch):
    temporary, final = shard
    seen = []
    rename = os.rename

    def observed(old, new):
        rename(old, new)
        seen.append(sorted(p.name for p in final.parent.iterdir()))

    monkeypatch.setattr(os, "rename", observed)
    publish(temporary, final)
    assert seen == [[final.name + ".idx"], [final.name, final.name + ".idx"]]
    assert (final.read_bytes(), Layout.sidecar(final).read_bytes()) == (b"records", b"sidecar")
    assert list(temporary.parent.iterdir()) == []


@pytest.mark.parametrize("which", [0, 1])
def test_nothing_is_overwritten(shard, which):
    temporary, final = shard
    occupied = (final, Layout.sidecar(final))[which]
    occupied.write_bytes(b"older")
    with pytest.raises(DiskError, match=f"{occupied} exists already"):
        publish(temporary, final)
    assert occupied.read_bytes() == b"older"
    assert temporary.read_bytes() == b"records"


@pytest.mark.parametrize("failing", ["rename", "fsync"])
def test_a_publication_that_fails_halfway_is_taken_back(shard, monkeypatch, failing):
    temporary, final = shard
    if failing == "rename":
        temporary.unlink()
    else:

        def fsync(_):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fsync", fsync)
    before = sorted(p.name for p in temporary.parent.iterdir())
    with pytest.raises(DiskError, match=f"cannot publish {final}: "):
        publish(temporary, final)
    assert list(final.parent.iterdir()) == []
    assert sorted(p.name for p in temporary.parent.iterdir()) == before
