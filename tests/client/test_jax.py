"""Batches of the core as JAX's arrays."""

import numpy as np
import pytest

from cachecd_client import _core
from cachecd_client.errors import CallerError, SchemaError
from cachecd_client.files.file_set import FileSet
from cachecd_client.loader.columns import jax_array
from tests.client.records import record
from tests.core.processes import run_program
from tests.frameworks import jax, jnp


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A file that holds an id which no 32 bits hold."""
    path = tmp_path_factory.mktemp("large") / "a"
    writer = _core.ShardWriter(str(path))
    for number in (1, -(2**31), 2**31):
        ids = [number] * (2 if number == 1 else 1)
        writer.append(_core.encode_example({"id": number, "ids": ids, "x": 0.5}))
    writer.finish("")
    return FileSet(path)


def test_an_integer_that_jax_would_cut_off_is_an_error_that_says_so(large):
    batches = iter(large.jax(batch_size=1, shuffle=False, features=["id"]))
    assert [next(batches)["id"].item() for _ in range(2)] == [1, -(2**31)]
    with pytest.raises(SchemaError, match=r"'id': 2147483648 does not fit int32.*jax_enable_x64"):
        next(batches)
    ids = next(iter(large.jax(batch_size=3, shuffle=False, features=["ids"])))["ids"]
    with pytest.raises(SchemaError, match="2147483648 does not fit int32"):
        ids.to_jax()


# Memory


@pytest.mark.parametrize("device", [None, "sharding"])
def test_nothing_is_copied_on_the_way_from_the_core(files, monkeypatch, device):
    cpu, ways = jax.devices("cpu")[0], []
    device = device and jax.sharding.SingleDeviceSharding(cpu)

    def watched(of, *options, **more):
        made = jax_array(of, *options, **more)
        if of.dtype.itemsize < 8:  # JAX narrows the rest
            ways.append((of.ctypes.data, made.unsafe_buffer_pointer()))
        return made

    monkeypatch.setattr("cachecd_client.frameworks.jax.jax_array", watched)
    loader = files.jax(batch_size=5, device=device, features=["bits", "image", "vector"])
    ways.clear()  # of what showed that the device takes such arrays
    kept = list(loader)
    assert len(ways) == 3 * len(kept)
    assert [out for _, out in ways] == [given for given, _ in ways]


def slowly(image):
    """The sum, after some hundred milliseconds of other work in JAX's own threads."""
    start = jnp.full((400, 400), 1e-3)
    idle = jax.lax.fori_loop(0, 30, lambda _, x: jnp.tanh(x @ start), start).sum()
    return image.astype(jnp.int32).sum() + (0 * idle).astype(jnp.int32)


def test_memory_waits_for_computations_that_jax_has_only_begun(files):
    options = {"batch_size": 4, "prefetch_bytes": 1, "shuffle": False, "features": ["image"]}
    expected = [int(batch["image"].sum()) for batch in files.numpy(**options)]
    begun, computing = [], jax.jit(slowly)
    for _ in range(3):
        for batch in files.jax(**options):
            begun.append(computing(batch["image"]))
            del batch
    assert [int(total) for total in begun] == expected * 3


def test_a_donated_array_harms_no_other_batch(files):
    options = {"batch_size": 4, "prefetch_bytes": 1, "shuffle": False, "features": ["image"]}
    expected = [batch["image"] + 1 for batch in files.numpy(**options)]
    increase = jax.jit(lambda image: image + 1, donate_argnums=0)
    found = [increase(batch["image"]) for batch in files.jax(**options)]
    for given, wanted in zip(found, expected, strict=True):
        assert np.array_equal(given, wanted)


# Devices


def test_what_is_no_device_is_refused_before_anything_is_read(files):
    with pytest.raises(CallerError, match="device='gpu'"):
        files.jax(batch_size=5, device="gpu")


SHARDED = """
import sys
import jax
from cachecd_client import CallerError, FileSet
P = jax.sharding.PartitionSpec
mesh = jax.sharding.Mesh(jax.devices(), "data")
sharding = jax.sharding.NamedSharding(mesh, P("data"))
options = {"shuffle": False, "device": sharding}
for batch in FileSet(sys.argv[1]).jax(8, **options):
    assert batch["image"].sharding == sharding
    print([shard.data.tolist() for shard in batch["label"].addressable_shards])
options["device"] = jax.sharding.NamedSharding(mesh, P("data", None))
batch = next(iter(FileSet(sys.argv[1]).jax(8, features=["image"], **options)))
print(batch["image"].sharding.spec)
for batch_size, feature, ids in (6, "image", False), (8, "label", False), (8, "image", True):
    try:
        FileSet(sys.argv[1]).jax(batch_size, features=[feature], ids=ids, **options)
    except CallerError as error:
        print(str(error).partition(":")[0])
"""


def test_a_sharding_over_several_devices_gets_its_part_of_every_batch(files):
    four = "--xla_force_host_platform_device_count=4"
    done = run_program(SHARDED, *files.files, XLA_FLAGS=four)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        *(str([[i, i + 1] for i in range(first, first + 8, 2)]) for first in (0, 8, 16)),
        "P('data', None)",  # though other features, or masks, have too few dimensions for it
        "feature 'image', device",  # 6 rows on 4 devices
        "feature 'label', device",  # one dimension
        "feature '_shard', device",
    ]


# Columns


def test_ragged_and_bytes_columns_become_values_and_offsets(files):
    batch = next(iter(files.jax(batch_size=24, shuffle=False)))
    values, splits = batch["many"].to_jax()
    assert values.tolist() == [i for i in range(24) for _ in range(i % 4)]
    assert np.diff(splits).tolist() == [i % 4 for i in range(24)]
    data, offsets = batch["key"].to_jax()
    ends = offsets.tolist()
    assert bytes(data[ends[5] : ends[6]]) == record(5)["key"]
    with pytest.raises(CallerError, match=r"column\.strings\.to_jax\(\)"):
        batch["names"].to_jax()
