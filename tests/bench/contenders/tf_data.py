"""tf.data over the TFRecord shards, tuned by hand in each way that its guides advise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.bench.contenders.contract import Contender
from tests.bench.data import RecordSet
from tests.bench.delivery import Passes

if TYPE_CHECKING:
    import tensorflow as tf

_CYCLE = 16
_AHEAD = 4  # batches, if that is not tuned either
_READ_BYTES = 1 << 20  # buffer of each open file
_SHUFFLED, _SHUFFLED_BYTES = 10_000, 256 << 20  # records, and bytes at most, in the shuffle buffer


@dataclass(frozen=True)
class Setting:
    """One way to write the pipeline. The defaults are what was fastest in most of a grid of 40."""

    name: str
    calls: int | None = None  # of every parallel step; None: tf.data.AUTOTUNE
    interleave: bool = False  # or a plain list of files
    autotune: bool = True  # the end of a pass waits for the thread that tunes, up to a second


SETTINGS = (
    Setting("file list"),
    Setting("interleave", interleave=True),
    Setting("2 calls, not tuned", calls=2, autotune=False),
)


class TfData(Contender):
    """A pipeline that a user of TensorFlow would write, with one setting."""

    family = "tf.data"
    imports = ("tensorflow",)

    def __init__(self, setting: Setting) -> None:
        self.name = f"tf.data:{setting.name}"
        self._setting = setting

    @contextmanager
    def open(self, records: RecordSet) -> Iterator[Passes]:
        dataset = _pipeline(records, self._setting)
        yield lambda: iter(dataset)


def _pipeline(records: RecordSet, setting: Setting) -> tf.data.Dataset:
    import tensorflow as tf

    calls = setting.calls or tf.data.AUTOTUNE

    def read(files: Any) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(files, buffer_size=_READ_BYTES)

    files = tf.data.Dataset.from_tensor_slices(records.files).shuffle(len(records.files))
    if setting.interleave:
        serialized = files.interleave(read, cycle_length=_CYCLE, num_parallel_calls=calls)
    else:
        serialized = read(files)
    rows = max(1, int(_SHUFFLED_BYTES / records.record_bytes))
    serialized = serialized.shuffle(min(rows, _SHUFFLED, records.num_records))
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(examples: tf.Tensor) -> dict[str, Any]:
        parsed = tf.io.parse_example(examples, features)
        image = tf.io.decode_raw(parsed["image"], tf.uint8)
        return {"image": tf.reshape(image, (-1, *records.case.shape)), "label": parsed["label"]}

    batches = serialized.batch(records.batch_size, drop_remainder=True)
    batches = batches.map(parse, num_parallel_calls=calls)
    options = tf.data.Options()
    options.deterministic = False
    options.autotune.enabled = setting.autotune
    ahead = tf.data.AUTOTUNE if setting.autotune else _AHEAD
    return batches.prefetch(ahead).with_options(options)


CONTENDERS: list[Contender] = [TfData(setting) for setting in SETTINGS]
