"""A YAML file as plain values that remember their places.

    text -> nodes (ruamel.yaml) -> values with every ${VAR} expanded, and the Place of each

Finds all mistakes that do not depend on a key's meaning: an unreadable file, bad syntax, a key given twice,
an unset variable.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from cachecd.config.keys import Loc
from cachecd.config.values import WrittenInt
from cachecd.errors import ConfigError
from cachecd.quantities import shown

MAX_BYTES: Final = 1 << 20
MAX_VALUES: Final = 50_000  # the 21,843 classes of the whole ImageNet, for two datasets

_TAG = "tag:yaml.org,2002:"
_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<inside>[^}]*)(?P<end>\}?))")
_INSIDE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<otherwise>:-.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """The place of a value: line and column from 1, or an environment `variable`. Variables sort last."""

    variable: str = ""
    line: int = 1
    column: int = 1

    def of(self, file: Path) -> str:
        return self.variable or f"{file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One mistake. Problems sort by place."""

    place: Place
    message: str


@dataclass(slots=True)
class Document:
    """The values of one file.

    `places` maps the path of every value to the value's place, `key_places` to the key's place.
    """

    values: Any = None
    places: dict[Loc, Place] = field(default_factory=dict)
    key_places: dict[Loc, Place] = field(default_factory=dict)

    def place(self, loc: Loc, *, key: bool = False) -> Place:
        """Returns the place of the value at `loc`. If it is not in the file, returns the place of the
        section around it."""
        if key and loc in self.key_places:
            return self.key_places[loc]
        while loc and loc not in self.places:
            loc = loc[:-1]
            if loc in self.key_places:  # something is missing in this section
                return self.key_places[loc]
        return self.places.get(loc, Place())

    def put(self, loc: Loc, value: Any, place: Place) -> None:
        """Sets the value at `loc`, and makes missing sections above it. Keeps a section that is not a
        mapping, because validation reports it."""
        section = self.values
        for name in loc[:-1]:
            if section.get(name) is None:
                section[name] = {}
            section = section[name]
            if not isinstance(section, dict):
                return
        section[loc[-1]] = value
        for places in (self.places, self.key_places):
            for inside in [p for p in places if p[: len(loc)] == loc]:
                del places[inside]
            places[loc] = place


def read_document(path: Path, environ: Mapping[str, str]) -> Document:
    """Returns the file's values. ConfigError names every problem, each with its line and column."""
    text = _read(path)
    try:
        node = _compose(text)
        loader = _Loader(environ)
        values = None if node is None else loader.value(node, ())
        problems = loader.problems
        if not isinstance(values, dict) and not problems:
            found = "nothing" if values is None else "no mapping of keys"
            message = f"found {found}, expected the keys `version`, `cache` and `datasets`"
            problems = [Problem(Place(), message)]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(line=mark.line + 1, column=mark.column + 1) if mark else Place()
        problems = [Problem(place, _sentence(error, text))]
    except ReaderError as error:
        place = _place_in(text, error.position)
        problems = [Problem(place, f"found the character {chr(error.character)!a}, expected text")]
    except YAMLError as error:
        problems = [Problem(Place(), " ".join(str(error).split()))]
    except RecursionError:
        problems = [Problem(Place(), "found endless or very deep nesting, expected a few levels")]
    raise_all(path, problems)
    return Document(values, loader.places, loader.key_places)


def parse_value(text: str) -> Any:
    """Returns one value written in YAML, as in an environment variable. ValueError if the text is not a
    value."""
    try:
        node = _compose(text)
        loader = _Loader(None)
        value = None if node is None else loader.value(node, ())
    except MarkedYAMLError as error:
        raise ValueError(f"found {shown(text)}: {_sentence(error, text)}") from None
    except (YAMLError, RecursionError):
        raise ValueError(f"found {shown(text)}, expected a value in YAML") from None
    if loader.problems:
        raise ValueError(loader.problems[0].message)
    return value


def raise_all(
    file: Path, problems: Sequence[Problem], kind: type[ConfigError] = ConfigError
) -> None:
    """Raises all problems, if any, as one error, with one line for each problem, ordered by place."""
    if problems:
        lines = [f"{p.place.of(file)}: {p.message}" for p in sorted(set(problems))]
        raise kind("\n".join(" ".join(line.split("\n")) for line in lines))


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"{path}: the file has more than {MAX_BYTES} bytes, so it is not a configuration"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = _place_in(data[: error.start].decode("utf-8", "replace"), error.start)
        message = f"found the byte 0x{data[error.start]:02x}, expected UTF-8"
        raise ConfigError(f"{place.of(path)}: {message}") from None


def _compose(text: str) -> Node | None:
    with warnings.catch_warnings():  # a reused anchor is valid YAML; the latest one counts
        warnings.simplefilter("ignore", ReusedAnchorWarning)
        node: Node | None = YAML(typ="safe", pure=True).compose(text)
    return node


class _Loader:
    """Turns nodes into values. Without `environ`, expands no variables."""

    def __init__(self, environ: Mapping[str, str] | None) -> None:
        self.environ = environ
        self.yaml = YAML(typ="safe", pure=True)
        self.places: dict[Loc, Place] = {}
        self.key_places: dict[Loc, Place] = {}
        self.problems: list[Problem] = []

    def value(self, node: Node, loc: Loc) -> Any:
        if len(self.places) == MAX_VALUES:
            raise RecursionError("aliases of aliases multiply")
        # An empty value or a block of keys begins at the next token of the file. Its key is a better place.
        empty = isinstance(node, ScalarNode) and not node.value and not node.style
        block = isinstance(node, MappingNode) and not node.flow_style
        place = self.key_places.get(loc) if empty or block else None
        self.places[loc] = place or _place(node)
        if not isinstance(node, ScalarNode) and node.tag not in (_TAG + "map", _TAG + "seq"):
            self._problem(node, loc, f"found the tag {node.tag}: remove it")
        if isinstance(node, MappingNode):
            return {name: self.value(inner, (*loc, name)) for name, inner in self._items(node, loc)}
        if isinstance(node, SequenceNode):
            return [self.value(inner, (*loc, i)) for i, inner in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        return self._scalar(node, loc)

    def _items(self, node: MappingNode, loc: Loc) -> Iterator[tuple[str, Node]]:
        """Yields each key as it is written, because a dataset may be called 2024."""
        for key, inner in node.value:
            name = str(key.value)
            if not isinstance(key, ScalarNode) or key.tag == _TAG + "null":
                self._problem(key, loc, "found a key that is not a name, expected a name")
            elif key.tag == _TAG + "merge":
                self._problem(key, loc, "<< is not supported: write the merged keys here")
            elif (first := self.key_places.get((*loc, name))) is not None:
                self._problem(
                    key, (*loc, name), f"the key is on line {first.line} already: remove one"
                )
            else:
                self.key_places[*loc, name] = _place(key)
                yield name, inner

    def _scalar(self, node: ScalarNode, loc: Loc) -> Any:
        text, tag = node.value, str(node.tag)
        if self.environ is not None and "$" in text:
            text = self._expand(node, loc)
            if not node.style and text != node.value:  # a plain ${WORKERS} is the number it holds
                tag = str(self.yaml.resolver.resolve(ScalarNode, text, (True, False)))
        match tag.removeprefix(_TAG):
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int" | "float" as kind:
                plain = ScalarNode(tag, text, node.start_mark, node.end_mark)
                constructor = self.yaml.constructor
                try:
                    if kind == "int":
                        number: int = constructor.construct_yaml_int(plain)
                        return number if str(number) == text else WrittenInt(number, text)
                    return constructor.construct_yaml_float(plain)
                except ValueError:
                    self._problem(node, loc, f"found {shown(text)}, expected a number")
                    return None
            case "str" | "timestamp":
                return text
        self._problem(node, loc, f"found the tag {tag}: remove it")
        return None

    def _expand(self, node: ScalarNode, loc: Loc) -> str:
        assert self.environ is not None
        environ = self.environ

        def replace(match: re.Match[str]) -> str:
            if match["dollar"]:
                return "$"
            inside = _INSIDE.fullmatch(match["inside"]) if match["end"] else None
            if inside is None:
                message = f"found {match[0]!r}, expected ${{NAME}}, ${{NAME:-default}}, or $$ for a dollar"
                self._problem(node, loc, message)
                return ""
            value = environ.get(inside["name"])
            if inside["otherwise"] is not None:
                return value or inside["otherwise"][2:]
            if value is None:
                name = inside["name"]
                remedy = f"set it or write ${{{name}:-default}}"
                self._problem(node, loc, f"the environment variable {name} is not set; {remedy}")
                return ""
            return value

        return _VARIABLE.sub(replace, str(node.value))

    def _problem(self, node: Node, loc: Loc, message: str) -> None:
        key = ".".join(map(str, loc))
        self.problems.append(Problem(_place(node), f"{key}: {message}" if key else message))


def _place(node: Node) -> Place:
    return Place(line=node.start_mark.line + 1, column=node.start_mark.column + 1)


def _place_in(text: str, position: int) -> Place:
    before = text[:position]
    return Place(line=before.count("\n") + 1, column=len(before) - before.rfind("\n"))


def _sentence(error: MarkedYAMLError, text: str) -> str:
    """Returns the parser's message as one line. Adds the remedy if it is known."""
    mark = error.problem_mark
    if mark and text[mark.index : mark.index + 1] == "\t":
        return "found a tab: replace it with spaces, because YAML is indented with spaces only"
    if mark and text[: mark.index].endswith("$"):
        return 'found ${...} inside braces or brackets: put it in quotes, as "${...}"'
    said = [" ".join(str(part).split()) for part in (error.context, error.problem) if part]
    return f"not YAML: {': '.join(said)}"
