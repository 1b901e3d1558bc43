"""`cachecd demo`: trains a model through a small cache, on this machine alone."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    epochs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of epochs; each trains for a second.")
    ] = 10,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
) -> int:
    """Train a small model through a cache that is smaller than its data.

    Writes 1,797 images of handwritten digits into a folder, starts a daemon with a slow link, and
    prints one row for each epoch. All files are in a temporary directory, which is removed at the end. The
    exit code is 1 if the cache ever exceeded its limit.

    files, records: the size of this epoch's set. seen: the share of training images in this set or an
    earlier set. evicted: files deleted so far. MB/s: the rate at which the loop reads from the cache.
    waited: the time without a batch.
    """
    from cachecd.stores.extras import extra

    with extra("demo", "cachecd demo"):
        import sklearn  # noqa: F401
        from PIL import Image  # noqa: F401

        from cachecd.demo.experiment import run
    from cachecd.demo.report import Part, json_line

    def show(part: Part) -> None:
        print(json_line(part) if as_json else part.text(), flush=True)

    return 0 if run(epochs, show).limit_kept else 1
