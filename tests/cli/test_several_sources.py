"""The commands on a dataset of several sources: units go by their source's place and their key."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from cachecd.config import load
from cachecd.errors import ConfigError, UnitError
from cachecd.firstlook import check_sources
from cachecd.sample import Sampler
from cachecd_client._core import encode_example, masked_crc32c


def tfrecord(*records: dict[str, Any]) -> bytes:
    frames = b""
    for record in records:
        body = encode_example(record)
        head = struct.pack("<Q", len(body))
        frames += head + struct.pack("<I", masked_crc32c(head))
        frames += body + struct.pack("<I", masked_crc32c(body))
    return frames


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Files, and TFRecord files of which one has the same features, one lacks one, one has another kind."""
    for number in range(3):
        (tmp_path / "plain" / "a").mkdir(parents=True, exist_ok=True)
        (tmp_path / "plain" / "a" / f"{number}.txt").write_bytes(b"text %d" % number)
    (tmp_path / "packed").mkdir()
    good = {"key": b"k", "payload": b"p"}
    odd = {"key": b"k", "payload": [1.0, 2.0]}
    (tmp_path / "packed" / "good.tfrecord").write_bytes(tfrecord(good, good))
    (tmp_path / "packed" / "lacking.tfrecord").write_bytes(tfrecord({"key": good["key"]}))
    (tmp_path / "packed" / "odd.tfrecord").write_bytes(tfrecord(odd))
    path = tmp_path / "c.yaml"
    path.write_text(
        f"version: 1\ncache: {{dir: {tmp_path}/cache, limit: 64MiB, shard_size: 1MiB}}\n"
        "datasets:\n  train:\n    grow: {first: 1MiB}\n    sources:\n"
        f"      - {{url: 'file://{tmp_path}/plain', format: files, weight: 3}}\n"
        f"      - {{url: 'file://{tmp_path}/packed', format: tfrecord}}\n"
        f"server: {{endpoint: 'ipc://{tmp_path}/s.sock'}}\n"
    )
    return path


def test_units_of_all_are_prepared_together_and_what_does_not_fit_is_set_aside_with_both_shapes(
    config,
):
    sampler = Sampler(load(config, {}), "train")
    units = sampler.first(10)
    assert [unit.key[:2] for unit in units] == ["0/", "1/"] * 3
    sample = sampler.take(units, most=10)
    assert sample.outcome.records == 5
    assert {record.unit.key[:2] for record in sample.records} == {"0/", "1/"}
    # The key that a record carries is that of its object below its source's URL.
    assert sample.records[0].values["key"] == b"a/0.txt"
    reasons = {aside.key: aside.reason for aside in sample.set_aside}
    assert reasons.keys() == {"1/lacking.tfrecord", "1/odd.tfrecord"}
    assert "feature 'payload': its records lack it" in reasons["1/lacking.tfrecord"]
    assert "its records have float32[2]" in reasons["1/odd.tfrecord"]
    assert all("says bytes[]" in reason for reason in reasons.values())


def test_a_unit_is_named_by_its_sources_place_and_its_key(config):
    sampler = Sampler(load(config, {}), "train")
    unit = sampler.named("1/good.tfrecord")
    assert (unit.key, sampler.url_of(unit)[-6:]) == ("1/good.tfrecord", "packed")
    assert sampler.take((unit,), most=5).outcome.records == 2
    for key in ("good.tfrecord", "7/good.tfrecord"):
        with pytest.raises(UnitError, match="begins with its source's place"):
            sampler.named(key)
    with pytest.raises(UnitError, match="the source lists no object"):
        sampler.named("0/good.tfrecord")


def test_check_shows_each_source_and_its_share(cachecd, config):
    done = cachecd("check", config, "--sources")
    assert (done.returncode, done.stderr) == (0, "")
    assert "75.0% of the records:\n          files of file://" in done.stdout
    assert "25.0% of the records:\n          tfrecord of file://" in done.stdout


def test_a_source_without_anything_is_named_by_its_place(config, tmp_path):
    for path in (tmp_path / "packed").iterdir():
        path.unlink()
    with pytest.raises(ConfigError, match=r"datasets\.train\.sources\.1\.url: no objects under"):
        check_sources(load(config, {}))


def test_a_split_that_leaves_a_side_nothing_of_all_sources_is_refused(config, tmp_path):
    for path in (*tmp_path.glob("plain/a/[12].txt"), *tmp_path.glob("packed/[lo]*")):
        path.unlink()
    text = config.read_text().replace("    sources:", "    split: {eval: 0.0001}\n    sources:")
    config.write_text(text)
    with pytest.raises(ConfigError, match=r"train-eval: split.eval 0.0001 by key holds out none"):
        check_sources(load(config, {}))
    config.write_text(text.replace("0.0001", "0.9999"))
    with pytest.raises(
        ConfigError, match=r"train: split.eval 0.9999 by key holds out all of the 2"
    ):
        check_sources(load(config, {}))
