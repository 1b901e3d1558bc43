"""An epoch's records, by each of the three readers, and what they must be."""

from __future__ import annotations

import os
from typing import Any

from cachecd_client import Epoch

Records = dict[bytes, tuple[int, bytes]]  # key -> label, payload


def by_numpy(epoch: Epoch) -> Records:
    return _collect(epoch.numpy(64, pad_last=True))


def rows(epoch: Epoch, *names: str) -> list[tuple[Any, ...]]:
    """These features of every record, in the order of a pass."""
    batches = epoch.numpy(16, drop_last=False)
    return [row for b in batches for row in zip(*(b[name] for name in names), strict=True)]


def column(epoch: Epoch, name: str = "key") -> list[Any]:
    return [value for (value,) in rows(epoch, name)]


def keys_of(epoch: Epoch) -> list[str]:
    return [os.fsdecode(bytes(key)) for key in column(epoch)]


def by_torch(epoch: Epoch) -> Records:
    return _collect(epoch.torch(64, pad_last=True))


def by_tensorflow(epoch: Epoch) -> Records:
    """By stock TensorFlow alone, from nothing but the files' names."""
    import tensorflow as tf

    features = {
        "key": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "payload": tf.io.FixedLenFeature([], tf.string),
    }
    found: Records = {}
    for batch in tf.data.TFRecordDataset(epoch.files).batch(256):
        parsed = tf.io.parse_example(batch, features)
        _add(found, *(parsed[name].numpy() for name in ("key", "label", "payload")))
    return found


def _collect(loader: Any) -> Records:
    found: Records = {}
    for batch in loader:
        real = [bool(valid) for valid in batch["_valid"]]
        rows = [
            [value for value, valid in zip(batch[name], real, strict=True) if valid]
            for name in ("key", "label", "payload")
        ]
        _add(found, *rows)
    return found


def _add(found: Records, keys: Any, labels: Any, payloads: Any) -> None:
    for key, label, payload in zip(keys, labels, payloads, strict=True):
        assert bytes(key) not in found, f"{key!r} came twice"
        found[bytes(key)] = int(label), bytes(payload)


def expected(objects: dict[str, bytes], keys: Any) -> Records:
    return {
        key: (int(key.decode()[len("class-")]), objects[key.decode()])
        for key in map(bytes, keys)
    }  # fmt: skip
