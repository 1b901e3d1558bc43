"""A bucket of small objects, uploaded once, and daemons that no test leaves behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from tests.e2e.daemons import Daemon
from tests.stores import S3Server

NUM_OBJECTS = 3000
LABEL = r"^class-(\d+)/"


def upload(server: S3Server, bucket: str, objects: dict[str, bytes]) -> None:
    """Puts all objects into a bucket, many at a time."""
    store = S3Store(
        bucket,
        endpoint=server.endpoint,
        access_key_id=server.environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=server.environ["AWS_SECRET_ACCESS_KEY"],
        region=server.environ["AWS_DEFAULT_REGION"],
        client_options={"allow_http": True},
    )

    async def put_all() -> None:
        slots = asyncio.Semaphore(64)

        async def put(key: str, body: bytes) -> None:
            async with slots:
                await obstore.put_async(store, key, body)

        await asyncio.gather(*(put(key, body) for key, body in objects.items()))

    asyncio.run(put_all())


@pytest.fixture(scope="session")
def objects(s3: S3Server) -> dict[str, bytes]:
    """What lies under s3://spine/train/: key -> content, 1 to 20 kB each, of ten classes."""
    chance = random.Random(20)
    found = {
        f"class-{number % 10}/{number:05d}.bin": chance.randbytes(chance.randint(1000, 20000))
        for number in range(NUM_OBJECTS)
    }
    s3.bucket("spine")
    upload(s3, "spine", {f"train/{key}": body for key, body in found.items()})
    return found


@pytest.fixture
def train(s3: S3Server, objects: dict[str, bytes]) -> Callable[..., dict[str, Any]]:
    """The dataset of these objects, with other keys as asked for."""

    def dataset(**keys: Any) -> dict[str, Any]:
        source = {"url": "s3://spine/train/", "format": "files", "label": {"pattern": LABEL}}
        return {"source": source, "grow": {"first": "1MiB"}, **keys}

    return dataset


@pytest.fixture
def daemon(s3: S3Server, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Makes daemons that find the store; each is killed at the end, if it still runs."""
    with ExitStack() as running:

        def make(datasets: dict[str, Any], name: str = "d", **settings: Any) -> Daemon:
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            settings.setdefault("environ", s3.environ)
            return running.enter_context(Daemon(folder, datasets, **settings))

        yield make
