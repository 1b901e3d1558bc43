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
from typing import Any, BinaryIO

from cachecd.model import Assignment, Outcome, SetAside, ShardId, UnitSlice

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


ToSampler = Setup | Make
FromSampler = Described | Working | Made | Failed


def pack(message: ToSampler | FromSampler) -> bytes:
    """The message as one frame."""
    return framed(json.dumps({"type": type(message).__name__, **dataclasses.asdict(message)}))


def read(stream: BinaryIO) -> ToSampler | FromSampler | None:
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


def unpack(body: bytes) -> ToSampler | FromSampler:
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
        case other:
            raise ValueError(f"unknown message {other!r}")


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
        tuple(UnitSlice(**u) for u in fields["units"]),
    )


def _outcome(fields: dict[str, Any]) -> Outcome:
    return Outcome(
        **{
            **fields,
            "remainder": tuple(UnitSlice(**u) for u in fields["remainder"]),
            "set_aside": tuple(
                SetAside(**{**told, "reason": bounded(told["reason"])})
                for told in fields["set_aside"]
            ),
        }
    )
