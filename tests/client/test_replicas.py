"""Processes that hold the same rows of a batch."""

from __future__ import annotations

import socket
from typing import NamedTuple

import pytest

from cachecd_client.errors import CallerError
from cachecd_client.files.file_set import FileSet
from tests.client.foreign import python
from tests.client.records import examples, schema, write

_PROCESS = """
import sys
import jax, numpy as np
from cachecd_client import FileSet
from cachecd_client.errors import CallerError
from cachecd_client.frameworks.collective import gathering

path, port, number = sys.argv[1:]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(number))
of_process = np.array(jax.devices()).reshape(2, 2)
P = jax.sharding.PartitionSpec
def rows(devices):
    return jax.sharding.NamedSharding(jax.sharding.Mesh(devices, ("data", "model")), P("data"))
print(gathering(1)((int(number), 2**40 + 7)))  # what epochs() agrees by
options = {"features": ["label"], "shuffle": False}
spanning = rows(of_process.T)

def refused(device, *phrases, **given):
    try:
        FileSet(path).jax(4, device=device, **given, **options)
    except CallerError as error:
        print(all(phrase in str(error) for phrase in phrases), flush=True)

def labels(batch):
    return sorted({int(v) for s in batch["label"].addressable_shards for v in np.ravel(s.data)})

own = {"rank": int(number), "world": 2}
if number == "0":  # the other process waits for nothing
    refused(spanning, "hold the same rows", "give rank=0, world=1 to epochs()")
    refused(spanning, "expected rank=0, world=1, and got rank=0, world=2", **own)
    refused(rows(of_process), "expected rank=0, world=2, and got rank=0, world=1", rank=0, world=1)
print(labels(next(iter(FileSet(path).jax(4, device=spanning, rank=0, world=1, **options)))))
print(labels(next(iter(FileSet(path).jax(4, device=rows(of_process), **own, **options)))))
short = FileSet(path).jax(3, device=rows(of_process), **own, pad_last=True, **options)
print(len(short))
try:
    FileSet(path).jax(3, device=rows(of_process), **own, drop_last=False, **options)
except CallerError as error:
    print("short", "equal parts of an array: pad_last=True" in str(error))
batch = next(iter(FileSet(path).jax(4, device=rows(of_process), **options)))
print(batch["label"].shape[0])
"""


def test_jax_processes_with_the_same_rows_need_their_rank(tmp_path, environment):
    path = write(tmp_path / "a.tfrecord", examples(range(20)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    devices = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    processes = [
        python(_PROCESS, path, port, number, environment=environment | devices)
        for number in range(2)
    ]
    try:
        ends = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    ends = [(*end, process.returncode) for end, process in zip(ends, processes, strict=True)]
    for number, (out, _, _) in enumerate(ends):
        said = [line for line in out.splitlines() if line and "Gloo" not in line]
        assert said == [
            f"[[0, {2**40 + 7}], [1, {2**40 + 7}]]",
            *["True"] * (0 if number else 3),
            "[0, 1, 2, 3]",
            ["[0, 2, 4, 6]", "[1, 3, 5, 7]"][number],
            "4",
            "short True",
            "8",
        ], ends


class Overlapping:
    """A sharding by which two processes hold one block of rows each, and one block together."""

    is_fully_addressable = False
    device_set = frozenset(range(3))

    def devices_indices_map(self, shape):
        blocks = {Device(0, 0): 0, Device(1, 0): 1, Device(2, 1): 1, Device(3, 1): 2}
        return {device: (slice(block, block + 1),) for device, block in blocks.items()}


class Device(NamedTuple):
    number: int
    process_index: int


def test_jax_processes_that_hold_some_of_the_same_rows_are_refused():
    from cachecd_client.frameworks.jax import _refuse_replicas

    with pytest.raises(CallerError, match="have only a part of their rows of each batch"):
        _refuse_replicas(Overlapping(), schema()["label"], (0, 2))


@pytest.fixture
def distributed(monkeypatch):
    """What Keras has over several processes; they need its JAX backend."""
    keras = pytest.importorskip("keras")

    class ModelParallel:
        auto_shard_dataset = False
        num_processes = 4
        num_model_replicas = 4

    one = ModelParallel()
    monkeypatch.setattr(keras.distribution, "distribution", lambda: one)
    return one


@pytest.mark.parametrize("way", ["numpy", "tf", "to_dataset", "tf_dataset"])
def test_keras_processes_that_hold_one_replica_are_refused_until_a_rank_says_which(
    tmp_path, distributed, way
):
    files = FileSet(write(tmp_path / "a.tfrecord", examples(range(20))), schema=schema())
    assert len(getattr(files, way)(4)) == 5
    distributed.num_model_replicas = 2
    with pytest.raises(CallerError, match=r"4 processes for 2 replicas of the model.*rank="):
        getattr(files, way)(4)
    assert len(getattr(files, way)(2, rank=1, world=2)) == 5


@pytest.mark.parametrize("placed", [{}, {"rank": 0, "world": 2}])
def test_keras_that_would_divide_each_processs_share_again_is_refused(
    tmp_path, distributed, cache, placed
):
    files = FileSet(write(tmp_path / "a.tfrecord", examples(range(20))), schema=schema())
    distributed.auto_shard_dataset = True
    with pytest.raises(CallerError, match="auto_shard_dataset=False"):
        files.tf_dataset(2, **placed)
    with pytest.raises(CallerError, match="auto_shard_dataset=False"):
        cache.tf_dataset("train", 2, **placed)
    distributed.auto_shard_dataset, distributed.num_model_replicas = False, 2
    if not placed:
        with pytest.raises(CallerError, match="replicas of the model"):
            cache.tf_dataset("train", 2)
