"""Reads small files, and writes them durably: state.json, egress.json, rotation.json."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from cachecd.disk.filesystem import open_carefully, refusing, regular_size, sync_directory
from cachecd.disk.layout import NEW
from cachecd.errors import DamagedError
from cachecd.model import Cursor, kind_of
from cachecd_client.protocol import check_of, is_sound

Content = TypeVar("Content")

_EXAMPLES = 10  # that are kept for each kind of reason
_REASONS = 1000  # kinds of reasons; skips of further kinds are counted with the last kind


def read(path: Path) -> bytes | None:
    """Returns the content of a regular file, or None if the file does not exist. DamagedError if the path
    is a link, a pipe or a directory. DiskError."""
    with refusing(f"cannot read {path}"):
        try:
            regular_size(path)
            with open(path, "rb", opener=open_carefully) as file:
                return file.read()
        except FileNotFoundError:
            return None


def replace(path: Path, content: bytes, *, is_synced: bool = True) -> None:
    """Replaces the content of a file, durably if `is_synced`. After DiskError the old content remains,
    unless only the sync of the directory failed. The group may read the file (mode 0640)."""
    new = path.with_name(path.name + NEW)
    with refusing(f"cannot write {path}"):
        new.unlink(missing_ok=True)  # left by a killed process
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
            try:
                os.fchmod(fd, 0o640)  # the umask may have removed bits
                _write(fd, content)
                if is_synced:
                    os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(new, path)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        if is_synced:
            sync_directory(path.parent)


def append(path: Path, content: bytes, end: int) -> int:
    """Cuts a file to its first `end` bytes, then appends content, durably. Returns the new end.

    This removes an incomplete last line. DamagedError: the file is shorter than `end`. After DiskError
    the caller may repeat the call.
    """
    with refusing(f"cannot append to {path}"):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        try:
            if (size := os.fstat(fd).st_size) < end:
                raise DamagedError(
                    f"{path} has {size} bytes, expected at least {end}: another program changed the file. "
                    "Restore it"
                )
            os.ftruncate(fd, end)
            os.lseek(fd, end, os.SEEK_SET)
            _write(fd, content)
            os.fsync(fd)
        finally:
            os.close(fd)
        if end == 0:  # the file may be new
            sync_directory(path.parent)
    return end + len(content)


def _write(fd: int, content: bytes) -> None:
    """Writes all of the content. One write to a nearly full disk may write only a part."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def write_json(path: Path, content: Mapping[str, Any], indent: int | None = None) -> None:
    """Replaces a JSON file of version 1, durably. Its `check` is a digest of the rest. DiskError."""
    whole = {"version": 1, **content}
    text = json.dumps({**whole, "check": check_of(whole)}, indent=indent)
    replace(path, text.encode("ascii") + b"\n")


def read_json(path: Path, decode: Callable[[Any], Content], remedy: str) -> Content | None:
    """Decodes a JSON file of version 1. Returns None if the file does not exist. DamagedError, with the
    `remedy`, if the file is damaged or `decode` refuses its content. DiskError."""
    text = read(path)
    if text is None:
        return None
    try:
        content = json.loads(text)
        if content["version"] == 1 and is_sound(content):
            return decode(content)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise DamagedError(f"{path} is damaged: found {text[:80]!r}{remedy}")


@dataclass(frozen=True, slots=True)
class Skips:
    """The number of units and of single records that were skipped for one kind of reason. `reason`: the
    first reason of this kind. `examples`: keys, or keys with samples."""

    reason: str
    units: int
    records: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class State:
    """The content of state.json. `heads`: the head of each stream, then the head of the supplements.
    `skipped`: the skips by kind of reason."""

    heads: tuple[tuple[int, Cursor], ...] = ()
    skipped: Mapping[str, Skips] = field(default_factory=dict)

    def with_skips(self, skips: Skips) -> tuple[State, tuple[str, ...]]:
        """Returns the state with these skips added, and the new examples that the state keeps."""
        kind = kind_of(skips.reason)
        if kind not in self.skipped and len(self.skipped) == _REASONS:
            *_, kind = self.skipped
        before = self.skipped.get(kind, Skips(skips.reason, 0, 0, ()))
        kept = skips.examples[: _EXAMPLES - len(before.examples)]
        counts = before.units + skips.units, before.records + skips.records
        after = Skips(before.reason, *counts, before.examples + kept)
        return State(self.heads, {**self.skipped, kind: after}), kept


def write_state(path: Path, state: State) -> None:
    """Replaces state.json. DiskError."""
    heads = [[j, cursor.pack()] for j, cursor in state.heads]
    skipped = [list(astuple(skips)) for skips in state.skipped.values()]
    write_json(path, {"heads": heads, "skipped": skipped})


def read_state(path: Path) -> State:
    """Reads state.json. Returns an empty state if the file does not exist. DamagedError; DiskError."""

    def decode(content: Any) -> State:
        heads = [(_count(j), Cursor.unpack(cursor)) for j, cursor in content["heads"]]
        skipped = {
            kind_of(why): Skips(str(why), _count(units), _count(records), tuple(map(str, examples)))
            for why, units, records, examples in content["skipped"]
        }
        return State(tuple(heads), skipped)

    return read_json(path, decode, ". Streams without a shard start over") or State()


def write_egress(path: Path, fetched: int) -> None:
    """Replaces egress.json. `fetched`: the bytes fetched since the cache was created. DiskError."""
    write_json(path, {"fetched": fetched})


def read_egress(path: Path) -> int:
    """Reads egress.json. Returns 0 if the file does not exist. DamagedError, DiskError."""
    remedy = (
        ', expected {"version": 1, "fetched": BYTES}. Write the fetched bytes into the file, or remove the '
        "file to count from 0"
    )
    return read_json(path, lambda content: _count(content["fetched"]), remedy) or 0


def write_figures(path: Path, figures: Mapping[str, float]) -> None:
    """Replaces rotation.json. DiskError."""
    write_json(path, {"figures": dict(figures)})


def read_figures(path: Path) -> dict[str, float]:
    """Reads rotation.json. Returns no figures if the file does not exist. DamagedError, DiskError."""

    def decode(content: Any) -> dict[str, float]:
        figures: dict[str, float] = content["figures"]
        for number in figures.values():
            if not (isinstance(number, int | float) and 0 <= number < 1 << 63):
                raise ValueError(f"found {number!r}, expected a number")
        return figures

    return read_json(path, decode, ". Its figures start from zero") or {}


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"found {value!r}, expected a count")
    return value
