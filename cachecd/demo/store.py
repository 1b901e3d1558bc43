"""Where the images lie: a folder, or a bucket of an S3 server that runs as long as the demo."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cachecd.demo.images import StoredImage

StoreKind = Literal["local", "s3"]

_BUCKET = "digits"
_UPLOADS = 8  # at a time


@dataclass(frozen=True, slots=True)
class Location:
    """What a configuration must say to find the objects: a URL without the slash at its end, and
    for S3 the server's."""

    url: str
    endpoint: str | None = None


@contextlib.contextmanager
def filled_store(
    kind: StoreKind, folder: Path, objects: Sequence[StoredImage]
) -> Iterator[Location]:
    """A store with these objects, under `folder`, until the context ends."""
    if kind == "local":
        yield _fill_folder(folder, objects)
        return
    from cachecd.demo.s3_server import s3_server

    with s3_server(folder) as server:
        server.create_bucket(Bucket=_BUCKET)
        with ThreadPoolExecutor(_UPLOADS) as threads:
            uploads = [
                threads.submit(server.put_object, Bucket=_BUCKET, Key=one.key, Body=one.png)
                for one in objects
            ]
            try:
                for upload in uploads:
                    upload.result()
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise
        yield Location(f"s3://{_BUCKET}", server.meta.endpoint_url)


def _fill_folder(folder: Path, objects: Sequence[StoredImage]) -> Location:
    for one in objects:
        path = folder / one.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(one.png)
    return Location(f"file://{folder}")
