"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CacheDirectory = Annotated[
    Path | None,
    typer.Option("--dir", help="The cache directory; by default the running daemon's."),
]
Endpoint = Annotated[
    str | None,
    typer.Option(help="The daemon's socket; else $CACHECD_ENDPOINT, else the default socket."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
