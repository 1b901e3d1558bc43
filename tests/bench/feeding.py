"""Ways to feed a training loop from TFRecord files, as people write them, in PyTorch and in TensorFlow.

Each makes passes of batches, dicts with `image` and `label`. Where Python parses, labels are zeros, and
nothing is shuffled or checked, so that it is as fast as Python can be.
"""

from __future__ import annotations

import queue
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd_client import FileSet
from tests.bench.contenders.tf_data import SETTINGS, Setting, TfData
from tests.bench.data import RecordSet, image
from tests.bench.delivery import Passes

_HEADER = struct.Struct("<QI")  # of a TFRecord frame: length and its CRC, which nobody checks here
_AHEAD = 4  # batches in a queue
_END = object()


# Parsing in Python


def _place(records: RecordSet) -> int:
    """Where the image begins in each record's bytes: all are of one size, and it comes first in them."""
    with open(records.files[0], "rb") as file:
        data = file.read(_HEADER.size + 64 + records.case.image_bytes)
    return data.index(image(records.case, 0).tobytes()[:64]) - _HEADER.size


def _parsed(path: str, records: RecordSet, at: int) -> Iterator[NDArray[np.uint8]]:
    """The images of a file, by the least Python that can do it: no protobuf, no label, no checksum."""
    with open(path, "rb") as file:
        while header := file.read(_HEADER.size):
            data = file.read(_HEADER.unpack(header)[0] + 4)
            yield _image(data, records, at)


def _image(data: bytes, records: RecordSet, at: int) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8, records.case.image_bytes, at).reshape(records.case.shape)


def _by_python(records: RecordSet, part: int = 0, parts: int = 1) -> Iterator[dict[str, Any]]:
    """Batches that Python has parsed and stacked, of every `parts`-th file."""
    rows: list[NDArray[np.uint8]] = []
    at = _place(records)
    for path in records.files[part::parts]:
        for one in _parsed(path, records, at):
            rows.append(one)
            if len(rows) == records.batch_size:
                yield {"image": np.stack(rows), "label": np.zeros(len(rows), np.int64)}
                rows = []


def by_a_thread(batches: Iterator[Any]) -> Iterator[Any]:
    """The same, made by a Python thread and handed over in a queue; the thread has ended when this has."""
    ready: queue.Queue[Any] = queue.Queue(_AHEAD)
    over = threading.Event()

    def offer(one: Any) -> None:
        while not over.is_set():
            with suppress(queue.Full):
                ready.put(one, timeout=0.1)
                return

    def fill() -> None:
        for batch in batches:
            offer(batch)
            if over.is_set():
                return
        offer(_END)

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    try:
        while (batch := ready.get()) is not _END:
            yield batch
    finally:
        over.set()
        thread.join()


def _python_in_torch(records: RecordSet) -> Passes:
    import torch

    def tensors() -> Iterator[Any]:
        for batch in by_a_thread(_by_python(records)):
            yield {name: torch.from_numpy(array) for name, array in batch.items()}

    return tensors


def _python_in_workers(records: RecordSet) -> Passes:
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Batches(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            assert info is not None
            return _by_python(records, info.id, info.num_workers)

    loader = DataLoader(Batches(), batch_size=None, num_workers=2, persistent_workers=True)
    return lambda: iter(loader)


def _python_in_tensorflow(records: RecordSet) -> Passes:
    import tensorflow as tf

    def tensors() -> Iterator[Any]:  # as a feed_dict does: from arrays, at each step
        for batch in by_a_thread(_by_python(records)):
            yield {name: tf.constant(array) for name, array in batch.items()}

    return tensors


def _from_generator(records: RecordSet) -> Passes:
    import tensorflow as tf

    spec = {
        "image": tf.TensorSpec((records.batch_size, *records.case.shape), tf.uint8),
        "label": tf.TensorSpec((records.batch_size,), tf.int64),
    }
    made = tf.data.Dataset.from_generator(lambda: _by_python(records), output_signature=spec)
    made = made.prefetch(_AHEAD)
    return lambda: iter(made)


def _py_function(records: RecordSet) -> Passes:
    import tensorflow as tf

    at = _place(records)

    def parsed(serialized: Any) -> Any:
        made = tf.numpy_function(lambda data: _image(data, records, at), [serialized], tf.uint8)
        made.set_shape(records.case.shape)
        return {"image": made, "label": tf.constant(0, tf.int64)}

    made = tf.data.TFRecordDataset(records.files, buffer_size=1 << 20)
    made = made.map(parsed, num_parallel_calls=tf.data.AUTOTUNE)
    made = made.batch(records.batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    return lambda: iter(made)


# Parsing in native code


def _tf_data(setting: Setting, records: RecordSet) -> Passes:
    # Its context holds nothing: the pipeline ends with its last iterator.
    return ExitStack().enter_context(TfData(setting).open(records))


def _tf_dataset(records: RecordSet) -> Passes:
    dataset = FileSet(records.files).tf_dataset(records.batch_size)
    return lambda: iter(dataset)


def _tf(records: RecordSet) -> Passes:
    loader = FileSet(records.files).tf(records.batch_size)
    return lambda: iter(loader)


def _torch(records: RecordSet) -> Passes:
    loader = FileSet(records.files).torch(records.batch_size)
    return lambda: iter(loader)


def _torch_in_workers(records: RecordSet) -> Passes:
    from torch.utils.data import DataLoader

    dataset = FileSet(records.files).to_dataset(records.batch_size)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    return lambda: iter(loader)


_SETTINGS = {setting.name: setting for setting in SETTINGS}

# What begins a pass each time it is called; the name's beginning is the package that it needs.
WAYS: dict[str, Callable[[RecordSet], Passes]] = {
    "tensorflow: a thread that parses in Python, a queue": _python_in_tensorflow,
    "tensorflow: from_generator": _from_generator,
    "tensorflow: numpy_function in map": _py_function,
    "tensorflow: tf.data, parse_example": partial(_tf_data, _SETTINGS["file list"]),
    "tensorflow: the same, 2 calls, not tuned": partial(_tf_data, _SETTINGS["2 calls, not tuned"]),
    "tensorflow: tf_dataset()": _tf_dataset,
    "tensorflow: tf()": _tf,
    "torch: a thread that parses in Python, a queue": _python_in_torch,
    "torch: DataLoader, 2 workers that parse": _python_in_workers,
    "torch: DataLoader, 2 workers, to_dataset()": _torch_in_workers,
    "torch: torch()": _torch,
}
