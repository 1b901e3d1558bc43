"""A disk that fails on command: real processes on a real file system, whose calls libc refuses.

    disk = FaultyDisk(tmp_path / "faults", root=cache_dir)
    subprocess.Popen(..., env={**os.environ, **disk.environ})
    with disk.failing("sync", "*/tmp/*", errno.EIO): ...
    disk.kill("rename", "*/shards/*", skip=3)         # SIGKILL before the fourth

Works for the processes started with `environ` and for all that these start. What is read through a
mapping cannot fail this way.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_SHIM = Path(__file__).with_name("shim.c")
_RULES = 64  # as in the shim
_LIFTED = "-"


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Removed when this process ends."""
    return tempfile.TemporaryDirectory(prefix="cachecd-shim-")


@functools.cache
def _shim() -> Path:
    """The compiled library; one a test process."""
    built = Path(_folder().name) / "shim.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", built, _SHIM, "-ldl"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return built


class FaultyDisk:
    """Rules for file operations below `root`: see shim.c for operations, globs and actions."""

    def __init__(self, control: Path, root: Path) -> None:
        control.mkdir(parents=True)
        self.root = root
        self._control = control
        self._lines: list[str] = []
        (control / "hits").write_bytes(bytes(8 * _RULES))
        (control / "rules").touch()
        self.environ = {
            "LD_PRELOAD": str(_shim()),
            "CACHECD_FAULTS": str(control),
            "CACHECD_FAULTS_ROOT": str(root),
        }

    def fail(self, operation: str, glob: str, code: int, skip: int = 0, count: int = 0) -> int:
        """From now on, after `skip` more, `count` such operations (0: all) fail with errno `code`;
        the rule's number."""
        return self._add(operation, glob, skip, count, str(code))

    def kill(self, operation: str, glob: str, skip: int = 0, *, after: bool = False) -> int:
        """Whoever does the operation after `skip` more is killed before it, or right `after` it."""
        return self._add(operation, glob, skip, 1, "killafter" if after else "kill")

    def stop(self, operation: str, glob: str, skip: int = 0) -> int:
        """Whoever does the operation after `skip` more is stopped before it (SIGSTOP)."""
        return self._add(operation, glob, skip, 1, "stop")

    @contextlib.contextmanager
    def failing(self, operation: str, glob: str, code: int) -> Iterator[int]:
        """All such operations fail within; yields the rule's number."""
        rule = self.fail(operation, glob, code)
        try:
            yield rule
        finally:
            self.lift(rule)

    def lift(self, rule: int) -> None:
        self._lines[rule] = _LIFTED
        self._write()

    def heal(self) -> None:
        self._lines = [_LIFTED] * len(self._lines)
        self._write()

    def reset(self) -> None:
        """There are no rules, nothing has been hit, and nothing is noted or will be."""
        self._lines.clear()
        self._write()
        (self._control / "hits").write_bytes(bytes(8 * _RULES))
        (self._control / "trace").unlink(missing_ok=True)

    def hits(self, rule: int) -> int:
        data = (self._control / "hits").read_bytes()
        return int.from_bytes(data[8 * rule : 8 * rule + 8], "little")

    def trace(self) -> None:
        (self._control / "trace").write_text("")

    @property
    def traced(self) -> list[tuple[int, str, str]]:
        """(pid, operation, path) of each, in order."""
        lines = (self._control / "trace").read_text().splitlines()
        found = (line.split(" ", 2) for line in lines)
        return [(int(pid), operation, path) for pid, operation, path in found]

    def _add(self, operation: str, glob: str, skip: int, count: int, action: str) -> int:
        assert " " not in glob, "the rules are cut at blanks"
        line = f"{operation} {glob} {skip} {count} {action}"
        if _LIFTED in self._lines:
            rule = self._lines.index(_LIFTED)
            with (self._control / "hits").open("r+b") as hits:  # the processes have it mapped
                hits.seek(8 * rule)
                hits.write(bytes(8))
            self._lines[rule] = line
        else:
            assert len(self._lines) < _RULES, "too many rules for one disk"
            rule = len(self._lines)
            self._lines.append(line)
        self._write()
        return rule

    def _write(self) -> None:
        new = self._control / "rules.new"
        new.write_text("".join(f"{line}\n" for line in self._lines))
        os.replace(new, self._control / "rules")
