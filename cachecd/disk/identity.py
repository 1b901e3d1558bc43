"""The name of a generation's directory, a hash of what decides its records; and generation.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cachecd.disk.durable import read, replace
from cachecd.errors import DamagedError
from cachecd.stream import Shape

# What JSON has. Mappings and sequences in it are to be given without the values that are defaults.
Json = Any

_FIXED = ("S", "stripe", "lanes", "capacity")


@dataclass(frozen=True, slots=True)
class Identity:
    """Everything that decides what a record of a dataset is, as the configuration gives it.

    Two configurations of equal identity share a directory. A value that is the default does not enter the
    name, so that a later release may add fields, and keeps the names.
    """

    url: str = ""
    endpoint: str | None = None
    id: str | None = None
    """source.id: stands for url and endpoint, of a bucket that moves."""
    format: str = ""
    match: Json = None
    skip: Json = None
    join: Json = None
    manifest: str | None = None
    label: Json = None
    array: Json = None
    columns: Json = None
    reader: str | None = None
    options: Json = None
    transform: tuple[Json, ...] = ()
    """The steps' names, each with its argument; of a user's step the name alone."""
    split: Json = None
    held_out: bool = False
    partition: Json = None
    generation: int = 1

    def words(self) -> dict[str, Json]:
        """The values that are not defaults, as generation.json has them."""
        words = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }
        return _plain(words)

    def name(self, copy: int = 1) -> str:
        """The name of the directory. `copy`: 2 for the one that goes on where the first has a damaged
        listing, and so on."""
        words = self.words()
        if self.id is not None:
            words = {key: words[key] for key in words if key not in ("url", "endpoint")}
        text = json.dumps(words, sort_keys=True, separators=(",", ":")).encode("ascii")
        digest = hashlib.blake2b(text, digest_size=8, person=b"generation").hexdigest()
        return digest if copy == 1 else f"{digest}-{copy}"


@dataclass(frozen=True, slots=True)
class Generation:
    """What generation.json says. `made`: when the directory was made, in seconds since 1970.

    `shape` is fixed when the first block of the listing ends, `schema` is known after the first record.
    """

    identity: Mapping[str, Json]
    made: float
    seed: int
    shard_size: int
    shape: Shape | None = None
    schema: str | None = None


def write_generation(path: Path, generation: Generation) -> None:
    """Durably. DiskError."""
    fixed = None
    if (shape := generation.shape) is not None:
        fixed = dict(
            zip(_FIXED, (shape.streams, shape.stripe, shape.lanes, shape.capacity), strict=True)
        )
    content = {
        "version": 1,
        "identity": generation.identity,
        "made": generation.made,
        "seed": generation.seed,
        "shard_size": generation.shard_size,
        "shape": fixed,
        "schema": generation.schema,
    }
    replace(path, json.dumps(content, indent=2).encode("ascii") + b"\n")


def read_generation(path: Path) -> Generation | None:
    """What was written last; None if there is no such file. DamagedError: without it nobody can go on with
    the streams of this directory. DiskError."""
    text = read(path)
    if text is None:
        return None
    try:
        match json.loads(text):
            case {
                "version": 1,
                "identity": dict(identity),
                "made": int() | float() as made,
                "seed": int(seed),
                "shard_size": int(shard_size),
                "shape": None | dict() as fixed,
                "schema": None | str() as schema,
            }:
                return Generation(identity, made, seed, shard_size, _shape(fixed, seed), schema)
    except (ValueError, KeyError, RecursionError):
        pass
    raise DamagedError(
        f"{path} is damaged: found {text[:80]!r}. Remove its directory to have the dataset fetched anew"
    )


def _shape(fixed: Mapping[str, Json] | None, seed: int) -> Shape | None:
    if fixed is None:
        return None
    streams, stripe, lanes, capacity = (fixed[name] for name in _FIXED)
    for value in (streams, stripe, lanes, capacity):
        if type(value) is not int or value < 1:
            raise ValueError(f"found {value!r}, expected a count")
    return Shape(streams, stripe, lanes, capacity, seed)


def _plain(words: dict[str, Json]) -> dict[str, Json]:
    """As JSON gives it back. TypeError for what JSON does not have."""
    plain: dict[str, Json] = json.loads(json.dumps(words))
    return plain
