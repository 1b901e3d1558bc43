"""The messages between trainer and daemon, and their encoding.

A message is one ZeroMQ multipart of two frames after the routing envelope: `VERSION_FRAME` and a JSON
object ``{"type": <class name>, ...fields}`` in UTF-8. A request has at most MAX_MESSAGE_BYTES, and each of
its texts at most MAX_TEXT characters; a reply has at most MAX_REPLY_BYTES. The client chooses the `id` of a
request. If the client sends the same bytes again, it gets the same reply, and the request has no second
effect. So a client may repeat a request after a timeout or across a restart of the daemon.

The major version fixes the field names below. Readers ignore unknown fields, so a minor version may add
fields. In every major version the first frame is the version frame, and a reader of another major version
answers with its own version frame.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from cachecd_client.errors import CallerError, ProtocolVersionError
from cachecd_client.message_fields import check_fields

MAJOR, MINOR = 1, 0
VERSION_FRAME = f"cachecd/{MAJOR}.{MINOR}".encode()
MAX_MESSAGE_BYTES = 1 << 20
MAX_REPLY_BYTES = 64 << 20  # a status document names every lease
MAX_TEXT = 1024  # characters of a job's or a dataset's name, a reason, an id
MAX_SPANS = 64  # of a report
MAX_KEY = 1 << 14  # characters of an object's key, which may be a signed URL
MANIFEST_VERSION = 2

#: A piece of work for a timeline: its name, its begin on CLOCK_MONOTONIC in seconds, and its seconds.
Span = tuple[str, float, float]
Shards = TypeVar("Shards", int, NDArray[np.int64])


@dataclass(frozen=True, slots=True)
class Acquire:
    """Requests the file set of `epoch`; idempotent per (dataset, job, epoch) while granted or held.

    `delivered`: the fraction (0 to 1) of this rank's part of `lease` that was delivered since the rank's
    last report.

    A run that resumes has `streams` > 0 and names its previous set: generation, `shards` as intervals
    [stream, first j, last j], fingerprint. It gets the same set if that is still cached as a whole, else
    the current set. A generation that never sealed a shard adopts `sampling_seed`, `streams` and `place`.
    """

    id: str
    dataset: str
    job: str
    epoch: int
    local_rank: int = 0
    local_world_size: int = 1
    lease: str = ""
    delivered: float = 0.0
    generation: str = ""
    shards: list[list[int]] = field(default_factory=list)
    fingerprint: str = ""
    sampling_seed: int = 0
    streams: int = 0
    place: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """Reports that this rank holds its read lock on the lease's manifest."""

    id: str
    lease: str
    local_rank: int = 0


@dataclass(frozen=True, slots=True)
class Released:
    """Reports that this rank closes its manifest after the reply: a hint to probe the lock, not a proof.
    `delivered`: as in Acquire. A client that cannot count reports 1.0."""

    id: str
    lease: str
    local_rank: int = 0
    delivered: float = 0.0


@dataclass(frozen=True, slots=True)
class ReportCorrupt:
    """Reports a record with a wrong CRC: in shard number `shard`, at byte `offset`."""

    id: str
    dataset: str
    generation: str
    shard: int
    version: int
    offset: int
    why: str


@dataclass(frozen=True, slots=True)
class AskStatus:
    """Requests the status document; with `why`, the story of a shard (DATASET/NUMBER or
    DATASET/GENERATION/NUMBER) or of a lease instead."""

    id: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class AskDetails:
    """Requests what a bug report needs besides the status document."""

    id: str


@dataclass(frozen=True, slots=True)
class AskSpans:
    """Requests the spans that ended in the last `seconds`, at most a minute, for a timeline."""

    id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Exclude:
    """Permanently excludes all records of these keys from the dataset, or these samples of a single key.
    Idempotent. `ahead`: also keys that no object or sample has; otherwise the daemon refuses these keys, as
    soon as it knows them."""

    id: str
    dataset: str
    keys: list[str]
    ahead: bool
    samples: list[str] = field(default_factory=list)


def sample_names(samples: Sequence[str | bytes]) -> list[str]:
    """Returns the samples as Exclude names them: bytes that are not UTF-8 become escapes. CallerError for a
    single name instead of a list."""
    if isinstance(samples, (str, bytes)):
        raise CallerError(f"samples={samples!r}, expected a list of names: [{samples!r}]")
    return [os.fsencode(sample).decode("utf-8", "backslashreplace") for sample in samples]


@dataclass(frozen=True, slots=True)
class Granted:
    """Answer to Acquire: lock `manifest`, then send Held. `cache_dir`: the cache's path in the daemon.

    `coverage`: the share of the source's units that were in a shard at least once, 0..1. `note`: why the
    lease is the lease of an earlier epoch, or why the set lacks shards. `stopped`: why fetching is paused.
    `skipped`: how many records between the records of the set could not be used, and why; "": none.
    """

    id: str
    lease: str
    cache_dir: str
    manifest: str  # relative to cache_dir, so that a container may mount the cache elsewhere
    coverage: float | None = None
    note: str = ""
    stopped: str = ""
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Answer to Acquire and Exclude: not ready. Send the request again; the figures show the progress."""

    id: str
    have_bytes: int
    want_bytes: int
    bytes_per_second: float
    reason: str = ""  # for example the source's last error, when ingest is stopped


@dataclass(frozen=True, slots=True)
class Done:
    """Answer to Held, Released, ReportCorrupt and Exclude."""

    id: str


@dataclass(frozen=True, slots=True)
class StatusReply:
    """Answer to AskStatus: the document that docs/commands.md describes, or a story: `since`, `now`, and
    `story` with `at`, `what` and `reason` of each sentence. Answer to AskDetails: `config` without secrets
    and the whole `story` without reasons."""

    id: str
    status: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SpansReply:
    """Answer to AskSpans: the spans by the name of their process. `complete_since`: the daemon has dropped
    no span that ended later, by the monotonic clock."""

    id: str
    spans: dict[str, list[Span]]
    complete_since: float = 0.0


@dataclass(frozen=True, slots=True)
class Refused:
    """The daemon refuses the request. `code` names the client's error class; `message` is for people."""

    id: str
    # "unknown-dataset" | "unknown-key" | "bad-request" | "version" | "lease-lost" | "split-changed"
    # | "impossible" | "contradicted"
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class TrainerReport:
    """The progress and the waits of one process that reads an epoch. The process sends this report as a
    datagram to the socket `reports_of(endpoint)`: one JSON object, at most once a second, without a reply,
    and lost if nobody reads it.

    The figures count from the begin of the epoch in this process. `waited_s`: no batch was ready;
    `elsewhere_s`: the rest of the time within passes. `stages_s`: `waited_s` by what the reader did
    meanwhile (lease, open, read, verify, decode, assemble, prepare, copy, gil, other). `queue`: the fill of
    the queue now, 0..1; None if the reader has none. `memory`: bytes that the process may use.
    `random_bytes`: bytes of the set that are read at random at a time. `reads_per_record`: as in
    `epoch.report()`. `gil_s`: how long a thread that wanted the GIL waited for it lately. `first`: it
    waits for the first set of the job. `blind`: what this reader cannot see, or "". `spans`: the longest
    waits and copies since the last report, at most MAX_SPANS.
    """

    dataset: str
    job: str
    rank: int
    pid: int
    epoch: int
    reader: str
    steps: int
    records: int
    bytes: int
    waited_s: float
    elsewhere_s: float
    stages_s: dict[str, float]
    queue: float | None = None
    memory: int = 0
    random_bytes: int = 0
    reads_per_record: float = 0.0
    gil_s: float = 0.0
    first: bool = False
    blind: str = ""
    spans: list[Span] = field(default_factory=list)


Request = Acquire | Held | Released | ReportCorrupt | AskStatus | AskDetails | AskSpans | Exclude
Reply = Granted | Waiting | Done | StatusReply | SpansReply | Refused
Message = Request | Reply

REQUESTS: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Request)}
REPLIES: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Reply)}
#: The replies to each request, besides Refused.
ANSWERS: dict[type[Any], tuple[type[Any], ...]] = {
    Acquire: (Granted, Waiting),
    Held: (Done,),
    Released: (Done,),
    ReportCorrupt: (Done,),
    AskStatus: (StatusReply,),
    AskDetails: (StatusReply,),
    AskSpans: (SpansReply,),
    Exclude: (Done, Waiting),
}


def encode(message: Message) -> list[bytes]:
    """Returns the message's frames, without a routing envelope."""
    # Not `asdict`, which copies each value of a long reply.
    fields = {each.name: getattr(message, each.name) for each in dataclasses.fields(message)}
    body = {"type": type(message).__name__, **fields}
    return [VERSION_FRAME, json.dumps(body, separators=(",", ":")).encode()]


def major_of(frame: bytes) -> int | None:
    """Returns the major version in a version frame; None if it is not a version frame."""
    name, _, version = frame.partition(b"/")
    major, _, _ = version.partition(b".")
    return int(major) if name == b"cachecd" and major.isdigit() and len(major) < 6 else None


def decode_reply(frames: list[bytes]) -> Reply:
    """Returns the reply in `frames`; ValueError if they are not a reply of this major version."""
    if len(frames) != 2 or major_of(frames[0]) != MAJOR:
        raise ValueError(f"expected [{VERSION_FRAME!r}, reply], got {[f[:40] for f in frames[:3]]}")
    try:
        body = json.loads(frames[1])
    except RecursionError:
        raise ValueError("its body is nested too deeply") from None
    reply: Reply = parse(REPLIES, body)
    return reply


def parse(kinds: Mapping[str, type[Any]], body: Any) -> Any:
    """Returns the message in a JSON value, which must be of one of these kinds; ignores unknown fields.
    ValueError, with the name of the field, if a field is missing or has another type."""
    kind = body.get("type") if isinstance(body, dict) else None
    cls = kinds.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ValueError(f"unknown type of message: {str(body)[:200]}")
    known = {f.name: body[f.name] for f in dataclasses.fields(cls) if f.name in body}
    check_fields(cls, known)
    try:
        return cls(**known)
    except TypeError as error:
        raise ValueError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A lease on disk: the JSON in ``leases/<lease>.json``. It never changes.

    The set has the shards j = `first` to `last` of each interval [stream, first, last]; `shard_number`
    computes their numbers. A shard's file is
    ``<manifest's folder>/../datasets/<dataset>/<generation>/shards/<number as 10 digits>.tfrecord``, or
    ``<number as 10 digits>.<version>.tfrecord`` if `versions` has [number, version].
    """

    version: int
    lease: str
    dataset: str
    generation: str
    job: str
    epoch: int
    streams: int
    intervals: list[list[int]]
    versions: list[list[int]]
    num_records: int
    num_bytes: int
    fingerprint: str  # names the records
    seed: int  # of the reading order
    sampling_seed: int
    pinned: bool
    ranks: int  # processes that share the lease
    place: int  # the smallest place of all streams when the lease was granted
    source_records: int = 0  # estimated records of the source; 0: unknown
    num_skipped: int = 0  # unusable records of the source between the records of the set
    window: int | None = None  # shuffle window in bytes; None: the whole set
    schema: dict[str, Any] = field(default_factory=dict)


def shard_number(streams: int, stream: int, j: Shards) -> Shards:
    """Returns the number of shard j of a stream, for one j or an array. Stream `streams` has the
    supplements."""
    return j * (streams + 1) + stream


def shard_place(streams: int, number: int) -> tuple[int, int]:
    """Returns (stream, j) for the number of a shard: the inverse of `shard_number`."""
    j, stream = divmod(number, streams + 1)
    return stream, j


def last_shard(intervals: Iterable[Sequence[int]], streams: int) -> int:
    """Returns the highest shard number in a manifest's intervals; -1 if it has no intervals."""
    numbers = (shard_number(streams, stream, last) for stream, _, last in intervals)
    return max(numbers, default=-1)


def check_of(content: Mapping[str, Any]) -> str:
    """Returns a digest of a JSON object, which depends on the order of its keys."""
    return hashlib.blake2b(json.dumps(content).encode("ascii"), digest_size=8).hexdigest()


def is_sound(content: dict[str, Any]) -> bool:
    """Removes `check` from a JSON object. Returns whether it was right or missing; people may remove it."""
    check = content.pop("check", None)
    return check is None or check == check_of(content)


def encode_manifest(manifest: Manifest) -> bytes:
    """Returns the text of a manifest, with a check of its content."""
    body = {field.name: getattr(manifest, field.name) for field in dataclasses.fields(Manifest)}
    body["check"] = check_of(body)
    return json.dumps(body, separators=(",", ":")).encode("ascii")


def decode_manifest(text: bytes) -> Manifest:
    """Returns the manifest in a file; ignores the fields of later minor versions.

    ValueError if it is damaged or not a manifest; ProtocolVersionError if it has another version.
    """
    try:
        body = json.loads(text)
        if not is_sound(body):
            raise ValueError("not a lease manifest: its check is wrong")
        if body["version"] != MANIFEST_VERSION:
            raise ProtocolVersionError(
                f"manifest version {body['version']}, expected {MANIFEST_VERSION}: "
                "install cachecd and cachecd-client of the same release"
            )
        known = {f.name for f in dataclasses.fields(Manifest)}
        fields = {k: v for k, v in body.items() if k in known}
        check_fields(Manifest, fields)
        manifest = Manifest(**fields)
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"not a lease manifest: {error!r} in {text[:200]!r}") from error
    _check_shards(manifest)
    return manifest


def _check_shards(manifest: Manifest) -> None:
    """ValueError for impossible counts, intervals or versions."""
    counts = ("epoch", "num_records", "num_bytes", "seed", "sampling_seed", "place", "window")
    for name in (*counts, "streams", "ranks"):
        value, least = getattr(manifest, name), 0 if name in counts else 1
        if value is not None and value < least:
            raise ValueError(f"{name} is {value}, expected {least} or more")
    before = [-1, 0, 0]
    for interval in manifest.intervals:
        stream, first, last = interval if len(interval) == 3 else (-1, 0, 0)
        is_later = stream > before[0] or (stream == before[0] and first > before[2])
        if not (is_later and stream <= manifest.streams and 0 <= first <= last):
            raise ValueError(
                f"interval {interval} after {before} of {manifest.streams} streams, expected ascending "
                "[stream, first, last]"
            )
        before = interval
    number, last = -1, last_shard(manifest.intervals, manifest.streams)
    for pair in manifest.versions:
        if len(pair) != 2 or not number < pair[0] <= last or pair[1] < 1:
            raise ValueError(
                f"version {pair} after shard {number}, expected ascending [shard, version]"
            )
        number = pair[0]
