"""Three ways to get training data over a slow link: all of it first, as a stream, through a cache."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import torch
from numpy.typing import NDArray
from obstore.store import S3Store

from cachecd.sampler.throttle import Throttle
from cachecd_client._core import encode_example
from tests.bench.growth.fashion import LABEL_PATTERN, SIDE, decoded
from tests.bench.growth.learner import BATCH, Learner
from tests.e2e.daemons import ExecutedDaemon
from tests.stores import S3Server

BUCKET = "pictures"
CONNECTIONS = 32
_SHARD = 128 << 10
_BLOCK = 4096
_FRAME, _SIDECAR = 16, 20  # bytes a record
_AHEAD = 4 * BATCH  # pictures of a stream that are decoded before they are asked for

Picture = tuple[NDArray[np.uint8], int]


@dataclass(frozen=True)
class Link:
    """The way to the store: `rate` bytes of objects a second, for whoever uses it. The samplers' own
    throttle limits all three ways alike."""

    server: S3Server
    rate: float

    def pictures(self, seed: int, passes: int, ended: threading.Event) -> Iterator[Picture]:
        """Every object once a pass, each pass in another random order, decoded, as they come."""
        came: queue.Queue[Picture | BaseException | None] = queue.Queue(_AHEAD)

        def put(item: Picture | BaseException | None) -> None:
            while not ended.is_set():
                with contextlib.suppress(queue.Full):
                    came.put(item, timeout=0.1)
                    return

        def fetch() -> None:
            try:
                asyncio.run(self._fetch(random.Random(seed), passes, put, ended))
            except BaseException as error:
                put(error)
            else:
                put(None)

        thread = threading.Thread(target=fetch, name="fetch")
        thread.start()
        try:
            while (item := came.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            ended.set()
            thread.join()

    async def _fetch(
        self,
        chance: random.Random,
        passes: int,
        put: Callable[[Picture], None],
        ended: threading.Event,
    ) -> None:
        variables = self.server.environ
        store = S3Store(
            BUCKET,
            endpoint=self.server.endpoint,
            region=variables["AWS_DEFAULT_REGION"],
            access_key_id=variables["AWS_ACCESS_KEY_ID"],
            secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
            client_options={"allow_http": True},
        )
        sizes = {one["path"]: one["size"] for page in obstore.list(store) for one in page}
        throttle = Throttle(self.rate)

        async def lane(todo: Iterator[str]) -> None:
            for key in todo:
                if ended.is_set():
                    return
                await throttle.take(sizes[key])
                body = bytes(await (await obstore.get_async(store, key)).bytes_async())
                match = re.search(LABEL_PATTERN, key)
                assert match
                # A trainer that is behind holds up all lanes, as it should.
                put((decoded(body), int(match[1])))

        for _ in range(passes):
            if ended.is_set():
                return
            order = iter(chance.sample(sorted(sizes), len(sizes)))
            await asyncio.gather(*(lane(order) for _ in range(CONNECTIONS)))


def download_first(learner: Learner, link: Link) -> dict[str, float]:
    found = list(link.pictures(learner.seed, 1, threading.Event()))
    pixels = torch.from_numpy(np.stack([one for one, _ in found]))
    labels = torch.tensor([label for _, label in found])
    downloaded = learner.elapsed
    while not learner.over:
        order = torch.randperm(len(labels))
        for rows in order.split(BATCH):
            if len(rows) < BATCH or learner.over:
                break
            learner.step(pixels[rows], labels[rows])
    return {"downloaded_s": downloaded, "set": len(labels)}


def stream(learner: Learner, link: Link) -> dict[str, float]:
    """Each picture is learnt from as it comes, and kept by nobody."""
    ended = threading.Event()
    batch: list[Picture] = []
    with contextlib.closing(link.pictures(learner.seed, 1000, ended)) as pictures:
        for picture in pictures:
            if learner.over:
                break
            batch.append(picture)
            if len(batch) == BATCH:
                pixels = torch.from_numpy(np.stack([one for one, _ in batch]))
                learner.step(pixels, torch.tensor([label for _, label in batch]))
                batch.clear()
    return {"set": 0}


@dataclass(frozen=True)
class Cached:
    """Through the daemon, whose cache has room for `share` of `records`."""

    share: float
    records: int
    first: int  # records in the first set

    def __call__(self, learner: Learner, link: Link, folder: Path) -> dict[str, float]:
        train: dict[str, Any] = {
            "source": {
                "url": f"s3://{BUCKET}/",
                "format": "files",
                "label": {"pattern": LABEL_PATTERN, "classes": [str(n) for n in range(10)]},
            },
            "transform": [{"decode_image": {"mode": "L"}}],
            "grow": {"first": self.first * _record_bytes()},
            "seed": learner.seed,
            "limit": self._limit(),
        }
        sampler = {"workers": 1, "connections": CONNECTIONS, "bandwidth": link.rate}
        with ExitStack() as owned:
            daemon = owned.enter_context(
                ExecutedDaemon(
                    folder,
                    {"train": train},
                    link.server.environ,
                    limit="1GiB",
                    shard_size=_SHARD,
                    sampler=sampler,
                )
            )
            cache = owned.enter_context(daemon.start().connect(60.0))
            most = epochs = 0
            for epoch in cache.epochs("train", 1_000_000):
                most = max(most, epoch.num_records)
                epochs += 1
                for batch in epoch.torch(BATCH, features=["image", "label"]):
                    learner.step(batch["image"], batch["label"])
                    if learner.over:
                        break
                if learner.over:
                    break
            evicted = cache.status()["datasets"]["train"]["evicted_shards"]
        return {"set": most, "epochs": epochs, "evicted_shards": evicted}

    def _limit(self) -> int:
        """Bytes on disk of `share` of the records."""
        in_shard = _SHARD // (_record_bytes() + _SIDECAR)
        shards = -(-self.records * self.share // in_shard)
        return int(shards * (_SHARD + 2 * _BLOCK))


def _record_bytes() -> int:
    """Of a record in a shard."""
    pixels = bytes(SIDE * SIDE)
    return _FRAME + len(encode_example({"key": b"00000-0.png", "image": pixels, "label": 1}))
