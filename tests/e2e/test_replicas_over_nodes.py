"""Two nodes with one configuration, which replicas of a model span: their sets are the same."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from tests.e2e.daemons import Daemon, file_source
from tests.e2e.reading import keys_of


def compared(node: Daemon, job: str) -> list[tuple[Any, ...]]:
    """Of two epochs what nodes compare that hold parts of one replica, and what is read."""
    with node.connect() as cache:
        epochs = cache.epochs("train", 2, job=job, timeout=30)
        return [(epoch.fingerprint, epoch.seed, epoch.window, keys_of(epoch)) for epoch in epochs]


@pytest.mark.parametrize(
    "how",
    [
        {"grow": {"first": "100kB", "per_epoch": "100kB", "wait": True}, "streams": 1},
        {"pin": True},
    ],
)
def test_nodes_with_one_configuration_have_one_set_in_each_epoch(tmp_path, how):
    chance = random.Random(3)
    objects = {f"{number:03d}": chance.randbytes(8000) for number in range(60)}
    dataset = {"source": file_source(tmp_path / "objects", objects), **how}
    sizes = {"shard_size": "64KiB", "limit": "64MiB"}
    with ExitStack() as daemons:
        nodes = []
        for workers in 1, 2:
            folder = tmp_path / f"node-{workers}"
            folder.mkdir()
            node = Daemon(folder, {"train": dataset}, sampler={"workers": workers}, **sizes)
            nodes.append(daemons.enter_context(node).start())
        with ThreadPoolExecutor(2) as both:
            one, other = both.map(compared, nodes, ["its job", "another job"])
    assert one == other
    assert len(one[0][3]) >= 10
    assert (one[0][0] == one[1][0]) == ("streams" not in how)
