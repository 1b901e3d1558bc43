"""A benchmark in its short form, run as a person runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run(benchmark: str, *arguments: str, figures: Path) -> tuple[dict[str, Any], str]:
    """What `python -m tests.bench.BENCHMARK` wrote to the file `figures`, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.bench.{benchmark}", *arguments, "--json", str(figures)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(figures.read_text()), done.stdout
