"""The messages between daemon and sampler process, over the process's stdin and stdout.

A frame is a line of ASCII JSON, ``{"type": <class name>, ...fields}``. Fields with their default value are
omitted. No pickles: the sampler may run under the user's own interpreter. EOF on stdin ends the sampler.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, BinaryIO, Generic, TypeVar, get_args

from pydantic import AfterValidator, ConfigDict, TypeAdapter

from cachecd.model import (
    Condemned,
    Cursor,
    More,
    Shape,
    Skipped,
    SkippedRecords,
    StageSeconds,
    StreamId,
    Unit,
)
from cachecd_client.protocol import Span

MAX_FRAME = 256 << 20
LONGEST_REASON = 1_000  # characters

Kind = TypeVar("Kind")


def _bounded(reason: str) -> str:
    """Returns the reason; if it is long, without its middle. A user's exception may quote a record, but
    memory and sidecars keep a reason for each skipped unit, perhaps for a million."""
    if len(reason) <= LONGEST_REASON:
        return reason
    ends = LONGEST_REASON // 2
    return f"{reason[:ends]} [...] {reason[-ends:]}"


def _with_bounded_reason(value: Any) -> Any:
    return replace(value, reason=_bounded(value.reason))


Reason = Annotated[str, AfterValidator(_bounded)]
_BOUNDED = AfterValidator(_with_bounded_reason)


class Frames(Generic[Kind]):
    """Packs messages of these dataclasses into frames. Unpacks frames, and checks the types of all fields.

    The text of a key that is not UTF-8 has lone surrogates. The `json` module keeps them, but pydantic's
    JSON refuses them.
    """

    def __init__(self, *kinds: Any) -> None:
        # Each adapter is built at its first use, because all of them together take 0.1 s. `| None`, because
        # pydantic accepts no configuration for a bare dataclass.
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
        """Returns the next message, or None at EOF. Raises the errors of `unpack`."""
        frame = stream.readline()
        return self.unpack(frame) if frame.endswith(b"\n") else None


@dataclass(frozen=True, slots=True)
class Setup:
    """The first frame: how to read each dataset. `datasets` maps a name to its DatasetConfig as JSON.
    `path`: imports search these directories first. `memory`: bytes that each process may use."""

    datasets: dict[str, Any]
    connections: int
    bandwidth: float | None  # bytes per second, of all processes together
    path: Sequence[str] = ()
    memory: float = float("inf")


@dataclass(frozen=True, slots=True)
class Open:
    """Run a stream from `cursor` on, at most up to `until`. The reply is Asks. If the stream is already
    open, the worker closes it first.

    `units`: the current listing of the units in the cursor's lanes; None for a unit that is no longer
    listed. `schema`: the dataset's schema as JSON. If it is None, the first records determine the schema,
    and Described reports it. `classes`: the class names of the label, configured or found in the listing.
    `condemned`: units that are skipped without a try.

    `parts`: units of which the stream reads only a part, as (place, unit, record, stop). The sidecar keeps
    them, so that it says what the shard covers. `remade`: the meta text of a sidecar, without the schema.
    The stream then makes only this shard, with this text. Skipped units use no part of the capacity, and do
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
    """The stream's next units, or parts of units, at (block, place) and the places after it. The stream
    skips the place of a unit that is None.

    `more`: "listed" if the stream can request more units of this pass; "wait" if the listing must continue
    first; "end" if the pass has no more units.
    """

    stream: StreamId
    block: int
    place: int
    units: tuple[Unit | None, ...]
    more: More


@dataclass(frozen=True, slots=True)
class Until:
    """The stream may continue to this cursor; None: no limit."""

    stream: StreamId
    until: Cursor | None


@dataclass(frozen=True, slots=True)
class Grant:
    """Make the stream's next shard, or the next version of a damaged shard. The stream makes shards in the
    order of the grants. The shard's room is already reserved. The reply is Sealed. `path`: the file,
    which the executor names."""

    stream: StreamId
    number: int
    version: int = 0
    path: str = ""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the stream, if it is open, and remove its current shard. The reply is Closed."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Asks:
    """The stream requests more units."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Described:
    """The dataset's schema, which its first records determine. It is sent once, before Sealed for the
    shard of these records."""

    stream: StreamId
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Effort:
    """The work of process `pid` on a dataset since its last report, by stage. `waits`: seconds in which it
    waited for bytes, by reason: "link", "throttled" (by the store) or "bandwidth" (sampler.bandwidth).
    `spans`: the longest spans of the last second, at most MAX_SPANS, once a second."""

    pid: int
    stages: dict[str, StageSeconds]
    waits: dict[str, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Working:
    """The progress of shard `number`, a few times per second: the bytes fetched for the stream, and the
    unit in work (-1: none). `half`: the shard is half full. This is reported at once."""

    stream: StreamId
    number: int
    fetched_bytes: int
    unit: int
    half: bool
    effort: Effort | None = None


@dataclass(frozen=True, slots=True)
class Sealed:
    """The result of a grant: the temporary files of the shard are complete and synced. A shard without
    records is only a sidecar. If the cursor has not moved and no unit was skipped (for example because the
    stream is already at `until`), no file exists.

    `end`: why the shard ended, "full", "pass", "until" or "skips". `ended`, `num_passed`: see ShardFacts.
    `passed`: the skipped records, except records of skipped units. `misfits`: the number of
    records that contradict the schema; `misfit`: the first of them. `allocated`: bytes of the files on
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
    effort: Effort | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """The reply to Close: the stream is closed, and its temporary files are removed, except sealed shards.
    The stream reports nothing until it is opened again."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Failed:
    """The stream is closed, and its current shard is removed.

    `cause`: "source" (the whole store failed), "disk" (`code` is the errno), or "worker" (a defect or a
    lost process; `unit` is the unit in work, with its `key`). `passing`: the unit is perhaps not at fault,
    for example because the machine had no memory left.
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
