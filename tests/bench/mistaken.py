"""What a mistaken start costs: `python -m tests.bench.mistaken`.

A daemon caches a source whole. Then it is started with a mistake in its configuration until 1 GiB is
sealed, and with the mended one again, in each of five ways. A link before the store counts what the
mended start fetches until it has listed its source and all is whole again: listings alone.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.bench.fetched import PATIENCE
from tests.e2e.daemons import ExecutedDaemon, wait_until
from tests.e2e.link import Link
from tests.stores import S3Server, s3_server

_SIZE = 1_000_000  # bytes of an object
_MOST = 0.01  # of the source, that the mended start may fetch: its listing

Datasets = dict[str, dict[str, Any]]


def mistyped_bucket(datasets: Datasets) -> None:
    datasets["train"]["source"]["url"] = "s3://mistyped/"


def label_pattern(datasets: Datasets) -> None:
    datasets["train"]["source"]["label"]["pattern"] = r"^class-\d/(\d)"


def split(datasets: Datasets) -> None:
    datasets["train"]["split"] = {"eval": 0.05}


def endpoint(datasets: Datasets) -> None:
    source = datasets["train"]["source"]
    source["endpoint"] = source["endpoint"].replace("127.0.0.1", "localhost")


def renamed_dataset(datasets: Datasets) -> None:
    datasets["trian"] = datasets.pop("train")


MISTAKES: Sequence[Callable[[Datasets], None]] = (
    mistyped_bucket, label_pattern, split, endpoint, renamed_dataset,
)  # fmt: skip


def fill(server: S3Server, bucket: str, objects: int) -> None:
    server.bucket(bucket)
    chance = random.Random(bucket)
    for begin in range(0, objects, 50):
        numbers = range(begin, min(begin + 50, objects))
        some = {f"class-{n % 10}/{n:06d}": chance.randbytes(_SIZE) for n in numbers}
        server.put(bucket, some)


def measure(
    folder: Path, server: S3Server, megabytes: int, shard_size: str
) -> Iterator[tuple[str, dict[str, float]]]:
    """For each mistake the bytes that it had sealed, and those that the mended start fetched."""
    source_bytes = megabytes * _SIZE * 12 // 10
    with Link(server.endpoint) as link:
        source = {
            **{"url": "s3://right/", "format": "files", "endpoint": link.endpoint},
            "label": {"pattern": r"^class-(\d)"},
        }
        right: Datasets = {"train": {"source": source, "grow": {"first": "1MiB"}}}
        daemon = ExecutedDaemon(
            folder,
            copy.deepcopy(right),
            server.environ,
            limit=8 * source_bytes + (1 << 30),
            shard_size=shard_size,
            sampler={"workers": 2},
        )
        with daemon:
            daemon.start()
            wait_until(lambda: daemon.train["whole"], PATIENCE, "all of it is cached")
            whole = daemon.train["records"]
            for mistake in MISTAKES:
                daemon.terminate()
                datasets = copy.deepcopy(right)
                mistake(datasets)
                daemon.document["datasets"] = datasets
                (name,) = datasets
                daemon.start()

                def sealed(name: str = name) -> int:
                    found: int = daemon.status()["datasets"][name]["data_bytes"]
                    return found

                wait_until(lambda: sealed() >= megabytes * _SIZE, PATIENCE, "so much is sealed")
                wrong = sealed()
                daemon.terminate()
                daemon.document["datasets"] = copy.deepcopy(right)
                before, listed = link.answered_bytes, daemon.said().count("source listed")
                daemon.start()

                def ready(listed: int = listed) -> bool:
                    is_listed = daemon.said().count("source listed") > listed
                    return is_listed and bool(daemon.train["whole"])

                wait_until(ready, PATIENCE, "it is listed, and all of it is there again")
                assert daemon.train["records"] == whole
                again = link.answered_bytes - before
                yield mistake.__name__, {"sealed": wrong, "again": again, "of": source_bytes}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.mistaken", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where the cache goes; /tmp by default")
    parser.add_argument("--mb", type=int, default=1074, help="sealed by each mistake")
    parser.add_argument("--shard-size", default="64MiB")
    parser.add_argument("--json", type=Path, help="also write all figures there")
    options = parser.parse_args(arguments)
    document: dict[str, Any] = {}
    with (
        s3_server() as server,
        tempfile.TemporaryDirectory(prefix="cachecd-mistaken-", dir=options.folder) as folder,
    ):
        for bucket in ("right", "mistyped"):
            fill(server, bucket, options.mb * 12 // 10)
        for name, found in measure(Path(folder), server, options.mb, options.shard_size):
            document[name] = found
            met = "met" if found["again"] <= _MOST * found["of"] else "missed"
            sys.stdout.write(
                f"{name}: {found['sealed']:,} bytes sealed by mistake; the mended start fetched "
                f"{found['again']:,} of {found['of']:,}: {met}\n"
            )
            sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
