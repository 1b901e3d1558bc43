"""Repair: shards that are reported damaged or hold an excluded record, until their next versions are
published. Pure.

A damaged shard of the configured generation is made again from the source; of an older one it is
retired. A shard whose sidecar is lost is retired with the older ones of its stream, and a damaged
supplement alone. A mark is durable before the reply.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cachecd.policy import commands as do
from cachecd.policy.dataset import Dataset
from cachecd.policy.events import DamageReported, HoldersFound, Remade, ShardVerified
from cachecd.policy.generation import Generation
from cachecd.policy.room import Room
from cachecd.policy.shard_table import Status

_LIVE = (Status.LIVE, Status.QUARANTINED)


@dataclass(slots=True)
class _Exclusion:
    """An exclusion whose shards are not done. `request` waits for its reply, "" after a restart; `marks`
    are not durable yet."""

    request: str = ""
    marks: set[do.MarkBad] = field(default_factory=set)


class Repair:
    """The commands are appended to `out`."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._exclusions: dict[str, _Exclusion] = {}
        self._replies: dict[do.MarkBad, list[str]] = {}

    # --- damage

    def reported(self, gen: Generation, event: DamageReported, out: list[do.Command]) -> None:
        """A reader met a corrupt record: the shard is in no new set until it was read."""
        name = event.number, event.version
        if not _is_newest(gen, *name):
            out += _replies([event.request])
            return
        requests = gen.quarantine.verifying.setdefault(name, [])
        requests.append(event.request)
        if len(requests) == 1:
            gen.table.set_status(event.number, Status.QUARANTINED)
            out.append(do.VerifyShard(gen.id, *name))

    def verified(self, gen: Generation, event: ShardVerified, out: list[do.Command]) -> None:
        """The shard was read."""
        name = event.number, event.version
        requests = gen.quarantine.verifying.pop(name, [])
        if not _is_newest(gen, *name):
            out += _replies(requests)
        elif event.sound and event.has_sidecar:
            if event.number not in gen.quarantine.work:
                gen.table.set_status(event.number, Status.LIVE)
            out += _replies(requests)
        elif not event.has_sidecar:
            gen.lose(event.number, out)
            out += _replies(requests)
        else:
            mark = do.MarkBad(gen.id, *name, excluded=False)
            self._replies.setdefault(mark, []).extend(requests)
            if gen.quarantine.begin(event.number, excluded=False):
                out.append(mark)
            else:
                out += _replies(self._replies.pop(mark))

    def marked(self, mark: do.MarkBad, gen: Generation | None, out: list[do.Command]) -> None:
        """A mark is durable."""
        if gen and (work := gen.quarantine.work.get(mark.number)):
            work.marked = True
        out += _replies(self._replies.pop(mark, []))
        for name, exclusion in self._exclusions.items():
            if mark in exclusion.marks:
                exclusion.marks.discard(mark)
                if not exclusion.marks:
                    out.append(do.FinishExclusion(name))

    # --- exclusion

    def excluding(self, exclusion: str, request: str) -> None:
        """The keys of an exclusion are written."""
        self._exclusions[exclusion] = _Exclusion(request)

    def holders(self, event: HoldersFound, out: list[do.Command]) -> None:
        """The shards that hold a record of an exclusion are in no new set; the reply follows the marks."""
        exclusion = self._exclusions.setdefault(event.exclusion, _Exclusion())
        generations = {gen.id: gen for gen in self._room.generations}
        for name, number, version in event.holders:
            if (gen := generations.get(name)) is None:
                continue
            is_marked = gen.table.status(number) != Status.RETIRING  # a kill may bring it back
            if _is_newest(gen, number, version):
                gen.table.set_status(number, Status.QUARANTINED)
                is_marked = not gen.quarantine.begin(number, excluded=True)
            if not is_marked:
                mark = do.MarkBad(name, number, version, excluded=True)
                exclusion.marks.add(mark)
                out.append(mark)
        if not exclusion.marks:
            out.append(do.FinishExclusion(event.exclusion))

    def finished(self, exclusion: str, out: list[do.Command]) -> None:
        """excluded.jsonl says that the shards of an exclusion are done."""
        if done := self._exclusions.pop(exclusion, None):
            out += _replies([done.request])

    # --- next versions

    def make(
        self, gen: Generation, dataset: Dataset | None, fetches: bool, now: float,
        out: list[do.Command],
    ) -> None:  # fmt: skip
        """Begins every next version for which there is room. `dataset`: None for an older generation.
        `fetches`: something may be fetched."""
        for number, work in list(gen.quarantine.waits(now)):
            supplement = number % (gen.table.streams + 1) == gen.table.streams
            if gen.table.status(number) != Status.QUARANTINED:
                del gen.quarantine.work[number]
            elif not work.local and (dataset is None or supplement):
                gen.supplements.try_again()
                gen.retire([number], out)
            elif work.local or fetches:
                facts = gen.table.facts(number)
                drop = not work.local and not gen.table.is_held(number)
                size = gen.footprint - facts.allocated if drop else gen.footprint
                if self._room.fits(max(size, 0)):
                    gen.quarantine.start(number, max(size, 0), drop)
                    out.append(do.RemakeShard(gen.id, number, facts.version, work.local, drop))

    def remade(self, gen: Generation, event: Remade, out: list[do.Command]) -> None:
        """A next version is published."""
        if (work := gen.quarantine.work.pop(event.number, None)) is None:
            return
        gen.unlink(gen.table.replace(event.number, event.facts, work.dropped), out)
        if work.retire:
            gen.retire([event.number], out)

    def failed(
        self, gen: Generation, number: int, refused: bool, now: float, out: list[do.Command]
    ) -> None:
        """A next version could not be made; the disk `refused` it, or else its source or the shard."""
        if number in gen.quarantine.work and gen.quarantine.failed(number, refused, now):
            gen.retire([number], out)


def _is_newest(gen: Generation, number: int, version: int) -> bool:
    """Whether this is the newest version of a live number. No resumed run gets another one again."""
    status = gen.table.status(number)
    newest = status in _LIVE and gen.table.facts(number).version == version
    if not newest and status != Status.GONE:
        gen.tainted.add(number)
    return newest


def _replies(requests: list[str]) -> list[do.Command]:
    return [do.ReplyDone(request) for request in requests if request]
