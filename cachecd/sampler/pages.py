"""What daemon and lister process say to each other: one question, pages of units, and how it ended.

Frames as in cachecd.sampler.messages. A unit is a list of its fields and not a mapping, since there
may be millions.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cachecd.model import ObjectInfo
from cachecd.sampler.messages import bounded, framed


@dataclass(frozen=True, slots=True)
class List:
    """List the units of `source` (a SourceConfig as JSON), or those behind the key `after`; `path` are
    the directories in which imports are looked for first."""

    source: dict[str, Any]
    connections: int
    after: str
    path: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """Some units more."""

    units: list[ObjectInfo]


@dataclass(frozen=True, slots=True)
class End:
    """There are no more."""


@dataclass(frozen=True, slots=True)
class Refused:
    """They cannot be listed: `cause` says by whose fault."""

    cause: Literal["source", "configuration"]
    reason: str


Said = Page | End | Refused


def pack(message: List | Said) -> bytes:
    """The message as one frame."""
    fields: dict[str, Any]
    match message:
        case Page(units):
            fields = {"units": [[u.key, u.size, u.etag, u.begin, u.label] for u in units]}
        case _:
            fields = dataclasses.asdict(message)
    return framed(json.dumps({"type": type(message).__name__, **fields}))


def unpack(body: bytes) -> List | Said:
    """The message in one frame's body; ValueError, TypeError or KeyError if there is none."""
    fields = json.loads(body)
    match fields.pop("type"):
        case "List":
            return List(**fields)
        case "Page":
            return Page([ObjectInfo(*unit) for unit in fields["units"]])
        case "End":
            return End()
        case "Refused":
            return Refused(fields["cause"], bounded(fields["reason"]))
        case other:
            raise ValueError(f"unknown message {other!r}")
