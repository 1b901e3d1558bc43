"""A sampler's memory between one piece and the next."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource, sys
from cachecd.sampler.child import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()
pieces = [bytearray(8 << 20) for _ in range(4)]
del pieces
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    pieces = [bytearray(8 << 20) for _ in range(4)]
    del pieces
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.parametrize(("how", "least", "most"), [("kept", 0, 500), ("left", 10_000, 1 << 30)])
def test_pieces_take_the_memory_of_those_before_them_without_a_page_fault(how, least, most):
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, how], check=True, stdout=subprocess.PIPE, text=True
    )
    assert least <= int(done.stdout) <= most
