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

# A JSON value. Callers leave out keys of mappings whose values are defaults.
Json = Any

_FIXED = ("S", "stripe", "lanes", "capacity")


@dataclass(frozen=True, slots=True)
class Identity:
    """The values of the configuration that decide the content of a record.

    Two configurations with equal identities share a directory. Default values do not enter the name: a
    later release can add fields and keep the names.
    """

    url: str = ""
    endpoint: str | None = None
    id: str | None = None
    """source.id replaces url and endpoint in the name, for a bucket that moves."""
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
    """Each ready-made step with its argument, and the name of each user step."""
    split: Json = None
    held_out: bool = False
    partition: Json = None
    generation: int = 1

    def words(self) -> dict[str, Json]:
        """Returns the values that are not defaults, for generation.json."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        words = {name: value for name, (value, default) in values.items() if value != default}
        plain: dict[str, Json] = json.loads(json.dumps(words))
        return plain

    def name(self, copy: int = 1) -> str:
        """Returns the name of the directory. `copy` 2 replaces a directory with a damaged listing, and so
        on."""
        words = self.words()
        if self.id is not None:
            words = {key: words[key] for key in words if key not in ("url", "endpoint")}
        text = json.dumps(words, sort_keys=True, separators=(",", ":")).encode("ascii")
        digest = hashlib.blake2b(text, digest_size=8, person=b"generation").hexdigest()
        return digest if copy == 1 else f"{digest}-{copy}"


@dataclass(frozen=True, slots=True)
class Generation:
    """The content of generation.json. `made`: when the directory was made, in seconds since 1970.

    `shape` is None until the first block of the listing ends, `schema` until the first record is made.
    """

    identity: Mapping[str, Json]
    made: float
    seed: int
    shard_size: int
    shape: Shape | None = None
    schema: str | None = None


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
            }:
                return Generation(identity, made, seed, shard_size, _shape(fixed, seed), schema)
        raise ValueError("expected a generation")

    return read_json(path, decode, ". Remove its directory to have the dataset fetched anew")


def _shape(fixed: Mapping[str, Json] | None, seed: int) -> Shape | None:
    if fixed is None:
        return None
    values = [fixed[name] for name in _FIXED]
    if not all(type(value) is int and value > 0 for value in values):
        raise ValueError(f"found {values}, expected counts")
    streams, stripe, lanes, capacity = values
    return Shape(streams, stripe, lanes, capacity, seed)
