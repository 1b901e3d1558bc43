"""`cachecd` and `python -m cachecd`."""

from __future__ import annotations

import sys
from typing import NoReturn

from cachecd.cli import run_command


def main() -> NoReturn:
    """Runs the command line given to this process and exits with its code."""
    sys.exit(run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
