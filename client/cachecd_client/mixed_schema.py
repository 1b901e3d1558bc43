"""Which features the records of several datasets have in common. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from cachecd_client.errors import SchemaError
from cachecd_client.schema import Feature, Schema, dims

_REMEDY = (
    "ask for features=[...] without it, or give it one form by the datasets' `transform` or `label`"
)


def mixed(
    schemas: Mapping[str, Schema],
    features: Iterable[str] | None = None,
    default: Collection[str] = (),
) -> Schema:
    """The schema of records of all these datasets: of the features that all have, or those asked for.

    `default`: features that some may lack. SchemaError for one that two datasets have in different
    forms, or that one lacks where it is asked for.
    """
    if features is None:
        names: Iterable[str] = sorted(set().union(*(schema.names for schema in schemas.values())))
        names = [
            name
            for name in names
            if name in default or all(name in schema.names for schema in schemas.values())
        ]
    elif isinstance(features, str):
        raise SchemaError(f"features={features!r}, expected a list of names: [{features!r}]")
    else:
        names = features
    return Schema(tuple(_one(name, schemas, name in default) for name in names))


def _one(name: str, schemas: Mapping[str, Schema], may_lack: bool) -> Feature:
    """The feature as all have it. What they call its classes is left out if one of them does not say."""
    found = {of: schema[name] for of, schema in schemas.items() if name in schema.names}
    lacking = [of for of in schemas if of not in found]
    if not found:
        raise SchemaError(f"no feature {name!r} in any of the datasets {', '.join(schemas)}")
    (first, feature), *others = found.items()
    for other, its in others:
        if _form(its) != _form(feature):
            raise SchemaError(
                f"feature {name!r} is {_described(feature)} in {first!r} and {_described(its)} in "
                f"{other!r}: {_REMEDY}"
            )
        if its.classes and not feature.classes:  # the first one that says
            first, feature = other, its
        elif its.classes and its.classes != feature.classes:
            place = next(
                i
                for i in range(max(len(its.classes), len(feature.classes)))
                if its.classes[i : i + 1] != feature.classes[i : i + 1]
            )
            raise SchemaError(
                f"feature {name!r} has other classes in {first!r} than in {other!r}: {place} is "
                f"{_class(feature, place)} and {_class(its, place)}: {_REMEDY}"
            )
    if lacking and not may_lack and feature.shape is not None:
        raise SchemaError(
            f"feature {name!r} of {first!r} is not in {', '.join(map(repr, lacking))}: ask for "
            f"features=[...] without it, or say default={{{name!r}: ...}}"
        )
    if lacking or not all(of.classes for of in found.values()):
        return replace(feature, classes=())
    return feature


def _form(feature: Feature) -> Feature:
    return replace(feature, classes=())


def _described(feature: Feature) -> str:
    stored = " as raw bytes" if feature.raw else f" as a list of {feature.kind}"
    return f"{feature.dtype}{dims(feature.shape)}{stored}"


def _class(feature: Feature, place: int) -> str:
    return repr(feature.classes[place]) if place < len(feature.classes) else "none"
