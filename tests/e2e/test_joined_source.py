"""Images and masks in two folders: one record each, through a real daemon."""

from __future__ import annotations

import io
import json

import numpy as np
import PIL.Image
import pytest

from cachecd.cli import run_command
from cachecd_client import Epoch, Image
from tests.e2e.daemons import file_source, wait_until
from tests.e2e.inventory import inventory, repeated
from tests.e2e.reading import rows

TEXTS = [f"{'cat' if n % 3 else 'dog'}/{n:03d}" for n in range(60)]
LOST = TEXTS[7]


def records(epoch: Epoch) -> dict[str, tuple[bytes, bytes, int]]:
    found = rows(epoch, "key", "image", "mask", "label")
    by_key = {bytes(k).decode(): (bytes(i), bytes(m), int(n)) for k, i, m, n in found}
    assert len(by_key) == len(found)
    return by_key


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def pairs() -> dict[str, tuple[bytes, bytes, int]]:
    """Text -> image, mask and class; the mask is the image's first channel."""
    rng = np.random.default_rng(8)
    images = [rng.integers(0, 256, (30, 40, 3), np.uint8) for _ in TEXTS]
    return {
        text: (png(image), png(image[..., 0]), text[:3] == "dog")
        for text, image in zip(TEXTS, images, strict=True)
    }


def assert_cropped_alike(epoch: Epoch) -> None:
    options = {"crop": "random", "flip": 0.5, "resample": "nearest"}
    decode = {"image": Image(16, **options), "mask": Image(16, mode="L", **options)}
    for batch in epoch.numpy(16, drop_last=False, decode=decode):
        assert batch["image"].shape[1:] == (16, 16, 3)
        assert np.array_equal(batch["image"][..., :1], batch["mask"])


def test_pairs_are_cached_split_and_excluded_by_their_text(
    daemon, pairs, tmp_path, monkeypatch, capsys
):
    def output_of(*arguments: str) -> str:
        assert run_command(arguments) == 0
        return capsys.readouterr().out

    objects = {f"images/{text}.png": pair[0] for text, pair in pairs.items()}
    objects |= {f"masks/{text}_mask.png": pair[1] for text, pair in pairs.items()}
    del objects[f"masks/{LOST}_mask.png"]
    source = {
        **file_source(tmp_path / "source", objects | {"images/readme.txt": b"no unit"}),
        "join": {"image": "images/*.png", "mask": "masks/*_mask.png"},
        "label": {"pattern": "^([^/]+)/", "classes": ["cat", "dog"]},
    }
    train = {"source": source, "split": {"eval": 0.2}, "grow": {"first": "100KiB"}}
    served = daemon({"train": train}, shard_size="64KiB").start()
    with served.connect() as cache:
        cache.acquire("train", epoch=0, job="a").release()  # something is cached
    served.kill()
    served.start()
    served.until_whole("train", "train-eval")
    reasons = served.skipped("train") | served.skipped("train-eval")
    assert reasons == {LOST: f"'masks/{LOST}_mask.png' is missing"}

    with served.connect() as cache:
        with cache.acquire("train", epoch=1, job="a") as epoch:
            seen = records(epoch)
        with cache.acquire("train-eval", epoch=0, job="b") as epoch:
            held_out = records(epoch)
            assert_cropped_alike(epoch)
    assert 0 < len(held_out) < len(seen)
    assert seen | held_out == {text: p for text, p in pairs.items() if text != LOST}
    assert len(seen) + len(held_out) == len(TEXTS) - 1
    assert not repeated(inventory(served.cache))

    monkeypatch.setenv("CACHECD_ENDPOINT", served.endpoint)
    bad = next(iter(seen))
    assert json.loads(output_of("exclude", "train", bad, "--json"))["keys"] == [bad]
    wait_until(lambda: not served.train["quarantined_shards"], what="its shard is copied")
    with served.connect() as cache, cache.acquire("train", epoch=2, job="a") as epoch:
        assert records(epoch).keys() == seen.keys() - {bad}
