"""The Estimator's example in an environment with TensorFlow 2.15, over a real daemon of this one.

    python -m tests.estimator [--environment DIR]

Makes the environment (1.3 GB, from the package index) in DIR if it is not there, by default a temporary one
that goes afterwards. Fails unless the second and third call of the `input_fn` took under a second, and
the model learned. Not part of the suite: TensorFlow 2.15 cannot be installed beside what that needs.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import cachecd_client
from cachecd_client import _core
from tests.e2e.daemons import clean_environ

ROOT = Path(__file__).parents[2]
REQUIRED = ("tensorflow-cpu==2.15.1", "numpy<2", "pyzmq>=26")


def interpreter(environment: Path) -> Path:
    """That of the environment, which is made if it is not there."""
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *REQUIRED], check=True)
    return python


def client_alone(folder: Path) -> Path:
    """Where the client is as it is here, compiled core included, and no package that lies beside it: of
    those the environment has others."""
    package = folder / "client" / "cachecd_client"
    package.mkdir(parents=True)
    for file in {*Path(cachecd_client.__file__).parent.iterdir(), Path(_core.__file__)}:
        (package / file.name).symlink_to(file)
    return package.parent


def run(environment: Path, folder: Path) -> None:
    examples = ROOT / "docs" / "examples"
    client = client_alone(folder)
    trainer = ["env", f"PYTHONPATH={client}", interpreter(environment)]
    trainer += [examples / "estimator_train_and_evaluate.py"]
    done = subprocess.run(
        [sys.executable, "-m", "cachecd", "run", examples / "digits.yaml", "--", *trainer],
        cwd=examples,
        env=clean_environ(
            {"CACHE": str(folder / "cache"), "XDG_RUNTIME_DIR": str(folder)},
            {"PYTHONPATH": os.pathsep.join([str(ROOT), str(client)])},
        ),
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    sys.stdout.write(done.stdout)
    calls = [float(seconds) for seconds in re.findall(r"input_fn took ([\d.]+) s", done.stdout)]
    accuracies = [float(found) for found in re.findall(r"accuracy ([\d.]+)%", done.stdout)]
    assert len(calls) == 2, "the second and the third call"
    assert max(calls) < 1.0
    assert len(accuracies) == 3
    assert accuracies[-1] > 85.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", type=Path)
    given = parser.parse_args().environment
    with tempfile.TemporaryDirectory() as temporary:
        run(given or Path(temporary, "environment"), Path(temporary))
