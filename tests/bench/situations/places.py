"""What both situations share: options, an example's module, a daemon's folder, a table."""

from __future__ import annotations

import contextlib
import importlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.measuring import spread

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


@dataclass(frozen=True)
class Options:
    """`short`: seconds in all, which show that everything works. `folder`: of caches and files."""

    short: bool
    repeats: int
    folder: Path


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


def table(heads: Sequence[str], rows: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """Markdown; each cell is the median of its values, with the least and the greatest."""
    lines = [f"| | {' | '.join(heads)} |", f"|---|{'--:|' * len(heads)}"]
    for name, cells in rows.items():
        lines.append(f"| {name} | {' | '.join(spread(cell, 2) for cell in cells)} |")
    return "\n".join(lines) + "\n"
