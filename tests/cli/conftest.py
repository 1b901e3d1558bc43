"""The command line as a user meets it: an exit code and two streams."""

from __future__ import annotations

import os
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import structlog

from cachecd.cli import run_command

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def cachecd(monkeypatch, capfd):
    """cachecd(*arguments, **environ): what came of the command, its streams as text.

    It runs in this process, for imports are most of what a command takes.
    """

    def run(*arguments, **environ):
        with monkeypatch.context() as bare:
            # No credentials, no CACHECD_* of whoever runs the tests.
            for name in os.environ:
                bare.delenv(name)
            for name, value in {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environ}.items():
                bare.setenv(name, value)
            capfd.readouterr()
            code = run_command([str(each) for each in arguments])
            structlog.reset_defaults()  # `run` logs to a stream that ends with this test
        return CompletedProcess(arguments, code, *capfd.readouterr())

    return run
