"""Other ways to get the same objects: each a process of its own, so that its CPU time is its own.

    python -m tests.bench.fetchers NAME BUCKET PREFIX CONNECTIONS

reads all objects below the prefix and prints {"seconds", "cpu_seconds", "bytes", "objects"}; imports and
listing are not counted. Where the server is, and the credentials, say the AWS_* variables.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import boto3
import obstore
from obstore.store import S3Store

Figures = dict[str, float]


@contextmanager
def measured(figures: Figures) -> Iterator[None]:
    """Notes the time that the body takes, and the CPU time of this process and its children."""
    cpu, began = _cpu_seconds(), time.perf_counter()
    yield
    figures["seconds"] = time.perf_counter() - began
    figures["cpu_seconds"] = _cpu_seconds() - cpu


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _keys(bucket: str, prefix: str) -> list[str]:
    pages = (
        boto3.client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    )
    return [found["Key"] for page in pages for found in page.get("Contents", ())]


def _store(bucket: str, connections: int) -> S3Store:
    options: Any = {"allow_http": True, "timeout": "1h", "pool_max_idle_per_host": str(connections)}
    return S3Store(bucket, endpoint=os.environ["AWS_ENDPOINT_URL"], client_options=options)


def by_obstore(bucket: str, prefix: str, connections: int) -> Figures:
    """Whole objects by obstore, thrown away."""
    keys = _keys(bucket, prefix)
    store = _store(bucket, connections)
    figures: Figures = {"objects": len(keys), "bytes": 0}
    todo = iter(keys)

    async def one_lane() -> None:
        for key in todo:
            body = await (await obstore.get_async(store, key)).bytes_async()
            figures["bytes"] += len(body)

    async def all_lanes() -> None:
        await asyncio.gather(*(one_lane() for _ in range(connections)))

    with measured(figures):
        asyncio.run(all_lanes())
    return figures


def into_files(bucket: str, prefix: str, connections: int) -> Figures:
    """Whole objects by obstore, streamed into files as they come, which are synced at the end."""
    keys, figures = _keys(bucket, prefix), Figures()
    store = _store(bucket, connections)
    folder = tempfile.mkdtemp(prefix="cachecd-files-", dir=os.environ.get("TMPDIR"))
    todo = iter(enumerate(keys))
    files: list[BinaryIO] = []

    async def one_lane() -> None:
        for number, key in todo:
            file = open(os.path.join(folder, f"{number:06d}"), "wb")  # noqa: SIM115 (synced later)
            files.append(file)
            async for some in (await obstore.get_async(store, key)).stream():
                file.write(some)

    async def all_lanes() -> None:
        await asyncio.gather(*(one_lane() for _ in range(connections)))

    try:
        with measured(figures):
            asyncio.run(all_lanes())
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        return {**figures, "objects": len(keys), "bytes": sum(file.tell() for file in files)}
    finally:
        shutil.rmtree(folder)


FETCHERS: dict[str, Callable[[str, str, int], Figures]] = {
    "obstore": by_obstore,
    "files": into_files,
}


if __name__ == "__main__":
    name, bucket, prefix, connections = sys.argv[1:]
    json.dump(FETCHERS[name](bucket, prefix, int(connections)), sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # obstore's threads sometimes abort an interpreter that ends
