"""The native core, built from client/core. A `Buffer` is any object with the buffer protocol.

Every function that does I/O or works on more than a few kB releases the GIL. Names with an underscore are
for tests.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

SIDECAR_VERSION: int
PERMUTATION_VERSION: int

def crc32c(data: Buffer, crc: int = 0) -> int:
    """CRC-32C (Castagnoli, RFC 3720) of `data`, continuing from `crc`."""

def _crc32c_by(by: Literal["folding", "streams", "tables"], data: Buffer, crc: int = 0) -> int:
    """crc32c as on other processors."""

def _copy_with_crc32c_by(
    by: Literal["folding", "streams", "tables"], data: Buffer, start: int, coming: int
) -> tuple[bytes, int]:
    """A copy, `start` bytes after a 64-byte boundary, and its CRC. Loads `coming` bytes ahead."""

def convert(data: Buffer, source: str, target: str, _portable: bool = False) -> NDArray[Any]:
    """Converts the numbers in `data` from dtype `source` to `target`; the result has one dimension.

    As NumPy's astype where that defines a result, and the same on every processor: integers to integers
    modulo 2**bits; floats to integers toward zero, NaN to 0 and numbers beyond the limits to the nearest
    limit; numbers to bool: "not zero"; numbers to floats rounded to nearest, ties to even. bfloat16, here
    uint16, is rounded from float32. ValueError for an unknown dtype. Bytes after the last whole number are
    ignored.
    """

def _decode_some_varints(data: Buffer, limit: int, portable: bool) -> tuple[NDArray[np.int64], int]:
    """The integers that the fast loop reads from a packed list, and how many bytes it reads."""

class ImageOptions(TypedDict, total=False):
    """The fields of ImageOptions in client/core, where comments explain them."""

    crop: Literal["random", "center", "none"]
    height: int
    width: int
    shorter: int
    resized: bool
    scale: tuple[float, float]
    ratio: tuple[float, float]
    flip: float
    grey: bool
    nearest: bool
    max_pixels: int
    classes: list[tuple[int, int, int, int]]
    """Red, green, blue, number."""
    other: int

def image_formats() -> set[str]:
    """Which of the formats "jpeg" and "png" the core can decode."""

def place_image(
    options: ImageOptions, height: int, width: int, key: int
) -> tuple[tuple[int, int, int, int], tuple[int, int], tuple[int, int, int, int], bool]:
    """The box (y, x, height, width) of a picture, the extent to which the box is scaled, the part (y, x,
    height, width) of the scaled box that is the result, and whether the result is flipped."""

def decode_image(
    data: Buffer, options: ImageOptions, key: int = 0, _portable: bool = False
) -> NDArray[np.uint8]:
    """The pixels of a JPEG or a PNG: [height, width, channels], or [height, width] of class numbers.
    ValueError for damaged bytes; SchemaError for a picture that is not supported."""

def orientation(exif: bytes, xmp: bytes) -> int:
    """The orientation of a picture, 1 to 8: from the EXIF data, else from the XMP packet, else 1."""

def convert_image(
    pixels: NDArray[np.uint8], options: ImageOptions, key: int = 0
) -> NDArray[np.uint8]:
    """Like `decode_image`, but takes pixels [height, width, 1 or 3]."""

def masked_crc32c(data: Buffer) -> int:
    """The CRC as TFRecord stores it: ((crc >> 15) | (crc << 17)) + 0xa282ead8, modulo 2**32."""

#: bounds, key, positions, and for each dataset the window and the stages.
Mixture: TypeAlias = tuple[list[int], int, int, list[tuple[int, list[NDArray[np.uint64]]]]]

@final
class Permutation:
    """A keyed bijection of [0, n) in O(1) memory, version PERMUTATION_VERSION; n may be 0. The same (n,
    key) gives the same bijection on every machine and in every release of that version."""

    def __init__(self, n: int, key: int) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, position: int) -> int:
        """The image of `position`; IndexError outside [0, n)."""
    def take(self, start: int, count: int) -> NDArray[np.uint64]:
        """The images of start .. start + count - 1; IndexError unless start + count <= n."""

#: A record that does not fit a schema: ordinal, reason, and the name, kind and count of the feature.
Misfit: TypeAlias = tuple[int, str, str, Literal["bytes", "float", "int64", "nothing"], int, int]

@final
class ShardWriter:
    """Writes one TFRecord file and its sidecar `path + ".idx"`; both CRCs of every record are made here.

    Creates `path` (FileExistsError if it exists) and reserves `capacity` bytes with fallocate before it
    writes: OSError(ENOSPC). The shard and its sidecar, each rounded up to blocks of 4096 bytes, never use
    more, because a record that would exceed the capacity is refused. 0: unlimited and not reserved;
    ValueError for a capacity that cannot hold an empty shard. `meta_bytes` of the capacity are for the text
    of finish. Not thread-safe. An unfinished writer aborts when it is collected, but not in a forked child.
    """

    def __init__(self, path: str, capacity: int = 0, meta_bytes: int = 4096) -> None: ...
    @property
    def num_records(self) -> int: ...
    @property
    def num_bytes(self) -> int:
        """Bytes of the TFRecord file so far."""
    @property
    def sidecar_bytes(self) -> int:
        """The size of the sidecar in bytes, without its meta text."""
    @property
    def digest(self) -> int:
        """After finish: the sidecar's digest."""
    def describe(self, unit: int, key: bytes, begin: int, etag: bytes) -> None:
        """Describes a unit before its first record. The sidecar stores the description with that record."""
    def append(self, record: Buffer, unit: int = 0, ordinal: int = 0) -> bool:
        """Appends one record. Returns False, and writes nothing, if it does not fit. The ordinals of a unit
        must ascend."""
    def append_frames(
        self,
        frames: Buffer,
        unit: int = 0,
        ordinal: int = 0,
        name: str = "",
        base: int = 0,
        schema: Sequence[StoredFeature | ReaderFeature] | None = None,
    ) -> tuple[int, int, bool, int, list[Misfit]]:
        """Appends whole TFRecord frames unchanged; `ordinal` is the ordinal of the first frame, and counts
        up.

        Skips a record that does not fit the schema, because a reader of all features would refuse it, or
        because the schema lacks one of its features. The record still uses an ordinal.

        Returns (records, consumed, full, skipped, misfits): the number of appended records; the bytes of
        all appended and skipped records; whether the next record that fits the schema did not fit into the
        shard; the number of skipped records; for some of them (ordinal, reason, feature, kind, count,
        more): at most 10 for each feature and kind, the last with the number of further records. Feature,
        kind and count describe the record: kind "nothing" if the feature is missing, feature "" if the
        record is not an Example. An incomplete or corrupt frame is left for the next call.
        CorruptRecordError(name, base, why) if the first frame is corrupt.
        """
    def finish(self, meta: str) -> tuple[int, int]:
        """Truncates the file to the written length and fsyncs it, writes and fsyncs the sidecar, and closes
        both. `meta`: the sidecar's JSON text; ValueError if it is longer than `meta_bytes` and the records
        left no room. Returns (data_bytes, sidecar_bytes). After an OSError the writer is aborted."""
    def abort(self) -> None:
        """Closes and removes both files. Idempotent; does nothing after finish."""

@final
class Sidecar:
    """A shard's sidecar, completely verified when it is read (format: docs/formats.md)."""

    @staticmethod
    def read(path: str) -> Sidecar:
        """`path`: the path of the sidecar. FileNotFoundError, or CorruptSidecarError(path, why)."""
    @property
    def meta(self) -> str: ...
    @property
    def data_bytes(self) -> int: ...
    @property
    def offsets(self) -> NDArray[np.uint64]:
        """Byte offset of each record's frame; uint64 [records]; read-only."""
    @property
    def digest(self) -> int:
        """The sum modulo 2**64, over the records, of a hash of (key, begin, ETag, ordinal)."""
    @property
    def table(self) -> list[tuple[int, bytes, int, bytes]]:
        """(number, key, begin, ETag) of each unit with records in the shard."""
    @property
    def indices(self) -> NDArray[np.uint32]:
        """Each record's unit, by its place in `table`; uint32 [records]."""
    @property
    def units(self) -> NDArray[np.uint64]:
        """The number of each record's unit; uint64 [records]."""
    @property
    def ordinals(self) -> NDArray[np.uint32]:
        """Ordinal of each record within its unit; uint32 [records]."""
    def __len__(self) -> int: ...

def read_sidecar_head(path: str) -> tuple[str, int, int, int, int]:
    """(meta, records, data_bytes, digest, units in the table) of a sidecar; verifies only these values."""

def write_sidecar(path: str, meta: str, data_bytes: int, offsets: NDArray[np.uint64]) -> int:
    """Writes a sidecar for a foreign TFRecord file (one unit without key); returns its size in bytes."""

def scan(path: str, verify: bool = False) -> NDArray[np.uint64]:
    """Scans a TFRecord file. Returns the offsets of all records. Checks length CRCs, and with `verify` also
    data CRCs. CorruptRecordError(path, offset, why) for a wrong CRC or a truncated last record."""

def drawn(bounds: Sequence[int], key: int, positions: int) -> list[int]:
    """How often each dataset is drawn in the first `positions` of a mixture.

    bounds: cumulative weights of the datasets, ascending to 2**62. Position i is drawn from the first
    dataset whose bound is above Mix(Mix(key + GOLDEN) + GOLDEN * i) >> 2, with the finalizer and the
    increment of SplitMix64. ValueError for other bounds.
    """

def draws_until(bounds: Sequence[int], key: int, records: Sequence[int]) -> int:
    """The number of positions until a dataset has been drawn as often as it has `records`."""

def count_records(
    files: Sequence[tuple[str, NDArray[np.uint64] | None]], totals: tuple[int, int] | None = None
) -> NDArray[np.uint64]:
    """The number of records in each of the `files` of a BatchReader, from offsets, sidecar or a scan, in
    several threads. `totals`: as for BatchReader. OSError; CorruptRecordError."""

def read_record(path: str, offset: int) -> bytes:
    """Reads a record's payload and checks both CRCs. CorruptRecordError."""

def encode_example(features: dict[str, Any]) -> bytes:
    """A serialized tf.train.Example with sorted features, so that equal dicts give equal bytes.

    bytes, bytearray, memoryview or str (as UTF-8) -> bytes_list of one; int, bool -> int64_list of
    one; float -> float_list of one; list/tuple of those (one kind) -> the list, empty -> a feature
    without a kind; 0-D or 1-D int64 array -> int64_list (packed); 0-D or 1-D float32 array ->
    float_list (packed). Anything else: TypeError naming the feature.
    """

def decode_example(
    record: Buffer,
) -> dict[str, tuple[Literal["bytes", "float", "int64"], list[Any]]]:
    """All features of a serialized Example as (kind, values); ValueError with offset if it is malformed.
    Omits a feature whose kind is not set. Reads packed and unpacked lists. If a feature occurs twice, the
    last value counts, as protocol buffers define. Skips unknown fields, but the feature_lists of a
    SequenceExample are a ValueError."""

def count_example(record: Buffer) -> dict[str, tuple[Literal["bytes", "float", "int64"], int]]:
    """All features of a serialized Example as (kind, number of values); see decode_example."""

Column = (
    NDArray[Any]  # dense: [rows, *shape]
    # ragged: values, row_splits [rows + 1]; bytes: uint8 data, offsets [rows * product(shape) + 1]
    | tuple[NDArray[Any], NDArray[np.int64]]
    # ragged bytes: data, offsets [values + 1], row_splits [rows + 1]
    | tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]
)

class FeatureOptions(TypedDict, total=False):
    """The changes to a feature between the record and the batch."""

    name: str
    """The name of the column; by default the feature's name."""
    cast: str
    """The dtype to which `convert` converts numbers; by default float32 for one_hot."""
    one_hot: int
    """The number of classes: a scalar integer becomes a row with one number for each class."""
    pad: tuple[int, bytes]
    """(length, value): a ragged list of numbers becomes a dense row, cut off or filled with the value, one
    number of the delivered dtype. Adds the column `_NAME_length`, int64 [rows], where NAME is the name of
    the column: how many values of the row are values of the record."""
    count_zeros: bool
    """`BatchReader.zeros` counts the zero elements of this dense column. By default False."""
    default: bytes
    """A serialized Example with the feature, for records that lack it."""
    optional: bool
    """For append_frames: a record may lack the feature."""
    image: ImageOptions
    """The options of `decode_image`, which decodes a picture to pixels. The feature is one bytes value with
    a JPEG or PNG, or raw uint8 pixels [height, width, 1 or 3] or [height, width]."""

StoredFeature = tuple[str, str, str, tuple[int, ...] | None, bool]
ReaderFeature = tuple[str, str, str, tuple[int, ...] | None, bool, FeatureOptions]

@final
class Division:
    """Divides records into steps, and the records of each step among the ranks.

    Rank r of `world` reads the positions r, r + world, r + 2 * world, ... of the `records`; all ranks take
    the same number of `steps`.
    last: "drop": only full batches. "short": every record is delivered once, and the last batch is short. A
      rank without a record for the last batch moves the last record of its previous batch there; ValueError
      if some rank would then have an empty batch. "pad": every record is delivered once, and rows without a
      record fill the last batches.
    nodes: the fewest and the most records of a node, if several nodes with their own sets take the same
      number of steps.
    """

    def __init__(
        self, records: int, batch_size: int, world: int, last: Literal["drop", "short", "pad"],
        nodes: tuple[int, int] | None = None,
    ) -> None: ...  # fmt: skip
    @property
    def records(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def is_full(self) -> bool:
        """Whether every batch has `batch_size` rows, on every rank of every node."""
    def begin(self, batch: int, rank: int) -> int:
        """How many records of the rank are before this batch; for `steps`, all its records."""
    def rows(self, rank: int) -> NDArray[np.int64]:
        """The number of records in each batch of the rank."""

@final
class BatchReader:
    """Reads records in a fixed order into batches of columns; native threads run ahead.

    files: (path, offsets or None). None: the reader reads `path + ".idx"`, or scans the file if it has no
      sidecar. Offsets must ascend (ValueError); a record beyond the end of its file is corrupt. Files may
      be opened again later, so relative paths need an unchanged working directory.
    features: (name, kind, dtype, shape, raw), optionally with FeatureOptions. kind: the list in the Example
      ("bytes", "float", "int64"); dtype: a NumPy name ("uint8", ..., "bfloat16" as uint16) or "bytes";
      shape: a tuple, or None for ragged; raw: one bytes value with a little-endian array. Lists that are
      not raw have the dtype of their kind: "bytes", "float32", "int64". A missing ragged feature is empty;
      any other missing feature is a SchemaError, unless it has a default. SchemaError also for an option
      or a default that does not fit the feature, and for two columns with one name.
    Record positions: i -> Permutation(N, seed)[i] if shuffle else i, unless `window` is exceeded. Rank r of
      `world` takes the positions r, r + world, r + 2 * world, ... below N, in the batches of
      Division(N, batch_size, world, last, nodes), whose errors it raises.
    last: "pad" adds the column "_valid", bool [rows]. A row without a record is zero or empty (with `pad`:
      the value of `pad`), even if the feature has a default.
    start: the first batch to deliver (resume). every: deliver only each n-th batch from there, for readers
      that take turns. prefetch_bytes: the limit for batches that are ready. threads: 0: the reader chooses
      at most `processors`, by default the processors in the affinity of this process.
    memory: bytes that this process may use. If a set is read at random and is larger than half of them, it
      is not read ahead.
    on_corrupt: "raise": next() raises CorruptRecordError. "replace": the next good record of the same rank,
      cyclically, replaces the record, which is added to `corrupt`; CorruptRecordError if no record is good.
      A damaged sidecar is also added, and the file is scanned; with "raise" the constructor raises
      CorruptSidecarError. In both cases the constructor raises CorruptRecordError for a file without a
      sidecar that does not begin with a record. Bytes that the disk cannot read are corrupt.
    ids: adds "_shard" (int64, index into files) and "_record" (int64, index within the file), of the
      replacement if the record was replaced, -1 in rows without a record.
    window: bytes of files that are read at random at once; 0: all files. If the files have more bytes,
      whole files are shuffled, and records within a sliding window (client/core/order.h). Files are then
      opened late, and closed behind the window; their errors come from next().
    wrap: column name -> function of the column's arrays; its result replaces them in the batch. The
      function must not refer to the reader. An exception is raised when the batch's turn comes; the batch
      is lost, and every later call raises RuntimeError until restart(). next() raises KeyboardInterrupt and
      similar exceptions at once, and keeps existing results for the next call.
    dlpack: names of columns whose arrays are passed as DLPack capsules, for one consumer each. Their memory
      is released without the GIL, on any thread.
    one_by_one: wraps each batch when it is delivered. Otherwise several ready batches are wrapped together,
      which is faster.
    report: called by next() with the new entries of `corrupt`, before it returns the batch.
    stages: the records to read, instead of all: stages in order, each an array uint64 [slices, 3] of
      (index into files, first record, records). Each stage is shuffled separately: the first with `seed`,
      the others with seeds that `seed` determines. ValueError for a slice that does not exist.
    mixture: (bounds, key, positions, parts), instead of `stages`: each position has the next record of the
      dataset that is drawn there (see `drawn`). parts: for each dataset, the window of its files (0: all)
      and its stages. ValueError if a dataset is drawn more often than its stages have records.
    datasets: int64 [files]: adds the column "_dataset", int64, the value of the file of the record or of
      its replacement, -1 in rows without a record.
    totals: (records, bytes) of all files, if known. Then a file that is missing or cannot be read counts as
      damaged, and only its records are lost; CorruptRecordError if no file is left.
    augment: the seed that determines, with the place of a record in the pass across all ranks, the crop and
      flip of its pictures.
    pulse: next() calls it at most once a second, also while it waits, but not in the first second. An
      exception is raised by next(), and loses no batch. It must not refer to the reader.
    marks: (dict, name, function): while dict[name] is true, next() runs in the context manager that the
      function makes.
    The order depends only on files, seed, shuffle, window, stages, mixture, rank and world.
    A reader may be used from any thread, but only one thread at a time gets its batches in order.
    """

    def __init__(
        self,
        files: Sequence[tuple[str, NDArray[np.uint64] | None]],
        features: Sequence[StoredFeature | ReaderFeature],
        *, batch_size: int, seed: int = 0, shuffle: bool = True, rank: int = 0, world: int = 1,
        last: Literal["drop", "short", "pad"] = "drop", start: int = 0, every: int = 1, threads: int = 0,
        prefetch_bytes: int = 64 << 20, on_corrupt: Literal["replace", "raise"] = "replace",
        ids: bool = False, window: int = 0, wrap: dict[str, Callable[..., Any] | None] = {},
        dlpack: set[str] = set(), one_by_one: bool = False,
        report: Callable[[list[tuple[str, int, str]]], Any] | None = None,
        stages: Sequence[NDArray[np.uint64]] | None = None, mixture: Mixture | None = None,
        datasets: NDArray[np.int64] | None = None, nodes: tuple[int, int] | None = None,
        totals: tuple[int, int] | None = None, memory: int | None = None, processors: int | None = None,
        augment: int = 0, pulse: Callable[[], Any] | None = None,
        marks: tuple[dict[str, Any], str, Callable[[], Any]] | None = None,
    ) -> None: ...  # fmt: skip
    @property
    def num_records(self) -> int:
        """Records of the file set or of all stages, or the positions of the mixture."""
    @property
    def num_batches(self) -> int:
        """Batches of this rank, including batches before `start` and batches of other readers."""
    @property
    def corrupt(self) -> list[tuple[str, int, str]]:
        """(path, offset, why) of each corrupt record found so far, also by threads that run ahead."""
    @property
    def num_corrupt(self) -> int:
        """len(corrupt), without making the list."""
    @property
    def seconds_waited(self) -> float:
        """Seconds that next() waited for batches that were not ready, and with `one_by_one` for `wrap`."""
    @property
    def seconds_by_stage(self) -> dict[str, float]:
        """`seconds_waited` by what the thread that made the batch did: open, read, verify (parse, copy,
        CRC), decode, assemble; copy: `wrap` with `one_by_one`; gil: the batch was ready, but another thread
        had the GIL; other: no thread had begun the batch. Sampled every 2 ms while next() waits, so work
        ahead of the loop counts 0."""
    @property
    def bytes_read(self) -> int:
        """Record bytes delivered so far."""
    @property
    def zeros(self) -> int:
        """Zero elements delivered so far, of the features with `count_zeros`."""
    @property
    def queue_filled(self) -> float:
        """How full the queue was after each delivered batch, 0..1 of prefetch_bytes, as a sum; 1 if
        nothing is left to prefetch."""
    @property
    def queue(self) -> float:
        """How full the queue is now, 0..1."""
    @property
    def queue_counts(self) -> list[int]:
        """How often the fill of the queue was nearest to 0/31, 1/31 ... 31/31 after a delivered batch."""
    @property
    def seconds_idle(self) -> float:
        """Seconds since next() last returned in this pass; 0 before."""
    @property
    def position(self) -> int:
        """The number of the next batch: `start`, plus `every` for each delivered batch."""
    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The batches of this pass, from `next`; RuntimeError after another pass has begun."""
    def next(self) -> dict[str, Any] | None:
        """The next batch, with a Column for each feature unless wrapped; None at the end.

        Returns a ready batch without releasing the GIL; otherwise waits without the GIL, until a signal
        (KeyboardInterrupt). Arrays are 64-byte aligned and belong to the caller: a buffer is reused only
        when no array uses it. SchemaError names feature, file and offset of a record that does not fit. An
        error is raised when its batch's turn comes, and by every later call. RuntimeError after close, and
        in a forked child, which must make another reader.
        """
    def restart(self, start: int = 0, seed: int | None = None, augment: int | None = None) -> None:
        """Starts again at batch `start`, also after close(): as a new reader with the same arguments and
        these seeds, but with the files, page tables and memory of this reader. All figures start at 0.

        ValueError beyond the last batch; RuntimeError in a forked child. No other thread may use the reader
        meanwhile.
        """
    def take_spans(self) -> list[tuple[str, float, float]]:
        """(stage, begin on time.monotonic(), seconds) of the longest waits since the last call, in no
        order: at most 64, each of 1 ms or more."""
    def close(self) -> None:
        """Stops the threads at once. Idempotent. Delivered arrays stay valid. Files stay open, and the
        memory of a few batches is kept, until the reader is collected."""
