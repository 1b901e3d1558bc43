"""The examples for PyTorch run as they are; those that need more packages than tests have are not here.

In the long form, CACHECD_TEST_EXAMPLES=all, all of them: three processes under torchrun alone import torch
for 10 s of CPU time.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.e2e.daemons import clean_environ

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
LONG = os.environ.get("CACHECD_TEST_EXAMPLES") == "all"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One for all, as the examples share their configuration: the first of them fills it."""
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def run(cache, monkeypatch, capsys):
    threads = torch.get_num_threads()
    torch.set_num_threads(
        1
    )  # they wait for one another in loops, also when others have the processor

    def run_example(name):
        monkeypatch.setenv("CACHE", cache)
        # In this process, into which torch is loaded; a process of its own would take two seconds more.
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    yield run_example
    torch.set_num_threads(threads)


def test_the_plain_loop_learns_and_evaluates_each_held_out_record_once(run):
    accuracy, total = re.search(r"accuracy ([\d.]+)% of (\d+)", run("torch_plain.py")).groups()
    assert float(accuracy) > 60
    assert int(total) == 360


if LONG:

    def test_the_loop_that_crops_on_the_device_learns(run):
        assert re.findall(r"epoch (\d): \d+ records, loss \d", run("torch_on_device.py")) == [
            *"012"
        ]

    def test_two_ranks_under_torchrun_share_the_records(cache):
        torchrun = ["torch.distributed.run", "--nproc-per-node=2", "torch_distributed.py"]
        ours = [sys.executable, "-m", "cachecd", "run", "digits.yaml", "--"]
        done = subprocess.run(
            [*ours, sys.executable, "-m", *torchrun],
            cwd=EXAMPLES, env=clean_environ({"CACHE": cache, "OMP_NUM_THREADS": "1"}),
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = re.findall(r"epoch \d: 2 ranks saw (\d+) of (\d+)", done.stdout)
        assert len(found) == 3
        assert all(0 <= int(records) - int(seen) < 2 * 16 for seen, records in found)
