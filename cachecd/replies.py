"""Messages of the protocol as the policy's events, and its replies as messages."""

from __future__ import annotations

from cachecd.events import AcquireAsked, ReplyDone, ReplyGranted, ReplyRefused, ReplyWaiting
from cachecd.layout import Layout
from cachecd.model import Resume
from cachecd_client import protocol


def asked_of(request: protocol.Acquire) -> AcquireAsked:
    """What a rank asks for."""
    resume = None
    if request.fingerprint or request.shards or request.cursor:
        resume = Resume(
            request.generation,
            tuple((pair[0], pair[-1]) for pair in request.shards if pair),
            request.fingerprint,
            request.walk,
            request.cursor,
        )
    return AcquireAsked(
        request.id,
        request.dataset,
        request.job,
        request.epoch,
        request.local_rank,
        request.local_world_size,
        resume,
    )


def reply_of(
    command: ReplyGranted | ReplyDone | ReplyWaiting | ReplyRefused, layout: Layout
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
        case ReplyRefused(request, code, message):
            return protocol.Refused(request, code, message)
