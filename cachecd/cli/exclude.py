"""`cachecd exclude DATASET KEY...`: removes objects, or samples of a tar, from a dataset permanently."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cachecd.cli.options import AsJson, Endpoint, Samples, samples_of
from cachecd.quantities import printable


def command(
    dataset: Annotated[str, typer.Argument(help="The dataset's name.")],
    keys: Annotated[
        list[str],
        typer.Argument(metavar="KEY...", help="The objects, by their keys under the source's URL."),
    ],
    samples: Samples = None,
    ahead: Annotated[
        bool, typer.Option("--ahead", help="Accept objects or samples that do not exist yet.")
    ] = False,
    endpoint: Endpoint = None,
    as_json: AsJson = False,
) -> None:
    """Remove the records of some objects, or of samples of a tar, and never cache them again. Needs a
    running daemon.

    The exclusion lasts across restarts, listings and generations. No later lease has such a record. If a
    running epoch reads a shard with such a record, the daemon removes the shard when the lease ends.
    `cachecd erased` takes the same arguments and searches for copies. If a key names no object or sample,
    the command fails and excludes nothing. To fetch an object again, stop the daemon, remove the object's
    line from excluded.jsonl in cache.dir, and start the daemon.
    """
    from cachecd_client import connect

    samples = samples_of(keys, samples)
    with connect(endpoint, timeout=10.0) as cache:
        cache.exclude(dataset, *keys, samples=samples, ahead=ahead)
    if as_json:
        print(json.dumps({"dataset": dataset, "keys": keys, "samples": samples}))
    else:
        for each in [f"{keys[0]}: {sample}" for sample in samples] or keys:
            print(f"{printable(each)} excluded from {dataset}: no later lease has a record of it")
