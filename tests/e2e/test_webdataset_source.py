"""Tar files of images, decoded on the way: every sample once, damage costs itself."""

from __future__ import annotations

import gzip
import io
import json

from PIL import Image

from tests.e2e.daemons import file_source
from tests.sampler.test_webdataset import archive

PER_TAR = 40


def picture(number: int) -> bytes:
    """Its first pixel tells the number."""
    file = io.BytesIO()
    Image.new("RGB", (40, 30), (number % 256, number // 256, 7)).save(file, "PNG")
    return file.getvalue()


def test_samples_arrive_decoded_each_once_and_a_truncated_tar_costs_what_it_lacks(daemon, tmp_path):
    bodies = {}
    for tar in range(6):
        members = []
        for number in range(tar * PER_TAR, (tar + 1) * PER_TAR):
            meta = json.dumps({"n": number}).encode()
            members += [(f"{tar}/{number:04d}.cls", b"%d" % number)]
            members += [
                (f"{tar}/{number:04d}.json", meta),
                (f"{tar}/{number:04d}.png", picture(number)),
            ]
        bodies[f"{tar}.tar"] = archive(members)
    bodies["1.tgz"] = gzip.compress(bodies.pop("1.tar"))
    # Cut within the last file of sample 10 of the fifth: nine of its samples are whole.
    at = bodies["4.tar"].index(b"4/0170.png")
    bodies["4.tar"] = bodies["4.tar"][: at + 600]
    bodies["readme.txt"] = b"These are tar files.\n" * 50
    dataset = {
        "source": {**file_source(tmp_path / "source", bodies), "format": "webdataset"},
        "transform": [{"decode_image": "png"}],
        "grow": {"first": "256KiB"},
    }
    served = daemon({"train": dataset}).start()
    served.until_whole()

    reasons = served.skipped()
    assert reasons.keys() == {"4.tar", "readme.txt"}
    assert reasons["4.tar"] == (
        f"truncated: the tar ends at byte {at + 600}, within the member '4/0170.png' at byte {at}; "
        "the samples before it are kept"
    )
    assert "no tar header at byte 0" in reasons["readme.txt"]

    expected = [n for n in range(6 * PER_TAR) if not 170 <= n < 5 * PER_TAR]
    seen = []
    with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
        assert epoch.schema.names == ("__key__", "cls", "image", "json")
        for batch in epoch.numpy(1):
            number = int(batch["cls"][0])
            assert bytes(batch["__key__"][0]) == f"{number // PER_TAR}/{number:04d}".encode()
            assert json.loads(bytes(batch["json"][0])) == {"n": number}
            assert batch["image"].shape == (1, 30, 40, 3)
            assert batch["image"][0, 0, 0].tolist() == [number % 256, number // 256, 7]
            seen.append(number)
    assert sorted(seen) == expected
