"""`cachecd exclude DATASET KEY`: takes a bad object out of a dataset, for good."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def command(
    dataset: Annotated[str, typer.Argument(help="The dataset's name.")],
    key: Annotated[str, typer.Argument(help="The object, by its key under the source's URL.")],
    endpoint: Annotated[
        str | None,
        typer.Option(help="The daemon's socket; else $CACHECD_ENDPOINT, else the default socket."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Have a running daemon remove an object's records, and never fetch it again.

    It counts as set aside, with the reason "excluded by hand", across restarts and new listings, and on
    both sides of a split, whichever of the two is named. No
    later lease names a shard with a record of it; what else was in such a shard is fetched again. To let
    an object be fetched again, stop the daemon, remove its line from excluded.jsonl in cache.dir, and
    start the daemon.
    """
    from cachecd_client import connect

    with connect(endpoint, timeout=10.0) as cache:
        cache.exclude(dataset, key)
    if as_json:
        print(json.dumps({"dataset": dataset, "key": key}))
    else:
        print(f"{key} excluded from {dataset}: no later lease has a record of it")
