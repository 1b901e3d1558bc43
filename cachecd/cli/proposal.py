"""Proposes a configuration for a surveyed source: YAML with comments that give the reasons."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from cachecd.cli.survey import MASK, Survey, is_image, kind_of, suffix_of
from cachecd.config import SourceConfig, SplitConfig
from cachecd.disk.filesystem import free_bytes, refuse_network_filesystem
from cachecd.errors import ConfigError, DiskError
from cachecd.model import ObjectInfo
from cachecd.quantities import approximate_size, format_size, printable
from cachecd.sampler.encoding import yaml_of
from cachecd.units.selection import held_out

_SHARE = 0.5  # of the free space
_GIB, _MIB = 1 << 30, 1 << 20
_ARRAY = 4 << 20  # bytes: with several objects, a whole array of up to this size is one record
_WINDOW = 1 << 20  # bytes of a window of a larger array
_NUMBERS = 1024  # in a window of an array with one axis
_NAMED = 5
_SIDE = 224  # pixels: the square that many models take
# The other kinds have the name of their format.
_FORMATS = {"image": "files", "audio": "files", "": "files", "hdf5": "python", "zarr": "python"}


def propose(
    source: SourceConfig,
    seen: Survey,
    form: str | None,
    directory: Path | None,
    tokenizer: Path | None = None,
) -> str:
    """Returns the YAML. `form`, `directory` and `tokenizer`: the format, the cache directory and a
    tokenizer.json, if the user names them. ConfigError if the tokenizer cannot be read. DiskError if no
    disk has enough room for a cache."""
    form = form or _FORMATS.get(seen.kind, seen.kind)
    directory = directory or _directory()
    limit, reason = _limit(directory, seen)
    lines = [
        f"# Written by `cachecd init` after a look at {_count(seen)}. `cachecd check FILE` prints its",
        "# sizes and rules on this machine; `cachecd sample FILE` shows a record.",
        "version: 1",
        "",
        "cache:",
        f"  dir: {_quoted(str(directory))}  # on a local disk, for one daemon",
        f"  limit: {format_size(limit)}  # {reason}",
        *(
            ["  shard_size: 4MiB  # 64 MiB of tokens would take a core a minute"]
            if tokenizer
            else []
        ),
        "",
        "datasets:",
        "  train:",
        *(f"    {line}" for line in _dataset(source, seen, form, tokenizer is not None)),
        *(f"    {line}" for line in (_tokens(tokenizer, seen) if tokenizer else ())),
    ]
    return "\n".join(lines) + "\n"


def _dataset(source: SourceConfig, seen: Survey, form: str, is_tokenized: bool) -> Iterator[str]:
    if seen.splits:
        names = ", ".join(map(printable, seen.splits))
        yield f"# The folders {names} look like parts of the data: give each its own dataset, with"
        place = "patterns of join" if seen.join and form == "files" else "url"
        yield f"# its folder in the {place}. Set `pin: true` for datasets that evaluate models."
    yield "source:"
    yield f"  url: {_quoted(source.url)}"
    if source.endpoint:
        yield f"  endpoint: {_quoted(source.endpoint)}"
    if source.region:
        yield f"  region: {_quoted(source.region)}"
    if source.anonymous:
        yield "  anonymous: true"
    if seen.left_out.kinds:
        yield f"  # omitted: {seen.left_out}"
    if seen.left_out.warning:
        yield f"  # {seen.left_out.warning}"
    yield f"  format: {form}  # {_why(seen, form)}"
    joined = seen.join if form == "files" else {}
    yield from (f"  {line}" for line in (_join(seen) if joined else _others(seen, form)))
    if form == "jsonl" and seen.columns:
        names = ", ".join(printable(name) for name in seen.columns[: 4 * _NAMED])
        mark = "" if is_tokenized else "# "
        yield f"  {mark}columns: {_quoted([_text_column(seen)])}  # read only some of: {names}"
    # A loader cannot decode an optional picture, so samples without the picture are skipped.
    varying = [f for f in seen.varying if form == seen.kind and not is_image(f.name)]
    if varying and not is_tokenized:  # windows have no other features
        yield "  features:  # some inspected records differ in these (docs/inputs.md, Features)"
        yield from (f"    {yaml_of(feature)}" for feature in varying)
    match form:
        case "files":
            yield from (f"  {line}" for line in _label(source, seen))
            if images := [n for n in joined if suffix_of(joined[n]) in ("jpg", "jpeg", "png")]:
                yield from _encoded(seen, images)
            elif seen.kind == "image" and not joined:
                yield from _images(seen, "payload")
            elif seen.kind == "audio" and not joined:
                step = "decode_audio: {rate: 16000, seconds: 4}"
                yield f"# transform: [{{{step}}}]  # pip install 'cachecd[audio]'"
        case "webdataset" if seen.members:
            yield f"# members: {', '.join(printable(name) for name in seen.members[:_NAMED])}"
            if image := next(filter(is_image, seen.members), None):
                yield from _images(seen, image)
        case "npy":
            yield from (f"  {line}" for line in _array(seen))
        case "python":
            yield from (f"  {line}" for line in _reader(seen))
    if not (seen.splits or seen.join or form == "python"):
        note = held_out(SplitConfig(eval=0.1), form, _main(seen), seen.whole)
        yield f"# split: {{eval: 0.1}}  # {note}"
    yield "grow:"
    yield "  # first: 1GiB  # cached before the first epoch begins"
    yield "  # per_epoch: 20GiB  # how much each epoch adds; default: as fast as the link allows"


def _text_column(seen: Survey) -> str:
    return "text" if "text" in seen.texts or not seen.texts else seen.texts[0]


def _tokens(tokenizer: Path, seen: Survey) -> Iterator[str]:
    """Yields the steps that make windows of tokens."""
    try:
        digest = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"--tokenizer: {tokenizer}: {error.strerror}") from error
    yield "transform:  # pip install 'cachecd[text]'; docs/text.md explains the steps"
    yield "  - tokenize:"
    yield f"      tokenizer: {_quoted(str(tokenizer.absolute()))}"
    yield f"      sha256: {digest}"
    yield f"      feature: {_quoted(_text_column(seen))}"
    yield "      # append: <|endoftext|>  # a token of the tokenizer, after each document"
    yield "  - pack: {window: 2049, stride: 2048}  # the last token of a window is the first of the next"


def _count(seen: Survey) -> str:
    sizes = approximate_size(seen.total_bytes)
    if seen.whole:
        return f"all {len(seen.objects):,} objects, {sizes}"
    return f"{len(seen.objects):,} objects, {sizes}; there are more"


def _why(seen: Survey, form: str) -> str:
    suffix, count = next(iter(seen.suffixes.items()))
    most = f"{count} of {sum(seen.suffixes.values())} inspected objects are "
    most += f".{suffix}" if suffix else "without a suffix"
    return {
        "files": f"{'joined objects' if seen.join else 'one object'}, one record; {most}",
        "tfrecord": f"records are copied unchanged; {most}",
        "webdataset": f"the members of a tar that share a name are one record; {most}",
        "parquet": f"a row is a record; pip install 'cachecd[parquet]'; {most}",
        "jsonl": f"a line is a record; pip install 'cachecd[text]'; {most}",
        "npy": f"windows of arrays; {most}",
        "python": f"windows of arrays; pip install 'cachecd[{seen.kind}]'; {most}"
        if seen.kind in ("hdf5", "zarr")
        else f"your own class reads the objects; {most}",
    }.get(form, most)


def unknown(seen: Survey) -> str:
    """Returns a sentence if the kind of the objects is unknown, else ""."""
    if seen.kind or seen.join:
        return ""
    suffix = next(iter(seen.suffixes))
    return f"cannot tell what {'.' + suffix if suffix else 'these'} files hold: each file is one record"


def _main(seen: Survey) -> list[ObjectInfo]:
    """Returns the objects of the kind that most objects have."""
    first, *_ = seen.suffixes
    return [o for o in seen.objects if o.size and kind_of(o.key) == kind_of(f"x.{first}")]


def _others(seen: Survey, form: str) -> Iterator[str]:
    """Yields the lines about objects of unknown or other kinds."""
    if form == "files" and not seen.kind:
        yield f"# `init` {unknown(seen)}, its bytes in `payload`."
        yield "# Convert rows of CSV to Parquet. For numbers without a header, run `cachecd init --format"
        yield "# npy`. Otherwise, use format python with your own class (docs/sources.md)."
    others = {o.key for o in seen.objects if o.size} - {o.key for o in _main(seen)}
    suffixes = sorted({key.rpartition(".")[2] for key in others if suffix_of(key)})
    if suffixes and form == "files":
        yield f"skip: {_quoted([f'*.{suffix}' for suffix in suffixes])}  # not read"
    elif suffixes and form != "python" and not (form == "npy" and seen.kind == "npy"):
        named = ", ".join(f".{printable(suffix)}" for suffix in suffixes[:_NAMED])
        yield f"# There are objects with other suffixes too ({named}). Each object that cannot be used is"
        yield "# skipped with its reason; if you do not want them, move them to another prefix."


def _join(seen: Survey) -> Iterator[str]:
    yield f"join:  # objects whose text at * is equal are one record; init saw {seen.joined} records"
    for name, pattern in seen.join.items():
        yield f"  {name}: {_quoted(pattern)}"
    if others := len(seen.objects) - seen.joined * len(seen.join):
        yield f"# init saw {others} more objects. Objects that match no pattern are not read. If an object"
        yield "# of the second or a later pattern is missing, the record is skipped."


def _label(source: SourceConfig, seen: Survey) -> Iterator[str]:
    if seen.labels:
        url = source.address.url_of(seen.labels)
        yield f"label: {{manifest: {_quoted(url)}}}  # a table with key and label"
        return
    if seen.other_table:
        yield f"# {printable(seen.other_table)} gives no labels: it has no columns key (or url) and label"
        yield "# for these objects. With these columns, use label.manifest (docs/sources.md, Manifests)."
    if not seen.folders:
        yield '# label: {pattern: "^([^/]+)/"}  # if a part of the key names the class'
        return
    pattern = "^" + "[^/]+/" * (seen.depth - 1) + "([^/]+)/"
    names = ", ".join(printable(name) for name in seen.folders[:_NAMED])
    more = f" and {len(seen.folders) - _NAMED} more" if len(seen.folders) > _NAMED else ""
    yield f"label:  # the folders {names}{more} look like classes"
    yield f"  pattern: {_quoted(pattern)}"
    yield "  # classes: [...]  # all names, in the order of their numbers: the source is then sampled"
    yield "  # while it is listed, and the numbers are the same on every machine"


def _images(seen: Survey, feature: str) -> Iterator[str]:
    """Yields the lines for images: cached as encoded files if loaders can decode them, else as pixels."""
    step = "decode_image" if feature == "payload" else f"{{decode_image: {feature}}}"
    pixels = f"transform: [{step}, {{resize: 256}}]  # pip install 'cachecd[images]'"
    if seen.is_decodable:
        yield from _encoded(seen, [feature])
        yield "# If a step needs pixels, or stock tf.data reads files, cache pixels. These take more room:"
        yield f"# {pixels}"
    else:
        yield "# Loaders decode JPEG and PNG. The pixels of images in other formats are cached."
        yield pixels


def _encoded(seen: Survey, features: list[str]) -> Iterator[str]:
    """Yields the loader's line for images that are cached as encoded files."""
    sides = [min(size) for size in seen.images]
    masks = [name for name in features if MASK.search(name) and len(features) > 1]
    grey = ', mode="L"' if 0 < len(sides) == seen.grey else ""
    modes = {f: ', mode="L", resample="nearest"' if f in masks else grey for f in features}
    image = f'{min([_SIDE, *sides])}, crop="random", flip=0.5'
    decode = ", ".join(f'"{name}": Image({image}{mode})' for name, mode in modes.items())
    first = next((name for name in features if name not in masks), "")
    rename = f', rename={{"{first}": "image"}}' if first and "image" not in features else ""
    yield "# Images are cached as they are. Loaders decode them (from cachecd_client import Image):"
    yield f"# epoch.torch(256, decode={{{decode}}}{rename})"
    if masks:
        yield "# If masks have colors or a palette, class_map turns them into class numbers: docs/images.md"


def _array(seen: Survey) -> Iterator[str]:
    yield "array:"
    if seen.kind != "npy":
        yield "  dtype: float32  # a guess: please correct it"
        yield "  # shape: [3]  # the shape of a row, if a row is more than one number"
    elif len(seen.suffixes) > 1 and not seen.join:
        yield '  match: "*.npy"'
    yield from (f"  {line}" for line in _windows(seen))
    if seen.join:
        yield "  arrays:  # a record has the same rows of all arrays whose text at * is equal"
        for name, pattern in seen.join.items():
            yield f"    {name}: {_quoted(pattern)}"


def _reader(seen: Survey) -> Iterator[str]:
    if seen.kind not in ("hdf5", "zarr"):
        yield "reader: my_project.data:Reader  # docs/sources.md, Your own reader"
        return
    yield f"reader: cachecd.readers.{seen.kind}:Windows"
    yield "options:"
    yield from (f"  {line}" for line in _windows(seen))
    paths = seen.arrays.paths if seen.arrays else {}
    match list(paths.values()):
        case []:
            yield "  path: data  # the array in each file. init found none: please correct it"
        case [""]:
            pass
        case [path]:
            yield f"  path: {_quoted(path)}"
        case _:
            yield f"  path: {_quoted(paths)}  # arrays with the same number of rows"


def _windows(seen: Survey) -> Iterator[str]:
    if seen.arrays is None:
        yield f"window: {_NUMBERS if seen.kind == '' else 1}  # rows along axis 0 in one record"
        return
    array, fewest, step = seen.arrays.largest, seen.arrays.fewest, seen.arrays.step
    rows, several = array.rows, seen.arrays.count > 1
    if array.axes == 1 and (not several or rows > 64 * _NUMBERS):
        window = _NUMBERS
        record = "numbers in one record, such as the length of a model's context"
    elif not several:
        window, record = 1, "rows in one record"
    elif rows * array.row_bytes <= _ARRAY:
        window, record = fewest, "rows in one record: each object is one record"
        if fewest < rows:
            record = "rows in one record; an object with fewer rows is skipped"
    else:
        window, record = min(fewest, _WINDOW // max(array.row_bytes, 1)), "rows in one record"
    window = max(1, min(window, rows))
    window = max(step, window - window % step)
    yield f"window: {window}  # {record}; the largest object has {rows:,}"


def _directory() -> Path:
    """Returns the writable one of the usual cache directories that has the most free space. If all are on
    one disk, returns the user's own directory."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    best: tuple[int, Path] | None = None
    for place in (home / "cachecd", Path("/var/lib/cachecd"), Path("/var/tmp/cachecd")):
        if not (place.is_absolute() and os.access(_existing(place), os.W_OK)):
            continue
        try:
            refuse_network_filesystem(place)
        except DiskError:
            continue
        if best is None or _free(place) > best[0] + _MIB:
            best = _free(place), place
    if best is None:
        raise DiskError("found no writable local directory for the cache: choose one with --cache")
    return best[1]


def _limit(directory: Path, seen: Survey) -> tuple[int, str]:
    """Returns the limit and its reason: twice the size of the source if the size is known and fits, else
    half of the free space."""
    refuse_network_filesystem(directory)
    free = _free(directory)
    limit = int(free * _SHARE)
    unit = _GIB if limit >= 10 * _GIB else 64 * _MIB
    limit -= limit % unit
    wanted = _GIB * max(1, -(-2 * seen.total_bytes // _GIB))
    if seen.whole and wanted <= limit:
        return wanted, f"the whole source, {approximate_size(seen.total_bytes)}, fits"
    if limit < _GIB:
        raise DiskError(
            f"{directory} has {approximate_size(free)} free, expected at least "
            f"{approximate_size(_GIB / _SHARE)} for a cache: choose another disk with --cache"
        )
    return limit, f"{_SHARE:.0%} of the free space, {approximate_size(free)}"


def _free(directory: Path) -> int:
    return free_bytes(_existing(directory))


def _existing(path: Path) -> Path:
    """Returns the path, or its nearest parent that exists."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _quoted(value: str | list[str] | dict[str, str]) -> str:
    """Quotes text for YAML. A dollar sign is doubled, because it would begin a variable's name."""
    return json.dumps(value).replace("$", "$$")
