"""Removes keys of objects from the status document, because a key may be a person's name. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# An apostrophe within a word opens no quotation.
_OPENS = re.compile(r"""(?<!\w)b?'|b?\"""")
_CLOSES_LAST = re.compile(r"""['"](?!\w)(?=[^'"]*\Z)""")
_URL = re.compile(r"\w+://\S+")
_SENTENCES = ("stopped", "waits_for", "rotation_waits", "held_back")


def without_keys(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of the status document without examples of keys. Quoted texts and URLs in reasons
    become an ellipsis. Names of datasets and jobs, and the URLs of sources, stay."""
    complaints = {subject: _masked(why) for subject, why in document["complaints"].items()}
    datasets = {name: _dataset(values) for name, values in document["datasets"].items()}
    sampler = {**document["sampler"], "last_end": _masked(document["sampler"]["last_end"])}
    return {**document, "datasets": datasets, "sampler": sampler, "complaints": complaints}


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
            "left_out": _without_examples(listing["left_out"]),
        },
    }


def _without_examples(left_out: str) -> str:
    """Cuts "12 hidden names (EXAMPLE, EXAMPLE, ...)" where the first example begins, because a key may
    have any character."""
    count, begins, _ = left_out.partition(" (")
    return f"{count} (…)" if begins else count


def _masked(text: str) -> str:
    """Replaces everything from the first quotation mark to the last one, because a key may have quotation
    marks. If the last mark closes nothing, the text was cut, and all of the rest is replaced."""
    if opening := _OPENS.search(text):
        closing = _CLOSES_LAST.search(text, opening.end())
        rest = text[closing.end() :] if closing else ""
        text = f"{text[: opening.start()]}…{rest}"
    return _URL.sub("…", text)
