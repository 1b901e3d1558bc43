"""Prints the table of one situation: medians of the repeats, with the least and the greatest."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.bench.situations import recordings, segmentation
from tests.bench.situations.places import Options

SITUATIONS = {"recordings": recordings.measure, "segmentation": segmentation.measure}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.situations")
    parser.add_argument("name", choices=SITUATIONS)
    parser.add_argument(
        "--short", action="store_true", help="seconds, in which nothing is really measured"
    )
    parser.add_argument("--repeats", type=int, default=5, help="of each way (5)")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args()
    options = Options(given.short, 1 if given.short else given.repeats, given.folder)
    sys.stdout.write(SITUATIONS[given.name](options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
