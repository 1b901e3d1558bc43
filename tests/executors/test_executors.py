"""Each executor keeps the contract of all executors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cachecd.executors import Executor
from cachecd.executors.local import LocalExecutor
from cachecd.sampler.messages import Grant, Setup
from tests.contracts.executor import ExecutorContract
from tests.daemon.workers import InProcess


class TestLocalExecutor(ExecutorContract):
    def executor(self, setup: Setup, path_of: Callable[[Grant], Path]) -> Executor:
        return LocalExecutor(setup, 2, None, path_of)


class TestInProcess(ExecutorContract):
    """The worker in this process that the daemon's tests use behaves as the real executor does."""

    def executor(self, setup: Setup, path_of: Callable[[Grant], Path]) -> Executor:
        return InProcess(setup.datasets, path_of)
