"""The YAML of the demo's daemon."""

from __future__ import annotations

import json
from pathlib import Path

BANDWIDTH = "400kB/s"

# A shard of 14 images of 4 KiB takes at most 76 KiB. So the limit fits the test images and about 40 % of
# the training images. In one second, which is an epoch here, the link fetches another 14 %. So ten epochs
# show growth and rotation.
_TEXT = """\
version: 1
cache:
  dir: {cache}
  limit: 5MiB              # less than the data: the cache has to rotate
  shard_size: 64KiB        # the smallest size, because the data is small
datasets:
  train:
    source:
      url: {train}
      format: files        # one object, one record
      label: {{pattern: "-([0-9])[.]png$"}}
    transform: [{{decode_image: {{mode: L}}}}]   # grey pixels are cached, not PNG
    grow: {{first: 256KiB}}
    streams: 2             # few, because the cache holds few shards
    evict: {{refresh: 0.25}}
    seed: 17
  test:
    source:
      url: {test}
      format: files
      label: {{pattern: "-([0-9])[.]png$"}}
    transform: [{{decode_image: {{mode: L}}}}]
    pin: true              # whole, and never evicted
sampler:
  workers: 2
  bandwidth: {bandwidth}       # a slow link, so that the growth is visible
"""


def configuration(store: Path, cache: Path) -> str:
    """Returns the configuration of a cache in `cache` for the images in the folder `store`."""
    return _TEXT.format(
        cache=_text(str(cache)),
        train=_text(f"file://{store}/train/"),
        test=_text(f"file://{store}/test/"),
        bandwidth=BANDWIDTH,
    )


def _text(value: str) -> str:
    """Returns a YAML string. A dollar sign is doubled, because it would begin a variable."""
    return json.dumps(value.replace("$", "$$"))
