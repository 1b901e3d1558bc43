"""Regular expressions that find one thing in a key: a label, the group of a split. Pure."""

from __future__ import annotations

import functools
import re


def complaint(pattern: str, name: str) -> str:
    """Why this cannot find `name` in a key; "" if it can: it has one group, or one of that name."""
    try:
        groups = re.compile(pattern)
    except re.error as error:
        return f"found {pattern!r}, expected a regular expression: {error}"
    if groups.groups == 1 or name in groups.groupindex:
        return ""
    return (
        f"found {pattern!r} with {groups.groups} groups, expected exactly one, or one named {name}: "
        f"(?P<{name}>...)"
    )


def found_in(key: str, pattern: str, name: str) -> str | None:
    """What a pattern without complaint finds; None if it does not match, or the group has no part."""
    match = _compiled(pattern).search(key)
    if match is None:
        return None
    found: str | None = match[name] if name in match.re.groupindex else match[1]
    return found


_compiled = functools.cache(re.compile)
