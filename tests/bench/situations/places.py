"""What every situation is given, and how it says where it is."""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"

Some = TypeVar("Some")


@dataclass(frozen=True)
class Options:
    """`short`: seconds in all, which shows that everything works and says nothing about speed.
    `folder`: where caches, stores and files go. `fashion`: the directory of Fashion-MNIST's four
    files, or None to find it. `speed`: of situation 6, times what was simulated. `runs`: the directory
    of those of its runs that are done. `plot`: the picture's file."""

    short: bool
    repeats: int
    folder: Path
    fashion: Path | None = None
    speed: float = 1.0
    runs: Path | None = None
    plot: Path | None = None


def say(what: str) -> None:
    sys.stderr.write(f"{what}\n")


def example(name: str) -> Any:
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))


@contextlib.contextmanager
def place(options: Options) -> Iterator[Path]:
    """A directory for one daemon's files, of a path short enough for a socket; removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="cachecd-s-", dir=options.folder) as folder:
        yield Path(folder)


def by_turns(contenders: Sequence[Some], repeats: int) -> Iterator[tuple[int, Some]]:
    """Each contender once a repeat, every repeat in another order."""
    for repeat in range(repeats):
        turns = list(contenders)
        random.Random(repeat).shuffle(turns)
        for one in turns:
            yield repeat, one
