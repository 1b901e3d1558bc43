"""Which object a record is of, by a sidecar and a listing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cachecd.index import Index
from cachecd.layout import Layout
from cachecd.model import ObjectInfo, ShardId
from cachecd.where import find_origin
from cachecd_client._core import ShardWriter, encode_example


@pytest.mark.parametrize(
    ("url", "key", "whole"),
    [
        ("s3://b/train/", "a/b.jpg", "s3://b/train/a/b.jpg"),
        ("https://", "https://host/a/b.jpg", "https://host/a/b.jpg"),
    ],
)
def test_an_object_is_named_by_its_whole_url(tmp_path: Path, url: str, key: str, whole: str):
    layout, shard = Layout(tmp_path), ShardId("train", 1)
    index = Index.open(layout.index, "train", json.dumps({"url": url, "join": ""}))
    index.append([ObjectInfo(key, 5)])
    index.close()
    layout.shard(shard).parent.mkdir(parents=True)
    writer = ShardWriter(str(layout.shard(shard)), 1 << 20, 1000)
    writer.append(encode_example({"x": 1}), 0, 0)
    writer.finish(json.dumps({"index": index.id}))
    assert find_origin(layout, shard, 0).object_url == whole
