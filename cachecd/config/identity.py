"""The identity of a generation: the values that decide its content and name its directory. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from cachecd.config import DatasetConfig

# The version of the rules that turn a source into records. Shards of another version are never leased.
VERSION = 2

_AS_IT_IS = ("url", "endpoint", "id", "format", "match", "skip", "join", "manifest", "reader")
_IF_ANY = ("label", "array", "columns", "features", "options")
_OF_DATASET = ("split", "partition", "generation")
_NAMES = ("format", "manifest", "array", "reader", "options")  # with the URL, they name the units


def identity_of(dataset: DatasetConfig) -> dict[str, Any]:
    """Returns the configuration values that determine a record's content, under the names of
    generation.json, and the version of the rules. Omits default values, as `directory_name` requires."""
    source = dataset.source.model_dump(mode="json", exclude_defaults=True)
    whole = dataset.model_dump(mode="json", exclude_defaults=True)
    if "://" in source.get("id", ""):  # the default of a source: it stays that source
        source["url"], *endpoint = re.split(r" (?=https?://\S*$)", source.pop("id"))
        source["endpoint"] = "".join(endpoint) or None
    words: dict[str, Any] = {"version": VERSION}
    words |= {name: source[name] for name in _AS_IT_IS if source.get(name) is not None}
    words |= {name: source[name] for name in _IF_ANY if source.get(name)}
    if "join" in words:
        words["join"] = _in_order(words["join"])
    if "arrays" in words.get("array", {}):
        words["array"]["arrays"] = _in_order(words["array"]["arrays"])
    if dataset.transform:
        words["transform"] = [step.identity for step in dataset.transform]
    words |= {name: whole[name] for name in _OF_DATASET if whole.get(name) is not None}
    if dataset.held_out:
        words["held_out"] = True
    plain: dict[str, Any] = json.loads(json.dumps(words))
    return plain


def directory_name(identity: Mapping[str, Any], copy: int = 1) -> str:
    """Returns the name of the directory of all shards with this identity.

    The identity has the configuration values that determine a record's content. Default values are omitted,
    so a later release can add values and keep the names. `copy` 2 replaces a directory whose listing is
    damaged, and so on."""
    replaced = ("url", "endpoint") if "id" in identity else ()  # for a bucket that moves
    words = {name: identity[name] for name in identity if name not in replaced}
    text = json.dumps(words, sort_keys=True, separators=(",", ":")).encode("ascii")
    digest = hashlib.blake2b(text, digest_size=8, person=b"generation").hexdigest()
    return digest if copy == 1 else f"{digest}-{copy}"


def _in_order(patterns: dict[str, Any]) -> Any:
    """Returns the patterns as a mapping if they are in alphabetical order, and otherwise as a list. The
    order counts, because the first pattern decides which objects are listed."""
    return patterns if list(patterns) == sorted(patterns) else list(map(list, patterns.items()))


def split_of(words: Mapping[str, Any]) -> str:
    """Returns the split of a generation, from its identity: a line "NAME: VALUE" for each value that
    decides which units are held out, or "" without a split. One of the values is the URL, because the
    same object has another name below another URL."""
    if words.get("split") is None:
        return ""
    values = {f"split.{name}": value for name, value in words["split"].items()}
    values |= {name: words[name] for name in _NAMES if name in words}
    values["url"] = words.get("id", words.get("url"))
    values["held_out"] = words.get("held_out", False)
    if "join" in words:
        values["join"] = next(iter(dict(words["join"]).values()))
    return "\n".join(
        f"{name}: {json.dumps(values[name], sort_keys=True)}" for name in sorted(values)
    )


def classes_rule(dataset: DatasetConfig) -> str:
    """Returns the hash that names the file of class numbers."""
    words = identity_of(dataset)
    source = words.get("id", words.get("url", ""))
    text = json.dumps([source, words.get("label")], sort_keys=True)
    return hashlib.blake2b(text.encode("ascii"), digest_size=8, person=b"classes").hexdigest()
