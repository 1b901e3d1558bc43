"""The decisions of the policy: commands that the daemon carries out.

The arrow `->` names the event that reports the result. A command without an arrow, except replies, has the
result `CommandDone(command)`, once it is durable. If the disk refuses a command, the result is
`DiskRefused(command)`.
"""

from __future__ import annotations

from typing import NamedTuple

from cachecd.model import Condemned, Cursor, Shape, ShardVersion, StreamId
from cachecd.policy.values import Figures, GenerationId, Head, Lease, Piece


class WriteShape(NamedTuple):
    """Fix the shape in generation.json."""

    generation: GenerationId
    shape: Shape


class ReadCursor(NamedTuple):
    """Read the stream's cursor before a shard. -> CursorRead or ShardLost"""

    generation: GenerationId
    number: int
    version: int


class OpenStream(NamedTuple):
    """Give a stream to a worker. If a worker has the stream already, the stream begins again. ->
    StreamFailed, if it fails later"""

    stream: StreamId
    cursor: Cursor
    until: Cursor
    condemned: tuple[Condemned, ...] = ()


class SetUntil(NamedTuple):
    """Let an open stream continue up to this cursor."""

    stream: StreamId
    until: Cursor


class GrantShard(NamedTuple):
    """Let a worker write a shard, whose room is reserved. -> HalfFull, then ShardSealed or StreamFailed"""

    stream: StreamId
    number: int


class CloseStream(NamedTuple):
    """Take a stream from its worker, and remove its drafts and its sealed shards that are not published. ->
    StreamClosed, after all earlier reports of the worker"""

    stream: StreamId


class PublishShard(NamedTuple):
    """Publish a sealed shard. `is_empty`: the shard has no record, so only its sidecar. -> Published or
    PublishRefused"""

    stream: StreamId
    number: int
    is_empty: bool = False


class FindMissing(NamedTuple):
    """Find the records from unit `begin` on that these shards lack. The shards are all live and
    quarantined shards. -> MissingFound, after a ShardLost for each lost sidecar"""

    generation: GenerationId
    begin: int
    shards: tuple[ShardVersion, ...]


class MakeSupplement(NamedTuple):
    """Make a shard of these pieces; its room is reserved. -> ShardSealed or StreamFailed"""

    stream: StreamId
    number: int
    pieces: tuple[Piece, ...]


class WriteJudgement(NamedTuple):
    """Write the judgement of a generation's schema. `contradiction`: the reason if most of the first
    records contradict the schema, else "". -> CommandDone"""

    generation: GenerationId
    contradiction: str


class KeepFigures(NamedTuple):
    """Replace rotation.json, which has the figures of a dataset's rotation, durably."""

    dataset: str
    figures: Figures


class MarkRetired(NamedTuple):
    """Mark numbers as retired (`.old`), durably. `names` has each number with its newest version. `why`:
    the rule that retired them."""

    generation: GenerationId
    names: tuple[ShardVersion, ...]
    why: str = ""


class Unlink(NamedTuple):
    """Write `heads` to state.json: the heads of all streams, then the head of the supplements. Without
    `heads`, state.json stays unchanged. Then remove these versions durably, and with the last file of a
    number its mark. `why`: the rule that retired the versions; "" if they were retired before."""

    generation: GenerationId
    heads: tuple[Head, ...]
    names: tuple[ShardVersion, ...]
    why: str = ""


class RemoveGeneration(NamedTuple):
    """Remove a directory without shards that no lease names."""

    generation: GenerationId


class VerifyShard(NamedTuple):
    """Read a shard. -> ShardVerified or ShardLost"""

    generation: GenerationId
    number: int
    version: int


class MarkBad(NamedTuple):
    """Mark a version as quarantined (`.bad`), durably. No effect if the version was removed."""

    generation: GenerationId
    number: int
    version: int


class RemakeShard(NamedTuple):
    """Make the next version of a quarantined shard, without records that are excluded when it is
    published. `local`: copy the shard; otherwise fetch from the source. The room is reserved. `drop`:
    remove the damaged file first, and its sidecar at the end. -> Remade, or RemakeFailed. If the sidecar
    is lost, ShardLost comes first"""

    generation: GenerationId
    number: int
    version: int
    local: bool
    drop: bool


class WriteExclusion(NamedTuple):
    """Append an exclusion to excluded.jsonl, durably: keys, or samples of one key."""

    exclusion: str
    dataset: str
    keys: tuple[str, ...]
    samples: tuple[str, ...] = ()


class FindHolders(NamedTuple):
    """Find all shards with a record of an exclusion, in all directories. -> HoldersFound"""

    exclusion: str


class FinishExclusion(NamedTuple):
    """Append the second line of an exclusion: no new set has its records."""

    exclusion: str


class WriteManifest(NamedTuple):
    """Write the lease's manifest."""

    lease: Lease


class MarkLease(NamedTuple):
    """Note for the next start that a lease is also the lease of `epoch`, or that `rank` held it. Without
    both: the earlier ranks do not count, because a rank requested the lease again."""

    lease: str
    rank: int | None = None
    epoch: int | None = None


class EndLease(NamedTuple):
    """Delete the manifest. If a process holds a lock on it, nothing happens and no event follows."""

    lease: str


class ReplyGranted(NamedTuple):
    """The rank may lock this manifest. `coverage`: the share of units that were cached at least once.
    `note`: why the set is a repeated set or lacks shards, else "". `records` and `skipped`: the counts of
    the lease."""

    request: str
    lease: str
    coverage: float
    note: str = ""
    records: int = 0
    skipped: int = 0


class ReplyDone(NamedTuple):
    """The request is done."""

    request: str


class ReplyWaiting(NamedTuple):
    """The rank must send its request again. `have` of `want` bytes are cached."""

    request: str
    have: int
    want: int
    reason: str


class ReplyRefused(NamedTuple):
    """The request cannot be granted until a person changes the configuration or the request."""

    request: str
    code: str
    message: str


Command = (
    WriteShape | ReadCursor | OpenStream | SetUntil | GrantShard | CloseStream | PublishShard
    | FindMissing | MakeSupplement | WriteJudgement | KeepFigures | MarkRetired | Unlink
    | RemoveGeneration | VerifyShard | MarkBad | RemakeShard | WriteExclusion | FindHolders
    | FinishExclusion | WriteManifest | MarkLease | EndLease | ReplyGranted | ReplyDone
    | ReplyWaiting | ReplyRefused
)  # fmt: skip
