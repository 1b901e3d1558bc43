"""What a configuration says, what it leaves out, and what it may not say yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cachecd.config import Config, TransformStep
from cachecd.errors import LimitTooSmallError


def test_a_minimal_configuration_has_the_documented_defaults(loaded, good):
    config = loaded(good)
    train = config.datasets["train"]
    assert config.cache.dir == Path("/var/lib/cachecd")
    assert config.cache.limit == 500 << 30
    assert (config.cache.shard_size, config.cache.reserve_free) == (64 << 20, 0)
    assert (train.source.url, train.source.format) == ("s3://bucket/train/", "files")
    assert (train.grow.first, train.grow.per_epoch, train.grow.wait) == (None, None, False)
    assert (train.evict.refresh, train.seed, train.pin) == (0.25, 0, False)
    assert (train.generation, train.transform) == (1, ())
    assert (config.sampler.workers, config.sampler.connections) == (2, 32)
    assert config.server.endpoint == "ipc:///run/cachecd/cachecd.sock"


def test_the_socket_is_the_users_own_where_there_is_a_runtime_directory(loaded, good):
    config = loaded(good, XDG_RUNTIME_DIR="/run/user/1000")
    assert config.server.endpoint == "ipc:///run/user/1000/cachecd/cachecd.sock"


def test_first_defaults_to_1_gib_or_a_quarter_of_the_limit(loaded, good):
    grow = loaded(good).datasets["train"].grow
    assert grow.first_within(100 << 30) == 1 << 30
    assert grow.first_within(1 << 30) == 256 << 20
    assert (
        loaded(good + "    grow: {first: 5MiB}").datasets["train"].grow.first_within(1) == 5 << 20
    )


def decoded(feature: str) -> dict[str, str]:
    """What decode_image takes, where no more than the feature is said."""
    return {"feature": feature, "into": "image", "mode": "RGB"}


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("my.module:function", [("my.module:function", None)]),
        ("[decode_image]", [("decode_image", decoded("payload"))]),
        (
            "[{decode_image: jpg}, {resize: 256}]",
            [("decode_image", decoded("jpg")), ("resize", 256)],
        ),
        ("[resize: [2, 3], a:b]", [("resize", [2, 3]), ("a:b", None)]),
    ],
)
def test_a_transform_is_one_function_or_a_list_of_steps(loaded, good, text, steps):
    found = loaded(f"{good}    transform: {text}\n").datasets["train"].transform
    assert found == tuple(TransformStep(name=name, argument=argument) for name, argument in steps)


def test_a_section_with_all_its_keys_commented_out_is_one_of_defaults(loaded, good):
    text = good + "    grow:\n      # first: 1GiB\nsampler:\n#  workers: 4\nserver:\n"
    assert loaded(text) == loaded(good)


def test_class_names_are_what_is_written_numbers_too(loaded, good):
    written = "[dog, 7, 007, -1, 0x1F, 1_000, 2024-01-01, no, '1.5', ${NAME}]".replace(
        "${NAME}", "'${NAME}'"
    )
    label = f"label: {{pattern: '^([^/]+)/', classes: {written}}}"
    config = loaded(good.replace("format: files", f"format: files\n      {label}"), NAME="cat")
    source = config.datasets["train"].source
    names = ("dog", "7", "007", "-1", "0x1F", "1_000", "2024-01-01", "no", "1.5", "cat")
    assert source.classes == names
    assert Config.model_validate(json.loads(config.model_dump_json())) == config


BOUNDS = {
    "everything may be replaced": ("source:", "evict: {refresh: 1}\n    source:"),
    "no growth at all": ("source:", "grow: {per_epoch: 0, wait: true}\n    source:"),
    "the whole disk": ("500GiB", "100%"),
    "a URL with a port": ("s3://bucket/", "http://host:8080/"),
    "a URL with a user": ("s3://bucket/", "sftp://me@host:22/"),
    "a URL of a path": ("s3://bucket/", "file:///data/"),
    "a label of several groups": ("format: files",
        "format: files\n      label: {pattern: '(a|b)/(?P<label>[^/]+)/(c)?'}"),
    "labels in the manifest": ("format: files",
        "format: files\n      manifest: s3://bucket/list.csv.gz\n      label: {column: true}"),
    "labels in a table": ("format: files",
        "format: files\n      label: {manifest: 's3://b/l.jsonl'}"),
    "URLs of any hosts": ("url: s3://bucket/train/",
        "url: https://\n      manifest: s3://bucket/urls.csv"),
    "an inventory": ("format: files", "format: files\n      manifest: s3://b/2026/manifest.json"),
    "a reader and no URL": ("url: s3://bucket/train/\n      format: files",
        "format: python\n      reader: my.data:Set.Readings\n      options: {rate: 16000, of: [a, null]}"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), BOUNDS.values(), ids=BOUNDS.keys())
def test_what_is_just_allowed_loads(loaded, good, old, new):
    assert old in good
    loaded(good.replace(old, new))


def test_a_limit_below_the_first_sets_is_too_small_and_says_what_would_do(loaded, good):
    text = good + "    grow: {first: 400GiB}\n  eval: {source: {url: 's3://b/', format: files}, "
    with pytest.raises(
        LimitTooSmallError, match=r":4:10: cache\.limit: the limit is 500GiB, .* needs 600GiB"
    ):
        loaded(text + "grow: {first: 200GiB}}\n")
    assert loaded(text + "grow: {first: 100GiB}}\n").cache.limit == 500 << 30


@pytest.mark.parametrize(
    "address", ["127.0.0.1:9400", "127.8.8.8:1", "localhost:9400", "[::1]:9400"]
)
def test_loopback_addresses_need_no_permission(loaded, good, address):
    assert loaded(f"{good}server: {{http: '{address}'}}").server.http == address


def test_other_addresses_are_allowed_with_http_any(loaded, good):
    server = loaded(f"{good}server: {{http: '[::]:9400', http_any: true}}").server
    assert (server.http, server.http_keys) == ("[::]:9400", False)
