"""Whatever a file says, loading it ends in a Config or in lines that say where and what."""

from __future__ import annotations

import copy
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from cachecd.config import Config, load
from cachecd.errors import ConfigError

FULL = (Path(__file__).parents[2] / "deploy" / "config" / "full.yaml").read_text()
# Comments only make a hit less likely.
TEXT = "\n".join(line for line in FULL.splitlines() if line.partition("#")[0].strip())

LONG = "CACHECD_LONG" in os.environ
# One of each kind of thing that YAML can hold, and the strings that mean something somewhere.
KINDS = [
    *[None, True, -1, 0, 1.5, float("nan"), float("inf"), 2**70, "", "\0", "x", "80%", "64MiB"],
    *["a:b", "s3://b/", "ipc:///s", "/" + "é" * 60, [], {}, [[1]], ["x", None], {"a": "b"}],
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "cachecd.yaml"


def check(path, environ=None):
    try:
        assert isinstance(load(path, environ or {}), Config)
    except ConfigError as error:
        for line in str(error).split("\n"):
            assert re.match(rf"({re.escape(str(path))}:\d+:\d+|CACHECD_\w+): .", line), line


@settings(max_examples=200 if LONG else 15)
@given(
    st.integers(0, len(TEXT)),
    st.integers(0, 12),
    st.text(max_size=6)
    | st.sampled_from(["\t", "{", "[", ": ", "\n", "- ", "&a ", "*a", "!x ", "'", "${"]),
)
def test_a_file_with_any_piece_replaced_loads_or_says_what_is_wrong(path, at, length, piece):
    changed = TEXT[:at] + piece + TEXT[at + length :]
    path.write_bytes(changed.encode("utf-8", "surrogatepass"))
    check(path)


def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from places(inner, (*path, name))


DOCUMENT = YAML(typ="safe").load(TEXT)
PLACES = [place for place in places(DOCUMENT) if place]


# One kind at each place, at the next place another: all of them are 2,000 files, which take half a minute.
EVERY = 1 if LONG else len(KINDS)


@pytest.mark.parametrize(
    ("at", "place"), list(enumerate(PLACES)), ids=[".".join(p) for p in PLACES]
)
def test_a_key_with_any_kind_of_value_loads_or_says_what_is_wrong(path, at, place):
    for value in KINDS[at % EVERY :: EVERY]:
        document = copy.deepcopy(DOCUMENT)
        section = document
        for name in place[:-1]:
            section = section[name]
        section[place[-1]] = value
        text = json.dumps(document)  # JSON is YAML, but for these
        path.write_text(text.replace("NaN", ".nan").replace("Infinity", ".inf"))
        check(path)
