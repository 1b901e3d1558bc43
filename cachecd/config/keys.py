"""Finds the section for each place of the configuration, from the models."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from cachecd.config.models import Config
from cachecd.config.section import SectionModel

Loc = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """The allowed content of a place: the keys of `model`, a mapping from names (of datasets) to the
    model, or a list of the model."""

    model: type[BaseModel]
    named: bool = False
    listed: bool = False


ROOT = Section(Config)


def below(section: Section, name: str) -> Section | None:
    """Returns the section at `name` of `section`, or None for a single value or an unknown key."""
    if section.named or section.listed:
        return Section(section.model)
    field = section.model.model_fields.get(name)
    return None if field is None else _section(field.annotation)


def section_at(loc: Sequence[str | int]) -> Section | None:
    """Returns the section at a place in the document, or None if the place has a single value or
    nothing."""
    found: Section | None = ROOT
    for name in loc:
        if found is not None:
            found = below(found, str(name))
    return found


def _section(annotation: Any) -> Section | None:
    """Returns the section of a field's type, which may be inside Optional or dict."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return next((s for a in get_args(annotation) if (s := _section(a)) is not None), None)
    if origin is Annotated:
        return _section(get_args(annotation)[0])
    if origin is dict:
        inner = _section(get_args(annotation)[1])
        return None if inner is None else Section(inner.model, named=True)
    if origin is tuple:
        inner = _section(get_args(annotation)[0])
        sections = inner is not None and issubclass(inner.model, SectionModel)
        return Section(inner.model, listed=True) if inner and sections else None
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return Section(annotation)
    return None
