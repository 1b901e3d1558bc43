"""CACHECD_SECTION__KEY=value replaces a value of the file.

The variable's name is CACHECD_ and the key's path in capitals, joined by two underscores:
CACHECD_SAMPLER__WORKERS, CACHECD_DATASETS__TRAIN__GROW__FIRST. In a dataset's name, case does not matter,
and an underscore matches a dash, which a shell does not allow. Text is used unchanged; every other value
is read as YAML. An empty value resets an optional key to its default. A name without two underscores,
such as CACHECD_ENDPOINT, is not an override.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from pydantic.fields import FieldInfo

from cachecd.config.document import Document, Place, Problem, parse_value
from cachecd.config.keys import ROOT, Loc, Section, below
from cachecd.config.removed import removed

PREFIX = "CACHECD_"
SEPARATOR = "__"


def apply_overrides(document: Document, environ: Mapping[str, str]) -> list[Problem]:
    """Applies every override to the document. Returns a problem for each override with an unknown key or an
    invalid value."""
    problems = []
    for variable in sorted(environ):
        rest = variable.removeprefix(PREFIX)
        if rest == variable or SEPARATOR not in rest:
            continue
        place = Place(variable)
        try:
            loc, field = _find(ROOT, rest, document.values, ())
            document.put(loc, _value(environ[variable], field), place)
        except ValueError as error:
            problems.append(Problem(place, str(error)))
    return problems


def _find(section: Section, rest: str, values: Any, loc: Loc) -> tuple[Loc, FieldInfo | None]:
    """Returns the place that the rest of a variable's name denotes, and the field at that place."""
    names = [str(name) for name in values or ()] if section.named else [*section.model.model_fields]
    wanted = _folded(rest)
    found = [n for n in names if wanted == _folded(n) or wanted.startswith(_folded(n) + SEPARATOR)]
    if len(found) > 1:  # only names of datasets can be alike; the exact name decides
        found = [n for n in found if rest == n or rest.startswith(n + SEPARATOR)] or found
    if len(found) != 1:
        raise ValueError(_not_one(section, rest, names, found, loc))
    (name,) = found
    inner = below(section, name)
    if wanted == _folded(name):
        return (*loc, name), None if section.named else section.model.model_fields[name]
    rest = rest[len(name) + len(SEPARATOR) :]
    if inner is None:
        raise ValueError(
            f"{_dotted((*loc, name))} is a single value and has no key {rest.lower()!r}"
        )
    values = values.get(name) if isinstance(values, dict) else None
    return _find(inner, rest, values, (*loc, name))


def _not_one(section: Section, rest: str, names: list[str], found: list[str], loc: Loc) -> str:
    if found:
        return f"{' and '.join(map(repr, found))} both match this name; write the key exactly"
    if gone := removed([*loc, *rest.lower().split(SEPARATOR)]):
        return gone
    wanted = rest.split(SEPARATOR)[0].lower()
    close = get_close_matches(wanted, names, 1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"
    kind = "dataset" if section.named else "key"
    where = f" in {_dotted(loc)}" if loc and not section.named else ""
    return f"no {kind} {wanted!r}{where}{hint}"


def _value(text: str, field: FieldInfo | None) -> Any:
    if (
        not text
        and field is not None
        and not field.is_required()
        and NoneType in get_args(field.annotation)
    ):
        return None
    # Not parsed as YAML, because a regular expression or a path may contain any characters.
    return text if field is not None and _is_text(field.annotation) else parse_value(text)


def _is_text(annotation: Any) -> bool:
    """Whether a field's type, optional or annotated or not, is text, a choice of texts, or a path."""
    if isinstance(annotation, (str, type)):
        return isinstance(annotation, str) or issubclass(annotation, (str, Path))
    if get_origin(annotation) is tuple:
        return False
    inner = get_args(annotation)
    return any(map(_is_text, inner[:1] if get_origin(annotation) is Annotated else inner))


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")


def _dotted(loc: Loc) -> str:
    return ".".join(map(str, loc))
