"""Processes that hold the same rows of a batch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cachecd_client.errors import CallerError
from tests.client.records import examples, write

ROOT = Path(__file__).parents[2]

_PROCESS = """
import sys
import jax, numpy as np
from cachecd_client import FileSet
from cachecd_client.errors import CallerError

path, port, number = sys.argv[1:]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(number))
of_process = np.array(jax.devices()).reshape(2, 2)
P = jax.sharding.PartitionSpec
def rows(devices):
    return jax.sharding.NamedSharding(jax.sharding.Mesh(devices, ("data", "model")), P("data"))
options = {"features": ["label"], "shuffle": False}
spanning = rows(of_process.T)
try:
    FileSet(path).jax(4, device=spanning, **options)
except CallerError as error:
    print("refused", "same rank=" in str(error))
batch = next(iter(FileSet(path).jax(4, device=spanning, rank=0, world=1, **options)))
print(sorted(int(v) for s in batch["label"].addressable_shards for v in np.ravel(s.data)))
batch = next(iter(FileSet(path).jax(4, device=rows(of_process), **options)))
print(batch["label"].shape[0])
"""


def test_jax_processes_that_hold_the_same_rows_are_refused_until_they_are_given_one_rank(tmp_path):
    path = write(tmp_path / "a.tfrecord", examples(range(20)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _PROCESS, str(path), str(port), str(number)],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        ends = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [out.splitlines() for out, _ in ends] == [["refused True", "[0, 1, 2, 3]", "8"]] * 2, (
        ends
    )


def test_keras_that_would_divide_each_processs_share_again_is_refused(monkeypatch):
    keras = pytest.importorskip("keras")
    from cachecd_client.tf_pipeline import _refuse_sharding

    class DataParallel:
        """What Keras has over several processes; they need its JAX backend."""

        auto_shard_dataset = True
        num_processes = 2

    one = DataParallel()
    monkeypatch.setattr(keras.distribution, "distribution", lambda: one)
    with pytest.raises(CallerError, match="auto_shard_dataset=False"):
        _refuse_sharding()
    one.auto_shard_dataset = False
    _refuse_sharding()
