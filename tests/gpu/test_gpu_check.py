"""The check for GPUs, where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks import torch

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "said"), [([], "no GPU here"), (["--device", "cpu"], "expected a CUDA device")]
)
def test_the_check_without_a_gpu_says_so_and_exits_with_2(options, said):
    ended = subprocess.run(
        [sys.executable, "-m", "tests.gpu.check", *options],
        cwd=ROOT, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 2
    assert said in ended.stdout + ended.stderr


@pytest.fixture
def check():
    from tests.gpu import check  # which imports torch

    return check


def test_the_check_of_decoded_batches_passes_on_the_cpu(check, tmp_path, capsys):
    bars = check.Bars()
    check.check_decoded(torch.device("cpu"), bars, tmp_path, count=128)
    assert bars.missed == 0
    assert capsys.readouterr().out.count("pass") == 3
