"""The options of loaders, and whether a value can be one's."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import numpy as np

from cachecd_client.conversions import Cast, Default, OneHot, Pad, Rename
from cachecd_client.errors import CallerError


class Options(TypedDict, total=False):
    """The options that every loader takes; `Loader` explains them."""

    shuffle: bool | None
    seed: int | None
    reshuffle: bool
    drop_last: bool | None
    pad_last: bool | None
    threads: int
    prefetch_bytes: int | None
    on_corrupt: Literal["replace", "raise"]
    features: Sequence[str] | None
    cast: Cast
    pad: Pad
    one_hot: OneHot
    default: Default
    rename: Rename
    label: str | None
    ids: bool
    rank: int | None
    world: int | None


def with_label(options: Options) -> Options:
    """These options with the label among `features`, if there are any."""
    label, features, rename = options.get("label"), options.get("features"), options.get("rename")
    # What is of another type the loader refuses.
    if label is None or features is None or isinstance(features, str):
        return options
    names = rename.items() if isinstance(rename, Mapping) else ()
    stored = next((name for name, new in names if new == label), label)
    return options if stored in features else {**options, "features": [*features, stored]}


def integer(name: str, value: Any, least: int, most: int = 2**63 - 1) -> int:
    """`value` as an int from `least` to `most`; CallerError, naming the option, if it is none."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise CallerError(f"{name}={value!r}, expected a whole number (int)")
    if number < least:
        raise CallerError(f"{name}={value!r}, expected at least {least}")
    if number > most:
        raise CallerError(f"{name}={value!r}, expected at most {most}")
    return number


def flag(name: str, value: Any) -> bool:
    """`value` as a bool; CallerError, naming the option, if it is none: "no" is true in Python."""
    if not isinstance(value, (bool, np.bool_)):
        raise CallerError(f"{name}={value!r}, expected True or False")
    return bool(value)
