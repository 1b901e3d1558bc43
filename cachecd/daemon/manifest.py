"""The text of a lease's manifest: JSON that a trainer reads. Pure."""

from __future__ import annotations

import json
from typing import Any

from cachecd.policy.values import Lease

VERSION = 2


def encode_manifest(
    lease: Lease, schema: dict[str, Any] | None, window: int | None = None
) -> bytes:
    """Returns the manifest. The shards of `intervals`, [stream, first j, last j], have the numbers
    j (streams + 1) + stream; `versions` names the numbers whose version is not 0. `window`: the shuffle
    window in bytes; None: the whole set."""
    fields = lease._asdict()
    fields["lease"] = fields.pop("id")
    body = {"version": VERSION, **fields, "window": window, "schema": schema or {}}
    return json.dumps(body, separators=(",", ":")).encode("ascii")


def decode_manifest(text: bytes) -> Lease:
    """The lease of a manifest. ValueError for any other text."""
    try:
        body = json.loads(text)
        if body["version"] != VERSION:
            raise ValueError(f"manifest version {body['version']}, expected {VERSION}")
        fields = {name: body[name] for name in Lease._fields if name != "id"}
        fields["intervals"] = tuple(_ints(each, 3) for each in fields["intervals"])
        fields["versions"] = tuple(_ints(each, 2) for each in fields["versions"])
        lease = Lease(body["lease"], **fields)
        if not all(type(n) is int and n >= 0 for n in (lease.streams, lease.epoch, lease.ranks)):
            raise ValueError(f"found {lease}, expected counts")
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no manifest: found {text[:80]!r}") from error
    return lease


def _ints(values: Any, count: int) -> Any:
    if len(values) != count or not all(type(value) is int and value >= 0 for value in values):
        raise ValueError(f"found {values!r}, expected {count} numbers")
    return tuple(values)
