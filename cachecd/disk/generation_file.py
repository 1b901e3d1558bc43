"""Reads and writes generation.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cachecd.disk.durable import read_json, write_json
from cachecd.model import Shape

Json = Any  # a JSON value

_FIXED = ("S", "stripe", "lanes", "capacity")


@dataclass(frozen=True, slots=True)
class GenerationFile:
    """The content of generation.json. `made`: when the directory was created, in seconds since 1970.

    `shape` (see model.Shape) is None until the first block of units is listed. `schema` is None until the
    first record is decoded. `contradiction`: why most of the first records contradict the schema, or "";
    None until this is known.
    """

    identity: Mapping[str, Json]
    made: float
    seed: int
    shard_size: int
    shape: Shape | None = None
    schema: str | None = None
    contradiction: str | None = None


def write_generation(path: Path, generation: GenerationFile) -> None:
    """Replaces generation.json. DiskError."""
    content = {field.name: getattr(generation, field.name) for field in fields(generation)}
    if (shape := generation.shape) is not None:
        values = (shape.streams, shape.stripe, shape.lanes, shape.capacity)
        content["shape"] = dict(zip(_FIXED, values, strict=True))
    write_json(path, content, indent=2)


def read_generation(path: Path) -> GenerationFile | None:
    """Reads generation.json. Returns None if the file does not exist. DamagedError; DiskError."""

    def decode(content: Json) -> GenerationFile:
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
                return GenerationFile(
                    identity, made, seed, shard_size, shape, schema, contradiction
                )
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
