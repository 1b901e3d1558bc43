"""`cachecd why SUBJECT`: what happened to a shard or a lease, and by which rule."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated

import typer

from cachecd.cli.options import AsJson, Endpoint
from cachecd.quantities import printable


def command(
    subject: Annotated[
        str,
        typer.Argument(
            help="A shard, as DATASET/NUMBER or DATASET/GENERATION/NUMBER, or the name of a lease."
        ),
    ],
    endpoint: Endpoint = None,
    as_json: AsJson = False,
) -> None:
    """Show the history of a shard or a lease since the daemon started. Needs a running daemon.

    The daemon remembers its last 10,000 events. The name of a shard's file has the shard's number. The
    output of --json can go into a bug report: it omits the reasons, which may quote keys of objects.
    """
    from cachecd_client import connect

    with connect(endpoint, timeout=5.0) as cache:
        reply = cache.why(subject)
    if as_json:
        story = [{"at": each["at"], "what": each["what"]} for each in reply["story"]]
        print(json.dumps({"subject": subject, **reply, "story": story}, indent=2))
        return
    print(printable(f"{subject}: {reply['now']}"))
    for each in reply["story"]:
        reason = f" ({each['reason']})" if each["reason"] else ""
        print(printable(f"  {_time(each['at'])}  {each['what']}{reason}"))
    print(f"  Events before {_time(reply['since'])} are unknown.")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ", "milliseconds")
