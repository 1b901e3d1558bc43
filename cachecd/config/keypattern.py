"""Patterns in keys: regular expressions that find a label or a group, and texts with `*`. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from itertools import takewhile
from unicodedata import normalize


def complaint(pattern: str, name: str) -> str:
    """Returns why this pattern is not valid, or "". A valid pattern has exactly one group, or one group
    named `name`."""
    try:
        groups = re.compile(pattern)
    except re.error as error:
        return f"{pattern!r} is not a regular expression: {error}"
    if groups.groups == 1 or name in groups.groupindex:
        return ""
    return (
        f"found {pattern!r} with {groups.groups} groups, expected exactly one group, or one group named "
        f"{name}: (?P<{name}>...)"
    )


def found_in(key: str, pattern: str, name: str) -> str | None:
    """Returns the text that a valid pattern finds, or None if the pattern or its group does not match."""
    match = _compiled(pattern).search(key)
    if match is None:
        return None
    found: str | None = match[name] if name in match.re.groupindex else match[1]
    return found


def matches(pattern: str, key: str) -> bool:
    """Whether a key matches the pattern. Each * matches any text."""
    return _glob(pattern).fullmatch(key) is not None


def text_in(pattern: str, key: str) -> str | None:
    """Returns the text at the pattern's only * in a key, or None if the key does not match."""
    begin, _, end = pattern.partition("*")
    return key[len(begin) : len(key) - len(end)] if matches(pattern, key) else None


def folder_of(patterns: Sequence[str]) -> str:
    """Returns the deepest common folder of all keys that match a pattern, with a slash at its end, or "".
    The folder ends before a part that some stores cannot name: an empty part, "." or ".."."""
    folders = [pattern.partition("*")[0].split("/")[:-1] for pattern in patterns]
    alike = takewhile(lambda names: len({*names, "", ".", ".."}) == 4, zip(*folders, strict=False))
    return "".join(f"{names[0]}/" for names in alike)


def other_forms(text: str) -> set[str]:
    """Returns the text in other Unicode normalizations, which look alike but are different keys."""
    return {normalize("NFC", text), normalize("NFD", text)} - {text}


def alike(text: str, other: str) -> str:
    """Returns a clause for messages: the text does not exist, but one of its other forms does."""
    return f"there is no {text!a}, but {other!a}, which only has another Unicode normalization"


_compiled = functools.cache(re.compile)


@functools.cache
def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
