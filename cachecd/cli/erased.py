"""`cachecd erased KEY`: does this disk still hold a copy of an object's records?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cachecd.cli.options import AsJson, CacheDirectory, Endpoint

if TYPE_CHECKING:
    from cachecd.disk.layout import Layout


def command(
    key: Annotated[str, typer.Argument(help="The object, by its key under the source's URL.")],
    directory: CacheDirectory = None,
    endpoint: Endpoint = None,
    as_json: AsJson = False,
) -> int:
    """Search all shards of all datasets and generations for records of an object; exit 1 if any is left.

    `cachecd exclude` takes an object out of a dataset. A shard with its records stays until the last lease
    that names the shard ends: run this command after that. A shard whose sidecar is lost or damaged counts
    as a copy, because it may be one. Shards that are being written are not searched: none is ever published
    with a record of an excluded object. Nothing is changed.
    """
    from cachecd.cli.where import directory_of_the_daemon
    from cachecd.disk.layout import Layout

    folder = directory or directory_of_the_daemon(endpoint)
    copies = list(find_copies(Layout(folder), key))
    if as_json:
        document = {"key": key, "copies": [{"path": str(p), "why": why} for p, why in copies]}
        print(json.dumps(document, indent=2))
    else:
        for path, why in copies:
            print(f"{path}: {why}")
        print(
            f"{len(copies)} shards may hold records of the object" if copies else "no copy is left"
        )
    return 1 if copies else 0


def find_copies(layout: Layout, key: str) -> Iterator[tuple[Path, str]]:
    """Yields each shard file that holds or may hold a record of the object, with the reason. DiskError.
    CallerError if there is no such cache directory."""
    from cachecd.disk.filesystem import refusing
    from cachecd.disk.layout import parse
    from cachecd.disk.sidecar import holds
    from cachecd.errors import DamagedError
    from cachecd.model import encoded
    from cachecd_client.errors import CallerError

    if not layout.datasets.is_dir():
        raise CallerError(f"{layout.root}: there is no such cache directory")
    for name in layout.generations():
        generation = layout.generation(*name)
        with refusing(f"cannot look at {generation.shards}"):
            paths = sorted(generation.shards.iterdir()) if generation.shards.exists() else []
        for path in paths:
            if (file := parse(path.name)) is None or file.kind != ".tfrecord":
                continue
            try:
                if holds(generation.sidecar(file.number, file.version), [encoded(key)]):
                    yield path, "holds a record of the object"
            except DamagedError as error:
                if path.exists():  # else it was unlinked meanwhile
                    yield path, f"may hold a record of the object: {error}"
