"""What daemon and sampler process say to each other over the process's stdin and stdout.

A frame is a little-endian uint32 length and that many bytes of UTF-8 JSON,
``{"type": <class name>, ...fields}``. No pickles: the sampler may run under the user's own
interpreter. EOF on stdin tells the sampler to end.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, get_args

from cachecd.model import (
    Assignment,
    Cursor,
    Lane,
    More,
    Outcome,
    SetAside,
    Shape,
    ShardId,
    Skipped,
    StreamId,
    Unit,
)

_LENGTH = struct.Struct("<I")
MAX_FRAME = 256 << 20
LONGEST_REASON = 1_000  # characters


@dataclass(frozen=True, slots=True)
class Setup:
    """First frame: how to read each dataset. `datasets` maps a name to its DatasetConfig as JSON,
    `path` are the directories in which imports are looked for first,
    `memory` is what each process may take."""

    datasets: dict[str, Any]
    connections: int
    bandwidth: float | None  # bytes per second, of all processes together
    path: Sequence[str] = ()
    memory: float = float("inf")


@dataclass(frozen=True, slots=True)
class Make:
    """Do one assignment: write `path` (and its sidecar), using at most `capacity` bytes for both.

    `schema` is the dataset's, as JSON, or None: then the first record decides and Described says so.
    `classes` are the label's class names, configured or found in the listing. `meta` goes into the
    sidecar, to which the sampler adds "schema" and "remainder".
    """

    assignment: Assignment
    path: str
    capacity: int
    schema: dict[str, Any] | None
    classes: tuple[str, ...]
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Described:
    """The dataset's schema, from its first record; sent once, before that record's shard is sealed."""

    shard: ShardId
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Working:
    """Progress, at most a few a second: what has been fetched, and which unit is being worked on."""

    shard: ShardId
    fetched_bytes: int
    unit: int


@dataclass(frozen=True, slots=True)
class Made:
    """The assignment is done: the temporary file is sealed and fsynced (or absent if 0 records)."""

    shard: ShardId
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Failed:
    """The assignment could not be done and nothing of it is left on disk.

    `cause` is "source" (the store as a whole), "disk" (errno in `code`), or "worker" (a defect or a
    lost process; `unit` is what it was working on). `passing`: nothing says that it was the unit's fault,
    as where the machine had no memory left.
    """

    shard: ShardId
    cause: str
    reason: str
    code: int = 0
    unit: int | None = None
    passing: bool = False


@dataclass(frozen=True, slots=True)
class Condemned:
    """A unit that is skipped without a try: workers died with it in hand."""

    unit: int
    reason: str
    passing: bool


@dataclass(frozen=True, slots=True)
class Open:
    """Carry a stream from `cursor` on, at most up to `until`. Answered by Asks.

    `units`: those of the cursor's lanes as they are listed now, None for one that is not listed any more.
    `schema` and `classes` are those of Make. `meta` goes into the sidecars, to which the sampler adds
    "stream", "number", "before", "after", "skipped" and "schema". A stream that is open already begins
    anew. `condemned` units are skipped without a try.
    """

    stream: StreamId
    cursor: Cursor
    units: tuple[Unit | None, ...]
    until: Cursor | None
    shape: Shape
    schema: dict[str, Any] | None
    classes: tuple[str, ...]
    meta: dict[str, Any]
    condemned: tuple[Condemned, ...] = ()


@dataclass(frozen=True, slots=True)
class Units:
    """The stream's next units, at (block, place) and the places behind it. `more` says what follows:
    "listed": more of this pass, to be asked for; "wait": more of this pass, when the listing has gone on;
    "end": nothing in this pass. The stream passes over the place of a unit that is None."""

    stream: StreamId
    block: int
    place: int
    units: tuple[Unit | None, ...]
    more: More


@dataclass(frozen=True, slots=True)
class Until:
    """The stream may go on up to this cursor; None: for ever."""

    stream: StreamId
    until: Cursor | None


@dataclass(frozen=True, slots=True)
class Grant:
    """Make the stream's next shard at `path`, in the order of grants; there is room for it. Answered by
    Sealed."""

    stream: StreamId
    number: int
    path: str


@dataclass(frozen=True, slots=True)
class Close:
    """Give the stream up, and what is being written of it. Answered by Closed, also where the stream is
    not open (any more)."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Asks:
    """The stream can take more units."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class StreamDescribed:
    """The dataset's schema, from its first record; sent once, before that record's shard is sealed."""

    stream: StreamId
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StreamWorking:
    """Progress of shard `number`, at most a few a second: bytes fetched for the stream, and the unit in
    work. `half`: the shard is half full; that is sent at once."""

    stream: StreamId
    number: int
    fetched_bytes: int
    unit: int
    half: bool


@dataclass(frozen=True, slots=True)
class Filled:
    """What became of a grant. A shard without records is a sidecar alone. If the cursor has not moved
    and no unit was skipped, as where the stream is at `until` already, there is no file.

    `end` is why the shard ended: "full", "pass", "until" or "skips". `fetched_bytes` and `seconds` are
    since the last shard of the stream.
    """

    before: Cursor
    after: Cursor
    end: str
    records: int
    data_bytes: int
    sidecar_bytes: int
    allocated: int
    digest: int
    skipped: tuple[Skipped, ...]
    fetched_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Sealed:
    """The temporary files of a shard are whole and synced."""

    stream: StreamId
    number: int
    outcome: Filled


@dataclass(frozen=True, slots=True)
class Closed:
    """The stream is closed, as Close asked, and no temporary file of it is left but sealed shards. Nothing
    more is said of it until it is opened again."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """The stream is closed, and nothing is left of its shard in hand. The other fields are as in Failed."""

    stream: StreamId
    cause: str
    reason: str
    code: int = 0
    unit: int | None = None
    passing: bool = False


OfStreams = Open | Units | Until | Grant | Close
ToSampler = Setup | Make | OfStreams
FromSampler = Described | Working | Made | Failed
FromStream = Asks | StreamDescribed | StreamWorking | Sealed | Closed | StreamFailed


def pack(message: ToSampler | FromSampler | FromStream) -> bytes:
    """The message as one frame."""
    return framed(json.dumps({"type": type(message).__name__, **dataclasses.asdict(message)}))


def read(stream: BinaryIO) -> ToSampler | FromSampler | FromStream | None:
    """The next message, or None at EOF; ValueError for a frame that is none."""
    body = read_frame(stream)
    return None if body is None else unpack(body)


def framed(text: str) -> bytes:
    """One frame."""
    body = text.encode()
    return _LENGTH.pack(len(body)) + body


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame's body, or None at EOF; ValueError if it says to be longer than any is."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME:
        raise ValueError(f"frame of {length} bytes, expected at most {MAX_FRAME}")
    body = stream.read(length)
    return None if len(body) < length else body


def unpack(body: bytes) -> ToSampler | FromSampler | FromStream:
    """The message in one frame's body."""
    fields = json.loads(body)
    match fields.pop("type"):
        case "Setup":
            return Setup(**fields)
        case "Make":
            return Make(
                assignment=_assignment(fields.pop("assignment")),
                classes=tuple(fields.pop("classes")),
                **fields,
            )
        case "Described":
            return Described(ShardId(**fields["shard"]), fields["schema"])
        case "Working":
            return Working(ShardId(**fields.pop("shard")), **fields)
        case "Made":
            return Made(ShardId(**fields["shard"]), _outcome(fields["outcome"]))
        case "Failed":
            reason = bounded(fields.pop("reason"))
            return Failed(ShardId(**fields.pop("shard")), reason=reason, **fields)
        case other if other in _OF_STREAMS:
            return _of_stream(_OF_STREAMS[other], fields)
        case other:
            raise ValueError(f"unknown message {other!r}")


_OF_STREAMS: dict[str, type[OfStreams] | type[FromStream]] = {
    kind.__name__: kind for kind in (*get_args(OfStreams), *get_args(FromStream))
}


def _of_stream(
    kind: type[OfStreams] | type[FromStream], fields: dict[str, Any]
) -> OfStreams | FromStream:
    fields["stream"] = StreamId(**fields["stream"])
    if "units" in fields:
        fields["units"] = tuple(unit and Unit(**unit) for unit in fields["units"])
    for name in {"cursor", "until"} & fields.keys():
        fields[name] = _cursor(fields[name])
    if "shape" in fields:
        fields["shape"] = Shape(**fields["shape"])
    if "classes" in fields:
        fields["classes"] = tuple(fields["classes"])
    if "condemned" in fields:
        fields["condemned"] = tuple(Condemned(**each) for each in fields["condemned"])
    if "reason" in fields:
        fields["reason"] = bounded(fields["reason"])
    if "outcome" in fields:
        outcome = fields["outcome"]
        fields["outcome"] = Filled(
            **{
                **outcome,
                "before": _cursor(outcome["before"]),
                "after": _cursor(outcome["after"]),
                "skipped": tuple(
                    Skipped(**{**one, "reason": bounded(one["reason"])})
                    for one in outcome["skipped"]
                ),
            }
        )
    return kind(**fields)


def _cursor(fields: dict[str, Any] | None) -> Any:
    if fields is None:
        return None
    return Cursor(**{**fields, "lanes": tuple(Lane(**lane) for lane in fields["lanes"])})


def bounded(reason: str) -> str:
    """What an exception says, cut in its middle if it is long: a user's may quote a record, and of a
    million units that are set aside each has its reason in memory and in the catalog."""
    if len(reason) <= LONGEST_REASON:
        return reason
    ends = LONGEST_REASON // 2
    return f"{reason[:ends]} [...] {reason[-ends:]}"


def _assignment(fields: dict[str, Any]) -> Assignment:
    return Assignment(
        ShardId(**fields["shard"]),
        fields["generation"],
        tuple(Unit(**u) for u in fields["units"]),
    )


def _outcome(fields: dict[str, Any]) -> Outcome:
    return Outcome(
        **{
            **fields,
            "remainder": tuple(Unit(**u) for u in fields["remainder"]),
            "set_aside": tuple(
                SetAside(**{**told, "reason": bounded(told["reason"])})
                for told in fields["set_aside"]
            ),
        }
    )
