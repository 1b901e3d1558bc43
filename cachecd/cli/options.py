"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cachecd_client.errors import CallerError

CacheDirectory = Annotated[
    Path | None,
    typer.Option("--dir", help="The cache directory. Default: the running daemon's."),
]
Endpoint = Annotated[
    str | None,
    typer.Option(help="The daemon's socket. Default: $CACHECD_ENDPOINT, or the default socket."),
]
Samples = Annotated[
    list[str] | None,
    typer.Option(
        "--sample",
        metavar="KEY",
        help="Only the sample with this __key__ in KEY, a single tar. May be repeated.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def samples_of(keys: Sequence[str], samples: list[str] | None) -> list[str]:
    """Returns the samples. CallerError for samples of several objects."""
    if samples and len(keys) != 1:
        raise CallerError(f"--sample works with one object, but {len(keys)} objects are named")
    return samples or []
