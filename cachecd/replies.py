"""Messages of the protocol as the policy's events, and its replies as messages."""

from __future__ import annotations

from cachecd.events import AcquireAsked, ReplyDone, ReplyGranted, ReplyRefused, ReplyWaiting
from cachecd.layout import Layout
from cachecd.wanted import ReplyMissing, Wanted
from cachecd_client import protocol


def asked_of(request: protocol.Acquire) -> AcquireAsked:
    """What a rank asks for; of a client of 1.1, no set in particular."""
    wanted = None
    if request.fingerprint or request.cursor:
        wanted = Wanted(
            request.generation,
            tuple((pair[0], pair[-1]) for pair in request.shards if pair),
            request.fingerprint,
            request.walk,
            tuple(request.cursor),
        )
    return AcquireAsked(
        request.id,
        request.dataset,
        request.job,
        request.epoch,
        request.local_rank,
        request.local_world_size,
        wanted,
    )


def reply_of(
    command: ReplyGranted | ReplyDone | ReplyWaiting | ReplyMissing | ReplyRefused, layout: Layout
) -> protocol.Reply:
    """What the rank is sent."""
    match command:
        case ReplyGranted(request, lease, coverage):
            manifest = layout.manifest(lease).relative_to(layout.root)
            return protocol.Granted(request, lease, str(layout.root), str(manifest), coverage)
        case ReplyDone(request):
            return protocol.Done(request)
        case ReplyWaiting(request, have, want, rate, reason):
            return protocol.Waiting(request, have, want, rate, reason)
        case ReplyMissing(request, shards, reason):
            return protocol.Missing(request, [[first, last] for first, last in shards], reason)
        case ReplyRefused(request, code, message):
            return protocol.Refused(request, code, message)
