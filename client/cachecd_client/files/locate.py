"""Finds the offsets of the records in each file, and their schema: in sidecars, else by a scan."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import cachecd_client._core as _core
from cachecd_client.errors import (
    CallerError,
    CorruptRecordError,
    CorruptSidecarError,
    SchemaError,
)
from cachecd_client.files.inflate import compression_of
from cachecd_client.schema import Form, Schema, dims, form, infer_forms

log = logging.getLogger("cachecd")

_THREADS = 16  # a scan waits for the disk
_LOG_EVERY = 10.0  # seconds between two log lines
# Index files of other tools (NVIDIA DALI, the tfrecord package) have the same name. Each line has an offset
# and a length.
_INDEX_OF_OTHERS = re.compile(rb"\d+ \d+\s")
# The sample is large enough to find a list whose length varies, or a feature that some records lack. It is
# read and decoded in milliseconds.
_FILES = 16
_RECORDS = 64
_BYTES = 64 << 20  # bytes of records; the first record of each file is not counted


@dataclass(frozen=True)
class Located:
    """A file with the location of its records. `offsets`: the offset of each record's frame; None if the
    sidecar has the offsets. `schema`: the JSON values in the sidecar."""

    path: str
    offsets: NDArray[np.uint64] | None
    num_records: int
    num_bytes: int
    schema: dict[str, Any] | None = None

    def find(self) -> NDArray[np.uint64]:
        """Returns the offsets. Reads them from the sidecar if necessary."""
        if self.offsets is not None:
            return self.offsets
        return _core.Sidecar.read(f"{self.path}.idx").offsets


def locate(paths: Sequence[str]) -> list[Located]:
    """Locates the records of all files, and returns the files in their order. Scans a file only once,
    even if it is named twice. Raises the error of the first file with an error: CorruptRecordError,
    CorruptSidecarError, OSError, or CallerError for a compressed file."""
    different = list(dict.fromkeys(paths))
    threads = ThreadPoolExecutor(min(_THREADS, len(different)), "cachecd-locate")
    try:
        futures = [threads.submit(_locate, path, different) for path in different]
        _wait(futures)
    finally:
        threads.shutdown(cancel_futures=True)
    for each in futures:
        if not each.cancelled() and (error := each.exception()) is not None:
            raise error
    located = {each.path: each for each in (one.result() for one in futures)}
    return [located[path] for path in paths]


def _wait(futures: Sequence[Future[Located]]) -> None:
    """Waits until all are done, or until one has failed."""
    pending: set[Future[Located]] = set(futures)
    while pending:
        done, pending = wait(pending, _LOG_EVERY, FIRST_EXCEPTION)
        if any(each.exception() for each in done):
            return
        if pending:
            # A trainer without logging setup shows only warnings, and should not seem to hang.
            log.warning(
                "scanning %d files for their records, %d done; `python -m cachecd_client.index` writes "
                "sidecars, so that later runs need no scan",
                len(futures), len(futures) - len(pending),
            )  # fmt: skip


def _locate(path: str, paths: Sequence[str]) -> Located:
    if (located := by_sidecar(path)) is not None:
        return located
    if (compression := compression_of(path)) is not None:
        raise CallerError(
            f"{path} is compressed ({compression}), but a FileSet reads plain TFRecord files. Decompress "
            f"the files once, and pass the files in DIR to the FileSet:\n{_command(path, paths)}"
        )
    offsets = _core.scan(path)
    return Located(path, offsets, len(offsets), os.path.getsize(path))


def _command(path: str, paths: Sequence[str]) -> str:
    """Returns the command that inflates the files with this ending."""
    folder, ending = os.path.dirname(path), os.path.splitext(path)[1]
    alike = [one for one in paths if os.path.splitext(one)[1] == ending]
    files = shlex.join(alike)
    if len(alike) > 8 and all(os.path.dirname(one) == folder for one in alike):
        files = f"{shlex.quote(os.path.join(folder, ''))}*{shlex.quote(ending)}"
    return f"python -m cachecd_client.index {files} --out DIR"


def by_sidecar(path: str) -> Located | None:
    """Locates the records with the sidecar, or returns None if the file has no sidecar of cachecd.
    CorruptSidecarError if the sidecar does not fit the file."""
    name = f"{path}.idx"
    try:
        sidecar = _core.Sidecar.read(name)
    except FileNotFoundError:
        return None
    except CorruptSidecarError:
        with open(name, "rb") as file:
            if _INDEX_OF_OTHERS.match(file.read(64)):
                return None
        raise
    size = os.path.getsize(path)
    if size != sidecar.data_bytes:
        # Even with on_corrupt="replace", because records that the sidecar lacks would be missing silently.
        raise CorruptSidecarError(
            name,
            f"it describes {sidecar.data_bytes} bytes, but {path} has {size}: delete or rebuild it",
        )
    try:
        schema = json.loads(sidecar.meta or "{}").get("schema")
    except (ValueError, AttributeError):
        raise CorruptSidecarError(name, "its meta is not a JSON object") from None
    return Located(path, None, len(sidecar), size, schema)


def schema_of(files: Sequence[Located]) -> Schema:
    """Returns the schema in the sidecars. If no sidecar has a schema, infers it from records of several
    files.

    SchemaError, with feature and file, if sidecars or records disagree. SchemaError if there are no
    records, or if the records have no features or are not Examples. CorruptRecordError if all records of
    the sample are corrupt. CorruptSidecarError if the schema in a sidecar is damaged.
    """
    described = [file for file in files if file.schema]
    return _agreed(described) if described else _inferred(files)


def _agreed(files: Sequence[Located]) -> Schema:
    first = files[0]
    schema = _described(first)
    for file in files:
        if file.schema is None or file.schema == first.schema:
            continue  # the usual case: equal schemas are not parsed again
        other = _described(file)
        for name in sorted({*schema.names, *other.names}):
            first_form, other_form = _form(schema, name), _form(other, name)
            if first_form != other_form:
                raise SchemaError(
                    f"feature {name!r} is {first_form} in {first.path} and {other_form} in {file.path}: "
                    "make a FileSet for the files of each kind, or pass a schema= that fits all files"
                )
    return schema


def _described(file: Located) -> Schema:
    assert file.schema is not None
    try:
        return Schema.from_json(file.schema)
    except SchemaError as error:
        raise CorruptSidecarError(f"{file.path}.idx", str(error)) from error


def _form(schema: Schema, name: str) -> str:
    """Returns the properties of the feature that decide how it is read, as text."""
    if name not in schema.names:
        return "missing"
    feature = schema[name]
    return f"{feature.dtype}{dims(feature.shape)}{' (raw)' if feature.raw else ''}"


def _inferred(files: Sequence[Located]) -> Schema:
    sample = list(_sample([file for file in files if file.num_records]))
    if not sample:
        raise SchemaError(f"the {len(files)} files have no records, so no schema can be inferred")
    schema = infer_forms(sample)
    if not schema.features:
        raise SchemaError(
            f"{sample[0][0]}: the first record has no features, and none in {len(sample) - 1} other "
            "records; convert the records to tf.train.Example"
        )
    return schema


def _sample(files: Sequence[Located]) -> Iterator[Form]:
    """Yields the forms of some records, spread over some files. Skips corrupt records."""
    chosen = [files[i] for i in spread(len(files), _FILES)]
    corrupt: CorruptRecordError | None = None
    whole = size = 0
    for file in chosen:
        offsets = file.find()
        for number, i in enumerate(spread(len(offsets), _RECORDS // len(chosen))):
            begin = int(offsets[i])
            end = int(offsets[i + 1]) if i + 1 < len(offsets) else file.num_bytes
            size += end - begin
            if number and size > _BYTES:
                break
            try:
                record = _core.read_record(file.path, begin)
            except CorruptRecordError as error:
                corrupt = corrupt or CorruptRecordError(file.path, begin, error.why)
                continue
            whole += 1
            yield form(f"{file.path}, record at byte {begin}", record)
    if corrupt is not None and not whole:
        raise corrupt


def spread(count: int, most: int) -> list[int]:
    """Returns at most `most` evenly spaced numbers below `count`, including the first and the last
    number."""
    if count <= most:
        return list(range(count))
    return [i * (count - 1) // (most - 1) for i in range(most)]
