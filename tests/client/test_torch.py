import numpy as np
import pytest

from cachecd_client.errors import CallerError
from cachecd_client.loader.columns import torch_tensor
from tests.client.records import record
from tests.frameworks import torch


def test_tensors_share_the_arrays_memory():
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    shared = torch_tensor(array)
    assert shared.data_ptr() == array.ctypes.data
    array[0, 0] = 9
    assert shared[0, 0] == 9
    halves = np.array([0x3F80], np.uint16)
    assert torch_tensor(halves, bfloat16=True).data_ptr() == halves.ctypes.data


def test_a_device_gets_every_dense_feature(files):
    # The meta device is one that every machine has and that is not the CPU.
    batch = next(iter(files.torch(batch_size=5, device="meta")))
    for name in ("bits", "image", "label", "vector"):
        assert batch[name].device.type == "meta"
    assert batch["many"].to_torch("meta").values().device.type == "meta"


def test_ragged_and_bytes_columns_become_jagged_tensors(files):
    batch = next(iter(files.torch(batch_size=24, shuffle=False)))
    many = batch["many"].to_torch()
    assert many.layout == torch.jagged
    assert many.values().data_ptr() == batch["many"].values.ctypes.data
    assert [row.tolist() for row in many.unbind()] == [[i] * (i % 4) for i in range(24)]
    key = batch["key"].to_torch()
    assert key.values().dtype == torch.uint8
    assert [bytes(row.tolist()) for row in key.unbind()] == [record(i)["key"] for i in range(24)]


def test_a_loader_goes_into_checkpoints_as_trainers_keep_them(files, tmp_path):
    from torch.distributed import checkpoint
    from torchdata.stateful_dataloader import stateful

    loader = files.torch(batch_size=5)
    # What Lightning, Accelerate and torch.distributed.checkpoint look for, and torchdata.
    assert isinstance(loader, stateful.Stateful)
    assert isinstance(loader, checkpoint.stateful.Stateful)
    batches = iter(loader)
    next(batches)
    torch.save({"loader": loader.state_dict()}, tmp_path / "checkpoint")
    state = torch.load(tmp_path / "checkpoint", weights_only=True)["loader"]
    again = files.torch(batch_size=5)
    again.load_state_dict(state)
    assert [b["label"].tolist() for b in again] == [b["label"].tolist() for b in batches]
    assert len(again) == len([*again]) == 4  # the pass that follows is whole


def test_a_device_that_is_none_is_refused_before_anything_is_read(files):
    with pytest.raises(CallerError, match=r"device='gpu': .*device type at start of device str"):
        files.torch(batch_size=5, device="gpu")
