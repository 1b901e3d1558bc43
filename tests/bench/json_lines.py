"""How fast JSON lines become checked records: `python -m tests.bench.json_lines FILE`

By turns with pyarrow's reader, which makes a table and checks less: with one thread each, from memory, with
all columns and with the column `text` alone. Two forms of the file: as `json.dumps` writes it, and as
orjson writes it. Prints MB a processor second.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import orjson
import pyarrow
from pyarrow import json as reader

from cachecd.sampler.formats.jsonl.lines import LineSplitter
from cachecd.sampler.formats.jsonl.values import LineParser
from tests.bench.measuring import spread, turns

_CHUNK = 8 << 20  # as units are fetched


def records(data: bytes, columns: list[str] | None) -> int:
    splitter, parser, count = LineSplitter(0, len(data)), LineParser(columns), 0
    for at in range(0, len(data), _CHUNK):
        for _, line in splitter.feed(data[at : at + _CHUNK]):
            assert isinstance(line, bytes)
            parser.record(line)
            count += 1
    return count


def table(data: bytes, columns: list[str] | None) -> int:
    options: dict[str, Any] = {}
    if columns:
        fields = [(name, pyarrow.string()) for name in columns]
        options = {
            "explicit_schema": pyarrow.schema(fields),
            "unexpected_field_behavior": "ignore",
        }
    made = reader.read_json(
        pyarrow.BufferReader(data),
        reader.ReadOptions(use_threads=False, block_size=_CHUNK),
        reader.ParseOptions(**options),
    )
    return int(made.num_rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    forms: dict[str, Callable[[Any], bytes]] = {
        "json.dumps": lambda line: json.dumps(line, ensure_ascii=False).encode(),
        "orjson": orjson.dumps,
    }
    for form, write in forms.items():
        with asked.file.open("rb") as file:
            data = b"".join(write(orjson.loads(line)) + b"\n" for line in file)
        lines = data.count(b"\n")
        ways = [(way, cols) for way in (records, table) for cols in (None, ["text"])]
        speeds: dict[str, list[float]] = {}
        for repeat in range(asked.repeats):
            for way, columns in turns(ways, repeat):
                began = time.process_time()
                assert way(data, columns) == lines
                speed = len(data) / 1e6 / (time.process_time() - began)
                speeds.setdefault(f"{way.__name__}, {columns or 'all columns'}", []).append(speed)
        say(f"{form}: {len(data) / 1e6:.0f} MB, {lines} lines")
        for name, found in sorted(speeds.items()):
            say(f"  {name}: {spread(found, 0)}")
        for columns in ("all columns", ["text"]):
            both = [median(speeds[f"{way}, {columns}"]) for way in ("records", "table")]
            say(f"  {columns}: {both[0] / both[1]:.2f} of pyarrow")


def say(what: str) -> None:
    sys.stdout.write(f"{what}\n")


if __name__ == "__main__":
    main()
