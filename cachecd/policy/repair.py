"""Repair: replaces shards that are damaged or have an excluded record with a next version. Pure.

A damaged shard of the configured generation is fetched again from the source. A damaged shard of an older
generation is retired. A shard whose sidecar is lost is retired with the older shards of its stream; a
damaged supplement is retired alone. The mark of damage is durable before the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cachecd.model import shard_place
from cachecd.policy import commands as do
from cachecd.policy.events import (
    DamageReported,
    ExcludeAsked,
    HoldersFound,
    Remade,
    ShardLost,
    ShardVerified,
)
from cachecd.policy.generation import Generation, Repair
from cachecd.policy.room import Room
from cachecd.policy.shard_table import LIVE, Status

# Number of next versions of a generation that are made at a time. An exclusion may need 10,000.
_AT_ONCE = 16


class Repairs:
    """`new_name` returns a name that is unique across restarts. Commands are appended to `out`."""

    def __init__(self, room: Room, new_name: Callable[[], str], out: list[do.Command]) -> None:
        self._room, self._new_name, self._out = room, new_name, out
        self._verifying: dict[do.VerifyShard, list[str]] = {}
        self._exclusions: dict[str, str] = {}  # the requests that wait for them
        # Exclusions whose shards no new set names. The value: the second line is being written.
        self.handled: dict[str, bool] = {}
        self._waiting: list[tuple[set[do.MarkBad], Sequence[do.Command]]] = []

    # --- damage

    def reported(self, event: DamageReported) -> None:
        """Quarantines a shard in which a reader found a corrupt record, until it is verified."""
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
        name, number, version, sound = event
        requests = self._verifying.pop(do.VerifyShard(name, number, version), [])
        gen = self._room.by_id.get(name)
        marks: list[do.MarkBad] = []
        if gen is not None and _is_newest(gen, number, version):
            if not sound:
                marks = _quarantine(gen, number, version, excluded=False)
            elif number not in gen.repairs:
                gen.table.set_status(number, Status.LIVE)
        self._mark(marks, _replies(requests))

    def lost(self, event: ShardLost) -> None:
        """Retires a shard whose sidecar is damaged, with the older shards of its stream."""
        name, number, version = event
        self._out += _replies(self._verifying.pop(do.VerifyShard(name, number, version), []))
        if (gen := self._room.by_id.get(name)) is None:
            return
        gen.cursor_read(number, None)
        if gen.will_retire(number):
            return
        gen.supplements.try_again()
        if _is_newest(gen, number, version):
            gen.lose(number)

    def _mark(self, marks: Sequence[do.MarkBad], then: Sequence[do.Command]) -> None:
        """Writes marks. Other commands follow when all marks are durable."""
        self._out += marks
        if marks:
            self._waiting.append((set(marks), then))
        else:
            self._then(then)

    def marked(self, mark: do.MarkBad) -> None:
        gen = self._room.by_id.get(mark.generation)
        if gen is not None and (repair := gen.repairs.get(mark.number)):
            repair.marked = True
        for marks, then in self._waiting:
            marks.discard(mark)
            if not marks:
                self._then(then)
        self._waiting = [each for each in self._waiting if each[0]]

    # --- exclusion

    def exclude(self, event: ExcludeAsked) -> None:
        exclusion = self._new_name()
        self._exclusions[exclusion] = event.request
        self._out.append(do.WriteExclusion(exclusion, *event[1:]))

    def holders(self, event: HoldersFound) -> None:
        """Quarantines the shards that have an excluded record. They need no mark, because a start searches
        them again until the second line of the exclusion is written."""
        marks: list[do.MarkBad] = []
        for name, number, version in event.holders:
            if (gen := self._room.by_id.get(name)) is None:
                continue
            if _is_newest(gen, number, version):
                _quarantine(gen, number, version, excluded=True)
            elif gen.table.status(number) == Status.RETIRING:  # live again after a kill
                marks.append(do.MarkBad(name, number, version))
        reply = _replies([self._exclusions.pop(event.exclusion, "")])
        self._mark(marks, [*reply, do.FinishExclusion(event.exclusion)])

    def finish(self) -> None:
        """Ends exclusions if no shard with an excluded record waits for its next version."""
        repairs = (each for gen in self._room.generations for each in gen.repairs.values())
        if not all(self.handled.values()) and not any(repair.excluded for repair in repairs):
            self._out += [
                do.FinishExclusion(name) for name, ends in self.handled.items() if not ends
            ]
            self.handled = dict.fromkeys(self.handled, True)

    def finished(self, exclusion: str) -> None:
        """Forgets an exclusion whose second line is in excluded.jsonl."""
        self.handled.pop(exclusion, None)

    def _then(self, commands: Sequence[do.Command]) -> None:
        for command in commands:
            if isinstance(command, do.FinishExclusion):
                self.handled[command.exclusion] = False
            else:
                self._out.append(command)

    # --- next versions

    def make(self, gen: Generation, fetches: bool, now: float) -> None:
        """Starts to make next versions while there is room, at most _AT_ONCE. The oldest reports come
        first. `fetches`: fetching is allowed."""
        hopeless, refused = [], 0
        for number, repair in gen.repairs.items():
            if len(gen.remaking) + refused >= _AT_ONCE:
                break
            if number in gen.remaking or not repair.marked or repair.pause.stops(now):
                continue
            is_supplement = shard_place(gen.table.streams, number)[0] == gen.table.streams
            if repair.damaged and (is_supplement or not gen.is_configured):
                hopeless.append(number)
            elif not repair.damaged or fetches:
                if (room := self._room.next_version(gen, number)) is None:
                    refused += 1
                    continue
                size, drop = room
                version = gen.table.facts(number).version
                make = do.RemakeShard(gen.id, number, version, not repair.damaged, drop)
                gen.remaking[number] = make, size
                self._out.append(make)
        if hopeless:
            gen.supplements.try_again()
            gen.retire(hopeless, "it is damaged and cannot be replaced")

    def remade(self, gen: Generation, event: Remade) -> None:
        repair, (make, _) = gen.repairs.pop(event.number), gen.remaking.pop(event.number)
        gen.table.replace(event.number, event.facts, make.drop)
        gen.unlink_unleased()
        if repair.retire:
            gen.retire([event.number], repair.retire)

    def failed(
        self, gen: Generation, number: int, reason: str, now: float, refused: bool = False
    ) -> None:
        """Begins a pause, because a next version could not be made. `refused`: because the disk refused.
        Otherwise a shard that cannot be copied is damaged."""
        gen.remaking.pop(number, None)
        if repair := gen.repairs.get(number):
            repair.damaged = repair.damaged or not refused
            repair.pause.begin(now, reason)
            if repair.retire:
                gen.retire([number], repair.retire)


def _is_newest(gen: Generation, number: int, version: int) -> bool:
    """Whether the number is live, and this is its newest version."""
    return gen.table.status(number) in LIVE and gen.table.facts(number).version == version


def _quarantine(gen: Generation, number: int, version: int, excluded: bool) -> list[do.MarkBad]:
    """Quarantines a shard. `excluded`: it has an excluded record; otherwise it is damaged. Returns the
    mark that a damaged shard needs first."""
    gen.table.set_status(number, Status.QUARANTINED)
    repair = gen.repairs.setdefault(number, Repair())
    repair.excluded, repair.damaged = repair.excluded or excluded, repair.damaged or not excluded
    repair.marked = repair.marked or excluded
    return [] if repair.marked else [do.MarkBad(gen.id, number, version)]


def _replies(requests: Sequence[str]) -> list[do.Command]:
    return [do.ReplyDone(request) for request in requests if request]
