"""A bucket of small objects, uploaded once, and daemons that no test leaves behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from tests.e2e.daemons import Daemon
from tests.e2e.reading import Records
from tests.stores import S3Server

NUM_OBJECTS = 3000
LABEL = r"^class-(\d+)/"


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


PER_FILE = 120


def tensorflow_file(path: Path, seed: int) -> tuple[list[bytes], Records]:
    """A file by TensorFlow's own writer: its serialized records, and what they mean."""
    import tensorflow as tf

    chance = random.Random(seed)
    serialized: list[bytes] = []
    meant: Records = {}
    for place in range(PER_FILE):
        key, payload = f"{path.name}:{place}".encode(), chance.randbytes(chance.randint(1, 9000))
        features = {
            "key": tf.train.Feature(bytes_list=tf.train.BytesList(value=[key])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[place % 7])),
            "payload": tf.train.Feature(bytes_list=tf.train.BytesList(value=[payload])),
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        serialized.append(example.SerializeToString())
        meant[key] = place % 7, payload
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in serialized:
            writer.write(record)
    return serialized, meant


@dataclass
class Written:
    """TFRecord files: name -> content; all their serialized records; what all of them mean."""

    files: dict[str, bytes]
    serialized: list[bytes]
    meant: Records


@pytest.fixture(scope="session")
def tfrecords(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """What lies under s3://tfrecords/train/: twelve files of half a megabyte."""
    folder = tmp_path_factory.mktemp("tfrecords")
    written = Written({}, [], {})
    for number in range(12):
        path = folder / f"part-{number:02d}.tfrecord"
        serialized, meant = tensorflow_file(path, number)
        written.files[path.name] = path.read_bytes()
        written.serialized += serialized
        written.meant |= meant
    s3.bucket("tfrecords")
    upload(s3, "tfrecords", {f"train/{name}": body for name, body in written.files.items()})
    return written


@pytest.fixture
def train(s3: S3Server, objects: dict[str, bytes]) -> Callable[..., dict[str, Any]]:
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
