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
    """Read the cursor before a shard. -> CursorRead or ShardLost"""

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
    """Publish a sealed shard; `is_empty`: it has no record, so it is a sidecar alone. -> Published or
    PublishRefused"""

    stream: StreamId
    number: int
    is_empty: bool = False


class FindMissing(NamedTuple):
    """Find the records that these shards lack, all that are live or quarantined, from unit `begin` on.
    -> MissingFound, after a ShardLost for each sidecar that is lost"""

    generation: GenerationId
    begin: int
    shards: tuple[ShardVersion, ...]


class MakeSupplement(NamedTuple):
    """Make a shard of these pieces; its room is reserved. -> ShardSealed or StreamFailed"""

    stream: StreamId
    number: int
    pieces: tuple[Piece, ...]


class WriteJudgement(NamedTuple):
    """The schema of a generation was judged. `contradiction`: why most of the first records contradict it,
    or "". -> CommandDone"""

    generation: GenerationId
    contradiction: str


class KeepFigures(NamedTuple):
    """Replace rotation.json, durably: the figures of a dataset's rotation."""

    dataset: str
    figures: Figures


class MarkRetired(NamedTuple):
    """Mark numbers as retired (`.old`), durably. `names` has each number with its newest version. `why`:
    the rule that retired them."""

    generation: GenerationId
    names: tuple[ShardVersion, ...]
    why: str = ""


class Unlink(NamedTuple):
    """Write state.json: the heads of all streams, then the head of the supplements (none: state.json
    stays). Then remove these versions with their marks, durably. The mark of a number is removed with the
    number's last file. `why`: the rule that retired them; "" if they were retired before."""

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
    """Mark a version as quarantined (`.bad`), durably. No effect if the version is removed already."""

    generation: GenerationId
    number: int
    version: int


class RemakeShard(NamedTuple):
    """Make the next version of a quarantined shard, without records that are excluded by the time it is
    published: `local`, as a copy; else from the source. Its room is reserved. `drop`: first remove the
    damaged file, and its sidecar at the end. -> Remade, or RemakeFailed, after a ShardLost if the sidecar
    is lost"""

    generation: GenerationId
    number: int
    version: int
    local: bool
    drop: bool


class WriteExclusion(NamedTuple):
    """Append keys to excluded.jsonl, or samples of a key, durably, as an exclusion of this name."""

    exclusion: str
    dataset: str
    keys: tuple[str, ...]
    samples: tuple[str, ...] = ()


class FindHolders(NamedTuple):
    """Find all shards with a record of an exclusion, in all directories. -> HoldersFound"""

    exclusion: str


class FinishExclusion(NamedTuple):
    """Append the second line of an exclusion: all of its shards were handled."""

    exclusion: str


class WriteManifest(NamedTuple):
    """Write the lease's manifest."""

    lease: Lease


class MarkLease(NamedTuple):
    """Mark a lease, for a start: it is also the lease of `epoch`, or a `rank` held it. Without both: no
    rank has held it, because a rank requested it again."""

    lease: str
    rank: int | None = None
    epoch: int | None = None


class EndLease(NamedTuple):
    """Delete the manifest. If a process locks it, there is no effect and no result."""

    lease: str


class ReplyGranted(NamedTuple):
    """The rank may lock this manifest. `coverage`: the share of the units that were ever cached. `note`:
    why the set is the set of an earlier epoch, or lacks shards; or "". `records` and `skipped`: the
    counts of the lease."""

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
    """The request cannot be granted until a person changes something."""

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
