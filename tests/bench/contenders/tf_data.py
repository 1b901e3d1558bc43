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
_MiB = 1 << 20
_SHUFFLE_BYTES = 256 * _MiB


@dataclass(frozen=True)
class Setting:
    """One way to write the pipeline. The defaults are what was fastest in most of a grid of 40."""

    name: str
    parse_batches: bool = True  # parse_example after batch, or parse_single_example before
    calls: int | None = None  # of every parallel step; None: tf.data.AUTOTUNE
    interleave: bool = False  # or a plain list of files
    deterministic: bool = False
    read_bytes: int = _MiB  # buffer of each open file
    shuffled_records: int | None = 10_000  # in the shuffle buffer; never more than 256 MiB
    autotune: bool = True  # the end of a pass waits for the thread that tunes, up to a second


SETTINGS = (
    Setting("file list"),
    Setting("interleave", interleave=True),
    Setting("parse first", parse_batches=False),
    Setting("parse first, 2 calls", parse_batches=False, calls=2),
    Setting("2 calls", calls=2),
    Setting("deterministic", deterministic=True),
    Setting("read 8 MiB", read_bytes=8 * _MiB),
    Setting("shuffle 256 MiB", shuffled_records=None),
    Setting("2 calls, not tuned", calls=2, autotune=False),
)


class TfData(Contender):
    """A pipeline that a user of TensorFlow would write, with one setting."""

    family = "tf.data"
    imports = ("tensorflow",)
    checked = "both CRCs of every record"

    def __init__(self, setting: Setting) -> None:
        self.name = f"tf.data:{setting.name}"
        most = "10,000 records or " if setting.shuffled_records else ""
        self.shuffled = f"the files, and within {most}256 MiB"
        self._setting = setting

    @contextmanager
    def open(self, records: RecordSet) -> Iterator[Passes]:
        dataset = _pipeline(records, self._setting)
        yield lambda: iter(dataset)


def _pipeline(records: RecordSet, setting: Setting) -> tf.data.Dataset:
    import tensorflow as tf

    calls = setting.calls or tf.data.AUTOTUNE

    def read(files: Any) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(files, buffer_size=setting.read_bytes)

    files = tf.data.Dataset.from_tensor_slices(records.files).shuffle(len(records.files))
    if setting.interleave:
        serialized = files.interleave(read, cycle_length=_CYCLE, num_parallel_calls=calls)
    else:
        serialized = read(files)
    rows = max(1, int(_SHUFFLE_BYTES / records.record_bytes))
    serialized = serialized.shuffle(
        min(rows, setting.shuffled_records or rows, records.num_records)
    )

    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    if records.case.mixed:
        features["name"] = tf.io.FixedLenFeature([], tf.string)
        features["scores"] = tf.io.RaggedFeature(tf.float32, row_splits_dtype=tf.int64)

    def parse(example: tf.Tensor, parsing: Any, shape: tuple[int, ...]) -> dict[str, Any]:
        parsed = parsing(example, features)
        image = tf.io.decode_raw(parsed.pop("image"), tf.uint8)
        return {"image": tf.reshape(image, shape), **parsed}

    shape = records.case.shape
    if setting.parse_batches:
        batches = serialized.batch(records.batch_size, drop_remainder=True).map(
            lambda examples: parse(examples, tf.io.parse_example, (-1, *shape)),
            num_parallel_calls=calls,
        )
    else:
        parsed = serialized.map(
            lambda example: parse(example, tf.io.parse_single_example, shape),
            num_parallel_calls=calls,
        )
        if records.case.mixed:
            batches = parsed.ragged_batch(records.batch_size, drop_remainder=True)
        else:
            batches = parsed.batch(
                records.batch_size, drop_remainder=True, num_parallel_calls=calls
            )
    options = tf.data.Options()
    options.deterministic = setting.deterministic
    options.autotune.enabled = setting.autotune
    ahead = tf.data.AUTOTUNE if setting.autotune else _AHEAD
    return batches.prefetch(ahead).with_options(options)


CONTENDERS: list[Contender] = [TfData(setting) for setting in SETTINGS]
