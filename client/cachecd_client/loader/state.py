"""The state of a loader as plain values, and the seed of each pass. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from cachecd_client.errors import CallerError
from cachecd_client.loader.reading import LARGEST_SEED
from cachecd_client.options import integer

_VERSION = 1


def write(number: int, position: int, seed: int, order: Mapping[str, Any]) -> dict[str, Any]:
    """The state of pass `number` after `position` batches.

    `order`: the values that decide, with the seed, which batch a position means.
    """
    return {"version": _VERSION, "pass": number, "position": position, "seed": seed, **order}


def read(state: Mapping[str, Any], order: Mapping[str, Any], batches: int) -> tuple[int, int, int]:
    """(number, position, seed). CallerError if the loader of the state has another `order`, or if the
    position is not among its `batches`."""
    if state.get("version") != _VERSION:
        raise CallerError(f"loader state version {state.get('version')!r}, expected {_VERSION}")
    differing = [
        f"{name} {state.get(name)!r} (here {here!r})"
        for name, here in order.items()
        if state.get(name) != here
    ]
    if differing:
        raise CallerError(
            f"the state belongs to another loader: {', '.join(differing)}; resume with the "
            "same file set and options, or begin the pass anew"
        )
    seed = integer("the state's seed", state.get("seed"), 0, LARGEST_SEED)
    position = integer("the state's position", state.get("position"), 0, batches)
    return integer("the state's pass", state.get("pass"), 0), position, seed


def seed_of(seed: int, number: int) -> int:
    """The seed of a pass. Pass 0 has the seed of the loader."""
    if not number:
        return seed
    digest = hashlib.sha256(f"cachecd pass {seed} {number}".encode()).digest()
    return int.from_bytes(digest[:8], "little")
