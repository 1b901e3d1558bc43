"""`cachecd where DATASET [GENERATION/]NUMBER:RECORD`: which object has this record?"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cachecd.cli.options import AsJson, CacheDirectory, Endpoint
from cachecd.quantities import printable
from cachecd_client.errors import CallerError

if TYPE_CHECKING:
    from cachecd.disk.layout import GenerationLayout, Layout

_RECORD = re.compile(r"(?:([0-9a-f]{16}(?:-\d+)?)/)?(\d{1,18})(?:\.(\d+))?:(\d{1,18})")


def command(
    dataset: Annotated[str, typer.Argument(help="The dataset's name.")],
    record: Annotated[
        str,
        typer.Argument(
            metavar="[GENERATION/]NUMBER:RECORD",
            help=(
                "A shard's number and the record's place in the shard, from 0: _shard and _record of a "
                "batch. Default GENERATION: the newest. NUMBER.VERSION names an older version of a shard "
                "that was replaced."
            ),
        ),
    ],
    directory: CacheDirectory = None,
    endpoint: Endpoint = None,
    as_json: AsJson = False,
) -> None:
    """Print the object of a cached record, and the record's byte and ordinal in the object.

    Reads the shard's sidecar in the cache directory. A daemon may run meanwhile.
    """
    from cachecd.disk.layout import Layout

    match = _RECORD.fullmatch(record)
    if match is None or not re.fullmatch(r"[\w-]+", dataset):
        raise CallerError(
            f"found {dataset!r} and {record!r}, expected a dataset and [GENERATION/]NUMBER:RECORD, such as "
            "12:345 or 60e33dd25cc8b744/12:345"
        )
    cache = Layout(directory or directory_of_the_daemon(endpoint))
    layout = cache.generation(dataset, match[1] or newest_generation(cache, dataset))
    version = int(match[3]) if match[3] else None
    origin = find_origin(layout, int(match[2]), version, int(match[4]))
    if as_json:
        print(json.dumps(asdict(origin), indent=2))
    else:
        print(
            f"{printable(origin.url)}  unit from byte {origin.begin}, record {origin.ordinal} of the unit"
        )


def directory_of_the_daemon(endpoint: str | None) -> Path:
    """Returns the cache directory of a running daemon."""
    from cachecd_client import connect

    with connect(endpoint, timeout=5.0) as cache:
        return Path(cache.status()["cache"]["dir"])


def newest_generation(cache: Layout, dataset: str) -> str:
    """Returns the name of the dataset's newest generation. CallerError if there is none. DiskError."""
    from cachecd.disk.generation_file import read_generation

    names = [name for owner, name in cache.generations() if owner == dataset]
    files = {name: read_generation(cache.generation(dataset, name).identity) for name in names}
    created = {name: file.made for name, file in files.items() if file is not None}
    if not created:
        raise CallerError(f"{cache.dataset(dataset)}: this dataset has no cached shard")
    return max(created, key=created.__getitem__)


@dataclass(frozen=True, slots=True)
class RecordOrigin:
    """The record has number `ordinal` in the unit that begins at byte `begin` of the object `url`.
    `source`: the source's URL. For a joined unit, `url` is the first object."""

    url: str
    source: str
    key: str
    begin: int
    etag: str
    ordinal: int


def find_origin(
    layout: GenerationLayout, number: int, version: int | None, record: int
) -> RecordOrigin:
    """Returns the origin of a record. `version`: the version of the shard; None for the newest version.

    CallerError if there is no such shard or record. DiskError if the sidecar cannot be read.
    """
    from cachecd.disk.generation_file import read_generation
    from cachecd.disk.inventory import shard_files
    from cachecd.disk.sidecar import read_sidecar

    files = [
        file for _, file, _ in shard_files(layout) if file is not None and file.number == number
    ]
    versions = [file.version for file in files if file.kind == ".tfrecord.idx"]
    path = layout.sidecar(number, max(versions, default=0) if version is None else version)
    if not path.exists():
        raise CallerError(f"{path}: there is no such shard: it may have been evicted")
    sidecar = read_sidecar(path)
    if record >= len(sidecar):
        raise CallerError(
            f"{path} has {len(sidecar)} records, numbered from 0: there is no record {record}"
        )
    _, key, begin, etag = sidecar.table[int(sidecar.indices[record])]
    generation = read_generation(layout.identity)
    identity = dict(generation.identity) if generation else {}
    text = key.decode("utf-8", "surrogatepass")
    url = str(identity.get("url", ""))
    return RecordOrigin(
        _object_url(url, identity.get("join"), text),
        url,
        text,
        begin,
        etag.decode("utf-8", "surrogatepass"),
        int(sidecar.ordinals[record]),
    )


def _object_url(url: str, join: Any, key: str) -> str:
    from cachecd.config.address import Address

    if join:
        key = next(iter(dict(join).values())).replace("*", key)
    return Address.of(url).url_of(key) if url else key
