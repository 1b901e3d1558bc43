"""No test of an executor leaves a descriptor open."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def descriptors_are_closed() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() <= before, "descriptors are left open"


def descriptors() -> Counter[str]:
    """How many of each kind that an executor makes are open: pipes, pidfds and memfds."""
    found: list[str] = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}").partition(":[")[0])
    return Counter(kind for kind in found if kind.startswith(("pipe", "anon_inode", "/memfd")))
