"""The whole job: JPEGs in class folders of an S3 bucket become batches of random crops, in three epochs.

`measure` begins with nothing but the bucket. Keys show that an epoch has every image once. The first epoch
includes converting and uploading, or the daemon's start and the filling of its cache; every epoch includes
the start of its loader. Other Pythons import this module, which needs no package.
"""

from __future__ import annotations

import hashlib
import io
import os
import random
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.bench.image_decoders import SIZE, STREAMING, THREADS, Way, check, cropped

# If two workers share a chunk, litData 0.2.76 reads the whole chunk for each image. Of its documentation's
# chunks of 64 MB that is nearly every one: 50 images/s, where chunks of 8 MiB give 700.
LIMIT, SHARD = 300 << 20, 8 << 20
_PATIENCE = 200.0  # seconds
_EPOCHS = 3

Epochs = Iterator[Iterable[tuple[Any, list[Any]]]]  # of batches: images, keys


def measure(
    way: str, url: str, folder: str, batch: int, environ: dict[str, str]
) -> dict[str, float]:
    os.environ.update(environ)
    began = time.perf_counter()
    passes, distinct, seconds = WAYS[way].run(url, Path(folder), batch), [], []
    shape = (SIZE, SIZE, 3) if not WAYS[way].environment else (3, SIZE, SIZE)
    for _ in range(_EPOCHS):
        opened, keys = time.perf_counter(), []
        for images, names in next(passes):
            check(images, len(names), shape)
            keys += names
        seconds.append(time.perf_counter() - opened)
        distinct.append(len(set(keys)))
        if len(keys) != distinct[-1]:
            raise AssertionError(f"{len(keys) - distinct[-1]} images came twice in an epoch")
        if len(distinct) == 1:
            nothing_s = time.perf_counter() - began
    passes.close()
    images_s = sum(distinct[1:]) / sum(seconds[1:])
    return {"images_s": images_s, "nothing_s": nothing_s, "distinct": min(distinct)}


def ours(url: str, folder: Path, batch: int) -> Epochs:
    """A daemon, started from nothing, and a trainer that waits until the set is whole."""
    from cachecd_client import Image
    from tests.e2e.daemons import ExecutedDaemon

    source = {"url": url, "format": "files", "label": {"pattern": "^([^/]+)/"}}
    daemon = ExecutedDaemon(
        folder, {"train": {"source": source}}, os.environ,
        limit=LIMIT, shard_size=SHARD, sampler={"workers": 2},
    )  # fmt: skip
    with daemon, daemon.start().connect(timeout=_PATIENCE) as cache:
        daemon.until_whole()
        for epoch in cache.epochs("train", 1 << 30, timeout=_PATIENCE):
            loader = epoch.torch(
                batch, drop_last=False, features=["payload", "key"], threads=THREADS,
                decode={"payload": Image(SIZE, crop="random", flip=0.5)},
            )  # fmt: skip
            yield ((columns["payload"], columns["key"].tolist()) for columns in loader)


def litdata(url: str, folder: Path, batch: int) -> Epochs:
    """`optimize` of the bucket into another prefix, then its StreamingDataLoader."""
    from litdata import StreamingDataLoader, StreamingDataset, optimize
    from litdata.streaming import downloader
    from torchvision.transforms import v2

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it has no option for it
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = str(folder / "chunks")
    os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = str(folder / "data")
    made = f"{url.rstrip('/')}-litdata-{folder.name}"
    optimize(
        Fetch(url), keys_of(url), made, chunk_bytes=SHARD, num_workers=2, start_method="fork",
        verbose=False,
    )  # fmt: skip
    augment = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])
    dataset = StreamingDataset(
        made, str(folder / "cache"), shuffle=True, max_cache_size=LIMIT,
        transform=lambda sample: {**sample, "image": augment(sample["image"])},
    )  # fmt: skip
    loader = StreamingDataLoader(dataset, batch_size=batch, num_workers=2, persistent_workers=True)
    while True:
        yield ((columns["image"], columns["key"]) for columns in loader)


def litdata_raw(url: str, folder: Path, batch: int) -> Epochs:
    """litData's StreamingRawDataset: the bucket as it is, no conversion; files are kept without a limit.

    It does not give the key of an item, so a digest of the bytes tells images apart.
    """
    from litdata import StreamingRawDataset
    from litdata.streaming import downloader
    from torch.utils.data import DataLoader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it has no option for it
    dataset: Any = StreamingRawDataset(
        url, str(folder / "cache"), cache_files=True, transform=_decoded_by_pillow
    )
    loader: Any = DataLoader(dataset, batch, shuffle=True, num_workers=2, persistent_workers=True)
    while True:
        yield loader


def _decoded_by_pillow(body: bytes) -> Any:
    import torch
    from PIL import Image

    image = cropped(Image.open(io.BytesIO(body)).convert("RGB"))
    return torch.from_numpy(image).permute(2, 0, 1), hashlib.sha1(body).hexdigest()


def mosaic(url: str, folder: Path, batch: int) -> Epochs:
    """MDSWriter, which uploads, then its StreamingDataset in a DataLoader; images come as Pillow's."""
    from PIL import Image
    from streaming import MDSWriter, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader
    from torchvision.transforms import v2

    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    clean_stale_shared_memory()
    made, fetch, keys = f"{url.rstrip('/')}-mds-{folder.name}", Fetch(url), keys_of(url)
    columns = {"image": "bytes", "label": "int", "key": "str"}
    with (
        MDSWriter(out=made, columns=columns, size_limit=SHARD) as writer,
        ThreadPoolExecutor(8) as threads,
    ):
        for key, body in zip(keys, threads.map(fetch.body, keys), strict=True):
            writer.write({"image": body, "label": label(key), "key": key})
    augment = v2.Compose(
        [v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    )

    class Crops(StreamingDataset):  # type: ignore[misc, unused-ignore]
        def __getitem__(self, number: int) -> Any:
            sample = super().__getitem__(number)
            image = Image.open(io.BytesIO(sample["image"])).convert("RGB")
            return augment(image), sample["label"], sample["key"]

    dataset = Crops(
        remote=made, local=str(folder / "cache"), shuffle=True, batch_size=batch, cache_limit=LIMIT
    )
    loader: Any = DataLoader(dataset, batch, num_workers=2, persistent_workers=True)
    try:
        while True:
            yield ((images, keys) for images, _, keys in loader)
    finally:
        clean_stale_shared_memory()


class Fetch:
    """An object of the bucket as litData's sample, its JPEG as it is. It goes to processes and threads."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Any = None

    def __call__(self, key: str) -> dict[str, Any]:
        from litdata import Jpeg

        return {"image": Jpeg(bytes=self.body(key)), "label": label(key), "key": key}

    def body(self, key: str) -> bytes:
        if self._client is None:
            self._client = client()
        bucket, _, prefix = self._url.removeprefix("s3://").partition("/")
        body: bytes = self._client.get_object(Bucket=bucket, Key=prefix + key)["Body"].read()
        return body


def label(key: str) -> int:
    return int(key.removeprefix("class")[:2])


def client() -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client("s3", config=Config(max_pool_connections=16))


def keys_of(url: str) -> list[str]:
    """Keys below the URL, in an order in which classes are mixed."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    pages = client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    keys = [one["Key"].removeprefix(prefix) for page in pages for one in page.get("Contents", ())]
    keys = [key for key in keys if key.endswith(".jpg")]  # StreamingRawDataset adds its index
    random.Random(0).shuffle(keys)
    return keys


_OURS = ("torch", "cachecd_client", "tests.e2e.daemons")
_TORCHVISION = ("torch", "torchvision.transforms.v2", "boto3")
WAYS = {
    "ours-job": Way("cachecd, JPEGs in the cache", ours, _OURS),
    "litdata-job": Way(
        "litData, `optimize` and `StreamingDataset`, 2 workers", litdata,
        (*_TORCHVISION, "litdata"), *STREAMING,
    ),
    "litdata-raw-job": Way(
        "litData, `StreamingRawDataset`, no limit of the disk, 2 workers", litdata_raw,
        ("torch", "PIL.Image", "litdata"), *STREAMING,
    ),
    "mosaic-job": Way(
        "MosaicML Streaming, `MDSWriter` and `StreamingDataset`, 2 workers", mosaic,
        (*_TORCHVISION, "streaming"), *STREAMING,
    ),
}  # fmt: skip
