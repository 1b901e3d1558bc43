"""Data parallel over the devices of this process: python docs/examples/jax_train.py

XLA_FLAGS=--xla_force_host_platform_device_count=4 makes four devices of a CPU.
"""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cachecd_client import connect

EPOCHS = 3
mesh = Mesh(jax.devices(), ("data",))
rows = NamedSharding(mesh, PartitionSpec("data"))  # each device has its rows of a batch
everywhere = NamedSharding(mesh, PartitionSpec())


def logits(weights, image):
    hidden = jax.nn.relu(image.reshape(len(image), -1) / 255 @ weights["in"])
    return hidden @ weights["out"]


def loss(weights, batch):
    found = jax.nn.log_softmax(logits(weights, batch["image"]))
    return -jnp.take_along_axis(found, batch["label"][:, None], axis=1).mean()


@partial(jax.jit, donate_argnames="weights")
def step(weights, batch):
    value, gradient = jax.value_and_grad(loss)(weights, batch)
    return jax.tree.map(lambda weight, slope: weight - 0.1 * slope, weights, gradient), value


@jax.jit
def right(weights, batch):
    hits = logits(weights, batch["image"]).argmax(axis=1) == batch["label"]
    return (hits & batch["_valid"]).sum()  # not the rows that fill the last batch up


first, second = jax.random.split(jax.random.key(0))
weights = {
    "in": jax.random.normal(first, (32 * 32, 64)) / 32,
    "out": jax.random.normal(second, (64, 10)) / 8,
}
weights = jax.device_put(weights, everywhere)

with connect(Path(__file__).with_name("digits.yaml")) as cache:
    for epoch in cache.epochs("train", EPOCHS):
        for batch in epoch.jax(batch_size=32, device=rows):
            weights, value = step(weights, batch)
            if jax.default_backend() == "cpu":
                # XLA's collectives among the devices of one CPU wait for each other for ever
                # if several steps are under way. On accelerators, let them be.
                jax.block_until_ready(weights)
        print(f"epoch {epoch.epoch}: {epoch.num_records} records, loss {value:.3f}")

    with cache.acquire("eval") as held_out:
        # Filled up to one shape: it compiles once, and every device gets as many rows.
        batches = held_out.jax(batch_size=64, device=rows, pad_last=True)
        hits = sum(int(right(weights, batch)) for batch in batches)
        accuracy = hits / held_out.num_records
    print(f"accuracy {accuracy:.1%} of {held_out.num_records} on {len(mesh.devices)} devices")
