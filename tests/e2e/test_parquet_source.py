"""A bucket of Parquet files, as Hugging Face's data sets are: row groups into shards, columns to arrays."""

from __future__ import annotations

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tests.e2e.conftest import upload
from tests.e2e.link import Link
from tests.e2e.reading import rows

ROWS = 120  # a file


def picture(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (number % 256, number // 256, 7)).save(file, "PNG")
    return file.getvalue()


def parquet(first: int) -> tuple[bytes, int]:
    """A file whose wanted columns lie between two large ones, and the bytes of the wanted chunks."""
    chance, numbers = random.Random(first), range(first, first + ROWS)
    table = pa.table(
        {
            "left": [chance.randbytes(20_000) for _ in numbers],
            "image": [{"bytes": picture(n), "path": f"{n}.png"} for n in numbers],
            "label": list(numbers),
            "right": [chance.randbytes(20_000) for _ in numbers],
        }
    )
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=50)
    about = pq.read_metadata(file)
    groups = [about.row_group(n) for n in range(about.num_row_groups)]
    chunks = (group.column(n) for group in groups for n in range(group.num_columns))
    wanted = (c for c in chunks if c.path_in_schema.split(".")[0] in ("image", "label"))
    return file.getvalue(), sum(chunk.total_compressed_size for chunk in wanted)


def test_parquet_costs_little_more_than_its_wanted_columns(daemon, s3):
    made = [parquet(ROWS * n) for n in range(3)]
    objects = {f"train/{n}.parquet": body for n, (body, _) in enumerate(made)}
    objects |= {"train/cut.parquet": made[0][0][:-100], "train/README.md": b"# read me"}
    upload(s3, s3.bucket("parquet"), objects)
    source = {"url": "s3://parquet/train", "format": "parquet", "columns": ["image", "label"]}
    dataset = {"source": source, "transform": [{"decode_image": "image"}]}
    with Link(s3.endpoint) as link:
        environ = {**s3.environ, "AWS_ENDPOINT_URL": link.endpoint}
        served = daemon({"train": dataset}, environ=environ).start()
        served.until_whole()
        # The ends of four objects, by who lists and by each of the workers that read.
        wanted = sum(size for _, size in made)
        assert wanted < link.answered_bytes < wanted + 4 * 4 * (64 << 10) + 100_000
    assert sum(map(len, objects.values())) > 14_000_000

    reasons = served.skipped()
    assert reasons.keys() == {"cut.parquet", "README.md"}
    assert all("not a Parquet file" in reason for reason in reasons.values())
    with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
        assert epoch.schema["image"].shape == (8, 8, 3)
        images = rows(epoch, "image", "label")
        found = {int(label): tuple(image[0, 0].tolist()) for image, label in images}
    assert found == {n: (n % 256, n // 256, 7) for n in range(3 * ROWS)}
