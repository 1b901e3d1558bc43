"""What tests of a faulty disk do with a listing, in a process of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.listing.sources import Source, pages, units


def list_units(folder: str, count: int, etag: str = "e") -> None:
    """A listing in pages of 300 units."""
    with Source(Path(folder) / "listing.sqlite") as source:
        asyncio.run(source.listing().read(pages(units(0, count, etag), 300)))
