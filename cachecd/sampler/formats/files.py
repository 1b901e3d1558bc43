"""Format `files`: each object is a record. With `join`, a record has one object of each pattern.

A record has `payload` (the object's bytes), or with `join` one feature for each object. It has `key`, the
unit's key. If a label is configured, it has `label`, the number of the class (int64).
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from itertools import accumulate, pairwise
from typing import Any

from cachecd.config import SourceConfig
from cachecd.config.keypattern import alike, found_in, other_forms
from cachecd.errors import SourceUnreachableError
from cachecd.model import Unit
from cachecd.sampler.formats.content import Content
from cachecd.sampler.formats.records import Format
from cachecd_client.schema import Feature, Schema


class Files(Format):
    """Reads objects as records. `classes`: the class names in the order of their numbers."""

    single = True

    def __init__(self, source: SourceConfig, classes: tuple[str, ...]) -> None:
        self._source = source
        self._numbers = {name: number for number, name in enumerate(classes)}
        names = ("key", *(source.join or ("payload",)))
        features = [Feature(name, "bytes", "bytes", ()) for name in names]
        if source.label is not None:
            features.append(Feature("label", "int64", "int64", (), classes=classes))
        self.schema = Schema(tuple(sorted(features, key=lambda f: f.name)))

    def refusal(self, unit: Unit) -> str | None:
        label = self._source.label
        if label is None:
            return None
        name = label_of(self._source, unit.key, unit.label)
        if name is None:
            if label.pattern is None:
                return f"{label.manifest or self._source.manifest} has no label for it"
            return f"label pattern {label.pattern!r} finds no class in the key"
        if name not in self._numbers:
            if not self._source.awaits_classes:
                forms = other_forms(name).intersection(self._numbers)
                hint = "".join(f" ({alike(name, other)})" for other in forms)
                return (
                    f"class {name!r} is not in label.classes{hint}: add it to the list (which makes a new "
                    "generation), or move its objects to another prefix"
                )
            # Only a complete listing shows all classes, so this is no fault of the unit.
            raise SourceUnreachableError(
                f"class {name!r} of {unit.key!r} has no number yet: the source's listing is not "
                "complete; label.classes in the configuration would give it one"
            )
        return None

    async def read(
        self, unit: Unit, content: Content
    ) -> AsyncGenerator[tuple[int, dict[str, Any]], None]:
        record: dict[str, Any] = {"key": os.fsencode(unit.key)}
        if self._source.label is not None:
            record["label"] = self._numbers[label_of(self._source, unit.key, unit.label) or ""]
        body = b"".join([memoryview(chunk) async for chunk in content.chunks])
        if self._source.join is None:
            record["payload"] = body
        else:
            ends = accumulate(part.size for part in content.objects)
            for name, (begin, end) in zip(self._source.join, pairwise((0, *ends)), strict=True):
                record[name] = body[begin:end]
        yield 0, record


def label_of(source: SourceConfig, key: str, listed: str = "") -> str | None:
    """Returns the class of a unit; None if it has none.

    The class is what the label's pattern finds in the key: its group "label", or its only group. Without a
    pattern, the class is the label that a table `listed` for the unit.
    """
    if source.label is None:
        return None
    if source.label.pattern is None:
        return listed or None
    return found_in(key, source.label.pattern, "label") or None  # "" is not a class
