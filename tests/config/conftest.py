"""Configurations as texts, and what loading them says."""

from __future__ import annotations

import re

import pytest

from cachecd.config import load
from cachecd.errors import ConfigError

GOOD = """\
version: 1
cache:
  dir: /var/lib/cachecd
  limit: 500GiB
datasets:
  train:
    source:
      url: s3://bucket/train/
      format: files
"""


@pytest.fixture
def good():
    """The text of a configuration without a fault; more keys of train may follow it."""
    return GOOD


@pytest.fixture
def loaded(tmp_path):
    def load_text(text, **environ):
        path = tmp_path / "cachecd.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(path, environ)

    return load_text


@pytest.fixture
def complaints(loaded, tmp_path):
    """complaints(text, **environ): the lines of the ConfigError, without the file's name."""

    def complain(text, **environ):
        with pytest.raises(ConfigError) as caught:
            loaded(text, **environ)
        return re.sub(
            f"^{re.escape(str(tmp_path / 'cachecd.yaml'))}:", "", str(caught.value), flags=re.M
        ).split("\n")

    return complain
