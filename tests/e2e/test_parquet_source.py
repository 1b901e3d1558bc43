"""A bucket of Parquet files, as Hugging Face's data sets are: row groups into shards, columns to arrays."""

from __future__ import annotations

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tests.e2e.conftest import upload
from tests.e2e.link import Link


def picture(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (number % 256, number // 256, 7)).save(file, "PNG")
    return file.getvalue()


def parquet(first: int, rows: int) -> bytes:
    chance = random.Random(first)
    table = pa.table(
        {
            "image": [
                {"bytes": picture(n), "path": f"{n}.png"} for n in range(first, first + rows)
            ],
            "label": list(range(first, first + rows)),
            "unwanted": [chance.randbytes(2000) for _ in range(rows)],
        }
    )
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=50)
    return file.getvalue()


def test_parquet_from_a_bucket_arrives_as_it_was_written_and_what_is_broken_is_skipped(daemon, s3):
    objects = {f"part-{n}.parquet": parquet(120 * n, 120) for n in range(4)}
    objects |= {"cut.parquet": objects["part-0.parquet"][:-100], "README.md": b"# read me"}
    s3.bucket("parquet")
    upload(s3, "parquet", {f"train/{key}": body for key, body in objects.items()})
    source = {"url": "s3://parquet/train", "format": "parquet", "columns": ["image", "label"]}
    steps = [{"decode_image": "image"}]
    dataset = {"source": source, "transform": steps, "grow": {"first": "64KiB"}}
    served = daemon({"train": dataset}).start()
    served.until_whole()

    reasons = served.skipped()
    assert reasons.keys() == {"cut.parquet", "README.md"}
    assert all("not a Parquet file" in reason for reason in reasons.values())

    found = {}
    with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
        for batch in epoch.numpy(64, drop_last=False):
            assert batch["image"].shape[1:] == (8, 8, 3)
            for image, label in zip(batch["image"], batch["label"], strict=True):
                found[int(label)] = tuple(image[0, 0].tolist())
    assert found == {n: (n % 256, n // 256, 7) for n in range(480)}


def test_server_sends_little_more_than_the_wanted_column_chunks(daemon, s3):
    chance = random.Random(5)
    objects, wanted = {}, 0
    for part in range(3):
        table = pa.table(
            {
                "left": [chance.randbytes(20_000) for _ in range(100)],
                "image": [chance.randbytes(2000) for _ in range(100)],
                "right": [chance.randbytes(20_000) for _ in range(100)],
            }
        )
        file = io.BytesIO()
        pq.write_table(table, file, row_group_size=50)
        objects[f"columns/{part}.parquet"] = file.getvalue()
        about = pq.read_metadata(file)
        wanted += sum(about.row_group(n).column(1).total_compressed_size for n in range(2))
    s3.bucket("parquet-bytes")
    upload(s3, "parquet-bytes", objects)
    source = {"url": "s3://parquet-bytes/columns", "format": "parquet", "columns": ["image"]}
    with Link(s3.endpoint) as link:
        environ = {**s3.environ, "AWS_ENDPOINT_URL": link.endpoint}
        served = daemon({"train": {"source": source}}, environ=environ).start()
        served.until_whole()
        assert served.train["records"] == 300
        # The ends of three objects, by who lists and by each of the workers that read.
        assert wanted < link.answered_bytes < wanted + 4 * 3 * (64 << 10) + 100_000
    assert sum(map(len, objects.values())) > 12_000_000
