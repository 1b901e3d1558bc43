"""CACHECD_SECTION__KEY=value: found, validated like YAML, and blamed by the variable's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachecd.errors import LimitTooSmallError


def test_a_variable_stands_in_for_a_key_of_the_file_or_adds_one(loaded, good):
    config = loaded(
        good,
        CACHECD_CACHE__LIMIT="1TiB",
        CACHECD_SAMPLER__WORKERS="8",
        CACHECD_SAMPLER__BANDWIDTH="600MB/s",
        CACHECD_SERVER__ENDPOINT="ipc:///tmp/c.sock",
        CACHECD_CACHE__DIR="/elsewhere",
    )
    assert config.cache.limit == 1 << 40
    assert config.cache.dir == Path("/elsewhere")
    assert (config.sampler.workers, config.sampler.bandwidth) == (8, 600e6)
    assert config.server.endpoint == "ipc:///tmp/c.sock"


def test_a_datasets_key_is_reached_by_its_name_in_capitals(loaded, good):
    text = good.replace("train:", "my-Train_1:")
    config = loaded(
        text,
        CACHECD_DATASETS__MY_TRAIN_1__SEED="18446744073709551615",
        CACHECD_DATASETS__MY_TRAIN_1__GROW__FIRST="2GiB",
        CACHECD_DATASETS__MY_TRAIN_1__PIN="true",
        CACHECD_DATASETS__MY_TRAIN_1__TRANSFORM="[decode_image, {resize: 32}]",
        CACHECD_DATASETS__MY_TRAIN_1__SOURCE__LABEL__PATTERN="[a-z]+/(.)",
        CACHECD_DATASETS__MY_TRAIN_1__SOURCE__LABEL__CLASSES="[b, 007]",
    )
    train = config.datasets["my-Train_1"]
    assert (train.seed, train.grow.first, train.pin) == (2**64 - 1, 2 << 30, True)
    assert [step.name for step in train.transform] == ["decode_image", "resize"]
    assert train.source.label.pattern == "[a-z]+/(.)"
    assert train.source.label.classes == ("b", "007")


def test_datasets_that_look_alike_in_capitals_are_told_apart_by_their_exact_names(
    loaded, complaints, good
):
    text = good + "  TRAIN: {source: {url: 's3://b/', format: files}}\n"
    config = loaded(text, CACHECD_DATASETS__TRAIN__SEED="1", CACHECD_DATASETS__train__SEED="2")
    assert (config.datasets["TRAIN"].seed, config.datasets["train"].seed) == (1, 2)
    (line,) = complaints(text, CACHECD_DATASETS__Train__SEED="1")
    assert line == (
        "CACHECD_DATASETS__Train__SEED: 'train' and 'TRAIN' both match this name; write the key exactly"
    )


def test_an_empty_value_takes_an_optional_key_back_to_its_default(loaded, good):
    text = good + "sampler: {bandwidth: 1MB/s, python: /usr/bin/python3}\n"
    sampler = loaded(text, CACHECD_SAMPLER__BANDWIDTH="", CACHECD_SAMPLER__PYTHON="").sampler
    assert (sampler.bandwidth, sampler.python) == (None, None)


def test_a_name_without_two_underscores_is_none_of_ours(loaded, good):
    assert loaded(good, CACHECD_ENDPOINT="x", CACHECD_PORT_9465_TCP="y", CACHECD_="z") == loaded(
        good
    )


WRONG = {
    "unknown key": ("SAMPLER__WORKER", "1", "no key 'worker' in sampler; did you mean 'workers'?"),
    "unknown section": ("FOO__BAR", "1", "no key 'foo'; known: version, cache, datasets"),
    "unknown dataset": ("DATASETS__TRIAN__SEED", "1", "no dataset 'trian'; did you mean 'train'?"),
    "below a value": ("SAMPLER__WORKERS__X", "1", "sampler.workers is a single value"),
    "no YAML": ("SAMPLER__WORKERS", "[", "found '[': not YAML"),
    "bad value": ("SAMPLER__WORKERS", "many", "sampler.workers: found 'many', expected a whole"),
    "bad size": ("CACHE__LIMIT", "1Gib", "cache.limit: found '1Gib', expected a size"),
    "required, empty": ("CACHE__DIR", "", "cache.dir: found '', expected text"),
    "step": ("DATASETS__TRAIN__TRANSFORM", "[resize]", "datasets.train.transform.0: found neither"),
}


@pytest.mark.parametrize(("name", "value", "complaint"), WRONG.values(), ids=WRONG.keys())
def test_a_mistake_is_blamed_on_the_variable(complaints, good, name, value, complaint):
    (line,) = complaints(good, **{f"CACHECD_{name}": value})
    assert line.startswith(f"CACHECD_{name}: {complaint}")


def test_a_runtime_directory_too_long_for_a_socket_is_blamed_by_name(complaints, good):
    (line,) = complaints(good, XDG_RUNTIME_DIR="/" + "r" * 100)
    assert line.startswith("XDG_RUNTIME_DIR: server.endpoint: found a socket path of 122 bytes")


def test_a_limit_made_too_small_by_a_variable_is_blamed_on_it(loaded, good):
    with pytest.raises(
        LimitTooSmallError, match=r"^CACHECD_CACHE__LIMIT: cache\.limit: found 1MiB"
    ):
        loaded(good, CACHECD_CACHE__LIMIT="1MiB")
