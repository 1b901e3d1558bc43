"""Surveys an unknown source for `cachecd init`: reads the names of objects, and the content of a few
objects."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import struct
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from cachecd.cli.array_survey import (
    ArraySurvey,
    Head,
    survey_hdf5,
    survey_npy,
    survey_zarr,
)
from cachecd.cli.json_survey import json_features, json_lines
from cachecd.config.address import Address
from cachecd.config.keypattern import matches
from cachecd.config.urls import TEXT_TABLES
from cachecd.errors import ConfigError, SourceUnreachableError, UnitError
from cachecd.model import ObjectInfo
from cachecd.sampler.encoding import infer
from cachecd.sampler.formats.extensions import features
from cachecd.stores.backend import OF_ZARR, ZARR_ABOVE, LeftOut, is_hidden
from cachecd.stores.fetch import Store
from cachecd.units.tables import read_rows
from cachecd_client._core import count_example, masked_crc32c
from cachecd_client.errors import SchemaError
from cachecd_client.files.inflate import inflated_head
from cachecd_client.files.locate import spread
from cachecd_client.schema import LIST_DTYPES, Feature

_PAGES = 2  # pages at the beginning of the listing
_FOLDERS, _IN_FOLDER = 12, 50  # folders listed after these pages, and objects of each folder
_TOPS = 3  # top folders listed after these folders
_HEAD = 64 << 10  # bytes
_LARGEST_IMAGE = 16 << 20  # bytes
_IMAGES = 4  # images that are read
_MOST_TABLES = 3  # tables that are read
_PACKED, _SAMPLE = 20, 256 << 10  # files of records that are read, and bytes of each
_INFLATED = 4 << 20  # bytes of its content, if it is compressed
_RECORDS = 64  # records of each TFRecord file

_SUFFIXES = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"), "image"),
    **dict.fromkeys(("wav", "flac", "ogg", "mp3"), "audio"),
    **dict.fromkeys(("tar", "tgz", "tar.gz", "tzst", "tar.zst"), "webdataset"),
    **dict.fromkeys(("tfrecord", "tfrecords", "tfrec"), "tfrecord"),
    **dict.fromkeys(("tfrecord.gz", "tfrecord.zst"), "tfrecord"),
    **dict.fromkeys(("jsonl", "jsonl.gz", "jsonl.zst"), "jsonl"),
    **dict.fromkeys(("ndjson", "ndjson.gz", "ndjson.zst"), "jsonl"),
    "parquet": "parquet",
    "npy": "npy",
    **dict.fromkeys(("h5", "hdf5", "nwb"), "hdf5"),
    "zarr": "zarr",
}
_SUFFIX = re.compile(
    r"\.((?:tar|tfrecord|jsonl|ndjson|json)\.(?:gz|zst)|[a-z0-9]{1,10})(?:-\d+-of-\d+)?$"
)
_SPLITS = {"train", "training", "val", "valid", "validation", "eval", "test", "testing"}
_ROLE = (
    "((?:jpeg)?image|img|jpe?g|png|photo|frame|audio|wav|input|mask|label|annotation"
    "|segmentation(?:class)?|seg|gt|depth|target|text|txt|caption|transcript|json|xml)s?"
)
_OBJECT = re.compile(
    rf"(?:(?P<above>(?:.*/)?){_ROLE}/)?(?P<text>.+?)(?:[._/-]{_ROLE})?\.(?P<suffix>[a-z][a-z0-9]*)",
    re.I | re.A,
)
"""A folder and the end of a name may say what an object is; `text` is common to objects of a pair."""
MASK = re.compile("mask|label|annot|seg|gt", re.I)
_NUMBERED = re.compile(r"\d{4}-?\d\d(-?\d\d)?|(part|shard|batch|chunk)[-_]?\d+")


@dataclass(slots=True)
class Survey:
    """The findings of a survey.

    `kind`: the kind with the most bytes: image, audio, webdataset, tfrecord, parquet, jsonl, npy, hdf5,
    zarr, or "" for another kind. `suffixes`: the number of objects by suffix, the most frequent first.
    `whole`: `objects` has all objects of the source. `folders`: names of folders that look like classes, at
    level `depth`. `splits`: names of folders that look like parts of the data. `join`: patterns of objects
    that belong together, by feature. `joined`: the number of texts for which all patterns have an object.
    With `join`, `folders` are parts of these texts. `labels`: the key of a table with labels for these
    objects. `other_table`: the key of another table in the source. `left_out`: objects that a listing
    omits; `objects` does not have them.
    """

    objects: list[ObjectInfo]
    whole: bool
    kind: str = ""
    suffixes: dict[str, int] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    depth: int = 0
    splits: list[str] = field(default_factory=list)
    join: dict[str, str] = field(default_factory=dict)
    joined: int = 0
    images: list[tuple[int, int]] = field(default_factory=list)  # height, width of some images
    grey: int = 0  # how many of these images are grey
    arrays: ArraySurvey | None = None
    members: list[str] = field(default_factory=list)  # extensions in a tar's first samples
    columns: list[str] = field(default_factory=list)  # names in the first JSON lines
    texts: list[str] = field(default_factory=list)  # those whose values are single texts
    varying: list[Feature] = field(default_factory=list)  # declared so that all read records fit
    labels: str = ""
    other_table: str = ""
    left_out: LeftOut = field(default_factory=LeftOut)

    @property
    def total_bytes(self) -> int:
        return sum(o.size for o in self.objects)

    @property
    def is_decodable(self) -> bool:
        """Whether loaders can decode most of the images, by their suffixes."""
        suffix = next(filter(is_image, self.members or self.suffixes), "")
        return suffix in ("", "jpg", "jpeg", "png")


def survey(store: Store, url: str) -> Survey:
    """Lists the beginning of a source and some later folders, and reads a few objects. `store` must
    include hidden names.

    SourceUnreachableError; ConfigError if the source has no objects with content.
    """
    found, left_out = _listed(store), LeftOut()
    listed = found.objects
    found.objects = [o for o in listed if not is_hidden(o.key)]
    objects = [o for o in listed if left_out.keeps(o.key, not o.size)]
    if not objects:
        omitted = f" (omitted: {left_out})" if left_out.kinds else ""
        raise ConfigError(
            f"no objects with content under {url}: check the names of its folders{omitted}"
        )
    if any(o.key in OF_ZARR for o in objects) and not any(".zarr/" in o.key for o in objects):
        raise ConfigError(f"{url}: {ZARR_ABOVE}")
    suffixes = Counter(suffix_of(o.key) for o in objects)
    found.suffixes = dict(suffixes.most_common())
    sizes: Counter[str] = Counter()
    for o in objects:
        sizes[kind_of(o.key)] += o.size
    found.kind = max(sizes, key=lambda kind: sizes[kind])
    asyncio.run(_look_into(store, found, objects, url))
    is_joined = bool(found.join) and found.kind != "npy"
    found.objects = [
        o
        for o in listed
        if found.left_out.keeps(o.key, not o.size and (not is_joined or o.key.endswith("/")))
    ]
    return found


def suffix_of(key: str) -> str:
    """Returns the suffix in lower case without its dot. The suffix of ``a.tfrecord-00000-of-00010`` is
    tfrecord. All objects in a folder ``a.zarr/`` have the suffix zarr."""
    if ".zarr/" in key:
        return "zarr"
    named = _SUFFIX.search(key.rpartition("/")[2].lower())
    return named[1] if named else ""


def _listed(store: Store) -> Survey:
    pages = store.list()
    objects = [o for page in islice(pages, _PAGES) for o in page]
    rest = next(pages, None)
    if not rest:
        return Survey(objects, whole=rest is None)
    last = objects[-1].key if objects else ""
    for part in (str.rpartition,) * _FOLDERS + (str.partition,) * _TOPS:
        folder, slash, _ = part(last, "/")
        if not slash:
            break
        # "0" is the next character after "/", so the listing starts with the next folder.
        page = next(store.list(f"{folder}0"), [])[:_IN_FOLDER]
        if not page:
            break
        objects += page
        last = page[-1].key
    return Survey(objects, whole=False)


async def _look_into(store: Store, found: Survey, objects: Sequence[ObjectInfo], url: str) -> None:
    """Completes the survey with the content of some objects and the names of all objects."""
    head = partial(_head, store)
    chosen = [o for o in objects if kind_of(o.key) == found.kind]
    largest = max(chosen, key=lambda o: o.size)
    if not found.kind:
        found.kind = _sniff(await head(largest, _SAMPLE), largest.size)
        chosen = [o for o in chosen if suffix_of(o.key) == suffix_of(largest.key)]
    is_packed = found.kind in ("webdataset", "tfrecord", "jsonl")
    packed = [chosen[i] for i in spread(len(chosen), _PACKED)] if is_packed else []
    heads = await asyncio.gather(*(head(o, _SAMPLE) for o in packed))
    bodies = [inflated_head(body, _INFLATED) for body in heads]
    match found.kind:
        case "image":
            small = [o for o in chosen if o.size <= _LARGEST_IMAGE]
            images = small[:: max(1, len(small) // _IMAGES)][:_IMAGES]
            for body in await asyncio.gather(*(head(o, o.size) for o in images)):
                _note_image(found, body)
        case "webdataset":
            parts = [_samples(body) for body in bodies]
            found.members = sorted({name for part in parts for s in part for name in s})
            bodies_of_images = (s[n] for part in parts for s in part for n in filter(is_image, s))
            _note_image(found, next(bodies_of_images, b""))
            # The last sample in a part of a tar may lack members.
            is_cut = (
                o.size > _SAMPLE or len(body) == _INFLATED
                for o, body in zip(packed, bodies, strict=True)
            )
            ends = [-1 if cut else None for cut in is_cut]
            whole = (s for part, end in zip(parts, ends, strict=True) for s in part[:end])
            found.varying = _varying([s for s in map(_decoded, whole) if s])
        case "tfrecord":
            found.varying = _varying([each for body in bodies for each in _examples(body)])
        case "jsonl":
            records = [each for body in bodies for each in json_features(body)]
            found.columns = sorted({name for record in records for name in record})
            others = {
                n for r in records for n, f in r.items() if (f.dtype, f.shape) != ("bytes", ())
            }
            found.texts = [name for name in found.columns if name not in others]
            found.varying = _varying(records)
        case "npy":
            found.arrays = await survey_npy(head, [[o] for o in chosen])
        case "zarr":
            found.arrays = await survey_zarr(head, chosen)
        case "hdf5":
            found.arrays = await survey_hdf5(head, chosen)
    texts = _find_join(found, [o.key for o in found.objects])
    if found.kind == "npy" and texts:
        by_key = {o.key: o for o in found.objects}
        patterns = found.join.values()
        groups = [[by_key[p.replace("*", text)] for p in patterns] for text in texts]
        arrays = await survey_npy(head, groups)
        found.join = {} if arrays is None else found.join
        found.arrays = arrays or found.arrays
    keys = texts or [o.key for o in objects]
    _find_classes(found, keys)
    await _find_tables(head, found, objects, url, keys)


async def _head(store: Store, o: ObjectInfo, length: int = _HEAD) -> bytes:
    """Returns the object's first bytes, or no bytes if the object cannot be read, because the next object
    may be readable."""
    try:
        return bytes(await store.get(o.key, o.size, o.etag, 0, min(length, o.size)))
    except UnitError:
        return b""


def kind_of(key: str) -> str:
    """Returns the kind of objects with this key's suffix, or "" for an unknown suffix."""
    return _SUFFIXES.get(suffix_of(key), "")


def _sniff(head: bytes, size: int) -> str:
    """Returns the kind that an object's first bytes show, or ""."""
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    if head[257:262] == b"ustar":
        return "webdataset"
    if len(head) >= 12:
        length, crc = struct.unpack_from("<QI", head)
        if length + 16 <= size and masked_crc32c(head[:8]) == crc:
            return "tfrecord"
    # A single line may be a file of one JSON document.
    if len(json_lines(inflated_head(head, _INFLATED))) > 1:
        return "jsonl"
    return "image" if image_header(head) else ""


def image_header(body: bytes) -> tuple[tuple[int, int], bool] | None:
    """Returns the height and width of an image, and whether it is grey."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        return None  # the extra `images` is not installed, so only names show images

    try:
        with Image.open(io.BytesIO(body)) as image:  # reads only the header
            return (image.height, image.width), image.mode.startswith(("1", "L", "I"))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _note_image(found: Survey, body: bytes) -> None:
    if header := image_header(body):
        size, grey = header
        found.images.append(size)
        found.grey += grey


def _samples(head: bytes) -> list[dict[str, bytes]]:
    """Returns the samples in a tar file's first bytes: extension -> content."""
    samples: dict[str, dict[str, bytes]] = {}
    with (
        contextlib.suppress(tarfile.TarError, OSError, EOFError, ValueError),
        tarfile.open(fileobj=io.BytesIO(head), mode="r|") as archive,
    ):
        for member in archive:
            folder, _, base = member.name.rpartition("/")
            stem, _, name = base.partition(".")
            if name and (file := archive.extractfile(member)):
                sample = samples.setdefault(f"{folder}/{stem}", {})
                sample[name.lower()] = b""  # if reading the member fails
                sample[name.lower()] = file.read() if member.size <= _LARGEST_IMAGE else b""
    return list(samples.values())


def _decoded(sample: Mapping[str, bytes]) -> dict[str, Feature]:
    """Returns the features of a sample, or none if a worker would skip the sample."""
    try:
        values = dict(each for name, body in sample.items() for each in features(name, body))
        return {feature.name: feature for feature in infer(values).features}
    except (ValueError, SchemaError):
        return {}


def _examples(head: bytes) -> Iterator[dict[str, Feature]]:
    """Yields the features of the whole records in a TFRecord file's first bytes."""
    for _ in range(_RECORDS):
        if len(head) < 16:
            return
        end = struct.unpack_from("<Q", head)[0] + 12
        try:
            counts = count_example(head[12:end]) if end + 4 <= len(head) else {}
        except ValueError:
            return
        if not counts:
            return
        yield {
            name: Feature(name, kind, LIST_DTYPES[kind], None if not n else () if n == 1 else (n,))
            for name, (kind, n) in counts.items()
        }
        head = head[end + 4 :]


def _varying(records: Sequence[Mapping[str, Feature]]) -> list[Feature]:
    """Returns the features that some records lack, or whose number of values differs between records,
    declared so that all these records fit. Omits features that no declaration fits."""
    varying = []
    for name in sorted({name for record in records for name in record}):
        forms = [record[name] for record in records if name in record]
        shapes = {form.shape for form in forms}
        is_missing = len(forms) < len(records)
        fits = len({form.dtype for form in forms}) == 1 and (
            len(shapes) == 1 or all(shape is None or len(shape) < 2 for shape in shapes)
        )
        if fits and (is_missing or len(shapes) > 1):
            shape = forms[0].shape if len(shapes) == 1 else None
            optional = is_missing and shape is not None
            varying.append(replace(forms[0], shape=shape, optional=optional))
    return varying


def is_image(suffix: str) -> bool:
    """Whether files with this suffix are images."""
    return _SUFFIXES.get(suffix) == "image"


def _find_join(found: Survey, keys: Sequence[str]) -> list[str]:
    """Finds patterns of objects that belong together: their names are equal except for the suffix, a
    folder or the end of the name. Returns the texts at the *, or nothing if there are no such
    patterns."""
    records: dict[tuple[str, str], dict[str, re.Match[str]]] = {}
    for key in keys if found.kind in ("image", "audio", "npy", "") else ():
        if "*" not in key and (match := _OBJECT.fullmatch(key)):
            pattern = f"{key[: match.start('text')]}*{key[match.end('text') :]}"
            records.setdefault((match["above"] or "", match["text"]), {})[pattern] = match
    counts = Counter(pattern for record in records.values() for pattern in record)
    groups = Counter(frozenset(record) for record in records.values() if len(record) > 1)
    ((patterns, _),) = groups.most_common(1) or [(frozenset[str](), 0)]
    joined = {at: record for at, record in records.items() if patterns <= record.keys()}
    if not groups or len(joined) < max(2, min(counts[p] for p in patterns) / 2):
        return []

    def order(pattern: str) -> tuple[bool, bool, bool, str]:
        """Returns the sort key of a pattern. A dataset lists the first pattern, which must match no
        objects of other patterns, and should be the input."""
        matches_others = any(matches(pattern, p.replace("*", "x")) for p in patterns - {pattern})
        is_input = kind_of(pattern) in ("image", "audio")
        return matches_others, bool(MASK.search(pattern)), not is_input, pattern

    example = next(iter(joined.values()))
    for pattern in sorted(patterns, key=order):
        _, folder, _, role, suffix = (part and part.lower() for part in example[pattern].groups())
        names = (role, folder, _SUFFIXES.get(suffix), suffix, f"object{len(found.join)}")
        features = (f"{n}s" if n in ("key", "label") else n for n in names if n)
        found.join[next(name for name in features if name not in found.join)] = pattern
    found.joined = len(joined)
    return sorted(text for _, text in joined)


def _find_classes(found: Survey, keys: Sequence[str]) -> None:
    """Notes the folders of most objects if they look like classes, and the top folders if they look like
    parts of the data."""
    depth = Counter(key.count("/") for key in keys).most_common(1)[0][0]
    folders = [key.split("/")[depth - 1] for key in keys if depth and key.count("/") == depth]
    names = sorted(set(folders))
    tops = {key.split("/")[0] for key in keys if "/" in key}
    found.splits = sorted(tops) if {t.lower() for t in tops} <= _SPLITS else []
    own = len(names) > 2 and len(names) > len(folders) / 2  # fewer than two objects per folder
    numbered = all(_NUMBERED.fullmatch(name.lower()) for name in names)
    counted = len({len(n) for n in names}) == 1 and re.fullmatch(r"0\d\d+", names[0])
    split = {name.lower() for name in names} <= _SPLITS
    if len(names) > 1 and not (own or numbered or counted or split):
        found.folders, found.depth = names, depth


async def _find_tables(
    head: Head, found: Survey, objects: Sequence[ObjectInfo], url: str, keys: Sequence[str]
) -> None:
    """Notes a table with labels for these objects, or another table in the source."""
    if found.kind not in ("image", "audio", ""):
        return
    tables = [o for o in objects if o.key.lower().endswith(TEXT_TABLES)]
    if len(tables) == len(objects):
        return  # the records are in the tables
    known = set(keys)
    for table in tables[:_MOST_TABLES]:
        # A block of Zstandard may need as many bytes before its first row appears.
        body = io.BytesIO(await head(table, _SAMPLE))
        rows = read_rows(body, table.key, ("key", "url", "label"), lambda place, why: None)
        try:
            (fields,) = (row.fields for row in islice(rows, 1))
        except (ConfigError, SourceUnreachableError, ValueError):
            fields = {}
        key = fields.get("key") or Address.of(url).key_of(str(fields.get("url", "")))
        if "label" in fields and (key in known or not found.whole):
            found.labels = table.key
            return
        found.other_table = found.other_table or table.key
