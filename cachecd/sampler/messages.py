"""What daemon and sampler process say to each other over the process's stdin and stdout.

A frame is a little-endian uint32 length and that many bytes of UTF-8 JSON,
``{"type": <class name>, ...fields}``. No pickles: the sampler may run under the user's own
interpreter. EOF on stdin tells the sampler to end.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, BinaryIO, get_args, get_origin, get_type_hints

from cachecd.model import Condemned, Cursor, More, Shape, Skipped, StreamId, Unit

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
class Open:
    """Carry a stream from `cursor` on, at most up to `until`. Answered by Asks.

    `units`: those of the cursor's lanes as they are listed now, None for one that is not listed any more.
    `schema` is the dataset's, as JSON, or None: then the first record decides and Described says so.
    `classes` are the label's class names, configured or found in the listing. A stream that is open already
    begins anew. `condemned` units are skipped without a try.

    `remade`: the stream makes one shard by itself. This is the meta text of its sidecar, less the schema,
    and stays as it is; units that are skipped take no part of the capacity, and do not end the shard.
    """

    stream: StreamId
    cursor: Cursor
    units: tuple[Unit | None, ...]
    until: Cursor | None
    shape: Shape
    schema: dict[str, Any] | None
    classes: tuple[str, ...]
    condemned: tuple[Condemned, ...] = ()
    remade: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Units:
    """The stream's next units, or parts of units, at (block, place) and the places behind it. `more` says
    what follows: "listed": more of this pass, to be asked for; "wait": more of this pass, when the listing
    has gone on; "end": nothing in this pass. The stream passes over the place of a unit that is None."""

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
class Described:
    """The dataset's schema, from its first record; sent once, before that record's shard is sealed."""

    stream: StreamId
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Working:
    """Progress of shard `number`, at most a few a second: bytes fetched for the stream, and the unit in
    work. `half`: the shard is half full; that is sent at once."""

    stream: StreamId
    number: int
    fetched_bytes: int
    unit: int
    half: bool


@dataclass(frozen=True, slots=True)
class Sealed:
    """What became of a grant: the temporary files of the shard are whole and synced. A shard without
    records is a sidecar alone. If the cursor has not moved and no unit was skipped, as where the stream is
    at `until` already, there is no file.

    `end` is why the shard ended: "full", "pass", "until" or "skips". `allocated` is what the files occupy
    on disk. `fetched_bytes` are for the stream since it was opened, `seconds` since its last shard.
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
    skipped: tuple[Skipped, ...]
    fetched_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Closed:
    """The stream is closed, as Close asked, and no temporary file of it is left but sealed shards. Nothing
    more is said of it until it is opened again."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Failed:
    """The stream is closed, and nothing is left of its shard in hand.

    `cause` is "source" (the store as a whole), "disk" (errno in `code`), or "worker" (a defect or a
    lost process; `unit` is what it was working on). `passing`: nothing says that it was the unit's fault,
    as where the machine had no memory left.
    """

    stream: StreamId
    cause: str
    reason: str
    code: int = 0
    unit: int | None = None
    passing: bool = False


OfStreams = Open | Units | Until | Grant | Close
FromStream = Asks | Described | Working | Sealed | Closed | Failed
Message = Setup | OfStreams | FromStream


def pack(message: Message) -> bytes:
    """The message as one frame."""
    fields = {"type": type(message).__name__, **_fields(message)}
    return framed(json.dumps(fields, default=_fields))


def read(stream: BinaryIO) -> Message | None:
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


def unpack(body: bytes) -> Message:
    """The message in one frame's body."""
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
    """What makes a value of this type of its JSON; None where the JSON is the value."""
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
    """What an exception says, cut in its middle if it is long: a user's may quote a record, and of a
    million skipped units each has its reason in memory and in a sidecar."""
    if len(reason) <= LONGEST_REASON:
        return reason
    ends = LONGEST_REASON // 2
    return f"{reason[:ends]} [...] {reason[-ends:]}"
