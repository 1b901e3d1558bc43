"""Reads the rows of a table in a store: CSV or JSON lines, also compressed with GZIP or Zstandard, or
Parquet.

The memory does not grow with the number of rows. Column names are case-insensitive.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from cachecd.errors import ConfigError, SourceError, SourceUnreachableError
from cachecd.stores.extras import extra
from cachecd_client.files.inflate import Compression, InflateError, Inflater

_LONGEST_LINE = 1 << 20
_BATCH = 4096  # rows of a Parquet file that are decoded together
_PACKED: dict[str, Compression] = {".gz": "GZIP", ".zst": "ZSTD"}


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row. `place`: the line or row of the file, for messages. `fields` omits missing values."""

    place: str
    fields: Mapping[str, Any]


# Called with the place of a row that cannot be read, and the reason.
Bad = Callable[[str, str], None]


def read_rows(
    file: BinaryIO,
    name: str,
    columns: Sequence[str],
    bad: Bad,
    header: Sequence[str] | None = None,
) -> Iterator[TableRow]:
    """Yields the rows of the table `name`; the suffix of the name determines the format. Rows may lack
    fields other than `columns`. `header`: the column names of a CSV file, if its first line lacks them.

    ConfigError if the file is not a table, or has none of the columns. SourceUnreachableError if the file
    is damaged. `bad` is called for each row that cannot be read.
    """
    plain, ending = os.path.splitext(name.lower())
    compression = _PACKED.get(ending)
    kind = plain if compression else name.lower()
    try:
        if kind.endswith(".parquet"):
            yield from _of_parquet(file, columns)
            return
        text = io.BufferedReader(_Inflated(file, compression)) if compression else file
        if kind.endswith(".csv"):
            yield from _of_csv(_lines(text), columns, bad, header)
        else:
            yield from _of_json(_lines(text), bad)
    except InflateError as error:
        raise SourceUnreachableError(f"it is damaged: {error}") from error


class _Inflated(io.RawIOBase):
    """The content of a compressed file, as a file."""

    def __init__(self, file: BinaryIO, compression: Compression) -> None:
        self._pieces = Inflater(compression).read(file)
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._piece and (piece := next(self._pieces, None)) is not None:
            self._piece = memoryview(piece)
        length = min(len(buffer), len(self._piece))
        buffer[:length] = self._piece[:length]
        self._piece = self._piece[length:]
        return length


def _lines(file: BinaryIO) -> Iterator[str]:
    mark = b"\xef\xbb\xbf"
    number = 0
    while line := file.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise ConfigError(
                f"line {number} has more than {_LONGEST_LINE} bytes, so the file is not a text table"
            )
        # The caller detects invalid UTF-8 when it has the whole row.
        yield line.removeprefix(mark if number == 1 else b"").decode("utf-8", "surrogateescape")


def _of_csv(
    lines: Iterator[str], columns: Sequence[str], bad: Bad, header: Sequence[str] | None
) -> Iterator[TableRow]:
    reader = csv.reader(lines, strict=True)
    try:
        names = [name.strip().lower() for name in header or next(reader, [])]
    except csv.Error as error:
        raise ConfigError(f"its first line is not CSV: {error}") from error
    if not set(names) & set(columns):
        raise ConfigError(
            f"its first line is {', '.join(map(repr, names[:9])) or 'missing'}, expected column names "
            f"such as {', '.join(columns)}"
        )
    while True:
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            bad(f"line {reader.line_num}", str(error))
            continue
        place = f"line {reader.line_num}"
        if len(values) > len(names):
            bad(place, f"{len(values)} fields, expected {len(names)}")
        elif not _is_text(values):
            bad(place, "the row is not UTF-8")
        elif values:
            yield _row(place, zip(names, values, strict=False))


def _row(place: str, fields: Iterable[tuple[str, Any]]) -> TableRow:
    return TableRow(
        place, {name.lower(): value for name, value in fields if value not in (None, "")}
    )


def _is_text(values: Sequence[str]) -> bool:
    text = "".join(values)
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _of_json(lines: Iterator[str], bad: Bad) -> Iterator[TableRow]:
    for number, line in enumerate(lines, 1):
        place = f"line {number}"
        if not line.strip():
            continue
        try:
            line.encode()
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            bad(place, f"invalid JSON: {error}")
            continue
        if isinstance(row, dict):
            yield _row(place, row.items())
        else:
            bad(place, f"a JSON {type(row).__name__}, expected an object")


def _of_parquet(file: BinaryIO, columns: Sequence[str]) -> Iterator[TableRow]:
    with extra("parquet", "a table in Parquet"):
        from pyarrow import parquet
    try:
        table = parquet.ParquetFile(file)
        names = [n for n in table.schema_arrow.names if n.lower() in columns]
        if not names:
            raise ConfigError(f"the table has none of these columns: {', '.join(columns)}")
        number = 0
        for batch in table.iter_batches(_BATCH, columns=names):
            for row in batch.to_pylist():
                number += 1
                yield _row(f"row {number}", row.items())
    except (SourceError, ConfigError, MemoryError):
        raise
    except Exception as error:  # pyarrow raises many types
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise SourceUnreachableError(f"it is damaged: {why}") from error
