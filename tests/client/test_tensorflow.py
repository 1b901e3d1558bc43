"""Batches of the core as TensorFlow's tensors."""

from __future__ import annotations

import numpy as np
import pytest

from cachecd_client import _core
from cachecd_client.errors import SchemaError
from cachecd_client.files.file_set import FileSet
from cachecd_client.loader.columns import tf_tensor
from cachecd_client.schema import Feature, Schema
from tests.client.records import write
from tests.frameworks import tf, torch

DTYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64"


def address(shared: tf.Tensor) -> int:
    return torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(shared)).data_ptr()


@pytest.fixture(scope="module")
def every_dtype(tmp_path_factory):
    values = {name: np.array([[0, 1], [1, 100]]).astype(name) for name in DTYPES.split()}
    values["empty"] = np.zeros((0, 3), np.float32)
    features = [Feature(n, "bytes", v.dtype.name, v.shape, raw=True) for n, v in values.items()]
    features += [
        Feature("scalar", "bytes", "float16", (), raw=True),
        Feature("pair", "bytes", "bytes", (2,)),
    ]
    values["scalar"] = np.array(1.5, np.float16)
    stored = {name: value.tobytes() for name, value in values.items()}
    encoded = _core.encode_example({"pair": [b"a", b"bc"], **stored})
    path = tmp_path_factory.mktemp("dtypes") / "a"
    return FileSet(write(path, [encoded] * 3, Schema(tuple(features))))


@pytest.mark.parametrize("batch_size", [1, 2])
def test_every_dtype_and_the_padded_tail_come_as_through_numpy(every_dtype, batch_size):
    options = {"batch_size": batch_size, "drop_last": False}
    batches = zip(every_dtype.tf(**options), every_dtype.numpy(**options), strict=True)
    for tensors, arrays in batches:
        assert tensors.pop("pair").numpy().tolist() == list(arrays.pop("pair"))
        assert tensors.keys() == arrays.keys()
        for name, array in arrays.items():
            assert tensors[name].dtype == tf.as_dtype(array.dtype), name
            assert np.array_equal(tensors[name].numpy(), array), name


def test_a_bytes_feature_that_never_holds_any_is_refused_at_once(every_dtype):
    described = Schema((Feature("none", "bytes", "bytes", (2, 0)),))
    files = FileSet(every_dtype.files, schema=described)
    for read in (files.tf, files.numpy):
        with pytest.raises(SchemaError, match=r"'none': shape \(2, 0\) has no elements"):
            read(batch_size=1)


# Memory


def test_tensors_share_an_aligned_arrays_memory_and_copy_what_is_not(files):
    array = next(iter(files.numpy(batch_size=24, shuffle=False)))["image"]
    shared = tf_tensor(array)
    assert address(shared) == array.ctypes.data
    array[0, 0, 0] = 9
    assert shared[0, 0, 0] == 9
    for copied in (array[1:], array[::2], array[:0]):
        assert np.array_equal(tf_tensor(copied).numpy(), copied)
        assert address(tf_tensor(copied)) != copied.ctypes.data
    array.flags.writeable = False
    assert np.array_equal(tf_tensor(array).numpy(), array)


# Columns


def test_ragged_tensors_lie_over_the_columns_memory_and_slices_are_copied(files):
    many = next(iter(files.numpy(batch_size=24, shuffle=False)))["many"]
    assert address(many.to_tf().values) == many.values.ctypes.data
    assert address(many.to_tf().row_splits) == many.row_splits.ctypes.data
    assert many[5:8].to_tf().to_list() == [[5], [6, 6], [7, 7, 7]]
    assert many[4:5].to_tf().to_list() == [[]]
