"""The examples for PyTorch, JAX and NumPy run as they are, but for those that need more than tests have.

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
    assert learned(run("torch_plain.py"))


def test_the_loop_without_a_framework_learns(run):
    assert learned(run("numpy_loop.py"))


def test_evaluation_after_each_epoch_is_of_the_same_records(run):
    found = re.findall(r"epoch (\d): accuracy [\d.]+%, loss [\d.]+ of (\d+)", run("evaluation.py"))
    assert found == [("0", "360"), ("1", "360"), ("2", "360")]


def learned(printed):
    accuracy, total = re.search(r"accuracy ([\d.]+)% of (\d+)", printed).groups()
    return float(accuracy) > 60 and total == "360"


def by_two_ranks(program, cache):
    """What an example prints under torchrun, beside a daemon."""
    torchrun = ["torch.distributed.run", "--nproc-per-node=2", program]
    ours = [sys.executable, "-m", "cachecd", "run", "digits.yaml", "--"]
    done = subprocess.run(
        [*ours, sys.executable, "-m", *torchrun],
        cwd=EXAMPLES, env=clean_environ({"CACHE": cache, "OMP_NUM_THREADS": "1"}),
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


if LONG:

    def test_the_loop_in_jax_learns_on_four_devices(cache):
        done = subprocess.run(
            [sys.executable, "jax_train.py"], cwd=EXAMPLES,
            env=clean_environ(
                {"CACHE": cache, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
            ),
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert learned(done.stdout)
        assert "on 4 devices" in done.stdout

    def test_two_ranks_evaluate_each_held_out_record_once(cache):
        printed = by_two_ranks("evaluation.py", cache)
        assert len(re.findall(r"accuracy [\d.]+%, loss [\d.]+ of 360", printed)) == 3

    def test_the_loop_that_crops_on_the_device_learns(run):
        assert re.findall(r"epoch (\d): \d+ records, loss \d", run("torch_on_device.py")) == [
            *"012"
        ]

    def test_two_ranks_under_torchrun_share_the_records(cache):
        printed = by_two_ranks("torch_distributed.py", cache)
        found = re.findall(r"epoch \d: 2 ranks saw (\d+) of (\d+)", printed)
        assert len(found) == 3
        assert all(0 <= int(records) - int(seen) < 2 * 16 for seen, records in found)
