"""The policy's replies as messages of the protocol."""

from __future__ import annotations

from cachecd.events import ReplyDone, ReplyGranted, ReplyRefused, ReplyWaiting
from cachecd.layout import Layout
from cachecd_client import protocol


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
