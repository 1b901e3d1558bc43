"""JSON lines in the first bytes of an object."""

from __future__ import annotations

import contextlib
import json

from cachecd.errors import RecordError
from cachecd.sampler.encoding import infer
from cachecd_client.errors import SchemaError
from cachecd_client.files.inflate import HEAD, InflateError, Inflater, compression_of_head
from cachecd_client.schema import Feature

_INFLATED = 1 << 20  # bytes


def json_lines(head: bytes) -> list[bytes]:
    """Returns the whole lines in the first bytes of an object, which may be compressed. Returns [] unless
    each of these lines is a JSON object."""
    if (compression := compression_of_head(head[:HEAD])) is not None:
        pieces, size = list[bytes](), 0
        with contextlib.suppress(InflateError):
            for piece in Inflater(compression).feed(head):
                pieces.append(piece)
                size += len(piece)
                if size >= _INFLATED:
                    break
        head = b"".join(pieces)
    lines = [line for line in head.removeprefix(b"\xef\xbb\xbf").split(b"\n")[:-1] if line.strip()]
    try:
        is_json = all(isinstance(json.loads(line), dict) for line in lines)
    except (ValueError, RecursionError):
        return []
    return lines if is_json else []


def json_features(head: bytes) -> list[dict[str, Feature]]:
    """Returns the features of each of these lines. Returns [] if no library is installed that a worker
    needs to read them."""
    try:
        from cachecd.sampler.formats.jsonl.values import LineParser
    except ImportError:
        return []
    records, parser = list[dict[str, Feature]](), LineParser()
    for line in json_lines(head):
        with contextlib.suppress(RecordError, SchemaError):
            record = parser.record(line)
            features = infer(record, record.keys()).features
            records.append({feature.name: feature for feature in features})
    return records
