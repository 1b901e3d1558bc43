"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cachecd_client.errors import CallerError

CacheDirectory = Annotated[
    Path | None,
    typer.Option("--dir", help="The cache directory; by default the running daemon's."),
]
Endpoint = Annotated[
    str | None,
    typer.Option(help="The daemon's socket; else $CACHECD_ENDPOINT, else the default socket."),
]
Samples = Annotated[
    list[str] | None,
    typer.Option(
        "--sample",
        metavar="KEY",
        help="Only this sample of the single object, a tar, by its __key__. May be repeated.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def samples_of(keys: Sequence[str], samples: list[str] | None) -> list[str]:
    """Returns the samples. CallerError for samples of several objects."""
    if samples and len(keys) != 1:
        raise CallerError(f"found --sample with {len(keys)} objects, expected one object")
    return samples or []
