"""The messages between daemon and sampler process, over the process's stdin and stdout.

A frame is a line of ASCII JSON, ``{"type": <class name>, ...fields}``. Fields with their default value are
omitted. No pickles: the sampler may run under the user's own interpreter. EOF on stdin ends the sampler.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, BinaryIO, Generic, TypeVar, get_args

from pydantic import AfterValidator, ConfigDict, TypeAdapter

from cachecd.model import Condemned, Cursor, More, Shape, Skipped, SkippedRecords, StreamId, Unit

MAX_FRAME = 256 << 20
LONGEST_REASON = 1_000  # characters

Kind = TypeVar("Kind")


def _bounded(reason: str) -> str:
    """Returns an exception's text, cut in its middle if it is long. A user's exception may quote a record,
    and memory and sidecars keep the reason of each skipped unit, perhaps a million."""
    if len(reason) <= LONGEST_REASON:
        return reason
    ends = LONGEST_REASON // 2
    return f"{reason[:ends]} [...] {reason[-ends:]}"


def _with_bounded_reason(value: Any) -> Any:
    return replace(value, reason=_bounded(value.reason))


Reason = Annotated[str, AfterValidator(_bounded)]
_BOUNDED = AfterValidator(_with_bounded_reason)


class Frames(Generic[Kind]):
    """Packs messages of these dataclasses into frames. Unpacks them, with the types of all fields checked.

    Strings keep lone surrogates, which keys have that are not UTF-8. pydantic's own JSON refuses them.
    """

    def __init__(self, *kinds: Any) -> None:
        # Built when first used, because that takes 0.1 s for all messages. `| None`, because pydantic takes
        # no configuration for a dataclass itself.
        strict = ConfigDict(extra="forbid", defer_build=True)
        self._adapters = {
            kind.__name__: TypeAdapter[Any](kind | None, config=strict) for kind in kinds
        }

    def pack(self, message: Kind) -> bytes:
        """Packs the message into one frame."""
        name = type(message).__name__
        fields = self._adapters[name].dump_python(message, exclude_defaults=True)
        return json.dumps({"type": name, **fields}).encode() + b"\n"

    def unpack(self, frame: bytes) -> Kind:
        """Unpacks the message of one frame. ValueError, TypeError, KeyError or AttributeError if the frame
        is not a message."""
        fields = json.loads(frame)
        message: Kind = self._adapters[fields.pop("type")].validate_python(fields)
        return message

    def read(self, stream: BinaryIO) -> Kind | None:
        """Returns the next message, or None at EOF. The errors of `unpack`."""
        frame = stream.readline()
        return self.unpack(frame) if frame.endswith(b"\n") else None


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
    passed: tuple[Annotated[SkippedRecords, _BOUNDED], ...]
    misfits: int
    misfit: str
    skipped: tuple[Annotated[Skipped, _BOUNDED], ...]
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
    reason: Reason
    code: int = 0
    unit: int | None = None
    passing: bool = False
    key: str = ""


OfStreams = Open | Units | Until | Grant | Close
FromStream = Asks | Described | Working | Sealed | Closed | Failed
Message = Setup | OfStreams | FromStream
FRAMES = Frames[Message](*get_args(Message))
