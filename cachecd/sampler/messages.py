"""The messages between daemon and sampler process, over the process's stdin and stdout.

A frame is a little-endian uint32 length and that many bytes of UTF-8 JSON, ``{"type": <class name>,
...fields}``. No pickles: the sampler may run under the user's own interpreter. EOF on stdin ends the
sampler.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, BinaryIO, get_args, get_origin, get_type_hints

from cachecd.model import (
    Condemned,
    Cursor,
    More,
    Shape,
    Skipped,
    SkippedRecords,
    StreamId,
    Unit,
)

_LENGTH = struct.Struct("<I")
MAX_FRAME = 256 << 20
LONGEST_REASON = 1_000  # characters


@dataclass(frozen=True, slots=True)
class Setup:
    """The first frame: how to read each dataset. `datasets` maps a name to its DatasetConfig as JSON.
    `path`: directories that are searched first for imports. `memory`: the bytes that each process may take.
    """

    datasets: dict[str, Any]
    connections: int
    bandwidth: float | None  # bytes per second, of all processes together
    path: Sequence[str] = ()
    memory: float = float("inf")


@dataclass(frozen=True, slots=True)
class Open:
    """Run a stream from `cursor` on, at most up to `until`. The reply is Asks.

    `units`: the current listing of the units in the cursor's lanes; None for a unit that is not listed any
    more. `schema` is the dataset's schema as JSON, or None: then the first record decides, and Described
    reports the schema. `classes` are the label's class names, configured or found in the listing. A stream
    that is open already begins again. `condemned` units are skipped without a try.

    `parts`: the units of which the stream reads only a part, as (place, unit, record, stop): so the
    sidecar says what the shard covers. `remade`: the stream makes a single shard. This is the meta text of
    its sidecar, less the schema, and stays unchanged; skipped units take no part of the capacity, and do
    not end the shard.
    """

    stream: StreamId
    cursor: Cursor
    units: tuple[Unit | None, ...]
    until: Cursor | None
    shape: Shape
    schema: dict[str, Any] | None
    classes: tuple[str, ...]
    condemned: tuple[Condemned, ...] = ()
    parts: tuple[tuple[int, int, int, int], ...] = ()
    remade: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Units:
    """The stream's next units, or parts of units, at (block, place) and the places after it. `more` says
    what follows: "listed": more units of this pass, to be requested; "wait": more units of this pass, once
    the listing has continued; "end": nothing in this pass. The stream passes over the place of a unit that
    is None."""

    stream: StreamId
    block: int
    place: int
    units: tuple[Unit | None, ...]
    more: More


@dataclass(frozen=True, slots=True)
class Until:
    """The stream may continue to this cursor; None: without end."""

    stream: StreamId
    until: Cursor | None


@dataclass(frozen=True, slots=True)
class Grant:
    """Make the stream's next shard, or the next version of a damaged shard. Shards are made in the order of
    grants. The shard's room is reserved. The reply is Sealed. `path`: the file, which the executor names.
    """

    stream: StreamId
    number: int
    version: int = 0
    path: str = ""


@dataclass(frozen=True, slots=True)
class Close:
    """Give the stream up, with its current shard. The reply is Closed, even if the stream is not open."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Asks:
    """The stream can take more units."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Described:
    """The dataset's schema, from its first record; sent once, before that record's shard is sealed."""

    stream: StreamId
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Working:
    """Progress of shard `number`, at most a few times a second: bytes fetched for the stream, and the unit
    in work. `half`: the shard is half full; this is reported at once."""

    stream: StreamId
    number: int
    fetched_bytes: int
    unit: int
    half: bool


@dataclass(frozen=True, slots=True)
class Sealed:
    """The result of a grant: the temporary files of the shard are complete and synced. A shard without
    records is only a sidecar. If the cursor has not moved and no unit was skipped (for example because the
    stream is at `until` already), there is no file.

    `end` is why the shard ended: "full", "pass", "until" or "skips". `ended` and `num_passed`: as of
    ShardFacts; `passed`: why, without the reasons of skipped units. `misfits`: how many
    contradict the schema, and the first `misfit`. `allocated`: the bytes of the files on
    disk. `fetched_bytes` counts since the stream was opened, `seconds` since its last shard.
    """

    stream: StreamId
    number: int
    before: Cursor
    after: Cursor
    end: str
    records: int
    data_bytes: int
    allocated: int
    digest: int
    ended: int
    num_passed: int
    passed: tuple[SkippedRecords, ...]
    misfits: int
    misfit: str
    skipped: tuple[Skipped, ...]
    fetched_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Closed:
    """The reply to Close: the stream is closed, and only sealed shards are left of its temporary files. No
    report follows until the stream is opened again."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Failed:
    """The stream is closed, and its current shard is removed.

    `cause` is "source" (the whole store), "disk" (errno in `code`), or "worker" (a defect or a lost
    process; `unit` is the unit in work, with its `key`). `passing`: the failure need not be the unit's
    fault, as when the machine had no memory left.
    """

    stream: StreamId
    cause: str
    reason: str
    code: int = 0
    unit: int | None = None
    passing: bool = False
    key: str = ""


OfStreams = Open | Units | Until | Grant | Close
FromStream = Asks | Described | Working | Sealed | Closed | Failed
Message = Setup | OfStreams | FromStream


def pack(message: Message) -> bytes:
    """Packs the message into one frame."""
    fields = {"type": type(message).__name__, **_fields(message)}
    return framed(json.dumps(fields, default=_fields))


def read(stream: BinaryIO) -> Message | None:
    """Returns the next message, or None at EOF. ValueError if the frame is not a message."""
    body = read_frame(stream)
    return None if body is None else unpack(body)


def framed(text: str) -> bytes:
    """Packs a body into one frame."""
    body = text.encode()
    return _LENGTH.pack(len(body)) + body


def read_frame(stream: BinaryIO) -> bytes | None:
    """Returns the next frame's body, or None at EOF. ValueError if the frame claims to be longer than any
    message."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME:
        raise ValueError(f"frame of {length} bytes, expected at most {MAX_FRAME}")
    body = stream.read(length)
    return None if len(body) < length else body


def unpack(body: bytes) -> Message:
    """Unpacks the message of one frame's body."""
    fields = json.loads(body)
    name = fields.pop("type")
    if name not in _KINDS:
        raise ValueError(f"unknown message {name!r}")
    decode = _decoder(_KINDS[name])
    assert decode is not None, "a message is a dataclass"
    return decode(fields)  # type: ignore[no-any-return]


_KINDS: dict[str, Any] = {
    kind.__name__: kind for kind in (Setup, *get_args(OfStreams), *get_args(FromStream))
}


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


@functools.cache
def _decoder(kind: Any) -> Callable[[Any], Any] | None:
    """Returns the function that turns JSON into a value of this type; None if the JSON is the value."""
    if is_dataclass(kind):
        make: Any = kind
        hints = get_type_hints(kind).items()
        nested = {name: bounded if name == "reason" else _decoder(hint) for name, hint in hints}
        decoders = {name: decode for name, decode in nested.items() if decode is not None}
        if not decoders:  # a page has a thousand units
            return lambda fields: make(**fields)
        return lambda fields: make(
            **fields | {name: decode(fields[name]) for name, decode in decoders.items()}
        )
    inner = next(filter(None, map(_decoder, get_args(kind))), None)
    if get_origin(kind) is tuple:
        return (lambda values: tuple(map(inner, values))) if inner else tuple
    return inner and (lambda value: None if value is None else inner(value))


def bounded(reason: str) -> str:
    """Returns an exception's text, cut in its middle if it is long. A user's exception may quote a record,
    and memory and sidecars keep the reason of each skipped unit, perhaps a million."""
    if len(reason) <= LONGEST_REASON:
        return reason
    ends = LONGEST_REASON // 2
    return f"{reason[:ends]} [...] {reason[-ends:]}"
