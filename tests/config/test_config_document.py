"""The file as such: syntax, encoding, variables; what is wrong before any key means anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachecd.config import Percent, load
from cachecd.errors import ConfigError

BROKEN = {
    "empty": ("", "1:1: found nothing, expected the keys `version`, `cache`"),
    "a list": ("- version: 1\n", "1:1: found no mapping of keys, expected the keys `version`"),
    "unclosed": ("version: [1\n", "2:1: not YAML: while parsing a flow sequence: expected ','"),
    "a tab": ("cache:\n\tdir: /x\n", "2:1: found a tab: replace it with spaces"),
    "two documents": ("version: 1\n---\nversion: 1\n", "2:1: not YAML: expected a single document"),
    "a control character": ("version: 1\ncache: \a\n", "2:8: found the character '\\x07'"),
    "Latin-1": (b"version: 1\n# caf\xe9\n", "2:6: found the byte 0xe9, expected UTF-8"),
    "a tag": ("version: !!python/name:os.system 1", "1:10: version: found the tag"),
    "a set": ("version: !!set {1}", "1:10: version: found the tag"),
    "a merge": ("version: 1\n<<: {a: 1}", "2:1: << is not supported: write the merged keys"),
    "a list as a key": ("? [a]\n: b\n", "1:3: found a key that is not a name"),
    "an alias of itself": ("version: &a [*a]\n", "1:1: found endless or very deep nesting"),
    "aliases that multiply": (
        "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
        + "".join(
            f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n"
            for a, b in zip("abcdef", "bcdefg", strict=True)
        ),
        "1:1: found endless or very deep nesting",
    ),
}


@pytest.mark.parametrize(("text", "complaint"), BROKEN.values(), ids=BROKEN.keys())
def test_a_file_that_is_no_configuration_at_all_is_one_line(complaints, text, complaint):
    (line,) = complaints(text)
    assert line.startswith(complaint)


def test_a_key_given_twice_is_an_error_that_names_both_lines(complaints, good):
    text = good.replace("  limit: 500GiB\n", "  limit: 500GiB\n  limit: 100GiB\n")
    assert complaints(text) == ["5:3: cache.limit: the key is on line 4 already: remove one"]


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path):
    with pytest.raises(ConfigError, match=f"^{tmp_path}: cannot be read: Is a directory"):
        load(tmp_path, {})


def test_a_file_of_a_megabyte_is_not_taken_for_a_configuration(tmp_path):
    path = tmp_path / "shard.tfrecord"
    path.write_bytes(os.urandom(1 << 20) + b"x")
    with pytest.raises(ConfigError, match="more than 1048576 bytes"):
        load(path, {})


def test_variables_expand_everywhere_in_values(loaded, good):
    text = good.replace("/var/lib", "${ROOT}/${SUB:-lib}").replace("bucket", "${BUCKET}")
    config = loaded(
        text + "sampler:\n  workers: ${WORKERS}\n", ROOT="/var", BUCKET="b", WORKERS="8"
    )
    assert config.cache.dir == Path("/var/lib/cachecd")
    assert config.datasets["train"].source.url == "s3://b/train/"
    assert config.sampler.workers == 8


def test_a_default_stands_in_for_a_variable_that_is_unset_or_empty(loaded, good):
    text = good.replace("500GiB", "${LIMIT:-80%}")
    assert loaded(text).cache.limit == Percent(80.0)
    assert loaded(text, LIMIT="").cache.limit == Percent(80.0)
    assert loaded(text, LIMIT="1GiB").cache.limit == 1 << 30


def test_an_unset_variable_without_a_default_is_named(complaints, good):
    text = good.replace("/var/lib/cachecd", "${ROOT}").replace("500GiB", "${LIMIT}")
    assert complaints(text) == [
        "3:8: cache.dir: the environment variable ROOT is not set; set it or write ${ROOT:-default}",
        "4:10: cache.limit: the environment variable LIMIT is not set; set it or write "
        "${LIMIT:-default}",
    ]


def test_two_dollars_are_a_dollar_and_one_before_anything_else_is_itself(loaded, good):
    text = good.replace("train/", "$${ROOT}/$$5/$x")
    assert loaded(text).datasets["train"].source.url == "s3://bucket/${ROOT}/$5/$x"
    label = good.replace("format: files", "format: files\n      label: {pattern: '^(a)$'}")
    assert loaded(label).datasets["train"].source.label.pattern == "^(a)$"


@pytest.mark.parametrize("written", ["${A", "${1A}"])
def test_a_malformed_variable_is_an_error(complaints, good, written):
    (line,) = complaints(good.replace("/var/lib/cachecd", f"'{written}'"), A="x")
    assert line.startswith(f"3:8: cache.dir: found '{written}', expected ${{NAME}}")


def test_an_unquoted_variable_inside_braces_says_that_it_wants_quotes(complaints):
    (line,) = complaints("cache: {dir: ${ROOT}}", ROOT="/x")
    assert line == '1:15: found ${...} inside braces or brackets: put it in quotes, as "${...}"'
