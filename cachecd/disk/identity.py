"""The identity of a generation, whose hash names its directory; and generation.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cachecd.disk.durable import read_json, write_json
from cachecd.model import Shape

Json = Any  # a JSON value

_FIXED = ("S", "stripe", "lanes", "capacity")


def directory_name(identity: Mapping[str, Json], copy: int = 1) -> str:
    """Returns the name of the directory of all shards with this identity: the values of the configuration
    that decide the content of a record, without those that are defaults. So a later release can add values
    and keep the names. `copy` 2 replaces a directory with a damaged listing, and so on."""
    replaced = ("url", "endpoint") if "id" in identity else ()  # for a bucket that moves
    words = {name: identity[name] for name in identity if name not in replaced}
    text = json.dumps(words, sort_keys=True, separators=(",", ":")).encode("ascii")
    digest = hashlib.blake2b(text, digest_size=8, person=b"generation").hexdigest()
    return digest if copy == 1 else f"{digest}-{copy}"


@dataclass(frozen=True, slots=True)
class Generation:
    """The content of generation.json. `made`: when the directory was made, in seconds since 1970.

    `shape` is None until the first block of the listing ends, `schema` until the first record is made.
    `contradiction`: why most of the first records contradict the schema, or ""; None until that is known.
    """

    identity: Mapping[str, Json]
    made: float
    seed: int
    shard_size: int
    shape: Shape | None = None
    schema: str | None = None
    contradiction: str | None = None


def write_generation(path: Path, generation: Generation) -> None:
    """Replaces generation.json. DiskError."""
    fixed = None
    if (shape := generation.shape) is not None:
        values = (shape.streams, shape.stripe, shape.lanes, shape.capacity)
        fixed = dict(zip(_FIXED, values, strict=True))
    content = {field.name: getattr(generation, field.name) for field in fields(generation)}
    write_json(path, {**content, "shape": fixed}, indent=2)


def read_generation(path: Path) -> Generation | None:
    """Reads generation.json. Returns None if the file does not exist. DamagedError: the streams of this
    directory cannot continue. DiskError."""

    def decode(content: Json) -> Generation:
        match content:
            case {
                "identity": dict(identity),
                "made": int() | float() as made,
                "seed": int(seed),
                "shard_size": int(shard_size),
                "shape": None | dict() as fixed,
                "schema": None | str() as schema,
                "contradiction": None | str() as contradiction,
            }:
                if schema is not None:
                    json.loads(schema)
                shape = _shape(fixed, seed)
                return Generation(identity, made, seed, shard_size, shape, schema, contradiction)
        raise ValueError("expected a generation")

    return read_json(path, decode, ". Remove its directory to fetch the dataset again")


def _shape(fixed: Mapping[str, Json] | None, seed: int) -> Shape | None:
    if fixed is None:
        return None
    values = [fixed[name] for name in _FIXED]
    if not all(type(value) is int and value > 0 for value in values):
        raise ValueError(f"found {values}, expected counts")
    streams, stripe, lanes, capacity = values
    return Shape(streams, stripe, lanes, capacity, seed)
