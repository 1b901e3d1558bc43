"""What is carried over of a catalog that cannot be used: all that no shard's sidecar says."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_Rows = list[tuple[Any, ...]]


@dataclass(slots=True)
class Carried:
    """Rows as the catalog has them: by dataset the bytes that were fetched, and by dataset and
    number which shards were retired or barred. `said` is for people."""

    egress: _Rows = field(default_factory=list)
    marks: _Rows = field(default_factory=list)
    said: str = ""


def read_apart(path: Path) -> Carried:
    """As far as the file can be read, and it has the columns. Never raises for what is in it."""
    carried, failed = Carried(), []
    tables = {"plans": carried.egress, "shards": carried.marks}
    with contextlib.closing(sqlite3.connect(path, timeout=0.2)) as old:
        for table, found in tables.items():
            try:
                for row in _carried(old, table):
                    found.append(row)  # up to where it is damaged
            except (sqlite3.Error, ValueError, KeyError, AttributeError, zlib.error) as error:
                failed.append(f"{table}: {error}")
    carried.said = (
        f"carried over: {len(carried.marks)} marks of shards, "
        f"{len(carried.egress)} egress accounts; lost: plans and units set aside"
    )
    carried.said += f"; unread: {'; '.join(failed)}" if failed else ""
    return carried


def _carried(old: sqlite3.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """What is carried over of a table of another version, row by row."""
    columns = {row[1] for row in old.execute(f"PRAGMA table_info({table})")}
    if table == "shards" and columns:
        barred = "barred" if "barred" in columns else "0"
        yield from old.execute(
            f"SELECT dataset, number, retired, {barred} FROM shards WHERE retired OR {barred}"
        )
    elif table == "plans" and columns:
        for dataset, plan in old.execute("SELECT dataset, plan FROM plans"):
            text = zlib.decompress(plan) if isinstance(plan, bytes) else plan
            if egress := json.loads(text).get("egress", 0):
                yield dataset, egress
