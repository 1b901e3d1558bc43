"""Two nodes with a daemon and a set each, that train together: as many steps for both.

In the long form alone, CACHECD_LONG=1: two processes that import torch and JAX take ten seconds
of CPU time. The short form is tests/client/test_agreement.py.
"""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemons import Daemon, file_source, trainer

RECORDS = (41, 60)
BATCH = 4

# By torch.distributed, then by jax.distributed, as one process after the other is found to be in use.
NODE = """
import json, os, sys
import torch.distributed as dist
from cachecd_client import CachecdError, connect

rank, meeting, coordinator = int(os.environ["RANK"]), sys.argv[1], sys.argv[2]

def say(**what):
    print(json.dumps(what), flush=True)

def run(cache, **length):
    for epoch in cache.epochs("train", timeout=30, **length):
        loader = epoch.numpy(4)
        keys = [key.decode() for batch in loader for key in batch["key"]]
        valid = None
        if "n" in length:
            valid = [int(b["_valid"].sum()) for b in epoch.numpy(4, pad_last=True)]
        say(records=epoch.num_records, steps=len(loader), keys=keys, valid=valid)

with connect() as cache:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    run(cache, n=3)
    try:
        next(cache.epochs("train" if rank else "absent", 1))
    except CachecdError as error:
        say(error=f"{type(error).__name__}: {error}")
    dist.destroy_process_group()

    import jax
    jax.config.update("jax_platforms", "cpu")
    jax.distributed.initialize(coordinator, 2, rank)
    run(cache, records=2 * 12 * 4)

    mesh = jax.sharding.Mesh(jax.devices(), "data")
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    with cache.acquire("train") as epoch:
        label = next(iter(epoch.jax(4, device=rows, features=["label"])))["label"]
        own = [shard.data.tolist() for shard in label.addressable_shards]
        say(shape=label.shape, own=own, sum=int(jax.jit(lambda x: x.sum())(label)))

    for number, count in (rank, 2), (0, 1):
        try:
            epoch = next(cache.epochs("train", 1, rank=number, world=count))
            loader = epoch.jax(4, device=rows, features=["label"])
            say(place=[loader.rank, loader.world, len(loader)])
        except CachecdError as error:
            say(error=f"{type(error).__name__}: {error}")
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def node(folder: Path, objects: int) -> Daemon:
    """A daemon with so many objects of its own, which it has cached when it is settled."""
    chance = random.Random(objects)
    bodies = {f"{number:03d}": chance.randbytes(4000) for number in range(objects)}
    source = {**file_source(folder / "objects", bodies), "label": {"pattern": "(.)$"}}
    return Daemon(folder, {"train": {"source": source, "grow": {"first": "128KiB"}}})


def said(process: Any) -> list[dict[str, Any]]:
    """What a trainer said until it ended well; gloo speaks on stdout as well."""
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


@pytest.mark.long
def test_two_nodes_with_sets_of_their_own_take_as_many_steps_by_torch_and_by_jax(tmp_path):
    small, large = (node(tmp_path / str(objects), objects) for objects in RECORDS)
    with small, large:
        for served in small.start(), large.start():
            served.settle()
        ways = str(tmp_path / "meeting"), f"127.0.0.1:{free_port()}"
        environ = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        with (
            trainer(small, NODE, *ways, RANK="0", **environ) as one,
            trainer(large, NODE, *ways, RANK="1", **environ) as other,
        ):
            both = said(one), said(other)
    for lines, records in zip(both, RECORDS, strict=True):
        *epochs, _, half, rest, _, _, _ = lines
        for epoch in (*epochs, half):
            assert epoch["records"] == records
            assert epoch["steps"] == 41 // BATCH
            assert len(set(epoch["keys"])) == len(epoch["keys"]) == 40
        for epoch in epochs:
            # Without drop_last every record comes, and both take the steps of the larger set.
            assert (len(epoch["valid"]), sum(epoch["valid"])) == (60 // BATCH, records)
        # Of the records of all nodes each reads its half.
        assert (half["steps"] + rest["steps"]) * BATCH == 48
    dropped = [{f"{n:03d}" for n in range(60)} - set(epoch["keys"]) for epoch in both[1][:3]]
    assert dropped[0] != dropped[1] != dropped[2]
    errors = [lines[3]["error"].partition(":")[0] for lines in both]
    assert errors == ["UnknownDatasetError", "OtherNodeError"]
    (one_label,), (other_label,) = (lines[-3]["own"] for lines in both)
    for lines in both:  # a global array, of the rows of both
        assert lines[-3]["shape"] == [2 * BATCH]
        assert lines[-3]["sum"] == sum(one_label + other_label)
        assert lines[-2]["place"] == [0, 1, 41 // BATCH]
        assert lines[-1]["error"].startswith("ReplicasDifferError: epoch 0 of 'train'")
