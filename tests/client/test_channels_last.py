"""Images [H, W, C] as tensors [C, H, W] over the same memory."""

import numpy as np
import pytest

from cachecd.sampler.encoding import encode, infer
from cachecd_client.errors import CallerError, SchemaError
from cachecd_client.files.file_set import FileSet
from tests.client.records import write
from tests.frameworks import torch

H, W = 4, 6


def image(number):
    return {
        "gray": np.arange(H * W, dtype=np.float32).reshape(H, W, 1) + number,
        "image": np.arange(H * W * 3, dtype=np.uint8).reshape(H, W, 3) + number,
        "label": number,
        "mask": np.full((H, W), number, np.uint8),
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    schema = infer(image(0))
    records = [encode(schema, image(number)) for number in range(8)]
    return FileSet(write(tmp_path_factory.mktemp("set") / "a.tfrecord", records, schema))


@pytest.mark.parametrize("device", [None, "cpu"])
def test_images_are_views_that_convolutions_take_as_they_lie(files, device):
    plain = next(iter(files.torch(batch_size=8)))
    batch = next(iter(files.torch(batch_size=8, device=device, channels_last=True)))
    for name, channels in (("image", 3), ("gray", 1)):
        assert batch[name].shape == (8, channels, H, W)
        assert batch[name].is_contiguous(memory_format=torch.channels_last)
        assert batch[name]._base is not None  # a view: nothing was copied
        assert torch.equal(batch[name], plain[name].permute(0, 3, 1, 2))
    for name in ("label", "mask"):
        assert torch.equal(batch[name], plain[name])


@pytest.mark.parametrize(
    ("asked", "options", "error", "said"),
    [
        (["mask"], {}, SchemaError, r"'mask' is uint8 of shape \(4, 6\), expected .*channels"),
        (True, {"features": ["label", "mask"]}, SchemaError, "no feature has three axes"),
        ("image", {}, CallerError, "expected True, False or a list of features"),
    ],
)
def test_what_is_no_image_is_refused_when_the_loader_is_made(files, asked, options, error, said):
    for make in (files.torch, files.to_dataset):
        with pytest.raises(error, match=said):
            make(batch_size=4, channels_last=asked, **options)
