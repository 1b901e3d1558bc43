"""The order of a block as the daemon makes it: from the listing, in a thread, whatever the disk does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cachecd import ordering
from cachecd.complaints import Complaints
from cachecd.config import DatasetConfig
from cachecd.errors import DiskError
from cachecd.events import BlockOrdered, OrderBlock
from cachecd.index import Index
from cachecd.model import ObjectInfo
from cachecd.strata import Block, stratified

PATTERN = {"pattern": "^class-([0-9]+)/"}


def dataset(label: dict[str, Any]) -> DatasetConfig:
    source = {"url": "file:///data/", "format": "files", "label": label}
    if label.get("column"):
        source["manifest"] = "file:///table.csv"
    return DatasetConfig.model_validate({"source": source, "stratify": True})


@pytest.fixture
def made(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """Makes orders over an index, and keeps what is fed and what the disk refused."""
    index = Index.open(tmp_path, "train", "s", early=False)
    complaints, events = Complaints(), []

    def order(label: dict[str, Any], block: Block) -> np.ndarray:
        maker = ordering.Ordering(
            {"train": dataset(label)}, {"train": index}, complaints, events.append
        )
        asyncio.run(asyncio.wait_for(maker.carry_out(OrderBlock("train", block)), 30))
        found = events.pop()
        assert isinstance(found, BlockOrdered)
        assert (found.dataset, found.block) == ("train", block)
        return found.order

    yield SimpleNamespace(order=order, index=index, complaints=complaints)
    index.close()


def test_classes_are_those_of_the_keys_and_units_without_one_a_class_of_their_own(made):
    keys = [f"class-{n // 100}/{n:04d}" for n in range(900)] + [f"{n}" for n in range(100)]
    made.index.append([ObjectInfo(key, 1) for key in sorted(keys)])
    listed = [key for key, _ in made.index.labelled(0, 1000)]
    order = made.order(PATTERN, Block(0, 1000, 7))
    for start in range(0, 1000, 50):
        window = Counter(listed[u].partition("/")[0][:7] for u in order[start : start + 50])
        assert len(window) >= 10
        assert all(4 <= n <= 6 for name, n in window.items() if name.startswith("class-"))
        without = sum(n for name, n in window.items() if not name.startswith("class-"))
        assert 4 <= without <= 6


def test_classes_are_those_that_a_table_listed_and_of_the_block_alone(made, monkeypatch):
    monkeypatch.setattr(ordering, "_STRETCH", 7)
    labels = ["", *"abcb" * 10]
    made.index.append([ObjectInfo(f"{n:03d}", 1, label=name) for n, name in enumerate(labels)])
    order = made.order({"column": True}, Block(11, 41, 3))
    codes = {"c": 0, "b": 1, "a": 2}  # as they first occur from unit 11 on
    expected = stratified(np.array([codes[name] for name in labels[11:41]], np.int32), 3)
    assert order.tolist() == expected.tolist()


def test_a_disk_that_refuses_is_told_and_asked_again(made, monkeypatch):
    made.index.append([ObjectInfo(f"class-{n % 3}/{n:03d}", 1) for n in range(30)])
    read, reasons = made.index.labelled, []

    def refusing_twice(begin: int, end: int) -> Iterator[tuple[str, str]]:
        if len(reasons) < 2:
            reasons.append(made.complaints.reason)
            raise DiskError("cannot read the index")
        reasons.append(made.complaints.reason)
        return read(begin, end)

    monkeypatch.setattr(made.index, "labelled", refusing_twice)
    monkeypatch.setattr(ordering, "_AGAIN_IN", 0.001)
    order = made.order(PATTERN, Block(0, 30, 7))
    assert sorted(order.tolist()) == list(range(30))
    assert reasons == ["", "cannot read the index", "cannot read the index"]
    assert made.complaints.reason == ""


def test_the_listing_is_read_from_unit_to_unit_across_its_blocks(made):
    for start in range(0, 50, 10):
        page = [ObjectInfo(f"{n:03d}", 1, label=str(n % 4)) for n in range(start, start + 10)]
        made.index.append(page)
    every = [(f"{n:03d}", str(n % 4)) for n in range(50)]
    for begin, end in [(0, 50), (0, 10), (10, 20), (9, 11), (3, 47), (49, 50), (20, 20)]:
        assert list(made.index.labelled(begin, end)) == every[begin:end]
