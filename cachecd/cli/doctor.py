"""`cachecd doctor`: whether training waits for data, what it waits for, and what would change it."""

from __future__ import annotations

import io
import json
import platform
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cachecd.cli.options import AsJson, Endpoint
from cachecd.quantities import printable

if TYPE_CHECKING:
    from cachecd.monitor.doctor import Finding
    from cachecd.monitor.history import History

_APART = 5.0  # seconds between the two status documents
_LINES = 5000  # of the log
_PACKAGES = ("cachecd", "cachecd-client", "obstore", "pyzmq", "numpy", "torch", "tensorflow", "jax")


def command(
    endpoint: Endpoint = None,
    as_json: AsJson = False,
    bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write a .tar.gz for a bug report: configuration, status, history, story, versions, "
            "all without secrets and keys of objects, and the log, which may name keys.",
        ),
    ] = None,
) -> int:
    """Say whether training waits for data, what for, and what would change it. Needs a running daemon.

    It compares two status documents, 5 s apart. The exit code is 1 if something should be changed.
    """
    from cachecd.monitor.doctor import diagnose
    from cachecd.monitor.privacy import without_keys
    from cachecd_client import connect

    with connect(endpoint, timeout=5.0) as cache:
        before = cache.status()
        time.sleep(_APART)
        after = cache.status()
        details = cache.details() if bundle else {}
    history = _history(after)
    findings = diagnose(before, after, history.samples("epochs"))
    if as_json:
        print(json.dumps({"findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        _print(findings)
    if bundle is not None:
        before, after = without_keys(before), without_keys(after)
        findings = diagnose(before, after, history.samples("epochs"))
        _write(bundle, _members(before, after, details, history, findings))
    return int(any(finding.is_wrong for finding in findings))


def _history(document: dict[str, Any]) -> History:
    """Returns the history that the daemon saved a minute ago or less, or an empty one."""
    from cachecd.disk.durable import read
    from cachecd.disk.layout import Layout
    from cachecd.errors import DiskError
    from cachecd.monitor.history import History

    try:
        content = read(Layout(Path(document["cache"]["dir"])).history)
        return History() if content is None else History.decode(content, time.time())
    except (DiskError, ValueError) as error:
        print(printable(f"cachecd: the history cannot be read: {error}"), file=sys.stderr)
        return History()


def _print(findings: list[Finding]) -> None:
    for finding in findings:
        print(printable(finding.verdict))
        for line in finding.evidence:
            print(printable(f"    {line}"))
        if finding.remedy:
            print(printable(f"  -> {finding.remedy}"))


def _members(
    before: dict[str, Any],
    after: dict[str, Any],
    details: dict[str, Any],
    history: History,
    findings: list[Finding],
) -> Iterator[tuple[str, str]]:
    """Yields the name and the text of each file of a bundle."""
    yield "doctor.json", json.dumps([asdict(finding) for finding in findings], indent=1)
    yield "status-1.json", json.dumps(before, indent=1)
    yield "status-2.json", json.dumps(after, indent=1)
    for name, value in details.items():
        yield f"{name}.json", json.dumps(value, indent=1)
    yield "history.json", b"".join(history.text()).decode()
    yield "versions.txt", "\n".join(_versions()) + "\n"
    yield "log.txt", _log_of(after["daemon"]["pid"])


def _write(path: Path, members: Iterator[tuple[str, str]]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in members:
            content = text.encode("utf-8", "backslashreplace")
            info = tarfile.TarInfo(f"cachecd/{name}")
            info.size, info.mtime = len(content), int(time.time())
            archive.addfile(info, io.BytesIO(content))


def _versions() -> Iterator[str]:
    from importlib.metadata import PackageNotFoundError, version

    yield f"python {platform.python_version()}, {platform.platform()}"
    for name in _PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue


def _log_of(pid: int) -> str:
    """Returns the last lines of the daemon's log, if systemd's journal has them."""
    command = ["journalctl", f"_PID={pid}", "--lines", str(_LINES), "--no-pager", "--quiet"]
    try:
        run = subprocess.run(command, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        run = None
    if run is None or not run.stdout:
        return (
            "The journal of this machine has no log of the daemon. Add what it wrote to stderr.\n"
        )
    return run.stdout.decode("utf-8", "backslashreplace")
