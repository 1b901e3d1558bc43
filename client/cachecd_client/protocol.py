"""The messages between trainer and daemon, and their form on the wire.

A message is one ZeroMQ multipart of two frames after the routing envelope: `VERSION_FRAME` and one
JSON object ``{"type": <class name>, ...fields}`` in UTF-8: a request at most MAX_MESSAGE_BYTES long, no
text in it longer than MAX_TEXT, a reply at most MAX_REPLY_BYTES. Requests carry an `id` chosen by the
client; a request sent again, the same in every byte, gets the same reply and has no second effect, so
a client may repeat one after a timeout or across a restart of the daemon.

The major version is frozen with the field names below; unknown fields are ignored on reading, so
a minor version may add some. For all majors alike: the first frame is the version frame, and whoever
reads another major's answers with its own.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cachecd_client.errors import ProtocolVersionError

MAJOR, MINOR = 1, 0
VERSION_FRAME = f"cachecd/{MAJOR}.{MINOR}".encode()
MAX_MESSAGE_BYTES = 1 << 20
MAX_REPLY_BYTES = 64 << 20  # a status document names every lease
MAX_TEXT = 1024  # characters of a job's or a dataset's name, a reason, an id
MAX_KEY = 1 << 14  # characters of an object's key, which may be a signed URL
MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class Acquire:
    """Asks for the file set of `epoch`; idempotent per (dataset, job, epoch) while granted or held.

    A run that resumes names the manifest that it had. With `fingerprint` it gets the very set again if all
    of it is still here, else the set that there is. A generation that never sealed a shard begins at
    `cursor`, if its walk is `walk`, with numbers above these `shards`.
    """

    id: str
    dataset: str
    job: str
    epoch: int
    local_rank: int = 0
    local_world_size: int = 1
    generation: str = ""
    shards: list[list[int]] = field(default_factory=list)
    fingerprint: str = ""
    walk: str = ""
    cursor: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """Says that this rank holds its read lock on the lease's manifest."""

    id: str
    lease: str
    local_rank: int = 0


@dataclass(frozen=True, slots=True)
class Delivered:
    """Says which records of a lease trainers were given, over all ranks of the node: of each of these
    ascending ranges of its shards so many thousandths, 0 to 1000. What another request says again counts
    again. Nothing else counts: a client that reads files without counting says 1000 of all."""

    id: str
    lease: str
    shards: list[list[int]]
    shares: list[int]


@dataclass(frozen=True, slots=True)
class Released:
    """Says that this rank has closed its manifest; a hint to probe now, never a proof."""

    id: str
    lease: str
    local_rank: int = 0


@dataclass(frozen=True, slots=True)
class ReportCorrupt:
    """A record whose CRC failed while it was read under a lease."""

    id: str
    dataset: str
    shard: int
    offset: int
    why: str


@dataclass(frozen=True, slots=True)
class AskStatus:
    """Asks for the status document."""

    id: str


@dataclass(frozen=True, slots=True)
class Exclude:
    """Takes the units of the object `key` out of the dataset, for good, or only the one that begins at
    its byte `begin`. Idempotent."""

    id: str
    dataset: str
    key: str
    begin: int | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """Answer to Acquire: lock `manifest`, then say Held. `cache_dir` is the daemon's path to it.

    `coverage`: the share of the source's units that were in a shard at least once, 0..1.
    """

    id: str
    lease: str
    cache_dir: str
    manifest: str  # relative to cache_dir, so that a container may mount the cache elsewhere
    coverage: float | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Answer to Acquire and Exclude: not yet. Ask again; the figures say how far it is."""

    id: str
    have_bytes: int
    want_bytes: int
    bytes_per_second: float
    reason: str = ""  # for example the source's last error, when ingest is stopped


@dataclass(frozen=True, slots=True)
class Done:
    """Answer to Held, Delivered, Released and ReportCorrupt."""

    id: str


@dataclass(frozen=True, slots=True)
class Excluded:
    """Answer to Exclude: so many units it was about, and so many shards with records of theirs no later
    lease names."""

    id: str
    units: int
    shards: int


@dataclass(frozen=True, slots=True)
class StatusReply:
    """Answer to AskStatus; the document is described in docs/reference.md."""

    id: str
    status: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """The request cannot be met. `code` names the client's error class; `message` is for people."""

    id: str
    # "unknown-dataset" | "bad-request" | "version" | "lease-lost" | "impossible" | "contradicted"
    code: str
    message: str


Request = Acquire | Held | Delivered | Released | ReportCorrupt | AskStatus | Exclude
Reply = Granted | Waiting | Done | StatusReply | Excluded | Refused
Message = Request | Reply

REQUESTS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        Acquire,
        Held,
        Delivered,
        Released,
        ReportCorrupt,
        AskStatus,
        Exclude,
    )
}
REPLIES: dict[str, type[Any]] = {
    cls.__name__: cls for cls in (Granted, Waiting, Done, StatusReply, Excluded, Refused)
}
#: What answers what, besides Refused.
ANSWERS: dict[type[Any], tuple[type[Any], ...]] = {
    Acquire: (Granted, Waiting),
    Held: (Done,),
    Delivered: (Done,),
    Released: (Done,),
    ReportCorrupt: (Done,),
    AskStatus: (StatusReply,),
    Exclude: (Excluded, Waiting),
}


def encode(message: Message) -> list[bytes]:
    """The message's frames, without a routing envelope."""
    body = {"type": type(message).__name__, **dataclasses.asdict(message)}
    return [VERSION_FRAME, json.dumps(body, separators=(",", ":")).encode()]


def major_of(frame: bytes) -> int | None:
    """The major version a version frame names, or None if it is no version frame."""
    name, _, version = frame.partition(b"/")
    major, _, _ = version.partition(b".")
    return int(major) if name == b"cachecd" and major.isdigit() and len(major) < 6 else None


def decode_reply(frames: list[bytes]) -> Reply:
    """The reply in `frames`; ValueError if they are no reply of this major version."""
    if len(frames) != 2 or major_of(frames[0]) != MAJOR:
        raise ValueError(f"expected [{VERSION_FRAME!r}, reply], got {[f[:40] for f in frames[:3]]}")
    try:
        body = json.loads(frames[1])
    except RecursionError:
        raise ValueError("its body is nested without end") from None
    kind = body.pop("type", None) if isinstance(body, dict) else None
    cls = REPLIES.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ValueError(f"not a reply: {frames[1][:200]!r}")
    known = {f.name: body[f.name] for f in dataclasses.fields(cls) if f.name in body}
    _check(cls, known)
    try:
        reply: Reply = cls(**known)
    except TypeError as error:
        raise ValueError(str(error)) from None
    return reply


def _check(cls: type[Any], found: dict[str, Any]) -> None:
    """ValueError for a value that is not of its field's type."""
    for f in dataclasses.fields(cls):
        if f.name in found and not _is(found[f.name], str(f.type)):
            name = f"{cls.__name__}.{f.name}"
            raise ValueError(f"{name} is {str(found[f.name])[:40]!r}, expected {f.type}")


def _is(value: Any, annotation: str) -> bool:
    """Whether what JSON gave is of the type that a field's annotation names."""
    match annotation:
        case "str":
            return isinstance(value, str)
        case "int":
            return type(value) is int and -(1 << 63) <= value < 1 << 64
        case "int | None":
            return value is None or _is(value, "int")
        case "bool":
            return isinstance(value, bool)
        case "float":
            return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)
        case "float | None":
            return value is None or _is(value, "float")
        case "list[int]":
            return isinstance(value, list) and all(_is(n, "int") for n in value)
        case "list[list[int]]":
            return isinstance(value, list) and all(
                isinstance(pair, list) and len(pair) == 2 and all(_is(n, "int") for n in pair)
                for pair in value
            )
        case "dict[str, Any]":
            return isinstance(value, dict)
        case _:
            raise AssertionError(f"a message cannot have a field of type {annotation}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """A lease on disk: the JSON in ``leases/<lease>.json``. Fixed for the lease's life.

    `shards` are inclusive ranges of shard numbers; a shard's file is
    ``<manifest's folder>/../shards/<dataset>/<number as 10 digits>.tfrecord``. `cursor`: where the
    sampler's walk named `walk` was when the lease was granted.
    """

    version: int
    lease: str
    dataset: str
    job: str
    epoch: int
    generation: str
    shards: list[list[int]]
    num_records: int
    num_bytes: int
    seed: int
    window: int | None  # shuffle window in bytes; None: the whole set
    pinned: bool
    fingerprint: str
    schema: dict[str, Any] = field(default_factory=dict)
    walk: str = ""
    cursor: int = 0

    def numbers(self) -> list[int]:
        """All shard numbers, ascending."""
        return numbers_of(self.shards)


def numbers_of(shards: Iterable[Sequence[int]]) -> list[int]:
    """All numbers of inclusive ranges, in their order."""
    return [n for first, last in shards for n in range(first, last + 1)]


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as its file holds it."""
    # Not asdict, which copies each range and each value of the schema: 3 ms for a hundred ranges.
    body = {field.name: getattr(manifest, field.name) for field in dataclasses.fields(manifest)}
    return json.dumps(body, separators=(",", ":")).encode()


def decode_manifest(text: bytes) -> Manifest:
    """The inverse of encode_manifest; fields of later minor versions are ignored.

    ValueError if it is no manifest; ProtocolVersionError if it is one of another version.
    """
    try:
        body = json.loads(text)
        if body["version"] != MANIFEST_VERSION:
            raise ProtocolVersionError(
                f"manifest version {body['version']}, expected {MANIFEST_VERSION}: "
                "install cachecd and cachecd-client of the same release"
            )
        known = {f.name for f in dataclasses.fields(Manifest)}
        fields = {k: v for k, v in body.items() if k in known}
        _check(Manifest, fields)
        manifest = Manifest(**fields)
        last = 0
        for first, end in manifest.shards:
            if not last < first <= end:
                raise ValueError(f"shards {first} to {end} after {last}, expected ascending ranges")
            last = end
        return manifest
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"not a lease manifest: {error!r} in {text[:200]!r}") from error
