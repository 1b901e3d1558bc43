"""Repair: shards that are reported damaged or hold an excluded record, until their next versions are
published. Pure.

A damaged shard of the configured generation is made again from the source; of an older one it is
retired. A shard whose sidecar is lost is retired with the older ones of its stream, and a damaged
supplement alone. A mark is durable before the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cachecd.policy import commands as do
from cachecd.policy.events import (
    DamageReported,
    ExcludeAsked,
    HoldersFound,
    Remade,
    ShardVerified,
)
from cachecd.policy.generation import Generation
from cachecd.policy.room import Room
from cachecd.policy.shard_table import LIVE, Status


class Repair:
    """`new_name` returns a name that is unique over restarts. Commands are appended to `out`."""

    def __init__(self, room: Room, new_name: Callable[[], str], out: list[do.Command]) -> None:
        self._room, self._new_name, self._out = room, new_name, out
        self._verifying: dict[do.VerifyShard, list[str]] = {}
        self._exclusions: dict[str, str] = {}  # the requests that wait for them
        self._waiting: list[tuple[set[do.MarkBad], Sequence[do.Command]]] = []

    # --- damage

    def reported(self, event: DamageReported) -> None:
        """A reader met a corrupt record: the shard is in no new set until it was read."""
        _, name, number, version = event
        gen, verify = self._room.by_id.get(name), do.VerifyShard(name, number, version)
        if gen is None or not _is_newest(gen, number, version):
            self._out += _replies([event.request])
        elif verify in self._verifying:
            self._verifying[verify].append(event.request)
        else:
            self._verifying[verify] = [event.request]
            gen.table.set_status(number, Status.QUARANTINED)
            self._out.append(verify)

    def verified(self, event: ShardVerified) -> None:
        name, number, version, sound, has_sidecar = event
        requests = self._verifying.pop(do.VerifyShard(name, number, version), [])
        gen = self._room.by_id.get(name)
        marks = []
        if gen is not None and _is_newest(gen, number, version):
            if not has_sidecar:
                gen.lose(number)
            elif sound and number not in gen.quarantine.work:
                gen.table.set_status(number, Status.LIVE)
            elif not sound and gen.quarantine.begin(number, excluded=False):
                marks.append(do.MarkBad(name, number, version, excluded=False))
        self._mark(marks, _replies(requests))

    def _mark(self, marks: Sequence[do.MarkBad], then: Sequence[do.Command]) -> None:
        """Has marks written; other commands follow once all of them are durable."""
        self._out += marks or then
        if marks:
            self._waiting.append((set(marks), then))

    def marked(self, mark: do.MarkBad) -> None:
        gen = self._room.by_id.get(mark.generation)
        if gen is not None and (work := gen.quarantine.work.get(mark.number)):
            work.marked = True
        for marks, then in self._waiting:
            marks.discard(mark)
            if not marks:
                self._out += then
        self._waiting = [each for each in self._waiting if each[0]]

    # --- exclusion

    def exclude(self, event: ExcludeAsked) -> None:
        exclusion = self._new_name()
        self._exclusions[exclusion] = event.request
        self._out.append(do.WriteExclusion(exclusion, event.dataset, event.keys))

    def holders(self, event: HoldersFound) -> None:
        """The shards that hold a record of an exclusion are in no new set; the reply follows the marks."""
        marks = []
        for name, number, version in event.holders:
            if (gen := self._room.by_id.get(name)) is None:
                continue
            mark = do.MarkBad(name, number, version, excluded=True)
            if _is_newest(gen, number, version):
                gen.table.set_status(number, Status.QUARANTINED)
                marks += [mark] if gen.quarantine.begin(number, excluded=True) else []
            elif gen.table.status(number) == Status.RETIRING:  # a kill may bring it back
                marks.append(mark)
        self._mark(marks, [do.FinishExclusion(event.exclusion)])

    def excluded(self, exclusion: str) -> None:
        """excluded.jsonl says that the shards of an exclusion are done."""
        self._out += _replies([self._exclusions.pop(exclusion, "")])

    # --- next versions

    def make(self, gen: Generation, fetches: bool, now: float) -> None:
        """Begins every next version for which there is room. `fetches`: something may be fetched."""
        for number, work in sorted(gen.quarantine.work.items()):
            if work.making or not work.marked or work.pause.stops(now):
                continue
            is_supplement = number % (gen.table.streams + 1) == gen.table.streams
            if not work.local and (is_supplement or not gen.is_configured):
                gen.supplements.try_again()
                gen.retire([number])
            elif work.local or fetches:
                facts = gen.table.facts(number)
                drop = not (work.local or gen.table.is_held(number, facts.version))
                size = max(0, gen.footprint - drop * facts.allocated)
                if self._room.fits(size):
                    work.making = do.RemakeShard(gen.id, number, facts.version, work.local, drop)
                    work.reserved = size
                    self._out.append(work.making)

    def remade(self, gen: Generation, event: Remade) -> None:
        work = gen.quarantine.work.pop(event.number)
        assert work.making is not None
        gen.table.replace(event.number, event.facts, work.making.drop)
        gen.unlink_unheld()
        if work.retire:
            gen.retire([event.number])

    def failed(
        self, gen: Generation, number: int, reason: str, now: float, refused: bool = False
    ) -> None:
        """A next version could not be made now. The disk `refused` it; else a shard that cannot be
        copied is damaged."""
        if work := gen.quarantine.work.get(number):
            work.making, work.reserved, work.local = None, 0, work.local and refused
            work.pause.begin(now, reason)
            if work.retire:
                gen.retire([number])


def _is_newest(gen: Generation, number: int, version: int) -> bool:
    """Whether this is the newest version of a live number."""
    return gen.table.status(number) in LIVE and gen.table.facts(number).version == version


def _replies(requests: Sequence[str]) -> list[do.Command]:
    return [do.ReplyDone(request) for request in requests if request]
