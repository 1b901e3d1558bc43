"""`python -m tests.docs.configuration` writes the keys of docs/configuration.md from the models."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from cachecd.config.keys import ROOT, Section, below
from cachecd.quantities import format_duration, format_size

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
BEGIN, END = "<!-- keys: begin -->\n", "<!-- keys: end -->\n"

#: What a key's type is called, by the validator that its annotation names; the first that fits.
TYPES = {
    "TransformStep": "list of steps, or one `module:function`",
    "parse_size_or_percent": "size or percentage",
    "parse_size": "size",
    "parse_rate": "rate",
    "parse_duration": "duration",
    "_directory": "list of directories",
    "_absolute": "absolute path",
    "_table": "URL of a table",
    "_store_address": "http(s) URL",
    "_socket_address": "address",
    "_http_address": "IP address and port",
    "_dtype": "dtype",
    "_shape": "list of whole numbers, or [null]",
    "_class_name": "list of texts or whole numbers",
    "_class": "`module:Class`",
    "_columns": "list of texts",
    "_listed": "pattern, or list of patterns",
    "_joined": "section of patterns",
    "_plain": "section",
    "tuple[typing.Annotated[int": "list of whole numbers",
    "bool": "true or false",
    "float": "number",
    "int": "whole number",
    "str": "text",
}
#: Where a key is explained at length.
MORE = {
    "source.format": "inputs.md#formats",
    "source.match": "sources.md#pairs-and-patterns",
    "source.join": "sources.md#pairs-and-patterns",
    "source.manifest": "sources.md#manifests",
    "source.label.manifest": "sources.md#manifests",
    "source.features": "inputs.md#features",
    "source.reader": "sources.md#your-own-reader",
    "transform": "inputs.md#ready-made-steps",
    "grow.first": "sizing.md",
    "split.eval": "evaluation.md",
    "partition.index": "nodes.md",
    "egress_limit": "egress.md",
}


def sections(section: Section = ROOT, path: str = "") -> Iterator[tuple[str, str, Section]]:
    """The path, the meaning and the keys of each section, in the models' order."""
    for name, field in section.model.model_fields.items():
        inner = below(section, name)
        if inner is not None and not inner.listed:
            at = f"{path}{name}" + (".NAME" if inner.named else "")
            yield at, field.description or "", Section(inner.model)
            yield from sections(Section(inner.model), at + ".")


def keys() -> str:
    """The generated part of the page: a heading for each section, a line for each key."""
    single = {n: f for n, f in ROOT.model.model_fields.items() if below(ROOT, n) is None}
    lines = [_line(name, field, name) for name, field in single.items()]
    for path, meaning, section in sections():
        level = "##" if path.count(".") < 2 else "###"
        lines.append(f"\n{level} {path}\n\n{_wrapped(_escaped(meaning))}\n")
        for name, field in section.model.model_fields.items():
            inner = below(section, name)
            if inner is None or inner.listed:
                lines.append(_line(name, field, f"{path}.{name}"))
    return "\n".join(lines) + "\n"


def page() -> str:
    text = PAGE.read_text()
    return f"{text.partition(BEGIN)[0]}{BEGIN}\n{keys()}\n{END}{text.partition(END)[2]}"


def _line(name: str, field: FieldInfo, path: str) -> str:
    default = "required" if field.is_required() else _default(field)
    facts = ", ".join(filter(None, (_type(field), default)))
    more = next((to for key, to in MORE.items() if path.endswith(f".{key}")), "")
    link = f" [More]({more})." if more else ""
    return _wrapped(f"- **`{name}`** ({facts}): {_escaped(field.description or '')}{link}", "  ")


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, 108, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _type(field: FieldInfo) -> str:
    known = f"{field.annotation} {field.metadata}"
    if values := re.findall(r"'([^']+)'", known) if "Literal" in known else []:
        return ", ".join(f"`{value}`" for value in values)
    if "Literal[1]" in known:
        return "1"
    word = next(word for name, word in TYPES.items() if name in known)
    bounds = {type(m).__name__: m for m in field.metadata}
    if word in ("whole number", "number"):
        words = {"Ge": "at least", "Gt": "more than", "Le": "at most", "Lt": "less than"}
        ends = [
            (words[kind], _number(getattr(bounds[kind], kind.lower())))
            for kind in words
            if kind in bounds
        ]
        limits = [f"{text} {number}" for text, number in ends]
        if [text for text, _ in ends] == ["at least", "at most"]:
            limits = [f"from {ends[0][1]} to {ends[1][1]}"]
        word = " ".join([word, " and ".join(limits)])
    return word.strip()


def _number(value: float) -> str:
    exact = {2**64 - 1: "2⁶⁴-1", 2**40: "2⁴⁰"}
    return exact.get(int(value)) or f"{value:g}"


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if value in (None, (), "", {}) or field.default_factory is not None:
        return ""
    if isinstance(value, bool):
        return f"default `{str(value).lower()}`"
    known = str(field.metadata)
    if "parse_size" in known:
        value = format_size(value)
    elif "parse_duration" in known:
        value = format_duration(value)
    return f"default `{value}`"


def _escaped(text: str) -> str:
    """As Markdown that shows it; what is in backticks stays."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([*])", r"\\\1", p) for p in parts)


if __name__ == "__main__":
    PAGE.write_text(page())
