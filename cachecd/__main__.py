"""`cachecd` and `python -m cachecd`."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

from cachecd.cli import run_command


def main() -> NoReturn:
    """Runs the command line given to this process and exits with its code.

    The process ends at once, whatever its threads do: one may wait for a silent store, and a thread of
    obstore's that calls into an interpreter that ends would abort the process.
    """
    code = run_command(sys.argv[1:])
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
