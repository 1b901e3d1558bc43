"""Removes keys of objects from the status document, because a key may be a person's name. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_QUOTED = re.compile(r"""b?'(?:[^'\\]|\\.)*'|b?"(?:[^"\\]|\\.)*"|\w+://\S+""")
_EXAMPLES = re.compile(r" \([^)]*\)?")
_SENTENCES = ("stopped", "waits_for", "rotation_waits", "held_back")


def without_keys(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of the status document without examples of keys. Quoted texts and URLs in reasons
    become an ellipsis. Names of datasets and jobs, and the URLs of sources, stay."""
    datasets = {name: _dataset(values) for name, values in document["datasets"].items()}
    sampler = {**document["sampler"], "last_end": _masked(document["sampler"]["last_end"])}
    return {**document, "datasets": datasets, "sampler": sampler}


def _dataset(values: Mapping[str, Any]) -> dict[str, Any]:
    listing, skipped = values["listing"], values["skipped"]
    reasons: dict[str, dict[str, Any]] = {}
    for reason, skips in skipped["reasons"].items():
        known = reasons.setdefault(_masked(reason), {"units": 0, "records": 0, "examples": []})
        known["units"] += skips["units"]
        known["records"] += skips["records"]
    return {
        **values,
        **{key: _masked(values[key]) for key in _SENTENCES},
        "skipped": {**skipped, "reasons": reasons},
        "listing": {
            **listing,
            "failed": _masked(listing["failed"]),
            "warning": _masked(listing["warning"]),
            # "12 hidden names (EXAMPLE, EXAMPLE, ...)"
            "left_out": _EXAMPLES.sub("", listing["left_out"]),
        },
    }


def _masked(text: str) -> str:
    return _QUOTED.sub("…", text)
