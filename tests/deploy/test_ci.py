"""The checks that run for every change: what the README says is what they run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_readme_has_the_one_line_that_ci_runs():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert [line for line in lines if line.endswith("&& pytest")] == [
        "pip install ./client '.[test]' && pytest"
    ]


@pytest.fixture
def checkout(tmp_path):
    """A checkout whose tools are scripts that note what they were called with."""
    (tmp_path / "tree" / ".ci").mkdir(parents=True)
    (tmp_path / "tree" / "client" / "core").mkdir(parents=True)
    (tmp_path / "tree" / "client" / "core" / "a.cc").touch()
    (tmp_path / "tree" / ".ci" / "run").write_bytes((ROOT / ".ci" / "run").read_bytes())
    (tmp_path / "tree" / "README.md").write_text("    pip install it\n\npip install x && pytest\n")
    (tmp_path / "bin").mkdir()
    for tool in ("pip", "python", "ruff", "mypy", "mkdocs", "clang-format", "pytest"):
        script = f'#!/bin/sh\necho "{tool} $*" >> "$CALLS"\n[ "$FAIL" != "{tool}" ]\n'
        (tmp_path / "bin" / tool).write_text(script)
        (tmp_path / "bin" / tool).chmod(0o755)
    # Stands for `python3 -m venv --upgrade-deps DIR`: an environment with these tools.
    (tmp_path / "python").write_text(
        '#!/bin/sh\nmkdir -p "$4" && cp -r "$(dirname "$0")/bin" "$4"\n'
    )
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def run(checkout, fail=""):
    environment = {
        "PATH": os.environ["PATH"],
        "TMPDIR": str(checkout / "tmp"),
        "PYTHON": str(checkout / "python"),
        "CALLS": str(checkout / "calls"),
        "FAIL": fail,
    }
    done = subprocess.run(
        ["bash", checkout / "tree" / ".ci" / "run"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    calls = (checkout / "calls").read_text() if (checkout / "calls").exists() else ""
    return done, calls.splitlines()


def test_every_check_runs_in_an_environment_that_is_removed_again(checkout):
    done, calls = run(checkout)
    assert done.returncode == 0, done.stderr
    assert calls[0] == "pip install x"
    (site,) = (call for call in calls if call.startswith("mkdocs "))
    assert site.startswith("mkdocs build --strict --quiet --config-file .mkdocs/mkdocs.yml ")
    assert sorted(set(calls[1:]) - {site}) == [
        "clang-format --dry-run -Werror client/core/a.cc",
        "mypy ",
        "pytest ",
        "python -c import jax, keras, pytorch_lightning, tensorflow, torch, torchdata",
        "ruff check",
        "ruff format --check",
    ]
    assert list((checkout / "tmp").iterdir()) == []
    verdicts = [line for line in done.stdout.splitlines()[-9:] if line.endswith("ok")]
    assert sorted(line.split()[0] for line in verdicts) == [
        "c++", "environment", "format", "imports", "install", "lint", "site", "tests",
        "types",
    ]  # fmt: skip


@pytest.mark.parametrize("tool", ["ruff", "mypy", "mkdocs", "clang-format", "pytest"])
def test_one_failing_check_fails_the_run_but_not_the_other_checks(checkout, tool):
    done, calls = run(checkout, fail=tool)
    assert done.returncode == 1
    assert len(calls) == 8
    assert "FAILED" in done.stdout
    assert list((checkout / "tmp").iterdir()) == []


def test_without_an_installation_nothing_is_checked(checkout):
    done, calls = run(checkout, fail="pip")
    assert (done.returncode, calls) == (1, ["pip install x"])
    assert list((checkout / "tmp").iterdir()) == []
