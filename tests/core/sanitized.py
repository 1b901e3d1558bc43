"""Builds the core's programs under sanitizers. Needs CMake, Ninja and a C++ compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BUILDS = {"address,undefined": "ON", "thread": "OFF"}  # sanitizers -> whether with the fuzz targets
CORE = Path(__file__).parent
# CMake and Ninja lie beside the interpreter, where they are not on the path.
TOOLS = {**os.environ, "PATH": f"{os.environ['PATH']}:{Path(sys.executable).parent}"}


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


def build(folder: Path) -> dict[str, Path]:
    folders = {}
    for sanitizers, fuzz in BUILDS.items():
        into = folders[sanitizers] = folder / sanitizers.partition(",")[0]
        into.mkdir(parents=True, exist_ok=True)
        options = [f"-DCACHECD_SANITIZE={sanitizers}", f"-DCACHECD_FUZZ={fuzz}"]
        run("cmake", "-S", CORE, "-B", into, "-G", "Ninja", *options, folder=into)
        # Whatever else is done meanwhile goes first.
        run("nice", "cmake", "--build", into, "--parallel", "2", folder=into)
    return folders
