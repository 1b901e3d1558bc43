"""Pictures decoded while a batch is made: the same pixels in every framework, division and process."""

import importlib
import io

import numpy as np
import PIL.Image
import pytest

from cachecd.sampler.encoding import encode, infer
from cachecd_client import Image, _core
from cachecd_client.errors import CallerError, CorruptRecordError, SchemaError
from cachecd_client.files.file_set import FileSet
from cachecd_client.loader.reading import seed_of
from tests.client.records import write
from tests.core.pictures import with_orientation

N = 24
RANDOM = Image(32, crop="random", flip=0.5)


def encoded(array, form="JPEG"):
    file = io.BytesIO()
    PIL.Image.fromarray(array).save(file, form, **({"quality": 90} if form == "JPEG" else {}))
    return file.getvalue()


def picture(number, height=40, width=60):
    y, x = np.mgrid[:height, :width]
    return np.stack([(4 * x + number) % 256, 5 * y % 256, (x + y + 9 * number) % 256], -1).astype(
        np.uint8
    )


def record(number):
    pixels = picture(number)
    return {
        "image": encoded(pixels),
        "key": f"pictures/{number}",
        "label": number,
        "mask": encoded(pixels, "PNG"),
        "pixels": pixels,
    }


def write_pictures(path, records):
    schema = infer(records[0])
    return write(path, [encode(schema, each) for each in records], schema)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set")
    return FileSet(
        [
            write_pictures(
                folder / f"{first}.tfrecord", [record(n) for n in range(first, first + 8)]
            )
            for first in range(0, N, 8)
        ]
    )


def mix(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def expected(number, place, seed=0, image=RANDOM):
    """The pixels of picture `number` where it is read at this place, over all ranks."""
    key = mix((mix(seed ^ 0x70696374757265) + 0x9E3779B97F4A7C15 * place) % 2**64)
    return _core.decode_image(record(number)["image"], image.for_reader(), key)


def by_label(batches, name="image"):
    return {
        int(label): np.array(pixels)
        for batch in batches
        for label, pixels in zip(np.asarray(batch["label"]), np.asarray(batch[name]), strict=True)
    }


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


OPTIONS = {"features": ["image", "label"], "decode": {"image": RANDOM}, "seed": 3}


@pytest.mark.parametrize(
    ("framework", "threads"), [("numpy", 4), ("torch", 1), ("tf", 1), ("jax", 1)]
)
def test_crops_follow_from_seed_pass_and_place(files, framework, threads):
    if framework != "numpy":
        importlib.import_module({"tf": "tensorflow"}.get(framework, framework))
    loader = getattr(files, framework)(5, threads=threads, drop_last=False, **OPTIONS)
    assert loader.schema["image"].shape == (32, 32, 3)
    for number in (0, 1):
        seed, place = seed_of(3, number), 0
        for batch in loader:
            images = np.asarray(batch["image"])
            assert (images.dtype, images.shape[1:]) == (np.uint8, (32, 32, 3))
            for label, pixels in zip(np.asarray(batch["label"]), images, strict=True):
                assert np.array_equal(pixels, expected(int(label), place, seed))
                place += 1
        assert place == N


@pytest.mark.parametrize("last", [{}, {"pad_last": True}])
def test_ranks_see_the_crops_that_one_rank_sees(files, last):
    alone = by_label(files.numpy(4, **OPTIONS))
    of_ranks = {}
    for rank in range(2):
        for batch in files.numpy(5, rank=rank, world=2, **last, **OPTIONS):
            rows = batch.get("_valid", np.ones(len(batch["label"]), bool))
            assert not batch["image"][~rows].any()
            of_ranks |= by_label([{name: column[rows] for name, column in batch.items()}])
    assert len(of_ranks) == (N if last else 20)
    assert same(of_ranks, {label: alone[label] for label in of_ranks})


def test_an_order_that_stays_is_cropped_anew(files):
    loader = files.numpy(4, **OPTIONS, reshuffle=False)
    first, second = list(loader), list(loader)
    assert [list(b["label"]) for b in first] == [list(b["label"]) for b in second]
    assert not same(by_label(first), by_label(second))


def test_images_of_a_record_share_crop_and_flip(files):
    mask = Image(16, crop="random", flip=0.5, resample="nearest", mode="L")
    decode = {"image": RANDOM, "pixels": RANDOM, "mask": mask}
    loader = files.torch(N, decode=decode, channels_last=True, rename={"image": "x"})
    assert loader.schema["mask"].shape == (16, 16, 1)
    batch = next(iter(loader))
    assert batch["x"].shape == batch["pixels"].shape == (N, 3, 32, 32)
    difference = np.abs(batch["x"].numpy().astype(int) - batch["pixels"].numpy())
    assert difference.mean() < 4  # JPEG's loss
    small = batch["pixels"].float().mean(1).reshape(N, 16, 2, 16, 2).mean((2, 4)).numpy()
    assert np.corrcoef(small.ravel(), batch["mask"][:, 0].numpy().ravel())[0, 1] > 0.8


def test_colors_become_class_numbers(tmp_path):
    colors = {"#000000": 0, (255, 0, 0): 7, "#00ff00": 9}
    table = np.array([[0, 0, 0], [255, 0, 0], [0, 255, 0], [1, 2, 3]], np.uint8)
    drawn = np.random.default_rng(0).integers(0, 4, (20, 30))
    records = [{"mask": encoded(table[drawn], "PNG"), "pixels": table[drawn], "key": "a/b"}]
    files = FileSet(write_pictures(tmp_path / "a.tfrecord", records))
    options = {"crop": None, "resample": "nearest", "class_map": colors}
    image = Image((20, 30), other=255, **options)
    loader = files.numpy(1, decode={"mask": image, "pixels": image})
    batch = next(iter(loader))
    for name in ("mask", "pixels"):
        assert loader.schema[name].shape == (20, 30)
        assert np.array_equal(batch[name][0], np.array([0, 7, 9, 255])[drawn])
    row, column = np.argwhere(drawn == 3)[0]
    with pytest.raises(SchemaError, match=f"'a/b'.*row {row}.*column {column}"):
        next(iter(files.numpy(1, decode={"mask": Image((20, 30), **options)})))


def test_pictures_keep_their_shape_if_a_batch_has_one(tmp_path):
    sizes = [(40, 60), (40, 60), (60, 40)]
    records = [{"image": encoded(picture(n, *size)), "label": n} for n, size in enumerate(sizes)]
    files = FileSet(write_pictures(tmp_path / "a.tfrecord", records))
    options = {"shuffle": False, "decode": {"image": Image(20, crop=None)}}
    loader = files.numpy(1, **options)
    assert loader.schema["image"].shape == (-1, -1, 3)
    shapes = [batch["image"].shape[1:] for batch in loader]
    assert shapes == [(20, 30, 3), (20, 30, 3), (30, 20, 3)]
    assert next(iter(files.numpy(2, **options)))["image"].shape == (2, 20, 30, 3)
    with pytest.raises(
        SchemaError, match="30 x 20 pixels, but earlier pictures in the batch 20 x 30"
    ):
        list(files.numpy(3, **options))
    with pytest.raises(SchemaError, match="rows without a record need a shape"):
        list(files.numpy(2, pad_last=True, **options))


def test_pictures_of_one_record_need_one_size_and_orientation(tmp_path):
    turned = io.BytesIO()
    PIL.Image.fromarray(picture(0)).save(turned, "JPEG", exif=with_orientation(3))
    records = [{"image": turned.getvalue(), "mask": encoded(picture(0), "PNG"), "key": "a"}]
    path = write_pictures(tmp_path / "b.tfrecord", records)
    why = "feature 'mask' of 'a': the picture's orientation is 1, that of feature 'image' is 3"
    with pytest.raises(SchemaError, match=why):
        next(iter(FileSet(path).numpy(1, decode={"image": RANDOM, "mask": RANDOM})))
    records = [{"image": encoded(picture(0)), "mask": encoded(picture(0, 40, 40)), "key": "a"}]
    path = write_pictures(tmp_path / "a.tfrecord", records)
    why = (
        f"{path}: record at byte 0: feature 'mask' of 'a': the picture has 40 x 40 pixels, that of "
    )
    with pytest.raises(SchemaError, match=f"^{why}feature 'image' has 40 x 60"):
        next(iter(FileSet(path).numpy(1, decode={"image": RANDOM, "mask": RANDOM})))


def damaged(number, numbers):
    found = record(number)
    return {**found, "image": found["image"][:400]} if number in numbers else found


@pytest.mark.parametrize(
    ("numbers", "labels"),
    [({2, 3, 4}, [0, 1, 5, 5, 5, 5]), ({4, 5}, [0, 1, 2, 3, 0, 0])],
)
def test_damaged_pictures_are_replaced_and_noted(tmp_path, numbers, labels):
    records = [damaged(n, numbers) for n in range(6)]
    files = FileSet(write_pictures(tmp_path / "a.tfrecord", records))
    loader = files.numpy(3, shuffle=False, **{**OPTIONS, "seed": 0})
    batches = list(loader)
    assert [int(label) for batch in batches for label in batch["label"]] == labels
    for place, pixels in enumerate(np.concatenate([batch["image"] for batch in batches])):
        assert np.array_equal(pixels, expected(labels[place], place))
    assert len(loader.corrupt) == len(numbers)
    assert all(
        why.startswith("picture: feature 'image' of 'pictures/") for *_, why in loader.corrupt
    )
    with pytest.raises(CorruptRecordError, match="picture: feature 'image' of"):
        list(files.numpy(3, on_corrupt="raise", **OPTIONS))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"decode": {"image": 224}}, CallerError, "decode={'image': 224}: expected an Image"),
        ({"decode": {"picture": RANDOM}}, SchemaError, "decode names feature 'picture'"),
        ({"decode": {"label": RANDOM}}, SchemaError, r"is int64\[\], expected an encoded picture"),
        ({"decode": {"image": RANDOM}, "cast": {"image": "float32"}}, CallerError, "on the device"),
        ({"decode": {"image": RANDOM}, "default": {"image": b""}}, CallerError, "and default"),
        ({"decode": {"image": Image(8), "mask": Image(8, resize=9)}}, CallerError, "image, mask"),
        ({"decode": {"image": RANDOM, "mask": Image(32)}}, CallerError, "different parts"),
    ],
)
def test_decode_is_refused_where_it_cannot_be(files, options, error, message):
    with pytest.raises(error, match=message):
        files.numpy(1, **options)


def test_a_core_without_libraries_names_their_packages(files, monkeypatch):
    monkeypatch.setattr(_core, "image_formats", set)
    with pytest.raises(CallerError, match="built without libjpeg-turbo and libpng: install lib"):
        files.numpy(1, decode={"image": RANDOM})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size=0, expected at least 1"),
        ({"crop": "centre"}, "crop='centre', expected 'center' or 'random' or None"),
        ({"scale": (0.1, 1)}, "scale and ratio are for crop='random'"),
        ({"crop": "random", "scale": (0.5, 0.1)}, r"scale=\(0.5, 0.1\), expected \(a, b\)"),
        ({"crop": None, "resize": 256}, "resize is for crop='center'"),
        ({"flip": 2}, "flip=2, expected a probability"),
        ({"resize": 200}, "resize=200, expected at least 224"),
        ({"mode": "BGR"}, "mode='BGR', expected 'RGB' or 'L'"),
        ({"class_map": {"#000000": 0}}, "class_map needs resample='nearest'"),
        ({"resample": "nearest", "class_map": {"black": 0}}, "'black', expected '#rrggbb'"),
        ({"resample": "nearest", "class_map": {}}, "expected a dict of color"),
        ({"resample": "nearest", "class_map": {(0, 0, 256): 0}}, "=256, expected at most 255"),
        ({"resample": "nearest", "class_map": {"#ff0000": 0, (255, 0, 0): 1}}, "has two class num"),
    ],
)
def test_images_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(CallerError, match=message):
        Image(**{"size": 224, **arguments})
