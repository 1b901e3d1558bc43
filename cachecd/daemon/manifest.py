"""The text of a lease's manifest: JSON that a trainer reads. Pure."""

from __future__ import annotations

import json
from typing import Any

from cachecd.disk.durable import check_of, is_sound
from cachecd.policy.values import Lease
from cachecd_client import protocol
from cachecd_client.errors import ProtocolVersionError


def encode_manifest(
    lease: Lease, schema: dict[str, Any] | None, window: int | None = None
) -> bytes:
    """Returns the manifest. The shards of `intervals`, [stream, first j, last j], have the numbers
    j (streams + 1) + stream; `versions` names the numbers whose version is not 0. `window`: the shuffle
    window in bytes; None: the whole set."""
    fields = lease._asdict()
    fields["lease"] = fields.pop("id")
    body = {
        "version": protocol.MANIFEST_VERSION,
        **fields,
        "window": window,
        "schema": schema or {},
    }
    body["check"] = check_of(body)
    return json.dumps(body, separators=(",", ":")).encode("ascii")


def decode_manifest(text: bytes) -> Lease:
    """The lease of a manifest. ValueError for any other text, also of another version."""
    try:
        manifest = protocol.decode_manifest(text)
        if not is_sound(json.loads(text)):
            raise ValueError("its check is wrong")
    except ProtocolVersionError as error:
        raise ValueError(str(error)) from error
    fields = {name: getattr(manifest, name) for name in Lease._fields if name != "id"}
    for name in ("intervals", "versions"):
        fields[name] = tuple(map(tuple, fields[name]))
    return Lease(manifest.lease, **fields)
