"""What the daemons that are to be killed serve: small sources, known record by record."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachecd.sampler.encoding import encode, infer
from tests.core.shards import frames

KIB = 1 << 10
Records = dict[bytes, bytes]  # key -> payload


@dataclass(frozen=True)
class Setting:
    """A source, and a cache for it. `rotates`: it does not hold all of the source."""

    name: str
    source: dict[str, Any]
    records: Records
    units: int
    rotates: bool
    refresh: float = 0.5

    @property
    def limit(self) -> int:
        return 1900 * KIB if self.rotates else 64 << 20

    def write(self, folder: Path) -> Path:
        """The configuration, of which everything lies in `folder`; its path."""
        document = {
            "version": 1,
            "cache": {"dir": str(folder / "cache"), "limit": self.limit, "shard_size": "64KiB"},
            "datasets": {
                "train": {
                    "source": self.source,
                    "grow": {"first": "128KiB"},
                    "evict": {"refresh": self.refresh},
                }
            },
            "sampler": {"workers": 1 if self.rotates else 2, "connections": 4},
            "server": {"endpoint": f"ipc://{folder}/run/s"},
        }
        path = folder / "config.yaml"
        path.write_text(json.dumps(document))
        return path


def growing(folder: Path) -> Setting:
    """TFRecord files that spread over several shards each, all of which fit: what did not fit into one
    shard must be remembered, whatever dies."""
    folder.mkdir()
    chance, records = random.Random(4), {}
    schema = infer({"key": b"", "payload": b""})
    for file in range(6):
        written = []
        for place in range(60):
            key, payload = f"{file}:{place}".encode(), chance.randbytes(chance.randint(100, 5000))
            written.append(encode(schema, {"key": key, "payload": payload}))
            records[key] = payload
        (folder / f"part-{file}.tfrecord").write_bytes(frames(written))
    return Setting("growth", {"url": f"file://{folder}", "format": "tfrecord"}, records, 6, False)


def rotating(folder: Path) -> Setting:
    """Small objects, about half of which the limit allows: shards come and go at each epoch."""
    folder.mkdir()
    chance, records = random.Random(5), {}
    for number in range(300):
        key, payload = f"{number:03d}.bin".encode(), chance.randbytes(chance.randint(2000, 12000))
        (folder / key.decode()).write_bytes(payload)
        records[key] = payload
    return Setting("rotation", {"url": f"file://{folder}", "format": "files"}, records, 300, True)
