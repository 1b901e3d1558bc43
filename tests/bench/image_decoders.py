"""Ways to turn encoded pictures into random crops of 224 pixels, by two cores: ours and others.

A way is a generator of endless batches, in a process that ends with the measurement. All take the same
pictures, shuffled, from the page cache. The crop is RandomResizedCrop's (8 to 100 % of the area, 3:4 to
4:3, ten tries), and every other one is flipped. Other Pythons import this module, which needs no package.
"""

from __future__ import annotations

import glob
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from tests.bench.measuring import computing, cpu_seconds

SIZE, THREADS = 224, 2
SCALE, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
COLORS = [(i * 67 % 256, i * 131 % 256, i * 29 % 256) for i in range(1, 21)]  # of a mask's classes
_WARM_BATCHES = 4

Batches = Iterator[Any]


@dataclass(frozen=True)
class Way:
    """`imports`: loaded before a measurement is forked. `environment`: whose Python has `packages`."""

    title: str
    run: Any
    imports: tuple[str, ...]
    environment: str = ""
    packages: str = ""


def measure(way: str, folder: str, form: str, batch: int, seconds: float, beside: bool) -> Any:
    """Images a second, taken as fast as they come, once the reader is warm, and their processor time."""
    with computing() if beside else nullcontext():
        batches = WAYS[way].run(folder, form, batch)
        check(next(batches), batch, (256, 256) if form == "masks" else (SIZE, SIZE, 3))
        warm, count = time.perf_counter() + seconds / 3, 0
        while count < _WARM_BATCHES or time.perf_counter() < warm:
            next(batches)
            count += 1
        cpu, opened, count = cpu_seconds(), time.perf_counter(), 0
        # Two workers deliver by turns, so whole turns are counted.
        while count % 2 or time.perf_counter() - opened < seconds:
            next(batches)
            count += 1
        seconds, images = time.perf_counter() - opened, count * batch
        done = {"images_s": images / seconds}
        return done if beside else {**done, "cpu_ms": (cpu_seconds() - cpu) / images * 1e3}


def check(images: Any, rows: int, shape: tuple[int, ...]) -> None:
    if "uint8" not in str(images.dtype) or tuple(images.shape) != (rows, *shape):
        raise AssertionError(
            f"a batch is {images.dtype} {images.shape}, expected {rows} of {shape}"
        )


def versions(imports: list[str], place: str) -> dict[str, str]:
    modules = {name: sys.modules[name] for name in imports}
    return {n + place: m.__version__ for n, m in modules.items() if hasattr(m, "__version__")}


def files(folder: str) -> list[str]:
    return sorted(glob.glob(f"{folder}/files/*"))


def shards(folder: str) -> list[str]:
    return sorted(glob.glob(f"{folder}/*.tfrecord"))


def ours(folder: str, form: str, batch: int) -> Batches:
    from cachecd_client import FileSet, Image

    image = Image(SIZE, crop="random", scale=SCALE, ratio=RATIO, flip=0.5)
    if form == "masks":
        classes = {color: number for number, color in enumerate(COLORS)}
        image = Image((256, 256), crop=None, resample="nearest", class_map=classes)
    loader = FileSet(shards(folder)).torch(
        batch, threads=THREADS, features=["payload"], decode={"payload": image}
    )
    while True:
        for columns in loader:
            yield columns["payload"]


def tf_data(folder: str, form: str, batch: int, antialias: bool = False) -> Batches:
    """As TensorFlow's own examples for ImageNet do it, over the same shards."""
    import tensorflow as tf

    whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])

    def prepare(encoded: Any) -> Any:
        if form == "png":
            image = tf.io.decode_png(encoded, channels=3)
            shape = tf.shape(image)
        else:
            shape = tf.io.extract_jpeg_shape(encoded)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape, whole, min_object_covered=0.0, area_range=SCALE, aspect_ratio_range=RATIO,
            max_attempts=TRIES, use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        if form == "png":
            image = tf.slice(image, begin, size)
        else:
            window = tf.concat([begin[:2], size[:2]], 0)
            image = tf.io.decode_and_crop_jpeg(encoded, window, channels=3)
        image = tf.image.resize(image, (SIZE, SIZE), antialias=antialias)
        image = tf.cast(tf.round(image), tf.uint8)
        return tf.ensure_shape(tf.image.random_flip_left_right(image), (SIZE, SIZE, 3))

    yield from _tf_batches(folder, batch, prepare)


def tf_antialiased(folder: str, form: str, batch: int) -> Batches:
    yield from tf_data(folder, form, batch, antialias=True)


def tf_masks(folder: str, form: str, batch: int) -> Batches:
    """The loop that people write: the whole mask is compared with each color, and the maps stacked."""
    import tensorflow as tf

    def prepare(encoded: Any) -> Any:
        mask = tf.ensure_shape(tf.io.decode_png(encoded, channels=3), (256, 256, 3))
        maps = [tf.reduce_all(tf.equal(mask, color), axis=-1) for color in COLORS]
        return tf.cast(tf.argmax(tf.cast(tf.stack(maps, -1), tf.uint8), axis=-1), tf.uint8)

    yield from _tf_batches(folder, batch, prepare)


def tf_masks_gather(folder: str, form: str, batch: int) -> Batches:
    """One lookup for each pixel: its color is a number, and a table has the class of each number."""
    import numpy as np
    import tensorflow as tf

    table = np.zeros(1 << 24, np.uint8)
    for number, (red, green, blue) in enumerate(COLORS):
        table[(red << 16) + (green << 8) + blue] = number
    classes = tf.constant(table)

    def prepare(encoded: Any) -> Any:
        mask = tf.ensure_shape(tf.io.decode_png(encoded, channels=3), (256, 256, 3))
        mask = tf.cast(mask, tf.int32)
        return tf.gather(classes, mask[..., 0] * 65536 + mask[..., 1] * 256 + mask[..., 2])

    yield from _tf_batches(folder, batch, prepare)


def _tf_batches(folder: str, batch: int, prepare: Callable[[Any], Any]) -> Batches:
    import tensorflow as tf

    feature = {"payload": tf.io.FixedLenFeature([], tf.string)}

    def parsed(record: Any) -> Any:
        return prepare(tf.io.parse_single_example(record, feature)["payload"])

    records = tf.data.TFRecordDataset(shards(folder), buffer_size=8 << 20).shuffle(1000).repeat()
    images = records.map(parsed, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
    yield from images.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def dali(folder: str, form: str, batch: int) -> Batches:
    """image_random_crop decodes the crop alone: it is faster than image with random_resized_crop."""
    import numpy as np
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=batch, num_threads=THREADS, device_id=None, prefetch_queue_depth=2)
    def pipeline() -> Any:
        encoded, _ = fn.readers.file(files=files(folder), random_shuffle=True, initial_fill=1000)
        image = fn.decoders.image_random_crop(
            encoded, device="cpu", random_area=list(SCALE), random_aspect_ratio=list(RATIO),
            num_attempts=TRIES, output_type=types.RGB,
        )  # fmt: skip
        linear = types.INTERP_LINEAR
        image = fn.resize(image, size=(SIZE, SIZE), interp_type=linear, antialias=True)
        return fn.flip(image, horizontal=fn.random.coin_flip())

    made = pipeline()
    made.build()
    while True:
        yield np.asarray(made.run()[0].as_tensor())


def crop(width: int, height: int) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop.get_params: left, top, width and height."""
    for _ in range(TRIES):
        area = width * height * random.uniform(*SCALE)
        ratio = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            return random.randint(0, width - wide), random.randint(0, height - high), wide, high
    wide, high = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    return (width - wide) // 2, (height - high) // 2, wide, high


class Files:
    """A map-style dataset of the files. A subclass decodes, crops and resizes one image."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> Any:
        raise NotImplementedError


class PillowFiles(Files):
    """What torchvision's ImageFolder, RandomResizedCrop and RandomHorizontalFlip do to a PIL image."""

    def __getitem__(self, number: int) -> Any:
        import torch

        return torch.from_numpy(cropped(self._image(self._paths[number])))

    def _image(self, path: str) -> Any:
        from PIL import Image

        with Image.open(path) as opened:
            return opened.convert("RGB")


class SimplejpegFiles(PillowFiles):
    """The same with simplejpeg as the decoder."""

    def _image(self, path: str) -> Any:
        import simplejpeg
        from PIL import Image

        with open(path, "rb") as file:
            return Image.fromarray(simplejpeg.decode_jpeg(file.read()))


class TorchcodecFiles(Files):
    """The same with torchcodec as the decoder, and torch's own antialiased resize."""

    def __getitem__(self, number: int) -> Any:
        from torch.nn.functional import interpolate
        from torchcodec.decoders import decode_image

        image = decode_image(self._paths[number], mode="RGB")
        left, top, wide, high = crop(image.shape[2], image.shape[1])
        image = image[None, :, top : top + high, left : left + wide]
        image = interpolate(image, (SIZE, SIZE), mode="bilinear", antialias=True)[0]
        return (image.flip(2) if random.random() < 0.5 else image).permute(1, 2, 0)


def cropped(image: Any) -> Any:
    """A random crop of a PIL image, as an array."""
    import numpy as np
    from PIL import Image

    left, top, wide, high = crop(*image.size)
    image = image.crop((left, top, left + wide, top + high))
    image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.array(image)


def pillow(folder: str, form: str, batch: int) -> Batches:
    yield from _loaded(PillowFiles(files(folder)), batch)


def simplejpeg_decoded(folder: str, form: str, batch: int) -> Batches:
    yield from _loaded(SimplejpegFiles(files(folder)), batch)


def torchcodec_decoded(folder: str, form: str, batch: int) -> Batches:
    yield from _loaded(TorchcodecFiles(files(folder)), batch)


def _loaded(pictures: Any, batch: int) -> Batches:
    from torch.utils.data import DataLoader, RandomSampler

    endless = RandomSampler(pictures, replacement=True, num_samples=1 << 30)
    yield from DataLoader(pictures, batch, sampler=endless, num_workers=2)


def spdl(folder: str, form: str, batch: int) -> Batches:
    """SPDL's threads. The FFmpeg libraries of the system decode, crop, resize (bilinear) and flip."""
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    paths = files(folder)

    def endless() -> Iterator[str]:
        while True:
            yield random.choice(paths)

    def decode(path: str) -> Any:
        packets = spdl.io.demux_image(path)
        left, top, wide, high = crop(packets.width, packets.height)
        steps = [
            f"crop={wide}:{high}:{left}:{top}:exact=1",
            f"scale={SIZE}:{SIZE}:flags=bilinear",
            *(["hflip"] if random.random() < 0.5 else []),
            "format=rgb24",
        ]
        return spdl.io.decode_packets(packets, filter_desc=",".join(steps))

    def joined(frames: list[Any]) -> Any:
        return spdl.io.to_numpy(spdl.io.convert_frames(frames))

    decode(paths[0])  # without FFmpeg's libraries this fails here, and not for each picture
    builder = PipelineBuilder().add_source(endless()).pipe(decode, concurrency=THREADS)
    pipeline = builder.aggregate(batch).pipe(joined).add_sink(2).build(num_threads=THREADS)
    with pipeline.auto_stop():
        yield from pipeline


_OURS = ("torch", "cachecd_client")
_TF = ("tensorflow",)
_CODECS = "codecs", "torch==2.13.0 simplejpeg spdl pillow numpy"
# The wheels of torchcodec need torch's libraries for CUDA, on a machine without a GPU, too.
STREAMING = (
    "streaming",
    "torch==2.14.1 torchvision==0.29.1 torchcodec litdata mosaicml-streaming s3fs",
)
WAYS = {
    "ours": Way("cachecd, `decode=Image(224, crop=\"random\", flip=0.5)`", ours, _OURS),
    "tf.data": Way("tf.data, not antialiased", tf_data, _TF),
    "tf.data-antialiased": Way("tf.data, antialiased", tf_antialiased, _TF),
    "dali": Way(
        "DALI's CPU pipeline, `image_random_crop`, antialiased", dali, ("nvidia.dali", "numpy"),
        "dali", "nvidia-dali-cuda120==2.4.0 numpy",
    ),
    "pillow": Way("torch's DataLoader, 2 workers, Pillow", pillow, ("torch", "PIL.Image")),
    "simplejpeg": Way(
        "torch's DataLoader, 2 workers, simplejpeg and Pillow's resize", simplejpeg_decoded,
        ("torch", "simplejpeg", "PIL.Image"), *_CODECS,
    ),
    "torchcodec": Way(
        "torch's DataLoader, 2 workers, torchcodec and torch's resize", torchcodec_decoded,
        ("torch", "torchcodec"), *STREAMING,
    ),
    "spdl": Way("SPDL, 2 threads, FFmpeg", spdl, ("spdl.io", "numpy"), *_CODECS),
    "ours-masks": Way("cachecd, `Image(class_map=...)`", ours, _OURS),
    "tf.data-masks": Way("tf.data, `reduce_all(equal(mask, color), -1)` a color", tf_masks, _TF),
    "tf.data-masks-gather": Way(
        "tf.data, `tf.gather` from a table of 2^24 classes", tf_masks_gather, _TF
    ),
}  # fmt: skip
