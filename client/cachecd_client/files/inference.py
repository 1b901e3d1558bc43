"""The schema of a file set: from its sidecars, else inferred from some of its records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import cachecd_client._core as _core
from cachecd_client.errors import CorruptRecordError, CorruptSidecarError, SchemaError
from cachecd_client.files.locate import Located
from cachecd_client.schema import Form, Schema, dims, form, infer_forms

# The sample: enough to find a list whose length varies or a feature that is sometimes missing, and read and
# decoded in milliseconds.
_FILES = 16
_RECORDS = 64
_BYTES = 64 << 20  # of records; the first record of each file does not count


def schema_of(files: Sequence[Located]) -> Schema:
    """The schema of the sidecars if any has a schema, else inferred from records of several files.

    SchemaError, with feature and file, if sidecars or records disagree; also if the records have no
    features or are no Examples, or if there are no records. CorruptRecordError if all records of the sample
    are corrupt, CorruptSidecarError if the schema in a sidecar is damaged.
    """
    described = [file for file in files if file.schema]
    return _agreed(described) if described else _inferred(files)


def _agreed(files: Sequence[Located]) -> Schema:
    first = files[0]
    schema = _described(first)
    for file in files:
        if file.schema is None or file.schema == first.schema:
            continue  # the usual case, without parsing thousands
        other = _described(file)
        for name in sorted({*schema.names, *other.names}):
            first_form, other_form = _form(schema, name), _form(other, name)
            if first_form != other_form:
                raise SchemaError(
                    f"feature {name!r} is {first_form} in {first.path} and {other_form} in {file.path}: "
                    "make a FileSet of the files of each kind, or give a schema= that fits all of them"
                )
    return schema


def _described(file: Located) -> Schema:
    """The schema in the sidecar of the file."""
    assert file.schema is not None
    try:
        return Schema.from_json(file.schema)
    except SchemaError as error:
        raise CorruptSidecarError(f"{file.path}.idx", str(error)) from error


def _form(schema: Schema, name: str) -> str:
    """The properties of the feature that decide how it is read, in words."""
    if name not in schema.names:
        return "missing"
    feature = schema[name]
    return f"{feature.dtype}{dims(feature.shape)}{' (raw)' if feature.raw else ''}"


def _inferred(files: Sequence[Located]) -> Schema:
    sample = list(_sample([file for file in files if file.num_records]))
    if not sample:
        raise SchemaError(
            f"no records in {len(files)} files: there is nothing to read, or to infer a schema from"
        )
    schema = infer_forms(sample)
    if not schema.features:
        raise SchemaError(
            f"{sample[0][0]}: no features, and none in {len(sample) - 1} other records; only TFRecord "
            "files of tf.train.Example records can be read (convert other messages, for instance "
            "SequenceExample)"
        )
    return schema


def _sample(files: Sequence[Located]) -> Iterator[Form]:
    """The forms of some records, spread over some files. Corrupt records are skipped."""
    chosen = [files[i] for i in _spread(len(files), _FILES)]
    corrupt: CorruptRecordError | None = None
    whole = size = 0
    for file in chosen:
        offsets = file.find()
        for number, i in enumerate(_spread(len(offsets), _RECORDS // len(chosen))):
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


def _spread(count: int, most: int) -> list[int]:
    """At most `most` of the numbers below `count`: evenly spaced, with the first and the last."""
    if count <= most:
        return list(range(count))
    return [i * (count - 1) // (most - 1) for i in range(most)]
