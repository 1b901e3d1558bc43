"""`cachecd where DATASET SHARD:RECORD`: which object did this record come from?"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer


def command(
    dataset: Annotated[str, typer.Argument(help="The dataset's name.")],
    record: Annotated[
        str,
        typer.Argument(
            metavar="SHARD:RECORD",
            help="A shard's number and a record's in it, from 0 on: _shard and _record of a batch.",
        ),
    ],
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="The cache directory; by default the running daemon's."),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="The daemon's socket; else $CACHECD_ENDPOINT, else the default socket."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Name the object, its bytes and the ordinal that a cached record came from.

    Reads the shard's sidecar and the listing in the cache directory; beside a running daemon too.
    """
    from cachecd.layout import Layout
    from cachecd.model import ShardId
    from cachecd.quantities import printable
    from cachecd.where import find_origin
    from cachecd_client.errors import CallerError

    named = re.fullmatch(r"(\d{1,18}):(\d{1,18})", record)
    if named is None:
        raise CallerError(f"found {record!r}, expected SHARD:RECORD, two numbers such as 12:345")
    if not re.fullmatch(r"[\w-]+", dataset):
        raise CallerError(f"found {dataset!r}, expected the name of a dataset")
    layout = Layout(directory or _directory_of_the_daemon(endpoint))
    shard = ShardId(dataset, int(named[1]))
    origin = find_origin(layout, shard, int(named[2]))
    unit = origin.unit
    if as_json:
        found = {
            "url": origin.object_url,
            "source": origin.url,
            "key": unit.key,
            "begin": unit.begin,
            "end": unit.begin + unit.size,
            "ordinal": origin.ordinal,
            "etag": unit.etag,
        }
        print(json.dumps(found, indent=2))
    else:
        print(
            f"{printable(origin.object_url)}  bytes {unit.begin} to {unit.begin + unit.size}, "
            f"record {origin.ordinal} of it"
        )


def _directory_of_the_daemon(endpoint: str | None) -> Path:
    from cachecd_client import connect

    with connect(endpoint, timeout=5.0) as cache:
        return Path(cache.status()["cache"]["dir"])
