"""The options that every loader takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypedDict

from cachecd_client.loader.conversions import Cast, Decode, Default, OneHot, Pad, Rename
from cachecd_client.loader.pipeline import Prepare


class Options(TypedDict, total=False):
    """The options of a loader. `Loader` explains them."""

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
    decode: Decode
    rename: Rename
    prepare: Prepare | None
    label: str | None
    ids: bool
    rank: int | None
    world: int | None


def with_label(options: Options, stores: Callable[[str], bool]) -> Options:
    """These options, with the label added to `features` if a list of features is given.

    `stores`: whether records have a feature of this name; if not, `prepare` may make the label.
    """
    label, features, rename = options.get("label"), options.get("features"), options.get("rename")
    # The loader refuses other types.
    if label is None or features is None or isinstance(features, str):
        return options
    names = rename.items() if isinstance(rename, Mapping) else ()
    stored = next((name for name, new in names if new == label), label)
    if stored in features or (options.get("prepare") and not stores(stored)):
        return options
    return {**options, "features": [*features, stored]}
