"""A source of small objects, made once, and daemons that no test leaves behind."""

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

from tests.e2e.daemons import Daemon, file_source
from tests.stores import S3Server

NUM_OBJECTS = 1500
LABEL = {"pattern": r"^class-(\d+)/"}


def upload(server: S3Server, bucket: str, objects: dict[str, bytes]) -> None:
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
def objects() -> dict[str, bytes]:
    """The source of `train`: key -> content, 1 to 20 kB each, of ten classes."""
    chance = random.Random(20)
    return {
        f"class-{number % 10}/{number:05d}.bin": chance.randbytes(chance.randint(1000, 20000))
        for number in range(NUM_OBJECTS)
    }


@pytest.fixture(scope="session")
def source(objects: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The objects as files."""
    return {**file_source(tmp_path_factory.mktemp("source"), objects), "label": LABEL}


@pytest.fixture
def train(source: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    def dataset(**keys: Any) -> dict[str, Any]:
        return {"source": dict(source), "grow": {"first": "1MiB"}, **keys}

    return dataset


@pytest.fixture
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Makes daemons. They find the S3 server if the test uses it. Kills them at the end."""
    environ = request.getfixturevalue("s3").environ if "s3" in request.fixturenames else {}
    with ExitStack() as running:

        def make(datasets: dict[str, Any], name: str = "d", **settings: Any) -> Daemon:
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            settings.setdefault("environ", environ)
            return running.enter_context(Daemon(folder, datasets, **settings))

        yield make
