"""The core without Python, under sanitizers: hostile bytes, and threads that get in each other's way.

In the long form alone (CACHECD_LONG=1), because the compiler takes more than a minute. With
CACHECD_FUZZ_SECONDS=600 each target and the threads run for ten minutes. docs/sanitizers.md says more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CORE = Path(__file__).parent
FOLDER = CORE / "fuzz" / "corpus"
BUILDS = {"address,undefined": "ON", "thread": "OFF"}  # sanitizers -> whether with the fuzz targets
# CMake and Ninja lie beside the interpreter, where they are not on the path.
TOOLS = {**os.environ, "PATH": f"{os.environ['PATH']}:{Path(sys.executable).parent}"}
TARGETS = sorted(path.name for path in FOLDER.iterdir())
SECONDS = int(os.environ.get("CACHECD_FUZZ_SECONDS", "0"))
MUTATIONS = 300  # of each target, unless time is given
ROUNDS = 4  # of threads, unless time is given
# A build is half a minute of two cores that others may need.
pytestmark = pytest.mark.timeout(600 + 2 * SECONDS)


def run(*command: object, folder: Path) -> str:
    """What a process prints, whose temporary folder is `folder`; AssertionError if it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        env={**TOOLS, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert done.returncode == 0, f"exit status {done.returncode}:\n{done.stdout[-20000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """built[sanitizers]: a folder with the programs."""
    folder, folders = tmp_path_factory.mktemp("sanitized"), {}
    for sanitizers, fuzz in BUILDS.items():
        into = folders[sanitizers] = folder / sanitizers.partition(",")[0]
        into.mkdir(parents=True, exist_ok=True)
        options = [f"-DCACHECD_SANITIZE={sanitizers}", f"-DCACHECD_FUZZ={fuzz}"]
        run("cmake", "-S", CORE, "-B", into, "-G", "Ninja", *options, folder=into)
        # Whatever else is done meanwhile goes first.
        run("nice", "cmake", "--build", into, "--parallel", "2", folder=into)
    return folders


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_hostile_bytes_are_refused_or_read_as_the_format_says(target, built, tmp_path):
    much = [f"-max_total_time={SECONDS}"] if SECONDS else [f"-runs={MUTATIONS}"]
    flags = ["-seed=1", f"-artifact_prefix={tmp_path}/", *much]
    program = built["address,undefined"] / f"fuzz_{target}"
    output = run(program, *flags, FOLDER / target, folder=tmp_path)
    files = len(list((FOLDER / target).iterdir()))
    assert output.startswith(f"{files} files, ")
    assert SECONDS or f" {MUTATIONS} mutations" in output
    assert list(tmp_path.iterdir()) == [], "no input was saved, and no file is left"


@pytest.mark.long
def test_threads_neither_race_nor_touch_what_is_gone(built, tmp_path):
    rounds = SECONDS * ROUNDS or ROUNDS
    # A process under this sanitizer that finds its address space too random starts itself anew.
    output = run(built["thread"] / "threads", rounds, folder=tmp_path)
    assert output == f"{rounds} rounds\n"
    assert list(tmp_path.iterdir()) == []
