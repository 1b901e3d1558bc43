"""The names of generations: which shards may stand in one set. Pure.

A name is `NUMBER-DIGEST[-SPLIT][.LISTING]`. The digest is of what decides a record's content. `SPLIT` is of
the configured hold-out, and `LISTING` the id of the listing by whose numbers the shards name their units,
where shards of the plain name are numbered by another listing: in one set the two would give a record
twice, since nobody can tell that unit 7 of one listing is unit 9 of the other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def configured(number: int, decides: Any, split: Mapping[str, Any] | None) -> str:
    """The plain name of what the configuration makes. `decides`: all that a record's content follows
    from; `split`: what decides which units are held out. Both as JSON has them."""
    held_out = f"-{_digest(dict(split))}" if split else ""
    return f"{number}-{_digest(decides)}{held_out}"


def numbered(plain: str, listing: str, known: Mapping[str, str]) -> str:
    """The name under which shards of the generation `plain` are made by this listing's numbers. `known`:
    of generations that have shards, or had a plan, the listing; "" where nobody knows it."""
    for name in sorted(known):
        if known[name] == listing and name.partition(".")[0] == plain:
            return name
    return plain if plain not in known else f"{plain}.{listing}"


def same_split(one: str, other: str) -> bool:
    """Whether generations of these names hold out the same units: what one trains on, the other does not
    evaluate by."""
    return _split_of(one) == _split_of(other)


def _split_of(name: str) -> str:
    return "-".join(name.partition(".")[0].split("-")[2:])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
