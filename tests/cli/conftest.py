"""The command line as a user meets it: a process with an exit code and two streams."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def cachecd():
    """cachecd(*arguments, **environ): the finished process, its streams as text."""

    def run(*arguments, **environ):
        return subprocess.run(
            [sys.executable, "-m", "cachecd", *map(str, arguments)],
            cwd=REPOSITORY,
            # A bare environment: no credentials, no CACHECD_* of whoever runs the tests.
            env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environ},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run
