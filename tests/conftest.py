"""What tests of all parts share."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.stores import S3Server, s3_server

# A third of the default: every run tries others, and there are many runs. That a shared machine is slow
# is no finding.
settings.register_profile(
    "short", max_examples=33, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("short")

TENSORFLOW = r"\b(tf|tf_dataset|tensorflow|keras)\b"

# A shell lets background jobs ignore SIGINT, and every process that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Starts one S3 server for all processes of a run."""
    config = node.config
    if not hasattr(config, "s3"):
        running = ExitStack()
        config.add_cleanup(running.close)
        config.s3 = running.enter_context(s3_server())
    node.workerinput["s3"] = config.s3.endpoint


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist loadfile, one process alone imports TensorFlow for the tests of client and core. That
    takes seven seconds of a processor, and each fork of such a process takes longer."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    @cache
    def scope(file: str) -> str:
        names = re.search(TENSORFLOW, Path(config.rootpath, file).read_text())
        return "tensorflow" if names and file.startswith(("tests/client/", "tests/core/")) else file

    class ByFramework(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid.partition("::")[0])

    return ByFramework(config, log)


@pytest.fixture(scope="session")
def s3(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    """A real S3 server: .endpoint, .environ, .client, .bucket(name), .put(). Other processes use it too."""
    if endpoint := getattr(request.config, "workerinput", {}).get("s3"):
        yield S3Server(endpoint)
        return
    with s3_server() as server:
        yield server


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a coroutine test in a new event loop, and enters fixtures that are asynchronous context managers
    there."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters

    async def call() -> None:
        async with AsyncExitStack() as entered:
            given = {name: pyfuncitem.funcargs[name] for name in names}
            for name, value in given.items():
                if isinstance(value, AbstractAsyncContextManager):
                    given[name] = await entered.enter_async_context(value)
            await pyfuncitem.obj(**given)

    asyncio.run(call())
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what takes long, unless CACHECD_LONG is set: `nox -s long` runs it."""
    if "CACHECD_LONG" in os.environ:
        return
    long = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if not item.get_closest_marker("long")]


frozen = 0  # modules


def freeze() -> None:
    """Excludes imported modules from garbage collection.

    With the frameworks loaded, each collection took a third of a second.
    """
    global frozen
    if len(sys.modules) > frozen + 100:
        frozen = len(sys.modules)
        gc.collect()
        gc.freeze()


def pytest_collection_finish() -> None:
    freeze()


def pytest_runtest_logfinish() -> None:
    """The test may have imported a framework."""
    freeze()
