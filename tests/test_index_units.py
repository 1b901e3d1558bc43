"""An index whose units are parts of objects, and have labels."""

from __future__ import annotations

from cachecd.index import Index
from cachecd.model import ObjectInfo
from tests.test_index import SOURCE, listed, reopened


def test_units_of_one_object_are_told_apart_by_where_they_begin_and_keep_their_labels(tmp_path):
    index = Index.open(tmp_path, "train", SOURCE)
    units = [
        ObjectInfo("a", 7, "tag"),
        ObjectInfo("a", 5, "tag", begin=7, label="cat"),
        ObjectInfo("a\0", 3, "", begin=1 << 40),
        ObjectInfo("b", 2, label="dög"),
    ]
    assert index.append(units) == 4
    assert index.append(units) == 0
    again = reopened(index)
    assert listed(again) == units
    assert [key for key, _ in again.labelled()] == ["a", "a", "a\0", "b"]
    # There may be more units of the last object than were listed before a kill.
    assert again.last_key() is None
    again.close()


def test_keys_that_a_listing_knew_take_no_memory_when_it_is_over(tmp_path):
    index = Index.open(tmp_path, "train", "s")
    index.append([ObjectInfo(f"{n:04d}", 1) for n in range(1200)])
    assert index._known is not None
    index.finish()
    assert index._known is None
    index.close()
