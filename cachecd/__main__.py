"""`cachecd` and `python -m cachecd`."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

from cachecd.cli import run_command


def main() -> NoReturn:
    """Runs the command line of this process and exits with its code.

    The process ends at once, even if its threads still work. A thread may wait for a silent store. An
    obstore thread that calls into a finalizing interpreter would abort the process.
    """
    code = run_command(sys.argv[1:])
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
