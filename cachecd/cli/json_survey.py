"""JSON lines in the first bytes of an object."""

from __future__ import annotations

import contextlib
import json

from cachecd.errors import RecordError
from cachecd.sampler.encoding import infer
from cachecd_client.errors import SchemaError
from cachecd_client.schema import Feature


def json_lines(text: bytes) -> list[bytes]:
    """Returns the whole lines in the first bytes of an object's text. Returns [] unless each of these
    lines is a JSON object."""
    lines = [line for line in text.removeprefix(b"\xef\xbb\xbf").split(b"\n")[:-1] if line.strip()]
    try:
        is_json = all(isinstance(json.loads(line), dict) for line in lines)
    except (ValueError, RecursionError):
        return []
    return lines if is_json else []


def json_features(text: bytes) -> list[dict[str, Feature]]:
    """Returns the features of each whole line that is a record. Returns [] if no library is installed that
    a worker needs to read lines."""
    try:
        from cachecd.sampler.formats.jsonl.values import LineParser
    except ImportError:
        return []
    records, parser = list[dict[str, Feature]](), LineParser()
    for line in text.split(b"\n")[:-1]:
        with contextlib.suppress(RecordError, SchemaError):
            record = parser.record(line)
            features = infer(record, record.keys()).features
            records.append({feature.name: feature for feature in features})
    return records
