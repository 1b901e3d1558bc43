"""Readers for tests; lister and sampler processes import them by name."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Record = dict[str, Any]


class Lines:
    """An object is a unit, each of its lines a record; `spoilt` is raised in the middle."""

    def __init__(self, spoilt: str = "") -> None:
        self.spoilt = spoilt
        self.tried: list[str] = []

    def read(self, unit: Any, store: Any) -> Iterator[Record]:
        self.tried.append(unit)
        with store.open(unit) as file:
            for number, line in enumerate(file):
                if unit == self.spoilt and number == 3 and len(self.tried) < 99:
                    raise ValueError("a spoilt line")
                yield {"line": line.rstrip(b"\n"), "number": number}


class Counted:
    def __init__(self, units: int, records: int = 10, length: int = 100) -> None:
        self.sizes = units, records, length

    def __len__(self) -> int:
        return self.sizes[0]

    def read(self, unit: Any, store: Any) -> Iterator[Record]:
        _, records, length = self.sizes
        for number in range(records):
            yield {"unit": int(unit), "number": number, "data": np.full(length, 7, np.uint8)}


class Named(Counted):
    def __init__(self, names: list[Any]) -> None:
        super().__init__(0)
        self.names = names

    def units(self) -> list[Any]:
        return self.names

    def read(self, unit: Any, store: Any) -> Iterator[Record]:
        yield {"name": str(unit)}


class Broken:
    def __init__(self, how: str, file: str = "") -> None:
        self.how, self.file = how, file
        if how == "init":
            raise RuntimeError("no licence")

    def units(self) -> Iterator[Any]:
        yield from ("a", "b")
        match self.how:
            case "raise":
                raise LookupError("the index is gone")
            case "exit":
                sys.exit(3)
            case "die":
                os.abort()
            case "hang":
                child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
                Path(self.file).write_text(f"{os.getpid()} {child.pid}")
                time.sleep(1000)
            case "grow":
                self.kept = bytearray(os.urandom(1 << 20) * 300)
                time.sleep(1000)
            case "print":
                print("a print")  # noqa: T201
                os.write(1, b"a write\n")
                yield "c"
            case other:
                yield other

    def read(self, unit: Any, store: Any) -> Any:
        match self.how:
            case "none":
                return None
            case "dict":
                return {"a": 1}
            case "strings":
                return ["a"]
        return [{"name": str(unit)}]
